/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_cpu.c: the experts of moe_cpu beside plain matrix products of the same total size, and the
 * moving of rows beside memcpy. One rank, one thread, exchanges in memory.
 *
 *   bench/moe_cpu [f32|f64 TOKENS HIDDEN EXPERTS TOP_K EXPERT_HIDDEN [ROUNDS]]
 *
 * "one" multiplies all rows by one expert's weights at a time, "cut" as many rows as an expert gets
 * on average by each expert's weights in turn: the first is the most that BLAS gives, the second
 * what it gives for blocks of this size. A row that moves counts once however often it is copied on
 * the way; memcpy copies as many bytes once. */
#include <cblas.h>
#include <dualpipe/group.h>
#include <dualpipe/plugin.h>
#include <stdio.h>
#include <time.h>

#include "tests/support/block_config.h"
#include "tests/support/inline.h"

typedef struct job {
    const dp_moe_vt_t *vt;
    dp_moe_t *moe;
    moe_config_t config;
    dp_block_sizes_t sizes;
    dp_stream_t stream;
    moe_io_t forward, backward;
    size_t element, rows, row_bytes;
    void *left, *right, *out; /* of the plain products */
} job_t;

typedef dp_status_t (*call_fn)(dp_moe_t *, const dp_moe_io_t *, dp_stream_t *);

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *filled(const job_t *job, size_t bytes, double size)
{
    void *memory = NULL;
    uint32_t state = 1;
    size_t i;

    if (posix_memalign(&memory, 256, bytes + 64) != 0) {
        fprintf(stderr, "moe_cpu: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    for (i = 0; i < bytes / job->element; i++) {
        double value;

        state = state * 1664525U + 1013904223U;
        value = size * ((double)(state >> 8) / (1 << 23) - 1);
        if (job->config.shape.dtype == DP_F32)
            ((float *)memory)[i] = (float)value;
        else
            ((double *)memory)[i] = value;
    }
    return memory;
}

static void multiply(const job_t *job, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, size_t m, size_t n, size_t k,
                     size_t from)
{
    const int lda = (int)(ta == CblasTrans ? m : k), ldb = (int)(tb == CblasTrans ? k : n);
    const char *right = (const char *)job->right + from * job->element;

    if (job->config.shape.dtype == DP_F32)
        cblas_sgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, 1, job->left, lda,
                    (const float *)(const void *)right, ldb, 0, job->out, (int)n);
    else
        cblas_dgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, 1, job->left, lda,
                    (const double *)(const void *)right, ldb, 0, job->out, (int)n);
}

/* Pass 0, 1, 2: forward, backward for input, backward for weights, in `parts` parts. */
static double plain(const job_t *job, int pass, size_t parts)
{
    const size_t d = job->config.shape.hidden, f = job->config.moe.expert_hidden, m = job->rows / parts, one = d * f;
    const double start = now();
    size_t e;

    for (e = 0; e < parts; e++) {
        const size_t w = pass < 2 ? e * 3 * one : 0;

        if (pass == 0) {
            multiply(job, CblasNoTrans, CblasNoTrans, m, f, d, w);
            multiply(job, CblasNoTrans, CblasNoTrans, m, f, d, w + one);
            multiply(job, CblasNoTrans, CblasNoTrans, m, d, f, w + 2 * one);
        } else if (pass == 1) {
            multiply(job, CblasNoTrans, CblasTrans, m, f, d, w + 2 * one);
            multiply(job, CblasNoTrans, CblasTrans, m, d, f, w);
            multiply(job, CblasNoTrans, CblasTrans, m, d, f, w + one);
        } else {
            multiply(job, CblasTrans, CblasNoTrans, d, f, m, w);
            multiply(job, CblasTrans, CblasNoTrans, d, f, m, w);
            multiply(job, CblasTrans, CblasNoTrans, f, d, m, w);
        }
    }
    return now() - start;
}

static double timed(job_t *job, call_fn call, moe_io_t *io)
{
    const double start = now();

    io->moe.io = &io->io;
    if (call(job->moe, &io->moe, &job->stream) < 0 || job->stream.status < 0) {
        fprintf(stderr, "moe_cpu: %s\n", dp_last_error());
        exit(1);
    }
    return now() - start;
}

static void keep_best(double *best, double seconds)
{
    if (*best == 0 || seconds < *best)
        *best = seconds;
}

