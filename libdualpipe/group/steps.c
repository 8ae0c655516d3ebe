/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * steps.c: compares what ranks say of a step. Rank 0 is compared with all, and the first rank of
 * a copy of the model with the others of that copy. */
#include "group/steps.h"

#include "group/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { FORWARD_ONLY, ROUND, MICROBATCHES, OF_JOB, LOSS_SCALE = OF_JOB, LENGTHS, SETTINGS, SETTING_BYTES = 96 };

static void write_setting(const dp__step_call_t *c, int which, char text[SETTING_BYTES])
{
    switch (which) {
    case FORWARD_ONLY:
        snprintf(text, SETTING_BYTES, "forward_only=%" PRIu64, c->forward_only);
        break;
    case ROUND:
        snprintf(text, SETTING_BYTES, "round=%" PRIu64 " of rounds=%" PRIu64, c->round, c->rounds);
        break;
    case MICROBATCHES:
        snprintf(text, SETTING_BYTES, "microbatches=%" PRIu64, c->microbatches);
        break;
    case LOSS_SCALE:
        snprintf(text, SETTING_BYTES, "loss_scale=%.17g", c->loss_scale);
        break;
    default:
        snprintf(text, SETTING_BYTES, "%" PRIu64 " tokens in %" PRIu64 " documents (digest %016" PRIx64 ")", c->tokens,
                 c->documents, c->lengths);
    }
}

static bool same_call(const dp__step_call_t *a, const dp__step_call_t *b)
{
    return a->pipeline == b->pipeline && a->call == b->call;
}

/* true: nothing is known to be different. */
static bool compare_calls(const dp__step_call_t *a, int32_t rank_a, const dp__step_call_t *b, int32_t rank_b,
                          char *text, size_t bytes)
{
    const int n = a->first == b->first ? SETTINGS : OF_JOB;
    char of_a[SETTING_BYTES], of_b[SETTING_BYTES];

    if (!same_call(a, b) || (a->closed != 0 && b->closed != 0) ||
        memcmp(&a->closed, &b->closed, sizeof(*a) - offsetof(dp__step_call_t, closed)) == 0)
        return true;
    if (a->closed != b->closed) {
        const bool first = a->closed != 0;

        snprintf(text, bytes,
                 "rank %d has closed its pipeline after %" PRIu64 " steps, and rank %d has called "
                 "dp_pipeline_step once more: all ranks run as many steps",
                 first ? rank_a : rank_b, a->call, first ? rank_b : rank_a);
        return false;
    }
    for (int i = 0; i < n; i++) {
        write_setting(a, i, of_a);
        write_setting(b, i, of_b);
        if (strcmp(of_a, of_b) == 0)
            continue;
        snprintf(text, bytes,
                 "the ranks called dp_pipeline_step with different settings: in step %" PRIu64
                 " rank %d has %s, rank %d has %s",
                 a->step, rank_a, of_a, rank_b, of_b);
        return false;
    }
    return true;
}

bool dp__steps_hear(dp__step_calls_t *said, int32_t size, int32_t rank, const dp__step_call_t *call, char *text,
                    size_t bytes)
{
    const int32_t leader = (int32_t)call->first;
    const int32_t begin = rank == 0 ? 1 : leader, end = rank == 0        ? size
                                                        : rank == leader ? leader + (int32_t)call->count
                                                                         : leader + 1;
    const int at = (int)(call->call % 2);

    said[rank][at] = *call;
    for (int32_t r = begin; r < end; r++)
        if (r != rank && !compare_calls(r < rank ? &said[r][at] : call, r < rank ? r : rank,
                                        r < rank ? call : &said[r][at], r < rank ? rank : r, text, bytes))
            return false;
    return rank == 0 || compare_calls(&said[0][at], 0, call, rank, text, bytes);
}

void dp__group_tell_step(dp_group_t *group, const dp__step_call_t *call)
{
    group->link->tell_step(group, call);
}
