/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu_moe.c: how fast moe_cuda's calls are, against limits measured in the same run: a dense
 * product of cuBLASLt over as many rows, and a copy on the device. "limit" names which of the two
 * takes a call longer at best.
 *
 *   bench/gpu_moe [--dtype f32|f64|bf16] [--tokens N] [--hidden N] [--expert-hidden N] [--experts
 *   N] [--shared N] [--top-k N]
 *                 [--capacity X] [--turns N] [--open 0|1] [--gate 0|1]
 *
 * One rank holds all experts, and its exchanges hand rows on where they lie: what is measured of
 * dispatch and combine is what the plugin does itself, no transport. Defaults: 4096 tokens of
 * DeepSeek-V3's sizes, top 8 of 64 experts: 512 rows each. DUALPIPE_DEBUG=moe_cuda.products chooses
 * how. Times are medians over all turns of the device's own clock; a call's time is all of its
 * launches. --open 1 opens the block, takes all memory and ends. Exit status 77: no CUDA device. */
#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>
#include <dualpipe/moe.h>

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu_gate.h"
#include "cuda/gemm.h"

enum { NO_DEVICE = 77, WARM = 3, TURNS_MOST = 1000, CALLS = 10 };

typedef struct settings {
    dp_dtype_t dtype;
    const char *dtype_name;
    long tokens, hidden, expert_hidden, experts, shared, top_k, turns, open, gate;
    double capacity;
} settings_t;

/* An exchange of one rank with itself: what it sends has arrived. */
struct dp_comm {
    int nothing;
};

struct dp_exchange {
    int nothing;
};

typedef struct bench {
    settings_t set;
    dp_group_t *group;
    const dp_host_t *host;
    const cuda_driver_t *cu;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    dp_stream_t *stream;
    CUstream s;
    CUevent from, to;
    gate_t gate;
    /* not while kernels are loaded, for which the driver waits until the device is idle */
    bool gated;
    const dp_moe_vt_t *vt;
    dp_moe_t *moe;
    dp_block_sizes_t sizes;
    dp_io_t io;
    dp_moe_io_t moe_io;
} bench_t;

static dp_exchange_t exchanges[4];
static int32_t exchanges_open;

static dp_status_t self_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **out)
{
    (void)comm;
    (void)config;
    *out = &exchanges[exchanges_open++ % 4];
    return DP_OK;
}

static dp_status_t self_exchange(dp_exchange_t *e, uint32_t sequence, const void *send, const int32_t *offsets,
                                 const int32_t *counts, const void **rows_out, const int32_t **counts_out,
                                 dp_stream_t *s)
{
    (void)e;
    (void)sequence;
    (void)offsets;
    (void)s;
    *rows_out = send;
    *counts_out = counts;
    return DP_OK;
}

static dp_status_t self_exchange_release(dp_exchange_t *e, uint32_t sequence, dp_stream_t *s)
{
    (void)e;
    (void)sequence;
    (void)s;
    return DP_OK;
}

static const dp_comm_vt_t self_comm_vt = {
    .struct_size = sizeof(self_comm_vt),
    .caps = DP_COMM_CAP_ONE_SIDED,
    .exchange_open = self_exchange_open,
    .exchange = self_exchange,
    .exchange_release = self_exchange_release,
};

static _Noreturn void stop(void)
{
    fprintf(stderr, "gpu_moe: %s\n", dp_last_error());
    exit(strstr(dp_last_error(), "no CUDA device") != NULL ? NO_DEVICE : 1);
}

static void must(dp_status_t status)
{
    if (status < 0)
        stop();
}

#define MUST_CU(b, call) must(CUDA_CHECK((b)->host, (b)->cu->call, #call))

/* ---- memory ---- */

static void *memory(bench_t *b, size_t bytes)
{
    void *at = NULL;

    must(b->device_vt->allocate(b->device, bytes + 256, &at));
    return at;
}

/* `count` numbers in [-size, size), of which the first million and a few repeat. */
static void fill(bench_t *b, void *to, size_t count, double size)
{
    const size_t element = dp_dtype_bytes(b->set.dtype), pattern = 1048573 < count ? 1048573 : count;
    char *numbers = calloc(pattern, element);
    uint64_t state = 42;
    size_t i;

    for (i = 0; i < pattern; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        dp_number_set(b->set.dtype, numbers, i, ((double)(state >> 40) / (1 << 23) - 1) * size);
    }
    MUST_CU(b, cuMemcpyHtoD((CUdeviceptr)(uintptr_t)to, numbers, pattern * element));
    for (i = pattern; i < count; i += pattern)
        must(b->device_vt->copy(b->stream, (char *)to + i * element, to,
                                (count - i < pattern ? count - i : pattern) * element));
    must(b->device_vt->synchronize(b->stream, -1));
    free(numbers);
}

