/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fuzz_schedule_csv.c: any bytes as a schedule in the format of torch.distributed.pipelining. */
#include "accepted.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dp_schedule_t *schedule = NULL;
    int64_t count;

    if (dp_schedule_read_csv("fuzz", (const char *)data, bytes, &schedule) == DP_OK)
        for (int matched = 0; matched < 2; matched++)
            if (dp_schedule_check_csv_transfers(schedule, "fuzz", (const char *)data, bytes, matched, &count) > 0)
                abort();
    dp_schedule_free(schedule);
    fuzz_check_reader(dp_schedule_read_csv, dp_schedule_write_csv, data, bytes, 1);
    return 0;
}
