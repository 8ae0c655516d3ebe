/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * library.c: which products CUTLASS makes, and what is done around them.
 *
 * It reads pointers and sizes of all groups from device memory, so a kernel writes them there
 * first, from the counts of rows that the host does not know. It has no map of rows: products to be
 * sent are made where they lie together, and copied. */
#include "library.h"

#include "plugins/common/do.h"

#include <string.h>

#define COPY_THREADS 256

static void list_shapes(const dp_moe_t *moe, moe_shape_t shapes[MOE_SHAPES])
{
    const int32_t d = moe->n.hidden, f = moe->n.ffn;

    shapes[MOE_UP] = (moe_shape_t){.form = MOE_NN, .n = f, .k = d, .parts = 1, .outputs = 2};
    shapes[MOE_DOWN] = (moe_shape_t){.form = MOE_NN, .n = d, .k = f, .parts = 1, .outputs = 1};
    shapes[MOE_DOWN_BACK] = (moe_shape_t){.form = MOE_NT, .n = f, .k = d, .parts = 1, .outputs = 1};
    shapes[MOE_UP_BACK] = (moe_shape_t){.form = MOE_NT, .n = d, .k = f, .parts = 2, .outputs = 1};
    shapes[MOE_UP_GRADS] = (moe_shape_t){.form = MOE_TN, .m = d, .n = f, .parts = 1, .outputs = 2};
    shapes[MOE_DOWN_GRADS] = (moe_shape_t){.form = MOE_TN, .m = f, .n = d, .parts = 1, .outputs = 1};
}

/* Below 0: none. */
static int find_product(const dp_moe_t *moe, moe_form_t form, const moe_product_t *p)
{
    for (int i = 0; i < MOE_SHAPES && p->rows != NULL; i++) {
        const moe_shape_t *s = &moe->library->shapes[i];

        if (s->form == form && s->n == p->n && (form == MOE_TN ? s->m == p->m : s->k == p->k) && s->parts == p->parts &&
            s->outputs == p->outputs)
            return i;
    }
    return -1;
}

/* Both parts of a sum lie in one matrix of rows. */
static bool are_rows_apart(const void *const parts[2], int64_t ld)
{
    const intptr_t apart = (const char *)parts[1] - (const char *)parts[0];

    return apart >= 0 && apart % (2 * ld) == 0 && apart / (2 * ld) < INT32_MAX / 2;
}

/* A and B are as tensor cores want them; here every matrix begins on 16 bytes. */
static bool is_aligned(const moe_shape_t *s, const moe_product_t *p)
{
    const int64_t each = s->form == MOE_TN ? 4 : 8;

    if (s->parts == 2 && (!are_rows_apart(p->a, p->lda) || !are_rows_apart(p->b, p->ldb)))
        return false;
    if (p->map != NULL)
        return (uintptr_t)p->apart % 16 == 0;
    for (int i = 0; i < s->outputs; i++)
        if ((uintptr_t)p->c[i] % 16 != 0)
            return false;
    return p->ldc % each == 0 && p->group_c % each == 0;
}

bool moe_library_knows(const dp_moe_t *moe, moe_form_t form, const moe_product_t *product)
{
    const int which = moe->library != NULL ? find_product(moe, form, product) : -1;

    return which >= 0 && is_aligned(&moe->library->shapes[which], product);
}

static dp_status_t run_product(dp_moe_t *moe, int which, const moe_product_t *product, CUstream s)
{
    moe_product_t p = *product, copy = *product;

    if (p.map != NULL) {
        p.c[0] = product->apart;
        p.ldc = p.n;
    }
    DO(moe_cutlass_multiply(moe, which, &p, s));
    if (p.map == NULL)
        return DP_OK;
    copy.a[0] = product->apart;
    copy.lda = p.n;
    return cuda_launch(moe->host, moe->cu, moe->kernels.place_rows, CUDA_DIM(moe->sms * 8), CUDA_DIM(COPY_THREADS), 0,
                       s, &copy);
}

dp_status_t moe_library_multiply(dp_moe_t *moe, moe_form_t form, const moe_product_t *product, CUstream s)
{
    return run_product(moe, find_product(moe, form, product), product, s);
}

/* ---- open and close ---- */

static size_t lay_out_library(dp_moe_t *moe, char *memory)
{
    size_t at = 0;

    moe->library->none = moe_take(memory, &at, (size_t)moe->n.local * sizeof(int32_t));
    return at + moe_cutlass_lay_out(moe, memory + at);
}

static dp_status_t allocate_buffers(dp_moe_t *moe)
{
    void *memory = NULL;
    char nothing = 0;
    const size_t bytes = lay_out_library(moe, &nothing);

    DO(moe->device_vt->allocate(moe->device, bytes, &memory));
    moe->library->memory = memory;
    (void)lay_out_library(moe, memory);
    return CUDA_CHECK(moe->host, moe->cu->cuMemsetD8((CUdeviceptr)(uintptr_t)memory, 0, bytes), "clearing memory");
}

/* Each on no rows, by cells to none: kernels are loaded, and nothing is written. */
static dp_status_t rehearse_products(dp_moe_t *moe)
{
    struct moe_library *l = moe->library;
    dp_stream_t *s = NULL;
    dp_status_t status = moe->device_vt->stream_open(moe->device, DP_LANE_COMPUTE, &s);

    for (int i = 0; i < MOE_SHAPES && status >= 0; i++) {
        const moe_shape_t *shape = &l->shapes[i];
        moe_product_t p = {.rows = l->none, .first = l->none, .a = {l->none, l->none}, .b = {l->none, l->none}};

        p.c[0] = p.c[1] = p.apart = l->memory;
        p.lda = p.ldb = p.ldc = moe->n.hidden > moe->n.ffn ? moe->n.hidden : moe->n.ffn;
        p.groups = moe->n.local;
        p.cells = 1;
        p.m = shape->form == MOE_TN ? 0 : shape->m;
        p.n = shape->n;
        p.k = shape->k;
        p.parts = shape->parts;
        p.outputs = shape->outputs;
        status = run_product(moe, i, &p, moe->device_vt->stream_native(s));
    }
    if (s != NULL && status >= 0)
        status = moe->device_vt->synchronize(s, -1);
    if (s != NULL)
        moe->device_vt->stream_close(s);
    return status;
}

dp_status_t moe_library_open(dp_moe_t *moe)
{
    struct moe_library *l = moe->host->allocate(moe->host, sizeof(*l), 64);

    if (l == NULL)
        return DP_FAIL(moe->host, DP_ERR_NOMEM, "moe_cuda: no memory for a library of products");
    memset(l, 0, sizeof(*l));
    moe->library = l;
    list_shapes(moe, l->shapes);
    DO(moe_cutlass_open(moe));
    DO(allocate_buffers(moe));
    DO(moe_cutlass_prepare(moe));
    return rehearse_products(moe);
}

void moe_library_close(dp_moe_t *moe)
{
    struct moe_library *l = moe->library;

    if (l == NULL)
        return;
    moe_cutlass_close(moe);
    if (l->memory != NULL)
        moe->device_vt->release(moe->device, l->memory);
    moe->host->release(moe->host, l);
    moe->library = NULL;
}
