/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * module.h: kernels of a plugin. A file x.cu among the plugin's sources becomes a device image
 * inside the plugin, which CUDA_IMAGE(x) declares and cuda_module_load() brings onto the device. */
#ifndef PLUGINS_CUDA_MODULE_H
#define PLUGINS_CUDA_MODULE_H

#include "driver.h"

/** Declares the image made of <name>.cu: CUDA_IMAGE(router); then cuda_image_router. */
#define CUDA_IMAGE(name) extern const unsigned char cuda_image_##name[]

/** One kernel to look up. */
typedef struct cuda_kernel {
    const char *name;
    CUfunction *function_out;
} cuda_kernel_t;

/** Loads an image into the current context, at once and whole: a kernel that is loaded in the
 *  middle of a step may wait for another that spins. Never in a step. [blocks] */
dp_status_t cuda_module_load(const dp_host_t *host, const unsigned char *image, CUmodule *module_out);
/** NULL is allowed. */
void cuda_module_unload(CUmodule module);
/** Looks up `count` kernels, and loads each. [blocks] */
dp_status_t cuda_kernels(const dp_host_t *host, CUmodule module, const cuda_kernel_t *kernels, size_t count);
dp_status_t cuda_kernel(const dp_host_t *host, CUmodule module, const char *name, CUfunction *function_out);
/** Lets a kernel use up to `bytes` of dynamic shared memory; needed above 48 KiB. */
dp_status_t cuda_kernel_shared(const dp_host_t *host, CUfunction function, size_t bytes);

#endif
