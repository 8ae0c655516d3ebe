/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ffi.h: the inline functions of types.h and number.h once more, as functions of the library: for
 * languages that read declarations and no bodies (Rust by bindgen, cffi). Each does what the
 * function without `ffi_` does. Those of status.h, plugin.h and comm.h are for plugins, which link
 * nothing of the library. docs/rust.md has a trainer.
 *
 * Since 0.2. */
#ifndef DUALPIPE_FFI_H
#define DUALPIPE_FFI_H

#include <dualpipe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** dp_dtype_bytes. [any] */
DP_API size_t dp_ffi_dtype_bytes(dp_dtype_t dtype);
/** dp_dtype_accumulator. [any] */
DP_API dp_dtype_t dp_ffi_dtype_accumulator(dp_dtype_t dtype);

/** dp_number_bf16. [any] */
DP_API uint16_t dp_ffi_number_bf16(float f);
/** dp_number_of_bf16. [any] */
DP_API float dp_ffi_number_of_bf16(uint16_t x);
/** dp_number_get. [any] */
DP_API double dp_ffi_number_get(dp_dtype_t dtype, const void *values, size_t i);
/** dp_number_set. [any] */
DP_API void dp_ffi_number_set(dp_dtype_t dtype, void *values, size_t i, double x);

#ifdef __cplusplus
}
#endif
#endif