enum { ROUTE, DISPATCH, EXPERTS, COMBINE, COMBINE_B, EXPERTS_I, DISPATCH_B, ROUTE_I, EXPERTS_W, ROUTE_W, CALLS };

static const char *const names[CALLS] = {"route",
                                         "dispatch",
                                         "experts",
                                         "combine",
                                         "combine_backward",
                                         "experts_backward_input",
                                         "dispatch_backward",
                                         "route_backward_input",
                                         "experts_backward_weight",
                                         "route_backward_weight"};

static void report(const job_t *job, const double *best, const double (*products)[2], double copy)
{
    static const int grouped[] = {EXPERTS, EXPERTS_I, EXPERTS_W}, moved[] = {DISPATCH, COMBINE, COMBINE_B, DISPATCH_B};
    const double flops =
        6.0 * (double)job->rows * (double)job->config.shape.hidden * (double)job->config.moe.expert_hidden;
    const double bytes = (double)job->rows * (double)job->row_bytes;
    double total = 0;
    int i;

    printf("%-24s %10s %10s %12s %12s %10s %10s\n", "", "ms", "GFLOP/s", "one GFLOP/s", "cut GFLOP/s", "of one",
           "of cut");
    for (i = 0; i < 3; i++) {
        const double seconds = best[grouped[i]];

        printf("%-24s %10.3f %10.1f %12.1f %12.1f %10.3f %10.3f\n", names[grouped[i]], seconds * 1e3,
               flops / seconds * 1e-9, flops / products[i][0] * 1e-9, flops / products[i][1] * 1e-9,
               products[i][0] / seconds, products[i][1] / seconds);
    }
    printf("%-24s %10s %10s %12s %12s\n", "", "ms", "GB/s", "memcpy GB/s", "of memcpy");
    for (i = 0; i < 4; i++)
        printf("%-24s %10.3f %10.2f %12.2f %12.3f\n", names[moved[i]], best[moved[i]] * 1e3,
               bytes / best[moved[i]] * 1e-9, bytes / copy * 1e-9, copy / best[moved[i]]);
    for (i = 0; i < CALLS; i++)
        total += best[i];
    printf("%-24s %10s %10s\n", "", "ms", "share");
    for (i = 0; i < CALLS; i++)
        printf("%-24s %10.3f %10.3f\n", names[i], best[i] * 1e3, best[i] / total);
}

static void measure(job_t *job, int rounds)
{
    const call_fn calls[CALLS] = {job->vt->route,
                                  job->vt->dispatch,
                                  job->vt->experts,
                                  job->vt->combine,
                                  job->vt->combine_backward,
                                  job->vt->experts_backward_input,
                                  job->vt->dispatch_backward,
                                  job->vt->route_backward_input,
                                  job->vt->experts_backward_weight,
                                  job->vt->route_backward_weight};
    double best[CALLS] = {0}, products[3][2] = {{0}}, copy = 0;
    int r, i;

    for (r = 0; r < rounds; r++) {
        double start;

        for (i = 0; i < CALLS; i++)
            keep_best(&best[i], timed(job, calls[i], i < COMBINE_B ? &job->forward : &job->backward));
        for (i = 0; i < 3; i++) {
            keep_best(&products[i][0], plain(job, i, 1));
            keep_best(&products[i][1], plain(job, i, job->config.moe.experts));
        }
        start = now();
        memcpy(job->out, job->left, job->rows * job->row_bytes);
        keep_best(&copy, now() - start);
    }
    report(job, best, (const double(*)[2])products, copy);
}

static void prepare(job_t *job)
{
    const moe_config_t *c = &job->config;
    const size_t d = c->shape.hidden, f = c->moe.expert_hidden, most = d > f ? d : f;
    const size_t boundary = (size_t)c->shape.sequence * d * job->element;
    const size_t operand = (job->rows * most + d * f) * job->element + job->rows * job->row_bytes;
    dp_io_t *io = &job->forward.io;

    job->sizes.struct_size = sizeof(job->sizes);
    (void)job->vt->sizes(job->moe, &job->sizes);
    io->struct_size = sizeof(*io);
    job->forward.moe.struct_size = sizeof(job->forward.moe);
    io->params = filled(job, job->sizes.param_count * job->element, 0.05);
    io->grads = filled(job, job->sizes.param_count * job->element, 0);
    io->saved = filled(job, job->sizes.saved_bytes, 0);
    io->scratch = filled(job, job->sizes.scratch_bytes, 0);
    io->work = filled(job, job->sizes.work_bytes, 0);
    io->x = filled(job, boundary, 1);
    io->y = filled(job, boundary, 1);
    io->dy = filled(job, boundary, 1);
    io->dx = filled(job, boundary, 1);
    job->backward = job->forward;
    job->backward.io.work = filled(job, job->sizes.work_bytes, 0);
    job->left = filled(job, operand, 1);
    job->right = filled(job, (3 * c->moe.experts * d * f + job->rows * most) * job->element, 0.05);
    job->out = filled(job, operand, 0);
}

