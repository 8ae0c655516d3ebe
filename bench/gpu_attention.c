/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu_attention.c: attention on the compute partition of a GPU, against the fastest matrix product
 * of the same run.
 *
 *   bench/gpu_attention [--core cudnn|cuda] [--comm-sms N] [--batch N] [--sequence N] [--hidden N]
 *                       [--heads N] [--kv-heads N] [--head-dim N] [--value-dim N]
 *                       [--deterministic 0|1] [--iterations N] [--product N] [--open 0|1]
 *                       [--gate 0|1]
 *
 * Defaults: cudnn, 20 multiprocessors left to communication, DeepSeek-V3's attention (128 heads,
 * 192/128, hidden 7168) on one sequence of 4096 tokens, 20 timed iterations after 3 others, a bf16
 * product of 8192 x 8192 x 8192. Exit status 77: no GPU. Times are medians of device time between
 * events, one process, nothing else on the device. Operations of the core, causal: forward heads *
 * s^2 * (d_qk + d_v), backward heads * s^2 * (3 d_qk + 2 d_v). Kernels of rows: bytes read and
 * written, against a copy on the device; keys of latents turn the last third of each head. --open 1
 * opens the block, takes its memory and ends. */
#include "plugins/attention_cuda/scores.h"
#ifdef HAVE_CUDNN_CORE
#include "plugins/attention_cudnn/core.h"
#endif

#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>

#include "group/group.h"
#include "group/reform.h"

#include "bench/gpu_gate.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NO_DEVICE = 77, WARM_UP = 3, MOST_ITERATIONS = 1000 };

typedef struct settings {
    const char *core;
    long comm_sms, batch, sequence, hidden, heads, kv_heads, head_dim, value_dim, deterministic, iterations, product,
        open, gate;
} settings_t;

typedef struct bench {
    settings_t set;
    dp_group_t *group;
    const dp_host_t *host;
    const cuda_driver_t *cu;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    dp_stream_t *stream;
    CUstream native;
    CUevent start, end;
    gate_t gate;
    uint32_t sms[DP_LANE_COUNT];
    dp_attention_t *attention;
    dp_io_t io;
} bench_t;

static int complain(dp_status_t status)
{
    fprintf(stderr, "gpu_attention: %s (%s)\n", dp_last_error(), dp_status_name(status));
    return strstr(dp_last_error(), "no CUDA device") != NULL ? NO_DEVICE : 1;
}

static dp_status_t open_device(bench_t *b)
{
    const dp_device_config_t config = {.struct_size = sizeof(config), .comm_sms = (uint32_t)b->set.comm_sms};
    const dp_plugin_t *plugin;
    const void *table;
    dp_status_t status = dp_group_local(1, NULL, &b->group);

    if (status < 0)
        return status;
    b->host = dp_group_host(b->group);
    status = cuda_driver(b->host, &b->cu);
    if (status == DP_OK)
        status = dp_plugin_load("device_cuda", &plugin);
    if (status == DP_OK)
        status = dp_plugin_interface(plugin, DP_IFACE_DEVICE, sizeof(dp_device_vt_t), &table);
    if (status < 0)
        return status;
    b->device_vt = table;
    status = b->device_vt->open(b->host, &config, &b->device);
    if (status == DP_OK)
        status = b->device_vt->partition(b->device, b->sms);
    if (status == DP_OK)
        status = b->device_vt->stream_open(b->device, DP_LANE_COMPUTE, &b->stream);
    if (status < 0)
        return status;
    dp__group_set_sms(b->group, b->sms[DP_LANE_COMPUTE], b->sms[DP_LANE_ALL_TO_ALL]);
    b->native = b->device_vt->stream_native(b->stream);
    status = b->set.gate ? gate_make(b->host, b->cu, &b->gate) : DP_OK;
    if (status >= 0)
        status = CUDA_CHECK(b->host, b->cu->cuEventCreate(&b->start, CU_EVENT_DEFAULT), "making an event");
    return status < 0 ? status
                      : CUDA_CHECK(b->host, b->cu->cuEventCreate(&b->end, CU_EVENT_DEFAULT), "making an event");
}

/* Device memory with bf16 numbers uniform in [-scale, scale); 0: zeros. Values matter: they set the
 * power drawn. */
