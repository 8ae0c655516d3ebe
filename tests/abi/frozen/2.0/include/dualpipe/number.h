/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * number.h: reads and writes elements of any dtype on the host. C has no type for bf16, so this is
 * how a trainer makes parameters and looks at results. All functions are inline.
 *
 * bf16 is the upper half of a float (https://en.wikipedia.org/wiki/Bfloat16_floating-point_format).
 * Rounding is to nearest, ties to even, and above the largest finite number to infinity. A NaN
 * stays a NaN. */
#ifndef DUALPIPE_NUMBER_H
#define DUALPIPE_NUMBER_H

#include <dualpipe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The bits of the bf16 nearest to f. [any] */
static inline uint16_t dp_number_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (f != f)
        return DP_CAST(uint16_t, bits >> 16 | 0x40); /* quiet, or it might look like infinity */
    return DP_CAST(uint16_t, (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/** The value of a bf16, exactly. [any] */
static inline float dp_number_of_bf16(uint16_t x)
{
    const uint32_t bits = DP_CAST(uint32_t, x) << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/** Element i of an array of DP_F32, DP_F64 or DP_BF16 in host memory, exactly. [any] */
static inline double dp_number_get(dp_dtype_t dtype, const void *values, size_t i)
{
    if (dtype == DP_F64)
        return DP_CAST(const double *, values)[i];
    return DP_CAST(double, dtype == DP_F32 ? DP_CAST(const float *, values)[i]
                                           : dp_number_of_bf16(DP_CAST(const uint16_t *, values)[i]));
}

/** Writes element i of such an array: x, rounded to nearest (for bf16 by way of float). [any] */
static inline void dp_number_set(dp_dtype_t dtype, void *values, size_t i, double x)
{
    if (dtype == DP_F64)
        DP_CAST(double *, values)[i] = x;
    else if (dtype == DP_F32)
        DP_CAST(float *, values)[i] = DP_CAST(float, x);
    else
        DP_CAST(uint16_t *, values)[i] = dp_number_bf16(DP_CAST(float, x));
}

#ifdef __cplusplus
}
#endif
#endif