/* The same number `count` times. */
static void fill_with(bench_t *b, void *to, size_t count, double value)
{
    const size_t element = dp_dtype_bytes(b->set.dtype);
    char *numbers = calloc(count, element);
    size_t i;

    for (i = 0; i < count; i++)
        dp_number_set(b->set.dtype, numbers, i, value);
    MUST_CU(b, cuMemcpyHtoD((CUdeviceptr)(uintptr_t)to, numbers, count * element));
    free(numbers);
}

/* ---- time ---- */

static void begin(bench_t *b)
{
    if (b->gated)
        must(gate_shut(b->host, b->cu, &b->gate, b->s));
    MUST_CU(b, cuEventRecord(b->from, b->s));
}

/* Milliseconds since begin(). */
static double end(bench_t *b)
{
    float ms = 0;

    MUST_CU(b, cuEventRecord(b->to, b->s));
    gate_open(&b->gate);
    MUST_CU(b, cuEventSynchronize(b->to));
    MUST_CU(b, cuEventElapsedTime(&ms, b->from, b->to));
    return (double)ms;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *times, long count)
{
    qsort(times, (size_t)count, sizeof(*times), ascending);
    return times[count / 2];
}

/* ---- limits ---- */

/* GB/s of a copy: bytes read and bytes written. */
static double copy_limit(bench_t *b)
{
    const size_t bytes =
        (size_t)b->set.tokens * (size_t)b->set.top_k * (size_t)b->set.hidden * dp_dtype_bytes(b->set.dtype);
    void *from = memory(b, bytes), *to = memory(b, bytes);
    double times[TURNS_MOST];
    long i;

    for (i = 0; i < WARM + b->set.turns; i++) {
        begin(b);
        must(b->device_vt->copy(b->stream, to, from, bytes));
        times[i < WARM ? 0 : i - WARM] = end(b);
    }
    b->device_vt->release(b->device, from);
    b->device_vt->release(b->device, to);
    return 2 * (double)bytes / median(times, b->set.turns) / 1e6;
}

/* TFLOP/s of cuBLASLt: all rows by one expert's w_gate; 0 where there is no cuBLASLt. */
static double product_limit(bench_t *b)
{
    const size_t element = dp_dtype_bytes(b->set.dtype);
    const cuda_gemm_shape_t shape = {.in = b->set.dtype,
                                     .out = b->set.dtype,
                                     .m = (uint32_t)(b->set.tokens * b->set.top_k),
                                     .n = (uint32_t)b->set.expert_hidden,
                                     .k = (uint32_t)b->set.hidden};
    cuda_gemm_operands_t o = {.alpha = 1};
    double times[TURNS_MOST], flop = 2.0 * shape.m * shape.n * shape.k;
    cuda_gemm_t *gemm;
    void *a, *w, *c;
    long i;

    if (cuda_gemm_open(b->host, 0, 0, &gemm) < 0 || cuda_gemm_prepare(gemm, &shape) < 0) {
        fprintf(stderr, "gpu_moe: no limit for products: %s\n", dp_last_error());
        return 0;
    }
    a = memory(b, (size_t)shape.m * shape.k * element);
    w = memory(b, (size_t)shape.k * shape.n * element);
    c = memory(b, (size_t)shape.m * shape.n * element);
    fill(b, a, (size_t)shape.m * shape.k, 1);
    fill(b, w, (size_t)shape.k * shape.n, 1);
    o.a = a;
    o.b = w;
    o.c = c;
    o.workspace = memory(b, cuda_gemm_workspace(gemm));
    for (i = 0; i < WARM + b->set.turns; i++) {
        begin(b);
        must(cuda_gemm_run(gemm, &shape, &o, b->s));
        times[i < WARM ? 0 : i - WARM] = end(b);
    }
    b->device_vt->release(b->device, a);
    b->device_vt->release(b->device, w);
    b->device_vt->release(b->device, c);
    b->device_vt->release(b->device, o.workspace);
    cuda_gemm_close(gemm);
    return flop / median(times, b->set.turns) / 1e9;
}

/* ---- the block ---- */

