/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dtype.h: dtypes in messages. */
#ifndef DP_STAGE_DTYPE_H
#define DP_STAGE_DTYPE_H

#include <dualpipe/device.h>

#include <stdbool.h>

static inline const char *dp__dtype_name(dp_dtype_t dtype)
{
    switch (dtype) {
    case DP_F32:
        return "f32";
    case DP_F64:
        return "f64";
    case DP_BF16:
        return "bf16";
    case DP_I64:
        return "i64";
    case DP_U8:
        return "u8";
    }
    return "none of dp_dtype_t";
}

static inline bool dp__dtype_of_params(dp_dtype_t dtype)
{
    return dtype == DP_F32 || dtype == DP_F64 || dtype == DP_BF16;
}

#endif
