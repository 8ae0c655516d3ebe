/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mlp_step.c: a training step of the workload of DualPipe's published example, against the same
 * GEMMs alone.
 *
 *     dualpipe run -n 4 --no-prefix -- bench/mlp_step [--hidden H] [--steps N] [--microbatches M]
 *
 * Each of the 4 stages is Linear(h, 4h), GELU, Linear(4h, h) without bias; MSE loss; 20
 * micro-batches of 3 x 256 rows, fp32, DualPipe. In the same run two ranks, one a core, call the
 * same GEMMs and nothing else: the limit for 2 cores. Source of the workload: deepseek-ai/DualPipe,
 * examples/example_dualpipe.py. */
#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>

#include <cblas.h>
#include <dlfcn.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 3 * 256 };

#if defined(__x86_64__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define VECTORISED
#endif

/* One stage of width h; saved memory of a micro-batch: x, dy [ROWS, h]; g, slope [ROWS, 4h] (slope
 * becomes dh). */
typedef struct stage {
    int h;
    const dp_device_vt_t *device;
} stage_t;

typedef struct job {
    const stage_t *stage;
    dp_segment_call_t call;
} job_t;

static void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, const float *a, const float *b,
                 float beta, float *c)
{
    cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, ta == CblasNoTrans ? k : m, b, tb == CblasNoTrans ? n : k, beta,
                c, n);
}

/* h -> gelu(h), in place, and its slope. erf by Abramowitz and Stegun 7.1.26 (absolute error
 * 1.5e-7); e^(-h*h/2) is needed by both. */
VECTORISED static void gelu(float *restrict h, float *restrict slope, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = h[i], z = fabsf(x) * 0.70710678f, t = 1 / (1 + 0.3275911f * z);
        /* fmaxf would not vectorise */
        float q = -z * z, y = (q > -87.0f ? q : -87.0f) * 1.44269504f;
        float k = rintf(y), f = (y - k) * 0.69314718f, e, erf, cdf;
        union {
            int32_t i;
            float f;
        } scale = {.i = ((int32_t)k + 127) << 23};

        e = 1 + f * (1 + f * (0.5f + f * (0.16666667f + f * (0.041666668f + f * (0.0083333338f + f * 0.0013888889f)))));
        e *= scale.f;
        erf =
            1 -
            t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)))) * e;
        cdf = 0.5f + (x < 0 ? -0.5f : 0.5f) * erf;
        h[i] = x * cdf;
        slope[i] = cdf + x * 0.39894228f * e;
    }
}

VECTORISED static void scale_by(float *restrict a, const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        a[i] *= b[i];
}

typedef struct saved {
    float *x, *dy, *g, *slope;
} saved_t;

static saved_t saved_of(const job_t *job)
{
    size_t small = (size_t)ROWS * (size_t)job->stage->h;
    float *at = job->call.saved;

    return (saved_t){at, at + small, at + 2 * small, at + 6 * small};
}

static dp_status_t run_forward(void *arg)
{
    const job_t *job = arg;
    const dp_segment_call_t *c = &job->call;
    int h = job->stage->h;
    saved_t s = saved_of(job);
    const float *w1 = c->params, *w2 = w1 + 4 * (size_t)h * (size_t)h;
    /* the last stage's output lives where its gradient will */
    float *y = c->y != NULL ? c->y : s.dy;

    memcpy(s.x, c->x != NULL ? c->x : c->input, (size_t)ROWS * (size_t)h * sizeof(float));
    gemm(CblasNoTrans, CblasNoTrans, ROWS, 4 * h, h, s.x, w1, 0, s.g);
    gelu(s.g, s.slope, (size_t)ROWS * 4 * (size_t)h);
    gemm(CblasNoTrans, CblasNoTrans, ROWS, h, 4 * h, s.g, w2, 0, y);
    if (c->loss != NULL) {
        const float *target = c->target;
        double sum = 0;

        for (size_t i = 0; i < (size_t)ROWS * (size_t)h; i++) {
            float d = y[i] - target[i];

            sum += (double)d * d;
            s.dy[i] = (float)(2 * c->loss_scale / (ROWS * h)) * d;
        }
        *c->loss += sum / (ROWS * h);
    }
    return DP_OK;
}

static dp_status_t run_backward_input(void *arg)
{
    const job_t *job = arg;
    const dp_segment_call_t *c = &job->call;
    int h = job->stage->h;
    saved_t s = saved_of(job);
    const float *w1 = c->params, *w2 = w1 + 4 * (size_t)h * (size_t)h;
    float *dg = c->scratch;

    if (c->dy != NULL)
        memcpy(s.dy, c->dy, (size_t)ROWS * (size_t)h * sizeof(float));
    gemm(CblasNoTrans, CblasTrans, ROWS, 4 * h, h, s.dy, w2, 0, dg);
    scale_by(s.slope, dg, (size_t)ROWS * 4 * (size_t)h);
    if (c->dx != NULL)
        gemm(CblasNoTrans, CblasTrans, ROWS, h, 4 * h, s.slope, w1, 0, c->dx);
    return DP_OK;
}

