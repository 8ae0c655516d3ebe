/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * compute_cuda.c: the trainer's own computations (../compute.h) on a CUDA device: a plugin that is
 * not the library's, with an interface the library has never heard of. Kernels in train_moe.cu,
 * matrix products through cuBLASLt. */
#include <string.h>

#include "../compute.h"
#include "cuda/gemm.h"
#include "cuda/launch.h"
#include "cuda/module.h"
#include "cuda/side.h"

CUDA_IMAGE(train_moe);

enum { THREADS = 256, SUM_BLOCKS = 132 };

typedef struct kernels {
    CUfunction embed_forward, embed_backward, norm_forward, norm_again, cross_entropy, norm_backward, gain_backward;
    CUfunction adamw, balance, squares, sum;
} kernels_t;

struct compute {
    const dp_host_t *host;
    const cuda_driver_t *cu;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    CUmodule module;
    kernels_t k;
    cuda_gemm_t *gemm;
    cuda_gemm_shape_t logits, dn, dw; /* of a whole micro-batch */
    dp_dtype_t dtype, wide;           /* of activations; of gradients, state and logits */
    int T, d;
    bool tied;
    double eps;
    double *partial; /* [SUM_BLOCKS] device memory; users follow each other on one stream */
};

/* ---- where data lie: in saved, in scratch ---- */

static size_t up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

typedef struct head_saved {
    void *x, *rstd, *dlogits, *dn;
    size_t bytes;
} head_saved_t;

static head_saved_t head_layout(const compute_t *c, void *memory)
{
    const size_t T = (size_t)c->T, d = (size_t)c->d, e = dp_dtype_bytes(c->dtype), w = dp_dtype_bytes(c->wide);
    const size_t rstd = up(T * d * e), dlogits = rstd + up(T * w), dn = dlogits + up(T * VOCAB * e);
    char *at = memory;

    return (head_saved_t){at, at + rstd, at + dlogits, at + dn, dn + up(T * d * e)};
}

typedef struct head_scratch {
    void *n, *logits, *losses, *workspace;
    size_t bytes;
} head_scratch_t;

static head_scratch_t scratch_layout(const compute_t *c, void *memory)
{
    const size_t T = (size_t)c->T, d = (size_t)c->d;
    const size_t logits = up(T * d * dp_dtype_bytes(c->dtype)),
                 losses = logits + up(T * VOCAB * dp_dtype_bytes(c->wide));
    const size_t workspace = losses + up(T * sizeof(double)), bytes = workspace + up(cuda_gemm_workspace(c->gemm));
    char *at = memory;

    return (head_scratch_t){at, at + logits, at + losses, bytes > workspace ? at + workspace : NULL, bytes};
}

/* Of this micro-batch; memory is laid out for c->T. */
static int tokens_of(const compute_t *c, const dp_segment_call_t *call)
{
    return call->tokens > 0 ? (int)call->tokens : c->T;
}

static CUstream native(const compute_t *c, dp_stream_t *s)
{
    return (CUstream)c->device_vt->stream_native(s);
}

#define LAUNCH(kernel, grid, block, ...)                                                                               \
    cuda_launch(c->host, c->cu, c->k.kernel, grid, block, 0, native(c, s), __VA_ARGS__)

/* ---- embedding: saved holds dy [T, d] from backward_input to backward_weight, and the tokens
 * ---- */

static size_t tensor_bytes(const compute_t *c, int tokens)
{
    return (size_t)tokens * (size_t)c->d * dp_dtype_bytes(c->dtype);
}

static dp_status_t embedding_forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    compute_t *c = self;
    const void *table = call->params, *tokens = call->input;
    void *y = call->y, *kept = (char *)call->saved + up(tensor_bytes(c, c->T));

    return LAUNCH(embed_forward, CUDA_DIM(tokens_of(c, call)), CUDA_DIM(THREADS), &table, &tokens, &y, &kept, &c->d);
}

static dp_status_t embedding_backward_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const compute_t *c = self;

    return c->device_vt->copy(s, call->saved, call->dy, tensor_bytes(c, tokens_of(c, call)));
}

