/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * number.h: reads and writes elements of any dtype on the host. */
#ifndef TRAIN_MOE_NUMBER_H
#define TRAIN_MOE_NUMBER_H

#include <string.h>

#include <dualpipe/device.h>

static inline double number_get(dp_dtype_t dtype, const void *values, size_t i)
{
    uint32_t bits;
    float f;

    if (dtype == DP_F64)
        return ((const double *)values)[i];
    if (dtype == DP_F32)
        return (double)((const float *)values)[i];
    bits = (uint32_t)((const uint16_t *)values)[i] << 16;
    memcpy(&f, &bits, sizeof(f));
    return (double)f;
}

/* bf16: the upper half of a float, rounded to nearest, ties to even; a NaN stays one. */
static inline uint16_t number_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (f != f)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline void number_set(dp_dtype_t dtype, void *values, size_t i, double x)
{
    if (dtype == DP_F64)
        ((double *)values)[i] = x;
    else if (dtype == DP_F32)
        ((float *)values)[i] = (float)x;
    else
        ((uint16_t *)values)[i] = number_bf16((float)x);
}

#endif
