/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fuzz_schedule_csv.c: any bytes as a schedule in the format of torch.distributed.pipelining. */
#include "accepted.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_check_reader(dp_schedule_read_csv, dp_schedule_write_csv, data, bytes, 1);
    return 0;
}