static dp_status_t allocate(bench_t *b, size_t bytes, float scale, void **memory_out)
{
    dp_status_t status = b->device_vt->allocate(b->device, bytes + 1, memory_out);
    uint64_t state = 12345;
    uint16_t *values;

    if (status < 0 || scale == 0 || b->set.open)
        return status;
    values = malloc(bytes);
    if (values == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu bytes of numbers", bytes);
    for (size_t i = 0; i < bytes / sizeof(*values); i++) {
        float x;
        uint32_t bits;

        state = state * 6364136223846793005u + 1442695040888963407u;
        x = scale * ((float)(state >> 40) * 0x1p-23f - 1);
        memcpy(&bits, &x, sizeof(bits));
        values[i] = (uint16_t)(bits >> 16);
    }
    status =
        CUDA_CHECK(b->host, b->cu->cuMemcpyHtoD((CUdeviceptr)(uintptr_t)*memory_out, values, bytes), "copying numbers");
    free(values);
    return status;
}

typedef dp_status_t (*work_fn)(bench_t *b, void *arg);

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Median milliseconds of the device between two events around the work. */
static dp_status_t measure(bench_t *b, work_fn work, void *arg, double *ms_out)
{
    float times[MOST_ITERATIONS];
    dp_status_t status = DP_OK;

    for (long i = -WARM_UP; i < b->set.iterations && status >= 0; i++) {
        /* the first may load kernels, for which the driver waits until the device is idle */
        status = i < 0 ? DP_OK : gate_shut(b->host, b->cu, &b->gate, b->native);
        if (status >= 0)
            status = CUDA_CHECK(b->host, b->cu->cuEventRecord(b->start, b->native), "recording an event");
        if (status >= 0)
            status = work(b, arg);
        if (status >= 0)
            status = CUDA_CHECK(b->host, b->cu->cuEventRecord(b->end, b->native), "recording an event");
        gate_open(&b->gate);
        if (status >= 0)
            status = CUDA_CHECK(b->host, b->cu->cuEventSynchronize(b->end), "waiting for the device");
        if (status >= 0 && i >= 0)
            status = CUDA_CHECK(b->host, b->cu->cuEventElapsedTime(&times[i], b->start, b->end), "reading a time");
    }
    if (status < 0)
        return status;
    qsort(times, (size_t)b->set.iterations, sizeof(times[0]), compare);
    *ms_out = (double)times[b->set.iterations / 2];
    return DP_OK;
}

/* ---- the roofline ---- */

typedef struct product {
    cuda_gemm_t *gemm;
    cuda_gemm_shape_t shape;
    cuda_gemm_operands_t operands;
} product_t;

static dp_status_t multiply(bench_t *b, void *arg)
{
    const product_t *p = arg;

    return cuda_gemm_run(p->gemm, &p->shape, &p->operands, b->native);
}

static dp_status_t measure_roofline(bench_t *b, double *tflops_out)
{
    const uint32_t n = (uint32_t)b->set.product;
    const size_t bytes = (size_t)n * n * 2;
    product_t p = {.shape = {.in = DP_BF16, .out = DP_BF16, .transpose_b = true, .m = n, .n = n, .k = n},
                   .operands = {.alpha = 1}};
    void *a = NULL, *w = NULL;
    double ms = 0;
    dp_status_t status = cuda_gemm_open(b->host, b->sms[DP_LANE_COMPUTE], 0, &p.gemm);

    if (status < 0)
        return status;
    status = cuda_gemm_prepare(p.gemm, &p.shape);
    if (status >= 0)
        status = allocate(b, bytes, 1, &a);
    if (status >= 0)
        status = allocate(b, bytes, 1, &w);
    if (status >= 0)
        status = allocate(b, bytes, 0, &p.operands.c);
    if (status >= 0)
        status = allocate(b, cuda_gemm_workspace(p.gemm), 0, &p.operands.workspace);
    p.operands.a = a;
    p.operands.b = w;
    if (status >= 0)
        status = measure(b, multiply, &p, &ms);
    b->device_vt->release(b->device, a);
    b->device_vt->release(b->device, w);
    b->device_vt->release(b->device, p.operands.c);
    b->device_vt->release(b->device, p.operands.workspace);
    cuda_gemm_close(p.gemm);
    *tflops_out = ms > 0 ? 2.0 * n * n * (double)n / ms / 1e9 : 0;
    return status;
}

/* ---- attention ---- */

static const attn_core_t *find_core(const char *name)
{
#ifdef HAVE_CUDNN_CORE
    if (strcmp(name, "cudnn") == 0)
        return &cudnn_core;
#endif
    return strcmp(name, "cuda") == 0 ? &scores_core : NULL;
}

static dp_status_t open_attention(bench_t *b)
{
    const settings_t *set = &b->set;
    const dp_block_shape_t shape = {.struct_size = sizeof(shape),
                                    .dtype = DP_BF16,
                                    .batch = (uint32_t)set->batch,
                                    .sequence = (uint32_t)set->sequence,
                                    .hidden = (uint32_t)set->hidden};
    const dp_attention_config_t config = {
        .struct_size = sizeof(config),
        .shape = &shape,
        .heads = (uint32_t)set->heads,
        .kv_heads = (uint32_t)set->kv_heads,
        .head_dim = (uint32_t)set->head_dim,
        .value_dim = (uint32_t)set->value_dim,
        .deterministic = (uint32_t)set->deterministic,
        .device_vt = b->device_vt,
        .device = b->device,
    };
    const size_t boundary = (size_t)(set->batch * set->sequence * set->hidden) * 2;
    dp_block_sizes_t sizes = {.struct_size = sizeof(sizes)};
    void *params, *x, *dy;
    dp_status_t status = attn_block_open(b->host, &config, find_core(set->core), &b->attention);

    if (status >= 0)
        status = attn_block_sizes(b->attention, &sizes);
    b->io = (dp_io_t){.struct_size = sizeof(b->io)};
    if (status >= 0)
        status = allocate(b, sizes.param_count * 2, 0.02f, &params);
    if (status >= 0)
        status = allocate(b, sizes.param_count * 4, 0, &b->io.grads);
    if (status >= 0)
        status = allocate(b, sizes.saved_bytes, 0, &b->io.saved);
    if (status >= 0)
        status = allocate(b, sizes.scratch_bytes, 0, &b->io.scratch);
    if (status >= 0)
        status = allocate(b, boundary, 1, &x);
    if (status >= 0)
        status = allocate(b, boundary, 0, &b->io.y);
    if (status >= 0)
        status = allocate(b, boundary, 1, &dy);
    if (status >= 0)
        status = allocate(b, boundary, 0, &b->io.dx);
    if (status < 0)
        return status;
    b->io.params = params;
    b->io.x = x;
    b->io.dy = dy;
    return DP_OK;
}

static void close_attention(bench_t *b)
{
    void *const all[] = {(void *)b->io.params, b->io.grads, b->io.saved,      b->io.scratch,
                         (void *)b->io.x,      b->io.y,     (void *)b->io.dy, b->io.dx};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] != NULL)
            b->device_vt->release(b->device, all[i]);
    attn_block_close(b->attention);
}