static dp_status_t embedding_backward_weight(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    compute_t *c = self;
    void *grads = call->grads, *dy = call->saved, *tokens = (char *)call->saved + up(tensor_bytes(c, c->T));
    int T = tokens_of(c, call);

    return LAUNCH(embed_backward, CUDA_DIM2(VOCAB, cuda_blocks((size_t)c->d, THREADS)), CUDA_DIM(THREADS), &grads,
                  &tokens, &dy, &T, &c->d);
}

/* ---- head: products run over a prepared length, so that n and dlogits are zeros behind the tokens
 * ---- */

static uint32_t length_of(const compute_t *c, const dp_segment_call_t *call)
{
    return cuda_gemm_length((uint32_t)tokens_of(c, call), (uint32_t)c->T);
}

static dp_status_t clear_behind(compute_t *c, const dp_segment_call_t *call, void *rows, size_t columns, dp_stream_t *s)
{
    const size_t tokens = (size_t)tokens_of(c, call), row = columns * dp_dtype_bytes(c->dtype);
    const size_t bytes = (length_of(c, call) - tokens) * row;

    if (bytes == 0)
        return DP_OK;
    return CUDA_CHECK(c->host,
                      c->cu->cuMemsetD8Async((CUdeviceptr)(uintptr_t)rows + tokens * row, 0, bytes, native(c, s)),
                      "clearing %zu bytes", bytes);
}

static const void *weights(const compute_t *c, const void *params)
{
    return (const char *)params + (size_t)c->d * dp_dtype_bytes(c->dtype);
}

static dp_status_t norm(compute_t *c, const dp_segment_call_t *call, const head_saved_t *saved,
                        const head_scratch_t *scratch, dp_stream_t *s)
{
    const void *x = call->x, *gain = call->params;
    void *kept = saved->x, *rstd = saved->rstd, *n = scratch->n;
    const float narrow = (float)c->eps;
    const void *eps = c->wide == DP_F64 ? (const void *)&c->eps : &narrow;

    return LAUNCH(norm_forward, CUDA_DIM(tokens_of(c, call)), CUDA_DIM(THREADS), &x, &gain, (void *)eps, &kept, &rstd,
                  &n, &c->d);
}

static dp_status_t loss(compute_t *c, const dp_segment_call_t *call, const head_saved_t *saved,
                        const head_scratch_t *scratch, dp_stream_t *s)
{
    const void *logits = scratch->logits, *targets = call->target;
    void *dlogits = saved->dlogits, *losses = scratch->losses;
    double *total = call->loss;
    int add = 1, T = tokens_of(c, call);
    double by = T;
    dp_status_t status = LAUNCH(cross_entropy, CUDA_DIM(cuda_blocks((size_t)T, THREADS / 32)), CUDA_DIM(THREADS),
                                &logits, &targets, &dlogits, &losses, &T);

    if (status == DP_OK && total != NULL)
        status = LAUNCH(sum, CUDA_DIM(1), CUDA_DIM(THREADS), &losses, &T, &by, &add, &total);
    return status < 0 ? status : clear_behind(c, call, dlogits, VOCAB, s);
}

static dp_status_t head_forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    compute_t *c = self;
    const head_saved_t saved = head_layout(c, call->saved);
    const head_scratch_t scratch = scratch_layout(c, call->scratch);
    const cuda_gemm_operands_t operands = {
        1, 0, scratch.n, weights(c, call->params), scratch.logits, scratch.workspace};
    cuda_gemm_shape_t logits = c->logits;
    dp_status_t status = norm(c, call, &saved, &scratch, s);

    logits.m = length_of(c, call);
    if (status == DP_OK)
        status = cuda_gemm_run(c->gemm, &logits, &operands, native(c, s));
    if (status == DP_OK && call->output != NULL)
        status = c->device_vt->copy(s, call->output, scratch.logits,
                                    (size_t)tokens_of(c, call) * VOCAB * dp_dtype_bytes(c->wide));
    return status == DP_OK && call->target != NULL ? loss(c, call, &saved, &scratch, s) : status;
}

