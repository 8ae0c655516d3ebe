/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * launch.h: puts a kernel on a stream. */
#ifndef PLUGINS_CUDA_LAUNCH_H
#define PLUGINS_CUDA_LAUNCH_H

#include "driver.h"

typedef struct cuda_dim {
    unsigned x, y, z;
} cuda_dim_t;
#define CUDA_DIM(x)        ((cuda_dim_t){(unsigned)(x), 1, 1})
#define CUDA_DIM2(x, y)    ((cuda_dim_t){(unsigned)(x), (unsigned)(y), 1})
#define CUDA_DIM3(x, y, z) ((cuda_dim_t){(unsigned)(x), (unsigned)(y), (unsigned)(z)})

/** Blocks of `per_block` that cover `count`. */
static inline unsigned cuda_blocks(size_t count, unsigned per_block)
{
    return (unsigned)((count + per_block - 1) / per_block);
}

/** args[i]: where parameter i lies, of exactly its type; read before it returns. [enqueue s] */
static inline dp_status_t cuda_launch_args(const dp_host_t *host, const cuda_driver_t *cu, CUfunction function,
                                           cuda_dim_t grid, cuda_dim_t block, size_t shared_bytes, CUstream s,
                                           const char *what, void **args)
{
    CUlaunchConfig config = {grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared_bytes, s, NULL, 0};

    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return DP_OK;
    return CUDA_CHECK(host, cu->cuLaunchKernelEx(&config, function, args, NULL), "launching %s", what);
}

/** cuda_launch(host, cu, function, grid, block, shared_bytes, stream, &a, &b, ...): every argument
 *  by its address. An empty grid launches nothing. */
#define cuda_launch(host, cu, function, grid, block, shared_bytes, stream, ...)                                        \
    cuda_launch_args((host), (cu), (function), (grid), (block), (shared_bytes), (stream), #function,                   \
                     (void *[]){__VA_ARGS__})

#endif
