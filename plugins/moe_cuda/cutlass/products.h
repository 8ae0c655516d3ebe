/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * products.h: what moe_cuda asks of moe_cuda_cutlass.so, a separate module: it is there where
 * CUTLASS was, and its C++ stays in it. Both are of one build. */
#ifndef MOE_CUDA_CUTLASS_PRODUCTS_H
#define MOE_CUDA_CUTLASS_PRODUCTS_H

#include "../kernels.h"

#include <cuda.h>

#include <stddef.h>
#include <stdint.h>

#define MOE_CUTLASS_SYMBOL "moe_cutlass_products"
#define MOE_CUTLASS_ABI    2

/* C = A B by rows, bf16; B plain (NN) or transposed (NT), a sum of two such (NT_PAIR); C = A^T B,
 * fp32 (TN). _TWO: by clusters of two blocks, of which there is an even number. */
enum {
    MOE_CUTLASS_NN,
    MOE_CUTLASS_NT,
    MOE_CUTLASS_NT_PAIR,
    MOE_CUTLASS_TN,
    MOE_CUTLASS_NN_TWO,
    MOE_CUTLASS_NT_TWO,
    MOE_CUTLASS_NT_PAIR_TWO,
    MOE_CUTLASS_KINDS
};

/* How a kind is launched; params_bytes: of its one parameter. */
typedef struct moe_cutlass_launch {
    const char *kernel;
    size_t params_bytes, workspace_bytes;
    uint32_t threads, shared_bytes;
} moe_cutlass_launch_t;

typedef CUresult (*moe_cutlass_encode_fn)(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                          const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                          const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                          CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                          CUtensorMapFloatOOBfill fill);

typedef struct moe_cutlass_products {
    uint32_t abi; /* MOE_CUTLASS_ABI */
    const char *version;
    const unsigned char *image; /* for sm_90a */
    void (*describe)(int kind, uint32_t blocks, moe_cutlass_launch_t *launch_out);
    /* The parameter of C = product + beta * C. encode: cuTensorMapEncodeTiled; its failure. */
    CUresult (*fill)(int kind, const moe_cutlass_groups_t *groups, float beta, moe_cutlass_encode_fn encode,
                     void *params_out);
} moe_cutlass_products_t;

#endif