static dp_status_t head_backward_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    compute_t *c = self;
    const head_saved_t saved = head_layout(c, call->saved);
    const head_scratch_t scratch = scratch_layout(c, call->scratch);
    const int T = tokens_of(c, call);
    const cuda_gemm_operands_t operands = {call->loss_scale / T,     0,        saved.dlogits,
                                           weights(c, call->params), saved.dn, scratch.workspace};
    cuda_gemm_shape_t product = c->dn;
    const void *x = saved.x, *rstd = saved.rstd, *gain = call->params, *dn = saved.dn;
    void *dx = call->dx;
    dp_status_t status;

    product.m = length_of(c, call);
    status = cuda_gemm_run(c->gemm, &product, &operands, native(c, s));
    if (status < 0 || dx == NULL)
        return status;
    return LAUNCH(norm_backward, CUDA_DIM(T), CUDA_DIM(THREADS), &x, &rstd, &gain, &dn, &dx, &c->d);
}

static dp_status_t head_backward_weight(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    compute_t *c = self;
    const head_saved_t saved = head_layout(c, call->saved);
    const head_scratch_t scratch = scratch_layout(c, call->scratch);
    int T = tokens_of(c, call);
    const cuda_gemm_operands_t operands = {call->loss_scale / T,
                                           1,
                                           c->tied ? saved.dlogits : scratch.n,
                                           c->tied ? scratch.n : saved.dlogits,
                                           (char *)call->grads + (size_t)c->d * dp_dtype_bytes(c->wide),
                                           scratch.workspace};
    const void *x = saved.x, *rstd = saved.rstd, *gain = call->params, *dn = saved.dn;
    void *n = scratch.n, *dgain = call->grads;
    cuda_gemm_shape_t dw = c->dw;
    dp_status_t status = LAUNCH(norm_again, CUDA_DIM(T), CUDA_DIM(THREADS), &x, &rstd, &gain, &n, &c->d);

    dw.k = length_of(c, call);
    if (status == DP_OK)
        status = clear_behind(c, call, n, (size_t)c->d, s);
    if (status == DP_OK)
        status = cuda_gemm_run(c->gemm, &dw, &operands, native(c, s));
    if (status == DP_OK)
        status = LAUNCH(gain_backward, CUDA_DIM(cuda_blocks((size_t)c->d, 32)), CUDA_DIM(THREADS), &x, &rstd, &dn,
                        &dgain, &T, &c->d);
    return status;
}

/* ---- the optimizer ---- */

#define CONSTANTS(A)                                                                                                   \
    struct {                                                                                                           \
        A keep_mean, keep_squares, grad, rate, unbias_squares, epsilon, shrink;                                        \
    }

static dp_status_t adamw(compute_t *c, const adamw_factors_t *f, const adamw_tensor_t *chunk,
                         const adamw_ranges_t *ranges, dp_stream_t *s)
{
    const CONSTANTS(float) narrow = {(float)f->keep_mean,      (float)f->keep_squares, (float)f->grad,  (float)f->rate,
                                     (float)f->unbias_squares, (float)f->epsilon,      (float)f->shrink};
    const void *constants = c->wide == DP_F64 ? (const void *)f : &narrow;
    adamw_tensor_t all = *chunk;
    const unsigned blocks = cuda_blocks(ranges->count, THREADS);
    const adamw_range_t *list = ranges->list;
    size_t count = ranges->count;

    if (count == 0)
        return DP_OK;
    _Static_assert(sizeof(adamw_factors_t) == sizeof(CONSTANTS(double)), "the kernel reads seven doubles");
    return LAUNCH(adamw, CUDA_DIM(blocks < 8 * SUM_BLOCKS ? blocks : 8 * SUM_BLOCKS), CUDA_DIM(THREADS),
                  (void *)constants, &all.params, &all.master, &all.mean, &all.squares, &all.grads, &list, &count);
}

