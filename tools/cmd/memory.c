/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.c: what ranks hold, in the bytes of a command line, and whether it fits. */
#include "memory.h"

#include <math.h>
#include <stdlib.h>

#include "tools/io/size.h"

static const char *name_of(const args_t *args, const dp_schedule_t *schedule)
{
    return args->file != NULL ? args->file : schedule->method;
}

dp_status_t memory_find(const args_t *args, const dp_schedule_t *schedule, int32_t slots, dp_memory_peaks_t **held_out)
{
    const dp_memory_bytes_t bytes = {.struct_size = sizeof(bytes),
                                     .slots = slots,
                                     .message = args->costs.bytes,
                                     .activation = fmax(args->activation_bytes, 0.0),
                                     .deferred = fmax(args->deferred_bytes, 0.0),
                                     .weights = fmax(args->weight_bytes, 0.0),
                                     .parts = args->parts};

    if (args->parts != NULL && args->nparts != dp_schedule_stages(schedule))
        return dp_fail(DP_ERR_INVALID, "--partition has %d numbers, %s has %d stages", args->nparts,
                       name_of(args, schedule), dp_schedule_stages(schedule));
    *held_out = calloc((size_t)schedule->ranks, sizeof(**held_out));
    if (*held_out == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d ranks", schedule->ranks);
    return dp_schedule_memory(schedule, &bytes, *held_out);
}

double memory_most(const dp_memory_peaks_t *held, int32_t ranks)
{
    double most = 0.0;

    for (int32_t r = 0; r < ranks; r++)
        most = fmax(most, held[r].bytes);
    return most;
}

dp_status_t memory_check(const args_t *args, const dp_schedule_t *schedule, const dp_memory_peaks_t *held)
{
    const char *name = name_of(args, schedule);
    char holds[32], there[32], beyond[32];
    double worst = 0.0;
    int32_t rank = -1;

    for (int32_t r = 0; r < schedule->ranks; r++) {
        const double memory = args_memory_of(args, r);

        if (memory >= 0.0 && held[r].bytes > memory * (1.0 + 1e-9) && held[r].bytes - memory > worst) {
            worst = held[r].bytes - memory;
            rank = r;
        }
    }
    if (rank >= 0)
        return dp_fail(DP_ERR_REJECTED, "%s: does not fit on rank %d by %s: it holds %s at once, %s are there", name,
                       rank, size_text(worst, beyond, sizeof(beyond)),
                       size_text(held[rank].bytes, holds, sizeof(holds)),
                       size_text(args_memory_of(args, rank), there, sizeof(there)));
    for (int32_t r = 0; r < schedule->ranks; r++)
        if (args->memory_cap >= 0.0 && held[r].activations > args->memory_cap + 1e-9)
            return dp_fail(DP_ERR_REJECTED, "%s: rank %d holds %g micro-batches' activations at once, the cap is %g",
                           name, r, held[r].activations, args->memory_cap);
    return DP_OK;
}
