/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * smooth.c: loads averaged over steps. */
#include <dualpipe/eplb.h>
#include <float.h>

dp_status_t dp_eplb_smooth(float *average, const float *loads, size_t count, double decay, uint64_t step)
{
    if (!(decay >= 0.0 && decay < 1.0))
        return dp_fail(DP_ERR_INVALID, "eplb: a decay of %g; it has to be at least 0 and below 1", decay);
    if (count > 0 && (average == NULL || loads == NULL))
        return dp_fail(DP_ERR_INVALID, "eplb: no loads to smooth");
    for (size_t i = 0; i < count; i++)
        if (!(loads[i] >= 0.0f && loads[i] <= FLT_MAX))
            return dp_fail(DP_ERR_NUMERIC, "eplb: load %zu is %g; it has to be finite and not negative", i,
                           (double)loads[i]);
    for (size_t i = 0; i < count; i++)
        average[i] = step == 0 ? loads[i] : (float)(decay * (double)average[i] + (1.0 - decay) * (double)loads[i]);
    return DP_OK;
}
