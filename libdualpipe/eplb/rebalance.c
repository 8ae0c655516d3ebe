/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * rebalance.c: a placement from loads alone. */
#include "eplb/greedy.h"
#include "eplb/index.h"
#include "eplb/search.h"

dp_status_t dp_eplb_rebalance(const dp_eplb_shape_t *shape, const dp_eplb_options_t *options, const float *loads,
                              dp_eplb_placement_t *placement, void *workspace, size_t workspace_bytes)
{
    dp__eplb_sizes_t sizes, used;
    dp__eplb_scratch_t scratch;
    dp_eplb_options_t chosen;
    dp__eplb_rows_t rows;
    dp_status_t status = dp__eplb_scratch_cut(shape, workspace, workspace_bytes, &sizes, &scratch);

    if (status < 0 || (status = dp__eplb_check_options(options, &chosen)) < 0 ||
        (status = dp__eplb_check_loads(&sizes, loads)) < 0 || (status = dp__eplb_check_placement(placement)) < 0)
        return status;
    rows = (dp__eplb_rows_t){.physical_to_logical = placement->physical_to_logical, .rank = scratch.rank};
    status = dp__eplb_greedy_by_policy(&sizes, &chosen, loads, &rows, &scratch, &used, &placement->policy);
    if (status < 0)
        return status;
    if (dp__eplb_searches(&chosen))
        dp__eplb_search(&used, &chosen, loads, placement->physical_to_logical, &scratch);
    dp__eplb_index_all(&sizes, placement, dp__eplb_searches(&chosen) ? NULL : scratch.rank, scratch.count);
    return DP_OK;
}