static dp_status_t run_backward_weight(void *arg)
{
    const job_t *job = arg;
    int h = job->stage->h;
    saved_t s = saved_of(job);
    float *dw1 = job->call.grads, *dw2 = dw1 + 4 * (size_t)h * (size_t)h;

    gemm(CblasTrans, CblasNoTrans, h, 4 * h, ROWS, s.x, s.slope, 1, dw1);
    gemm(CblasTrans, CblasNoTrans, 4 * h, h, ROWS, s.g, s.dy, 1, dw2);
    return DP_OK;
}

static dp_status_t put(void *self, const dp_segment_call_t *call, dp_stream_t *s, dp_launch_fn fn)
{
    job_t job = {self, *call};

    return job.stage->device->launch(s, fn, &job, sizeof(job));
}
static dp_status_t forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    return put(self, call, s, run_forward);
}
static dp_status_t backward_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    return put(self, call, s, run_backward_input);
}
static dp_status_t backward_weight(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    return put(self, call, s, run_backward_weight);
}

static dp_stage_t *stages[2];
static int nstages;

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t count,
                         dp_stage_t **stage_out)
{
    stage_t *self = user;
    size_t h = (size_t)self->h;
    dp_param_t params[] = {
        {.name = "w1", .kind = DP_PARAM_MATRIX, .count = 4 * h * h, .fan_in = (uint32_t)h},
        {.name = "w2", .kind = DP_PARAM_MATRIX, .offset = 4 * h * h, .count = 4 * h * h, .fan_in = (uint32_t)(4 * h)}};
    const dp_segment_t segment = {.struct_size = sizeof(segment),
                                  .name = "mlp",
                                  .self = self,
                                  .forward = forward,
                                  .backward_input = backward_input,
                                  .backward_weight = backward_weight};
    const dp_block_sizes_t sizes = {.struct_size = sizeof(sizes),
                                    .saved_bytes = 10 * ROWS * h * sizeof(float),
                                    .scratch_bytes = 4 * ROWS * h * sizeof(float),
                                    .param_count = 8 * h * h,
                                    .nparams = 2};
    const dp_part_t part = {
        .struct_size = sizeof(part), .nsegments = 1, .segments = &segment, .sizes = &sizes, .param_list = params};
    dp_status_t status;

    (void)stage, (void)count;
    self->device = context->device_vt;
    status = dp_stage_create(&part, 1, ROWS * h * sizeof(float), DP_F32, stage_out);
    if (status >= 0)
        stages[nstages++] = *stage_out;
    return status;
}

static void check(dp_status_t status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "mlp_step: %s\n", dp_last_error());
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *random_tensor(size_t n, unsigned seed, float scale)
{
    float *x = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);

    if (x == NULL)
        exit(1);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ((float)(seed >> 8) / 8388608.0f - 1) * scale;
    }
    return x;
}

/* The GEMMs of `count` stage passes of one micro-batch, on this core. */
static double gemms_alone(int h, int count)
{
    size_t n = (size_t)h;
    float *x = random_tensor(ROWS * n, 1, 1), *g = random_tensor(4 * ROWS * n, 2, 1),
          *w1 = random_tensor(4 * n * n, 3, 0.05f);
    float *w2 = random_tensor(4 * n * n, 4, 0.05f), *dy = random_tensor(ROWS * n, 5, 1);
    double start = now();

    for (int i = 0; i < count; i++) {
        gemm(CblasNoTrans, CblasNoTrans, ROWS, 4 * h, h, x, w1, 0, g);
        gemm(CblasNoTrans, CblasNoTrans, ROWS, h, 4 * h, g, w2, 0, dy);
        gemm(CblasNoTrans, CblasTrans, ROWS, 4 * h, h, dy, w2, 0, g);
        gemm(CblasNoTrans, CblasTrans, ROWS, h, 4 * h, g, w1, 0, x);
        gemm(CblasTrans, CblasNoTrans, h, 4 * h, ROWS, x, g, 1, w1);
        gemm(CblasTrans, CblasNoTrans, 4 * h, h, ROWS, g, dy, 1, w2);
    }
    start = now() - start;
    free(x), free(g), free(w1), free(w2), free(dy);
    return start;
}