static dp_status_t balance(compute_t *c, double rate, const adamw_tensor_t *bias, dp_stream_t *s)
{
    const float narrow = (float)rate;
    const void *step = c->wide == DP_F64 ? (const void *)&rate : &narrow;
    adamw_tensor_t tensor = *bias;
    int experts = (int)bias->count;

    return LAUNCH(balance, CUDA_DIM(1), CUDA_DIM(THREADS), (void *)step, &tensor.params, &tensor.master, &tensor.grads,
                  &experts);
}

static dp_status_t sum_of_squares(compute_t *c, const void *values, size_t count, double *sums_out, dp_stream_t *s)
{
    const size_t blocks = (count + DP_SHARD_BLOCK - 1) / DP_SHARD_BLOCK;
    int part = DP_SHARD_BLOCK;

    return LAUNCH(squares, CUDA_DIM((unsigned)(blocks < 8 * SUM_BLOCKS ? blocks : 8 * SUM_BLOCKS)), CUDA_DIM(THREADS),
                  &values, &count, &part, &sums_out);
}

/* ---- open and close ---- */

static dp_status_t find_kernels(compute_t *c)
{
    static const char *const names[] = {"embed_forward", "embed_backward", "norm_forward",  "norm_again",
                                        "cross_entropy", "norm_backward",  "gain_backward", "adamw",
                                        "balance",       "squares"};
    CUfunction *const places[] = {&c->k.embed_forward, &c->k.embed_backward, &c->k.norm_forward,  &c->k.norm_again,
                                  &c->k.cross_entropy, &c->k.norm_backward,  &c->k.gain_backward, &c->k.adamw,
                                  &c->k.balance,       &c->k.squares};
    const char *dtype = c->dtype == DP_F32 ? "f32" : c->dtype == DP_F64 ? "f64" : "bf16";
    dp_status_t status = cuda_kernel(c->host, c->module, "train_moe_sum", &c->k.sum);

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && status == DP_OK; i++) {
        char name[96] = "train_moe_";
        strcat(strcat(strcat(name, names[i]), "_"), dtype);
        status = cuda_kernel(c->host, c->module, name, places[i]);
    }
    return status;
}

/* Prepares the products of every length, or with operands runs them. */
static dp_status_t each_length(compute_t *c, const cuda_gemm_operands_t *operands, CUstream stream)
{
    const uint32_t T = (uint32_t)c->T;
    dp_status_t status = DP_OK;

    for (uint32_t length = 0; length < T && status == DP_OK;) {
        cuda_gemm_shape_t products[] = {c->logits, c->dn, c->dw};

        length = cuda_gemm_length(length + 1, T);
        products[0].m = products[1].m = products[2].k = length;
        for (size_t i = 0; i < 3 && status == DP_OK; i++)
            status = operands == NULL ? cuda_gemm_prepare(c->gemm, &products[i])
                                      : cuda_gemm_run(c->gemm, &products[i], operands, stream);
    }
    return status;
}

static dp_status_t prepare_products(compute_t *c)
{
    const dp_host_sm_t *share = c->host->get_service(c->host, DP_HOST_SM);
    const uint32_t T = (uint32_t)c->T, d = (uint32_t)c->d;
    dp_status_t status = cuda_gemm_open(c->host, share != NULL ? share->compute_sms : 0, 0, &c->gemm);

    c->logits = (cuda_gemm_shape_t){.in = c->dtype, .out = c->wide, .transpose_b = c->tied, .m = T, .n = VOCAB, .k = d};
    c->dn = (cuda_gemm_shape_t){.in = c->dtype, .out = c->dtype, .transpose_b = !c->tied, .m = T, .n = d, .k = VOCAB};
    c->dw = (cuda_gemm_shape_t){.in = c->dtype,
                                .out = c->wide,
                                .transpose_a = true,
                                .m = c->tied ? VOCAB : d,
                                .n = c->tied ? d : VOCAB,
                                .k = T};
    return status < 0 ? status : each_length(c, NULL, NULL);
}

/* Runs each product once on zeros, so that its kernel is loaded before the first step: see
 * gemm.h. */
