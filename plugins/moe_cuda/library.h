/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * library.h: bf16 products of experts by a library, for groups whose sizes are on the device. */
#ifndef MOE_CUDA_LIBRARY_H
#define MOE_CUDA_LIBRARY_H

#include "moe_cuda.h"

/* Finds CUTLASS's kernel for each product of the experts; each runs once on no rows, so that no
 * step waits for a kernel that is loaded. */
dp_status_t moe_library_open(dp_moe_t *moe);
void moe_library_close(dp_moe_t *moe);
/* Whether a product of this form is one of those. */
bool moe_library_knows(const dp_moe_t *moe, moe_form_t form, const moe_product_t *product);
dp_status_t moe_library_multiply(dp_moe_t *moe, moe_form_t form, const moe_product_t *product, CUstream s);

/* The products of the experts: by rows of [.., k] with [k, n], or by cells to [m, n] each. */
typedef struct moe_shape {
    moe_form_t form;
    int32_t m, n, k, parts, outputs;
} moe_shape_t;

enum { MOE_UP, MOE_DOWN, MOE_DOWN_BACK, MOE_UP_BACK, MOE_UP_GRADS, MOE_DOWN_GRADS, MOE_SHAPES };

struct moe_library {
    moe_shape_t shapes[MOE_SHAPES];
    char *memory;  /* of the device: zeros and CUTLASS's */
    int32_t *none; /* zeros, for each expert */
    struct moe_cutlass *cutlass;
};

/* cutlass.c. Whether its module is here, or why not. */
dp_status_t moe_cutlass_find(const dp_moe_t *moe);
dp_status_t moe_cutlass_open(dp_moe_t *moe);
/* Where its own things lie in `memory` of the device; how many bytes that is. */
size_t moe_cutlass_lay_out(dp_moe_t *moe, char *memory);
/* Makes ready to run, in memory of zeros. */
dp_status_t moe_cutlass_prepare(dp_moe_t *moe);
/* By cells, C is added to. */
dp_status_t moe_cutlass_multiply(dp_moe_t *moe, int which, moe_product_t *product, CUstream s);
/* Takes what they left. */
void moe_cutlass_close(dp_moe_t *moe);

static inline int32_t moe_groups_of(const dp_moe_t *moe, const moe_shape_t *s)
{
    return moe->n.local * s->outputs;
}

/* The next `bytes` of memory. */
static inline void *moe_take(char *memory, size_t *at, size_t bytes)
{
    void *here = memory + *at;

    *at += (bytes + 255) / 256 * 256;
    return here;
}

#endif