static double cpu(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double sum_over_ranks(dp_group_t *group, double mine)
{
    double all[64], sum = 0;

    check(dp_group_all_gather(group, &mine, sizeof(mine), all));
    for (int r = 0; r < dp_group_size(group); r++)
        sum += all[r];
    return sum;
}

/* The limit: all GEMMs of a step, half on rank 0 and half on rank 1, all other ranks asleep. On
 * every rank. */
static double limit(dp_group_t *group, int h, int passes, double *cpu_out)
{
    double mine = 0, all[64], used = cpu();

    check(dp_group_barrier(group));
    if (dp_group_rank(group) < 2)
        mine = gemms_alone(h, passes / 2);
    *cpu_out = sum_over_ranks(group, cpu() - used);
    check(dp_group_all_gather(group, &mine, sizeof(mine), all));
    return all[0] > all[1] ? all[0] : all[1];
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

typedef struct setup {
    int hidden, steps, microbatches;
} setup_t;

static setup_t options(int argc, char **argv)
{
    static const struct option names[] = {{"hidden", required_argument, NULL, 'h'},
                                          {"steps", required_argument, NULL, 's'},
                                          {"microbatches", required_argument, NULL, 'm'},
                                          {NULL, 0, NULL, 0}};
    setup_t o = {512, 5, 20};
    int c;

    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1)
        switch (c) {
        case 'h':
            o.hidden = atoi(optarg);
            break;
        case 's':
            o.steps = atoi(optarg);
            break;
        case 'm':
            o.microbatches = atoi(optarg);
            break;
        default:
            exit(2);
        }
    if (o.hidden < 1 || o.hidden > 8192 || o.steps < 1 || o.steps > 999 || o.microbatches > 1000) {
        fprintf(stderr, "mlp_step: hidden must be 1 to 8192, steps 1 to 999\n");
        exit(2);
    }
    return o;
}

int main(int argc, char **argv)
{
    void (*threads)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "openblas_set_num_threads");
    setup_t o = options(argc, argv);
    stage_t stage = {.h = o.hidden};
    dp_step_t step = {.struct_size = sizeof(step)};
    double times[999], limits[3], step_cpu = 0, limit_cpu = 0;
    const void *data[1000];
    dp_group_t *group;
    dp_pipeline_t *p;
    int passes;

    if (threads != NULL)
        threads(1); /* one rank, one thread: two ranks share a core as it is */
    check(dp_group_join(NULL, &group));
    if (dp_group_size(group) < 2 || dp_group_size(group) > 64) {
        fprintf(stderr, "mlp_step: start it with: dualpipe run -n 4 --no-prefix -- %s\n", argv[0]);
        return 2;
    }
    check(dp_pipeline_open(&(dp_pipeline_options_t){.struct_size = sizeof(dp_pipeline_options_t),
                                                    .group = group,
                                                    .method = "dualpipe",
                                                    .microbatches = o.microbatches,
                                                    .boundary_bytes = ROWS * (size_t)o.hidden * sizeof(float),
                                                    .build = build,
                                                    .user = &stage},
                           &p));
    for (int c = 0; c < dp_pipeline_chunks(p); c++) {
        dp_chunk_view_t view = {.struct_size = sizeof(view)};
        float *w;

        check(dp_pipeline_chunk(p, c, &view));
        w = random_tensor(view.param_count, 77u + (unsigned)view.stage, 1 / sqrtf((float)o.hidden));
        memcpy(view.params, w, view.param_count * sizeof(float));
        free(w);
    }
    for (int i = 0; i < o.microbatches; i++)
        data[i] = random_tensor(ROWS * (size_t)o.hidden, 1000u + (unsigned)i, 1);
    step.inputs = step.targets = data;
    passes = dp_group_size(group) * o.microbatches;
    check(dp_pipeline_step(p, &step));
    for (int i = 0; i < 3; i++)
        limits[i] = limit(group, o.hidden, passes, &limit_cpu);
    for (int i = 0; i < o.steps; i++) {
        double start, used;

        check(dp_group_barrier(group));
        start = now(), used = cpu();
        check(dp_pipeline_step(p, &step));
        times[i] = now() - start;
        step_cpu = sum_over_ranks(group, cpu() - used);
        if (i % 2 == 1 && i / 2 < 3)
            /* interleaved with the steps: the machine may drift */
            limits[i / 2] = limit(group, o.hidden, passes, &limit_cpu);
    }
    qsort(times, (size_t)o.steps, sizeof(times[0]), compare);
    qsort(limits, 3, sizeof(limits[0]), compare);
    if (dp_group_rank(group) == 0)
        printf(
            "hidden %d, %d ranks, %d micro-batches: step %.4f s median (%.4f best), the same GEMMs alone on 2 cores %.4f s\n"
            "ratio to the GEMMs alone: %.3f\n"
            "CPU time of the last step %.4f s, of the GEMMs %.4f s: ratio %.3f\n",
            o.hidden, dp_group_size(group), o.microbatches, times[o.steps / 2], times[0], limits[1],
            times[o.steps / 2] / limits[1], step_cpu, limit_cpu, step_cpu / limit_cpu);
    dp_pipeline_close(p);
    for (int i = 0; i < nstages; i++)
        dp_stage_free(stages[i]);
    dp_group_leave(group);
    return 0;
}
