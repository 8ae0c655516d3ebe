/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ffi.c: inline functions of the public headers, for languages that cannot inline C. */
#include <dualpipe/ffi.h>

#include <dualpipe/number.h>

size_t dp_ffi_dtype_bytes(dp_dtype_t dtype)
{
    return dp_dtype_bytes(dtype);
}

dp_dtype_t dp_ffi_dtype_accumulator(dp_dtype_t dtype)
{
    return dp_dtype_accumulator(dtype);
}

uint16_t dp_ffi_number_bf16(float f)
{
    return dp_number_bf16(f);
}

float dp_ffi_number_of_bf16(uint16_t x)
{
    return dp_number_of_bf16(x);
}

double dp_ffi_number_get(dp_dtype_t dtype, const void *values, size_t i)
{
    return dp_number_get(dtype, values, i);
}

void dp_ffi_number_set(dp_dtype_t dtype, void *values, size_t i, double x)
{
    dp_number_set(dtype, values, i, x);
}