static attn_pass_t core_pass(const bench_t *b)
{
    attn_pass_t pass = attn_pass(b->attention, b->attention->n.tokens);

    pass.stream = b->native;
    pass.workspace = (char *)b->io.scratch + b->attention->scratch.workspace;
    return pass;
}

static dp_status_t core_forward(bench_t *b, void *arg)
{
    const attn_pass_t pass = core_pass(b);
    const attn_tensors_t t = attn_view(b->attention, &b->io);

    (void)arg;
    return b->attention->vt->forward(&pass, &t);
}

static dp_status_t core_backward(bench_t *b, void *arg)
{
    const attn_pass_t pass = core_pass(b);
    const attn_tensors_t t = attn_view(b->attention, &b->io);

    (void)arg;
    return b->attention->vt->backward(&pass, &t);
}

static dp_status_t block_forward(bench_t *b, void *arg)
{
    (void)arg;
    return attn_block_forward(b->attention, &b->io, b->stream);
}

static dp_status_t block_backward_input(bench_t *b, void *arg)
{
    (void)arg;
    return attn_block_backward_input(b->attention, &b->io, b->stream);
}

static dp_status_t block_backward_weight(bench_t *b, void *arg)
{
    (void)arg;
    return attn_block_backward_weight(b->attention, &b->io, b->stream);
}

/* Each in an order in which its inputs have been made by those before. */
static const struct part {
    const char *name;
    work_fn work;
    double qk, v; /* operations per heads * s^2, per element of a head's dims; 0, 0: not counted */
} parts[] = {
    {"block forward", block_forward, 0, 0},
    {"core forward", core_forward, 1, 1},
    {"core backward", core_backward, 3, 2},
    {"block backward_input", block_backward_input, 0, 0},
    {"block backward_weight", block_backward_weight, 0, 0},
};

/* Each begins with a card that has rested, as the product does: right behind others of them its
 * clocks are lower, and cuDNN took a fifth longer (H200). */
