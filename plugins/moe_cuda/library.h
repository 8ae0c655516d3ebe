/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * library.h: bf16 products of experts by a library, for groups whose sizes are on the device. */
#ifndef MOE_CUDA_LIBRARY_H
#define MOE_CUDA_LIBRARY_H

#include "moe_cuda.h"

/* Finds the library that moe->products names and how it makes each product of the experts; each
 * runs once on no rows, so that no step waits for a kernel that is loaded. DP_ERR_UNSUPPORTED:
 * there is none, or it is too old. */
dp_status_t moe_library_open(dp_moe_t *moe);
void moe_library_close(dp_moe_t *moe);
/* What it says of itself in a report. */
const char *moe_library_about(const dp_moe_t *moe);
/* Whether a product of this form is one of those. */
bool moe_library_knows(const dp_moe_t *moe, moe_form_t form, const moe_product_t *product);
dp_status_t moe_library_multiply(dp_moe_t *moe, moe_form_t form, const moe_product_t *product, CUstream s);

/* ---- for the libraries ---- */

/* The products of the experts: by rows of [.., k] with [k, n], or by cells to [m, n] each. */
typedef struct moe_shape {
    moe_form_t form;
    int32_t m, n, k, parts, outputs;
} moe_shape_t;

enum { MOE_UP, MOE_DOWN, MOE_DOWN_BACK, MOE_UP_BACK, MOE_UP_GRADS, MOE_DOWN_GRADS, MOE_SHAPES };

/* One library. open finds it; lay_out says where its own things lie in `memory` of the device, and
 * how many bytes that is; prepare makes ready to run, in memory of zeros; close takes what they
 * left. multiply: one part of a product, added to what C holds or not. */
typedef struct moe_maker {
    const char *about;
    dp_status_t (*open)(dp_moe_t *moe);
    size_t (*lay_out)(dp_moe_t *moe, char *memory);
    dp_status_t (*prepare)(dp_moe_t *moe);
    dp_status_t (*multiply)(dp_moe_t *moe, int which, moe_product_t *product, int32_t part, bool add, CUstream s);
    void (*close)(dp_moe_t *moe);
} moe_maker_t;

struct moe_library {
    const moe_maker_t *maker;
    void *own; /* of the maker */
    moe_shape_t shapes[MOE_SHAPES];
    char *memory;  /* of the device: zeros and the maker's */
    int32_t *none; /* zeros, for each expert */
};

/* cublaslt.c, cutlass.c */
extern const moe_maker_t moe_cublaslt, moe_cutlass;

static inline int32_t moe_groups_of(const dp_moe_t *moe, const moe_shape_t *s)
{
    return moe->n.local * s->outputs;
}

/* Sums are of the type of sums by cells, and where a second part is added. */
static inline bool moe_is_sums(const moe_shape_t *s)
{
    return s->form == MOE_TN || s->parts == 2;
}

/* The next `bytes` of memory. */
static inline void *moe_take(char *memory, size_t *at, size_t bytes)
{
    void *here = memory + *at;

    *at += (bytes + 255) / 256 * 256;
    return here;
}

#endif