static void open_device(bench_t *b)
{
    const dp_device_config_t config = {.struct_size = sizeof(config)};
    const dp_plugin_t *plugin;
    const void *table;
    CUdevice device;
    char name[96] = "";

    must(dp_group_local(1, NULL, &b->group));
    b->host = dp_group_host(b->group);
    must(dp_plugin_load("device_cuda", &plugin));
    must(dp_plugin_interface(plugin, DP_IFACE_DEVICE, DP_DEVICE_VT_MIN, &table));
    b->device_vt = table;
    must(b->device_vt->open(b->host, &config, &b->device));
    must(b->device_vt->stream_open(b->device, DP_LANE_COMPUTE, &b->stream));
    b->s = b->device_vt->stream_native(b->stream);
    must(cuda_driver(b->host, &b->cu));
    must(cuda_current(b->host, &device));
    MUST_CU(b, cuDeviceGetName(name, sizeof(name), device));
    MUST_CU(b, cuEventCreate(&b->from, CU_EVENT_DEFAULT));
    MUST_CU(b, cuEventCreate(&b->to, CU_EVENT_DEFAULT));
    if (b->set.gate)
        must(gate_make(b->host, b->cu, &b->gate));
    printf("device       %s\n", name);
}

static void open_block(bench_t *b)
{
    static dp_comm_t comm;
    const settings_t *set = &b->set;
    const dp_block_shape_t shape = {.struct_size = sizeof(shape),
                                    .dtype = set->dtype,
                                    .batch = 1,
                                    .sequence = (uint32_t)set->tokens,
                                    .hidden = (uint32_t)set->hidden};
    const dp_moe_config_t config = {
        .struct_size = sizeof(config),
        .shape = &shape,
        .experts = (uint32_t)set->experts,
        .top_k = (uint32_t)set->top_k,
        .expert_hidden = (uint32_t)set->expert_hidden,
        .shared_experts = (uint32_t)set->shared,
        .gate = DP_GATE_SIGMOID,
        .normalize = 1,
        .device_vt = b->device_vt,
        .device = b->device,
        .comm_vt = &self_comm_vt,
        .comm = &comm,
        .comm_size = 1,
        .capacity = (float)set->capacity,
    };
    const size_t element = dp_dtype_bytes(set->dtype), boundary = (size_t)set->tokens * (size_t)set->hidden;
    const dp_plugin_t *plugin;
    const void *table;
    dp_io_t *io = &b->io;

    must(dp_plugin_load("moe_cuda", &plugin));
    must(dp_plugin_interface(plugin, DP_IFACE_MOE, sizeof(dp_moe_vt_t), &table));
    b->vt = table;
    must(b->vt->open(b->host, &config, &b->moe));
    b->sizes.struct_size = sizeof(b->sizes);
    must(b->vt->sizes(b->moe, &b->sizes));
    io->struct_size = sizeof(*io);
    io->params = memory(b, b->sizes.param_count * element);
    io->grads = memory(b, b->sizes.param_count * dp_dtype_bytes(dp_dtype_accumulator(set->dtype)));
    io->saved = memory(b, b->sizes.saved_bytes);
    io->work = memory(b, b->sizes.work_bytes);
    io->scratch = memory(b, b->sizes.scratch_bytes);
    io->x = memory(b, boundary * element);
    io->dy = memory(b, boundary * element);
    io->y = memory(b, boundary * element);
    io->dx = memory(b, boundary * element);
    b->moe_io = (dp_moe_io_t){.struct_size = sizeof(b->moe_io), .io = io, .aux_scale = 1};
}

static void fill_block(bench_t *b)
{
    const settings_t *set = &b->set;
    const size_t element = dp_dtype_bytes(set->dtype), boundary = (size_t)set->tokens * (size_t)set->hidden;
    char *params = (char *)b->io.params;

    fill(b, params, b->sizes.param_count, 0.02);
    fill_with(b, params, (size_t)set->hidden, 1); /* the norm's gain */
    fill_with(b, params + (size_t)set->hidden * (size_t)(set->experts + 1) * element, (size_t)set->experts, 0);
    fill(b, (void *)b->io.x, boundary, 1);
    fill(b, (void *)b->io.dy, boundary, 1);
}

/* ---- what is measured ---- */

typedef dp_status_t (*call_t)(dp_moe_t *, const dp_moe_io_t *, dp_stream_t *);

typedef struct figure {
    const char *name;
    call_t call;
    double products; /* FLOP */
    double bytes;    /* least traffic; 0: not counted */
    double times[TURNS_MOST];
} figure_t;

