/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fuzz_schedule_tsv.c: any bytes as a tab-separated schedule. */
#include "accepted.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_check_reader(dp_schedule_read_tsv, dp_schedule_write_tsv, data, bytes, 1);
    return 0;
}