static dp_status_t warm_up(compute_t *c)
{
    const size_t T = (size_t)c->T, d = (size_t)c->d, rows = T > d ? T : d, columns = d > VOCAB ? d : VOCAB;
    const size_t tensor = up(rows * columns * sizeof(double));
    CUstream side = NULL;
    char *memory = NULL;
    dp_status_t status = c->device_vt->allocate(c->device, 2 * tensor + cuda_gemm_workspace(c->gemm), (void **)&memory);

    if (status == DP_OK)
        status = cuda_side_open(c->host, c->cu, &side);
    if (status == DP_OK) {
        const cuda_gemm_operands_t operands = {1, 0, memory, memory, memory + tensor, memory + 2 * tensor};

        status = each_length(c, &operands, side);
    }
    if (status == DP_OK)
        status = cuda_side_settle(c->host, c->cu, side, "the head's first products");
    cuda_side_close(c->cu, side);
    c->device_vt->release(c->device, memory);
    return status;
}

static void close_cuda(compute_t *c)
{
    if (c == NULL)
        return;
    cuda_gemm_close(c->gemm);
    if (c->partial != NULL)
        c->device_vt->release(c->device, c->partial);
    if (c->module != NULL)
        cuda_module_unload(c->module);
    c->host->release(c->host, c);
}

static dp_status_t open_cuda(const dp_host_t *host, const compute_config_t *config, compute_t **compute_out)
{
    const dp_block_shape_t *shape = &config->shape;
    const cuda_driver_t *cu;
    dp_status_t status = cuda_driver(host, &cu);
    compute_t *c;

    if (status < 0)
        return status;
    if (shape->dtype > DP_BF16)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "train_moe_cuda: dtype %d: must be f32, f64 or bf16",
                       (int)shape->dtype);
    c = host->allocate(host, sizeof(*c), 64);
    if (c == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "train_moe_cuda: no memory for an instance");
    *c = (compute_t){
        .host = host,
        .cu = cu,
        .device_vt = config->device_vt,
        .device = config->device,
        .dtype = shape->dtype,
        .wide = dp_dtype_accumulator(shape->dtype),
        .T = (int)(shape->batch * shape->sequence),
        .d = (int)shape->hidden,
        .tied = config->tied != 0,
        .eps = shape->norm_eps > 0 ? (double)shape->norm_eps : 1e-6,
    };
    status = cuda_module_load(host, cuda_image_train_moe, &c->module);
    if (status == DP_OK)
        status = find_kernels(c);
    if (status == DP_OK)
        status = config->device_vt->allocate(config->device, SUM_BLOCKS * sizeof(double), (void **)&c->partial);
    if (status == DP_OK)
        status = prepare_products(c);
    if (status == DP_OK)
        status = warm_up(c);
    if (status < 0)
        close_cuda(c);
    else
        *compute_out = c;
    return status;
}

static void sizes(const compute_t *c, dp_block_sizes_t *embedding, dp_block_sizes_t *head)
{
    embedding->saved_bytes = up(tensor_bytes(c, c->T)) + (size_t)c->T;
    head->saved_bytes = head_layout(c, NULL).bytes;
    head->scratch_bytes = scratch_layout(c, NULL).bytes;
}

static const compute_vt_t table = {
    .struct_size = sizeof(table),
    .open = open_cuda,
    .close = close_cuda,
    .sizes = sizes,
    .embedding = {.struct_size = sizeof(dp_segment_t),
                  .name = "embedding",
                  .forward = embedding_forward,
                  .backward_input = embedding_backward_input,
                  .backward_weight = embedding_backward_weight},
    .head = {.struct_size = sizeof(dp_segment_t),
             .name = "head",
             .forward = head_forward,
             .backward_input = head_backward_input,
             .backward_weight = head_backward_weight},
    .adamw = adamw,
    .balance = balance,
    .sum_of_squares = sum_of_squares,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, COMPUTE_IFACE) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(train_moe_cuda) = {
    DP_PLUGIN_HEAD,
    .name = "train_moe_cuda",
    .version = DP_VERSION,
    .summary = "the ends and the optimizer of the example train_moe on a CUDA device",
    .get_interface = get_interface,
};