static void measure(bench_t *b, figure_t *figures)
{
    long turn;
    int i;

    for (turn = 0; turn < WARM + b->set.turns; turn++) {
        b->gated = turn >= WARM;
        for (i = 0; i < CALLS; i++) {
            begin(b);
            must(figures[i].call(b->moe, &b->moe_io, b->stream));
            figures[i].times[turn < WARM ? 0 : turn - WARM] = end(b);
        }
    }
    must(b->device_vt->synchronize(b->stream, -1));
}

/* How many rows the experts had, from what route_backward_weight counted. */
static void report_rows(bench_t *b)
{
    const settings_t *set = &b->set;
    const size_t element = dp_dtype_bytes(dp_dtype_accumulator(set->dtype)),
                 at = (size_t)set->hidden * (size_t)(set->experts + 1);
    const double turns = (double)(WARM + set->turns);
    double least = 1e300, most = 0;
    char *counts = malloc((size_t)set->experts * element);
    long e;

    MUST_CU(b,
            cuMemcpyDtoH(counts, (CUdeviceptr)(uintptr_t)b->io.grads + at * element, (size_t)set->experts * element));
    for (e = 0; e < set->experts; e++) {
        const double rows =
            (element == 8 ? ((double *)(void *)counts)[e] : (double)((float *)(void *)counts)[e]) / turns;

        least = rows < least ? rows : least;
        most = rows > most ? rows : most;
    }
    printf("rows         %.0f for each expert, %.0f to %.0f\n",
           (double)set->tokens * (double)set->top_k / (double)set->experts, least, most);
    free(counts);
}

static void report(bench_t *b, figure_t *figures, double copy, double product)
{
    int i;

    printf("copy         %8.0f GB/s (read + written)\nproduct      %8.1f TFLOP/s (cuBLASLt, %ld x %ld x "
           "%ld)\n\n",
           copy, product, b->set.tokens * b->set.top_k, b->set.expert_hidden, b->set.hidden);
    printf("%-24s %9s %10s %10s %9s %8s\n", "call", "ms", "TFLOP/s", "GB/s", "limit", "of limit");
    for (i = 0; i < CALLS; i++) {
        const figure_t *figure = &figures[i];
        const double ms = median(figures[i].times, b->set.turns);
        const double by_product = product > 0 ? figure->products / product / 1e9 : 0;
        const double by_copy = figure->bytes / copy / 1e6;
        const char *limit = by_product > by_copy ? "product" : by_copy > 0 ? "copy" : "";

        printf("%-24s %9.3f %10.1f %10.0f %9s", figure->name, ms, figure->products / ms / 1e9, figure->bytes / ms / 1e6,
               limit);
        if (*limit != '\0')
            printf(" %8.2f", (by_product > by_copy ? by_product : by_copy) / ms);
        printf("\n");
    }
}

static void run(bench_t *b, double copy, double product)
{
    const settings_t *set = &b->set;
    const double d = (double)set->hidden, f = (double)set->expert_hidden, tokens = (double)set->tokens;
    const double rows = tokens * (double)set->top_k, real = (double)dp_dtype_bytes(set->dtype);
    const double sum = (double)dp_dtype_bytes(dp_dtype_accumulator(set->dtype));
    const double head = 16, token = d * real, own = set->shared > 0 ? d * sum : 0;
    /* One rank: a token's row is sent once, and is read once and written for each of its experts
     * where it arrives. */
    const double fanned = tokens * token + rows * (2 * head + token);
    /* Forward: three products of 2 d f for each row of an expert, and of each token through the
     * shared ones. */
    const double forward = 6 * d * f * (rows + tokens * (double)set->shared);
    /* Matrices are read once; of gradients there are as many, read and written. */
    const double matrices = 3 * d * f * (double)(set->experts + set->shared);
    const double inner = (rows + tokens * (double)set->shared) * f * real; /* [rows][f] once */
    const double outer = rows * token + (set->shared > 0 ? tokens * token : 0);
    static figure_t figures[CALLS];
    const figure_t all[CALLS] = {
        {.name = "route", .call = b->vt->route, .bytes = 4 * tokens * token + rows * head},
        {.name = "dispatch", .call = b->vt->dispatch, .bytes = fanned},
        {.name = "experts",
         .call = b->vt->experts,
         .products = forward,
         .bytes = matrices * real + 2 * outer + 2 * inner},
        {.name = "combine", .call = b->vt->combine, .bytes = rows * token + tokens * (2 * token + own)},
        {.name = "combine_backward",
         .call = b->vt->combine_backward,
         .bytes = 3 * tokens * token + rows * head + fanned},
        {.name = "experts_backward_input",
         .call = b->vt->experts_backward_input,
         .products = forward,
         .bytes = matrices * real + 2 * outer + 4 * inner},
        {.name = "experts_backward_weight",
         .call = b->vt->experts_backward_weight,
         .products = forward,
         .bytes = 2 * matrices * sum + 2 * outer + 3 * inner},
        {.name = "dispatch_backward",
         .call = b->vt->dispatch_backward,
         .bytes = rows * (head + token) + tokens * (d * sum + own)},
        {.name = "route_backward_input", .call = b->vt->route_backward_input},
        {.name = "route_backward_weight", .call = b->vt->route_backward_weight},
    };

    memcpy(figures, all, sizeof(figures));
    measure(b, figures);
    report_rows(b);
    report(b, figures, copy, product);
}