static dp_status_t report(bench_t *b, double roofline)
{
    const struct timespec rest = {.tv_nsec = b->set.gate ? 500000000 : 0};
    const settings_t *set = &b->set;
    const double square = (double)set->batch * (double)set->heads * (double)set->sequence * (double)set->sequence;
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && status >= 0; i++) {
        const double operations = square * (parts[i].qk * (double)set->head_dim + parts[i].v * (double)set->value_dim);
        double ms = 0;

        /* The gradients stand where q, k and v were: a new forward for what needs them. */
        if (parts[i].work == block_backward_input)
            status = block_forward(b, NULL);
        nanosleep(&rest, NULL);
        if (status >= 0)
            status = measure(b, parts[i].work, NULL, &ms);
        if (status >= 0 && operations > 0)
            printf("%-22s %9.3f ms  %7.1f TFLOP/s  %5.3f of the product\n", parts[i].name, ms, operations / ms / 1e9,
                   operations / ms / 1e9 / roofline);
        else if (status >= 0)
            printf("%-22s %9.3f ms\n", parts[i].name, ms);
    }
    return status;
}

/* ---- kernels of rows, which memory limits ---- */

typedef struct rows {
    const char *name;
    CUfunction kernel; /* NULL: a copy */
    unsigned grid, threads;
    double bytes; /* read and written */
    void *args[10];
} rows_t;

static dp_status_t run_rows(bench_t *b, void *arg)
{
    const rows_t *r = arg;

    if (r->kernel == NULL)
        return CUDA_CHECK(b->host,
                          b->cu->cuMemcpyDtoDAsync(*(CUdeviceptr *)r->args[0], *(CUdeviceptr *)r->args[1],
                                                   (size_t)r->bytes / 2, b->native),
                          "copying");
    return cuda_launch_args(b->host, b->cu, r->kernel, CUDA_DIM(r->grid), CUDA_DIM(r->threads), 0, b->native, r->name,
                            (void **)r->args);
}

static dp_status_t report_rows(bench_t *b)
{
    const attn_kernels_t *k = &b->attention->kernels;
    attn_dims_t *n = &b->attention->n;
    const size_t heads = (size_t)n->tokens * n->heads;
    const double row = (double)n->tokens * n->hidden, q = (double)heads * n->head_dim;
    uint32_t none = 0, half = n->head_dim / 2, turning = n->head_dim / 6, common = 2 * turning;
    uint32_t own = n->head_dim - common, *starts = NULL;
    size_t tokens = n->tokens, most = attn_larger(heads * n->head_dim * 2, tokens * n->hidden * 4);
    const unsigned d = attn_row_threads(b->attention, n->hidden), all = ATTN_THREADS,
                   columns = cuda_blocks(n->hidden, 32);
    int32_t sign = 1;
    void *x = NULL, *y = NULL, *z = NULL, *w = NULL, *rope = b->attention->rope, *gain = (void *)b->io.params;
    const rows_t calls[] = {
        {"copy", NULL, 0, 0, 2.0 * (double)most, {&y, &x}},
        {"normalize",
         k->normalize,
         n->tokens,
         d,
         6 * row,
         {&y, &w, &z, &x, &n->hidden, &gain, &n->hidden, &n->norm_eps}},
        {"apply_gain", k->apply_gain, n->tokens, d, 4 * row, {&y, &x, &gain, &n->hidden}},
        {"normalize_backward",
         k->normalize_backward,
         n->tokens,
         d,
         10 * row,
         {&y, &n->hidden, &b->io.dy, &z, &gain, &x, &w, &n->hidden}},
        {"gain_gradient", k->gain_gradient, columns, all, 6 * row, {&w, &z, &x, &tokens, &n->hidden}},
        {"rotate",
         k->rotate,
         n->tokens,
         all,
         4 * q,
         {&y, &x, &rope, &starts, &n->heads, &none, &n->sequence, &half, &sign}},
        {"rotate a part",
         k->rotate,
         n->tokens,
         all,
         4 * q,
         {&y, &x, &rope, &starts, &n->heads, &own, &n->sequence, &turning, &sign}},
        {"dot_rows",
         k->dot_rows,
         n->tokens,
         all,
         4.0 * (double)heads * n->value_dim,
         {&w, &x, &z, &n->heads, &n->sequence, &n->value_dim}},
        {"join_keys",
         k->join_keys,
         n->tokens,
         all,
         2 * q + 2.0 * (double)heads * own,
         {&y, &x, &z, &common, &rope, &starts, &n->heads, &own, &n->sequence, &turning}},
        {"split_keys",
         k->split_keys,
         n->tokens,
         all,
         2 * q + 2.0 * (double)heads * own,
         {&y, &w, &common, &x, &rope, &starts, &n->heads, &own, &n->sequence, &turning}},
    };
    double copy = 0, ms = 0;
    dp_status_t status = allocate(b, most, 1, &x);

    if (status >= 0)
        status = allocate(b, most, 0, &y);
    if (status >= 0)
        status = allocate(b, most, 1, &z);
    if (status >= 0)
        status = allocate(b, most, 0, &w);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]) && status >= 0; i++) {
        status = measure(b, run_rows, (void *)&calls[i], &ms);
        copy = i == 0 ? calls[i].bytes / ms : copy;
        if (status >= 0)
            printf("%-22s %9.3f ms  %7.0f GB/s     %5.3f of a copy\n", calls[i].name, ms, calls[i].bytes / ms / 1e6,
                   calls[i].bytes / ms / copy);
    }
    b->device_vt->release(b->device, x);
    b->device_vt->release(b->device, y);
    b->device_vt->release(b->device, z);
    b->device_vt->release(b->device, w);
    return status;
}

