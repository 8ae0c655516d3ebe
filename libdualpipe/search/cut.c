/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cut.c: which layers of the model each stage has. */
#include "search/cut.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

dp_status_t dp__layers_make(const double *costs, int32_t count, dp__layers_t *layers)
{
    *layers = (dp__layers_t){.count = count};
    layers->before = dp__calloc((size_t)count + 1, sizeof(*layers->before));
    if (layers->before == NULL)
        return dp_fail(DP_ERR_NOMEM, "search: no memory for %d layers", count);
    for (int32_t l = 0; l < count; l++) {
        if (!(costs[l] > 0.0 && isfinite(costs[l])))
            return dp_fail(DP_ERR_INVALID, "search: layer %d costs %g: every cost is a finite number above 0", l,
                           costs[l]);
        layers->before[l + 1] = layers->before[l] + costs[l];
    }
    return DP_OK;
}

void dp__layers_clear(dp__layers_t *layers)
{
    dp__free(layers->before);
    *layers = (dp__layers_t){.count = 0};
}

static dp_status_t allocate_cut(int32_t stages, dp__cut_t *cut)
{
    *cut = (dp__cut_t){.stages = stages};
    if (dp__arrays(DP__ARRAY(cut->first, stages + 1), DP__ARRAY(cut->scale, stages), DP__ARRAY(cut->parts, stages)))
        return DP_OK;
    *cut = (dp__cut_t){.stages = 0};
    return dp_fail(DP_ERR_NOMEM, "search: no memory for %d stages", stages);
}

dp_status_t dp__cut_make(const dp__layers_t *layers, int32_t stages, dp__cut_t *cut)
{
    dp_status_t status;

    *cut = (dp__cut_t){.stages = 0};
    if (layers->count == 0)
        return DP_OK;
    status = allocate_cut(stages, cut);
    if (status < 0)
        return status;
    for (int32_t s = 0; s <= stages; s++)
        cut->first[s] = (int32_t)((int64_t)layers->count * s / stages);
    dp__cut_weigh(layers, cut);
    return DP_OK;
}

dp_status_t dp__cut_copy(const dp__cut_t *from, dp__cut_t *to)
{
    dp_status_t status;

    *to = (dp__cut_t){.stages = 0};
    if (from->stages == 0)
        return DP_OK;
    status = allocate_cut(from->stages, to);
    if (status < 0)
        return status;
    memcpy(to->first, from->first, ((size_t)from->stages + 1) * sizeof(*to->first));
    memcpy(to->scale, from->scale, (size_t)from->stages * sizeof(*to->scale));
    memcpy(to->parts, from->parts, (size_t)from->stages * sizeof(*to->parts));
    return DP_OK;
}

void dp__cut_clear(dp__cut_t *cut)
{
    dp__free(cut->first);
    *cut = (dp__cut_t){.stages = 0};
}

void dp__cut_weigh(const dp__layers_t *layers, dp__cut_t *cut)
{
    const double all = layers->before[layers->count];

    for (int32_t s = 0; s < cut->stages; s++) {
        const int32_t from = cut->first[s], to = cut->first[s + 1];

        cut->scale[s] = (layers->before[to] - layers->before[from]) * cut->stages / all;
        cut->parts[s] = (double)(to - from) * cut->stages / layers->count;
    }
}
