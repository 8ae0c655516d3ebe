/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * advice.c: one sentence on what was found. */
#include "layouts.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define GIB 1073741824.0

static void name_schedule(const dp_layout_t *l, char *text, size_t room)
{
    if (l->pp == 1)
        snprintf(text, room, "no pipeline");
    else if (l->chunks > 0)
        snprintf(text, room, "%s,%d", l->method->name, (int)l->chunks);
    else
        snprintf(text, room, "%s", l->method->name);
}

/* Whether it runs a forward and a backward beside each other. */
static bool overlaps(const dp_layout_t *l)
{
    return l->method->placement == DP_PLACE_BIDIRECTIONAL || strcmp(l->method->name, "dualpipev") == 0 ||
           strcmp(l->method->name, "interleaved_overlap") == 0;
}

/* The fastest without: it is simpler, and holds one copy of the weights. */
static const dp_layout_t *simplest(const dp_layouts_t *all)
{
    for (int32_t i = 0; i < all->timed; i++)
        if (!overlaps(&all->rows[i]))
            return &all->rows[i];
    return NULL;
}

void dp__layouts_advise(dp_layouts_t *all)
{
    const dp_layout_t *best = all->rows, *simple = simplest(all);
    char name[64], other[64], *const text = all->advice;
    const size_t room = sizeof(all->advice);

    if (all->count == 0) {
        snprintf(text, room,
                 "No layout is possible: %d were looked at, and the batch cannot be dealt evenly to %d of them.",
                 (int)all->tried, (int)all->uneven);
        return;
    }
    name_schedule(best, name, sizeof(name));
    if (all->timed == 0) {
        snprintf(text, room,
                 "No layout fits: the smallest needs %.1f GiB a GPU, %.1f more than there are (%s, pp %d, ep %d).",
                 best->total / GIB, (best->total - all->job.gpu.memory) / GIB, name, (int)best->pp, (int)best->ep);
    } else if (best->pp == 1) {
        snprintf(text, room, "You need no pipeline: the model fits, and data parallelism alone is the fastest.");
    } else if (!overlaps(best)) {
        snprintf(text, room, "You need no DualPipe here: %s is the fastest, %.1f %% before 1f1b.", name,
                 100 * best->gain);
    } else if (simple == NULL) {
        snprintf(text, room, "Take %s: nothing simpler fits.", name);
    } else {
        name_schedule(simple, other, sizeof(other));
        snprintf(text, room,
                 "Take %s: a step is %.1f %% shorter than with %s (pp %d, ep %d), the fastest that has no forwards "
                 "beside backwards.",
                 name, 100 * (1 - best->step_time / simple->step_time), other, (int)simple->pp, (int)simple->ep);
    }
}