static dp_status_t run(bench_t *b)
{
    const settings_t *set = &b->set;
    char name[128] = "";
    double roofline = 0;
    CUdevice device;
    dp_status_t status = open_device(b);

    if (status >= 0)
        status = cuda_current(b->host, &device);
    if (status >= 0)
        status =
            CUDA_CHECK(b->host, b->cu->cuDeviceGetName(name, sizeof(name), device), "asking for the device's name");
    if (status >= 0 && !set->open)
        status = measure_roofline(b, &roofline);
    if (status >= 0)
        status = open_attention(b);
    if (status < 0 || set->open)
        return status;
    printf("%s, %u multiprocessors for compute, %u for communication (0: no partition)\n", name,
           b->sms[DP_LANE_COMPUTE], b->sms[DP_LANE_ALL_TO_ALL]);
    printf("%s: batch %ld, sequence %ld, hidden %ld, heads %ld/%ld, dims %ld/%ld%s; median of %ld\n", set->core,
           set->batch, set->sequence, set->hidden, set->heads, set->kv_heads, set->head_dim, set->value_dim,
           set->deterministic ? ", deterministic" : "", set->iterations);
    printf("%-22s %12s  %7.1f TFLOP/s\n", "product", "", roofline);
    status = report_rows(b);
    return status < 0 ? status : report(b, roofline);
}

static void close_bench(bench_t *b)
{
    if (b->attention != NULL)
        close_attention(b);
    if (b->start != NULL)
        b->cu->cuEventDestroy(b->start);
    if (b->end != NULL)
        b->cu->cuEventDestroy(b->end);
    if (b->stream != NULL)
        b->device_vt->stream_close(b->stream);
    if (b->device != NULL)
        b->device_vt->close(b->device);
    if (b->group != NULL)
        dp_group_leave(b->group);
}

static int usage(const char *what)
{
    fprintf(stderr, "gpu_attention: %s\n", what);
    return 2;
}

int main(int argc, char **argv)
{
    static bench_t b = {.set = {"cudnn", 20, 1, 4096, 7168, 128, 0, 192, 128, 0, 20, 8192, 0, 1}};
    long *const numbers[] = {&b.set.comm_sms,      &b.set.batch,      &b.set.sequence, &b.set.hidden,
                             &b.set.heads,         &b.set.kv_heads,   &b.set.head_dim, &b.set.value_dim,
                             &b.set.deterministic, &b.set.iterations, &b.set.product,  &b.set.open,
                             &b.set.gate};
    static const struct option options[] = {
        {"comm-sms", 1, NULL, 0},      {"batch", 1, NULL, 1},      {"sequence", 1, NULL, 2}, {"hidden", 1, NULL, 3},
        {"heads", 1, NULL, 4},         {"kv-heads", 1, NULL, 5},   {"head-dim", 1, NULL, 6}, {"value-dim", 1, NULL, 7},
        {"deterministic", 1, NULL, 8}, {"iterations", 1, NULL, 9}, {"product", 1, NULL, 10}, {"open", 1, NULL, 11},
        {"gate", 1, NULL, 12},         {"core", 1, NULL, 'c'},     {NULL, 0, NULL, 0},
    };
    dp_status_t status;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        char *end = "";

        if (option == '?')
            return usage("unknown option; the head of bench/gpu_attention.c lists them");
        if (option == 'c')
            b.set.core = optarg;
        else
            *numbers[option] = strtol(optarg, &end, 10);
        if (*end != '\0' || (option >= 1 && option <= 10 && option != 8 && *numbers[option] < 1))
            return usage("numbers must be positive");
    }
    if (find_core(b.set.core) == NULL)
        return usage("--core must be cudnn (where it was built) or cuda");
    if (b.set.iterations > MOST_ITERATIONS)
        return usage("too many iterations");
    if (b.set.kv_heads == 0)
        b.set.kv_heads = b.set.heads;
    status = run(&b);
    close_bench(&b);
    return status < 0 ? complain(status) : 0;
}