/* ---- options ---- */

static void usage(void)
{
    fprintf(stderr, "usage: gpu_moe [--dtype f32|f64|bf16] [--tokens N] [--hidden N] [--expert-hidden N] "
                    "[--experts N] [--shared N]\n"
                    "               [--top-k N] [--capacity X] [--turns N] [--gate 0|1]\n");
    exit(2);
}

static long number(const char *text, long least, long most)
{
    char *rest;
    long n = strtol(text, &rest, 10);

    if (*rest != '\0' || rest == text || n < least || n > most)
        usage();
    return n;
}

static dp_dtype_t dtype_of(const char *name)
{
    if (strcmp(name, "f32") == 0)
        return DP_F32;
    if (strcmp(name, "f64") == 0)
        return DP_F64;
    if (strcmp(name, "bf16") != 0)
        usage();
    return DP_BF16;
}

static void parse(int argc, char **argv, settings_t *set)
{
    static const struct option options[] = {
        {"dtype", 1, NULL, 't'},   {"tokens", 1, NULL, 'T'}, {"hidden", 1, NULL, 'd'}, {"expert-hidden", 1, NULL, 'f'},
        {"experts", 1, NULL, 'E'}, {"shared", 1, NULL, 's'}, {"top-k", 1, NULL, 'k'},  {"capacity", 1, NULL, 'c'},
        {"turns", 1, NULL, 'n'},   {"open", 1, NULL, 'o'},   {"gate", 1, NULL, 'g'},   {NULL, 0, NULL, 0},
    };
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (c) {
        case 't':
            set->dtype_name = optarg;
            break;
        case 'T':
            set->tokens = number(optarg, 1, 1 << 24);
            break;
        case 'd':
            set->hidden = number(optarg, 1, 1 << 20);
            break;
        case 'f':
            set->expert_hidden = number(optarg, 1, 1 << 20);
            break;
        case 'E':
            set->experts = number(optarg, 1, 1 << 14);
            break;
        case 's':
            set->shared = number(optarg, 0, 64);
            break;
        case 'k':
            set->top_k = number(optarg, 1, 1 << 14);
            break;
        case 'c':
            set->capacity = strtod(optarg, NULL);
            break;
        case 'o':
            set->open = number(optarg, 0, 1);
            break;
        case 'g':
            set->gate = number(optarg, 0, 1);
            break;
        case 'n':
            set->turns = number(optarg, 1, TURNS_MOST);
            break;
        default:
            usage();
        }
    if (optind != argc)
        usage();
    set->dtype = dtype_of(set->dtype_name);
}

int main(int argc, char **argv)
{
    static bench_t b = {.set = {.dtype_name = "bf16",
                                .tokens = 4096,
                                .hidden = 7168,
                                .expert_hidden = 2048,
                                .experts = 64,
                                .shared = 0,
                                .top_k = 8,
                                .turns = 20,
                                .gate = 1}};
    double copy, product;

    parse(argc, argv, &b.set);
#ifdef DP_BENCH_PLUGINS
    setenv("DUALPIPE_PLUGIN_PATH", DP_BENCH_PLUGINS, 0);
#endif
    open_device(&b);
    printf("block        %s, %ld tokens of %ld, top %ld of %ld experts of %ld, %ld shared; %ld turns\n",
           b.set.dtype_name, b.set.tokens, b.set.hidden, b.set.top_k, b.set.experts, b.set.expert_hidden, b.set.shared,
           b.set.turns);
    open_block(&b);
    if (!b.set.open) {
        fill_block(&b);
        copy = copy_limit(&b);
        product = product_limit(&b);
        run(&b, copy, product);
    }
    b.vt->close(b.moe);
    b.device_vt->stream_close(b.stream);
    b.device_vt->close(b.device);
    dp_group_leave(b.group);
    return 0;
}