static void finish(job_t *job)
{
    void *const memory[] = {(void *)job->forward.io.params,
                            job->forward.io.grads,
                            job->forward.io.saved,
                            job->forward.io.scratch,
                            job->forward.io.work,
                            (void *)job->forward.io.x,
                            job->forward.io.y,
                            (void *)job->forward.io.dy,
                            job->forward.io.dx,
                            job->backward.io.work,
                            job->left,
                            job->right,
                            job->out};
    size_t i;

    for (i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        free(memory[i]);
    job->vt->close(job->moe);
}

static int bench(const moe_config_t *config, int rounds)
{
    const dp_plugin_t *plugin = NULL;
    const void *table = NULL;
    dp_group_t *group = NULL;
    inline_group_t comm;
    dp_device_t device = {0};
    job_t job = {.config = *config};

    inline_group_open(&comm, 1);
    job.config.moe.device_vt = &inline_device_vt;
    job.config.moe.device = &device;
    job.config.moe.comm_vt = &inline_comm_vt;
    job.config.moe.comm = &comm.comms[0];
    job.config.moe.comm_size = 1;
    if (dp_plugin_load("moe_cpu", &plugin) < 0 ||
        dp_plugin_interface(plugin, DP_IFACE_MOE, sizeof(dp_moe_vt_t), &table) < 0 ||
        dp_group_local(1, NULL, &group) < 0) {
        fprintf(stderr, "moe_cpu: %s\n", dp_last_error());
        return 1;
    }
    job.vt = table;
    if (moe_open(job.vt, dp_group_host(group), &job.config, &job.moe) < 0) {
        fprintf(stderr, "%s\n", dp_last_error());
        return 1;
    }
    job.element = dp_dtype_bytes(config->shape.dtype);
    job.rows = (size_t)config->shape.sequence * config->moe.top_k;
    job.row_bytes = comm.comms[0].exchanges[0]->config.row_bytes;
    printf("%s tokens %u hidden %u experts %u top_k %u expert_hidden %u: %zu rows, best of %d\n",
           config->shape.dtype == DP_F32 ? "f32" : "f64", config->shape.sequence, config->shape.hidden,
           config->moe.experts, config->moe.top_k, config->moe.expert_hidden, job.rows, rounds);
    prepare(&job);
    measure(&job, rounds);
    finish(&job);
    inline_group_close(&comm);
    dp_group_leave(group);
    return 0;
}

int main(int argc, char **argv)
{
    moe_config_t c = {
        .shape = {.struct_size = sizeof(c.shape), .dtype = DP_F32, .batch = 1, .sequence = 1024, .hidden = 512},
        .moe =
            {
                .struct_size = sizeof(c.moe),
                .experts = 8,
                .top_k = 2,
                .expert_hidden = 512,
                .normalize = 1,
            },
    };

    if (argc != 1 && argc != 7 && argc != 8) {
        fprintf(stderr, "usage: %s [f32|f64 TOKENS HIDDEN EXPERTS TOP_K EXPERT_HIDDEN [ROUNDS]]\n", argv[0]);
        return 2;
    }
    if (argc > 1) {
        c.shape.dtype = strcmp(argv[1], "f64") == 0 ? DP_F64 : DP_F32;
        c.shape.sequence = (uint32_t)strtoul(argv[2], NULL, 10);
        c.shape.hidden = (uint32_t)strtoul(argv[3], NULL, 10);
        c.moe.experts = (uint32_t)strtoul(argv[4], NULL, 10);
        c.moe.top_k = (uint32_t)strtoul(argv[5], NULL, 10);
        c.moe.expert_hidden = (uint32_t)strtoul(argv[6], NULL, 10);
    }
    (void)setenv("DUALPIPE_PLUGIN_PATH", DP_BENCH_PLUGINS, 0);
    return bench(&c, argc == 8 ? (int)strtol(argv[7], NULL, 10) : 7);
}
