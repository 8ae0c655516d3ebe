/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * costs.c: for Python, what `--costs FILE` reads. */
#include "tools/io/cost_keys.h"

DP_API dp_status_t dp_python_costs_read(const char *path, dp_costs_t *costs, dp_segment_costs_t *segments,
                                        double *scales, int32_t *nscales);

/* segments: layers is 0 where there are none. scales: room for *nscales, or NULL to ask how many
 * there are. */
dp_status_t dp_python_costs_read(const char *path, dp_costs_t *costs, dp_segment_costs_t *segments, double *scales,
                                 int32_t *nscales)
{
    cost_keys_t keys = {.nscales = 0};
    dp_pair_figures_t pair = {.struct_size = sizeof(pair)};
    dp_segment_costs_t layer = {.struct_size = sizeof(layer)};
    dp_costs_t all;
    dp_status_t status = cost_keys_read(path, &keys);

    (void)dp_sized_take(&all, sizeof(all), costs);
    if (status == DP_OK)
        status = cost_keys_resolve(&keys, &all, &pair);
    if (status == DP_OK && pair.struct_size > 0)
        status = cost_keys_segments(&keys, &layer);
    dp_sized_put(costs, &all);
    dp_sized_put(segments, &layer);
    for (int32_t k = 0; scales != NULL && k < keys.nscales && k < *nscales; k++)
        scales[k] = keys.stage_scale[k];
    *nscales = keys.nscales;
    cost_keys_clear(&keys);
    return status;
}
