/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_cpu.c: GFLOP/s of the three passes of attention_cpu beside plain matrix products of the
 * same sizes.
 *
 *   bench/attention_cpu [f32|f64 BATCH SEQUENCE HIDDEN HEADS KV_HEADS HEAD_DIM [VALUE_DIM]]
 *
 * Counted are the products alone, and of S x S only the causal half. The plain run multiplies the
 * same projections, and for each product of a head [S, D] x [D, (S+1)/2], which is as much work as
 * the causal half without its shape. */
#include "tests/support/attention_rig.h"

#include <cblas.h>

enum { ROUNDS = 5 };

typedef struct job {
    rig_t rig;
    attention_config_t config;
    dp_attention_t *attention;
    dp_block_sizes_t sizes;
    size_t element_bytes, tokens;
    dp_io_t io;
    void *plain[3]; /* operands and result of the plain products */
} job_t;

typedef dp_status_t (*pass_fn)(dp_attention_t *, const dp_io_t *, dp_stream_t *);

static void *filled(const job_t *job, size_t elements, double scale)
{
    void *memory = NULL;
    uint32_t state = 12345;

    if (posix_memalign(&memory, 256, elements * job->element_bytes + 64) != 0)
        return NULL;
    for (size_t i = 0; i < elements; i++) {
        double value;

        state = state * 1664525u + 1013904223u;
        value = scale * ((double)(state >> 8) / (1 << 23) - 1);
        if (job->config.shape.dtype == DP_F32)
            ((float *)memory)[i] = (float)value;
        else
            ((double *)memory)[i] = value;
    }
    return memory;
}

static double gemm(const job_t *job, size_t m, size_t n, size_t k, int left_transposed, int right_transposed)
{
    const enum CBLAS_TRANSPOSE ta = left_transposed ? CblasTrans : CblasNoTrans;
    const enum CBLAS_TRANSPOSE tb = right_transposed ? CblasTrans : CblasNoTrans;
    const int lda = (int)(left_transposed ? m : k), ldb = (int)(right_transposed ? k : n);

    if (job->config.shape.dtype == DP_F32)
        cblas_sgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, 1, job->plain[0], lda, job->plain[1], ldb, 0,
                    job->plain[2], (int)n);
    else
        cblas_dgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, 1, job->plain[0], lda, job->plain[1], ldb, 0,
                    job->plain[2], (int)n);
    return 2.0 * (double)m * (double)n * (double)k;
}

typedef enum pass { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT } pass_t;

/* [a, b] x [b, width]: as it is, with the right or with the left side transposed. */
static double plain_projection(const job_t *job, pass_t pass, size_t from, size_t to)
{
    if (pass == FORWARD)
        return gemm(job, job->tokens, to, from, 0, 0);
    if (pass == BACKWARD_INPUT)
        return gemm(job, job->tokens, from, to, 0, 1);
    return gemm(job, from, to, job->tokens, 1, 0);
}

static double plain_heads(const job_t *job, pass_t pass)
{
    const attention_config_t *c = &job->config;
    const size_t s = c->shape.sequence, half = (s + 1) / 2, hd = c->attention.head_dim, vd = c->attention.value_dim;
    double flops = 0;

    for (size_t h = 0; h < (size_t)c->shape.batch * c->attention.heads; h++) {
        if (pass == FORWARD)
            flops += gemm(job, s, half, hd, 0, 1) + gemm(job, s, vd, half, 0, 0);
        if (pass == BACKWARD_INPUT)
            flops += gemm(job, s, half, hd, 0, 1) + gemm(job, s, half, vd, 0, 1) + gemm(job, half, vd, s, 1, 0) +
                     gemm(job, half, hd, s, 1, 0) + gemm(job, s, hd, half, 0, 0);
    }
    return flops;
}

static double plain(const job_t *job, pass_t pass)
{
    const attention_config_t *c = &job->config;
    const size_t d = c->shape.hidden;

    return plain_projection(job, pass, d, (size_t)c->attention.heads * c->attention.head_dim) +
           plain_projection(job, pass, d, (size_t)c->attention.kv_heads * c->attention.head_dim) +
           plain_projection(job, pass, d, (size_t)c->attention.kv_heads * c->attention.value_dim) +
           plain_projection(job, pass, (size_t)c->attention.heads * c->attention.value_dim, d) + plain_heads(job, pass);
}

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int prepare(job_t *job)
{
    const attention_config_t *c = &job->config;
    const size_t d = c->shape.hidden, s = c->shape.sequence, elements = job->tokens * d;
    const size_t width =
        largest((size_t)c->attention.heads * largest(c->attention.head_dim, c->attention.value_dim), largest(d, s));
    const size_t most = largest(width * width, largest(job->tokens, s) * width);

    job->sizes.struct_size = sizeof(job->sizes);
    if (job->rig.vt->sizes(job->attention, &job->sizes) < 0)
        return -1;
    job->io = (dp_io_t){
        .struct_size = sizeof(dp_io_t),
        .params = filled(job, job->sizes.param_count, 0.05),
        .grads = filled(job, job->sizes.param_count, 0),
        .saved = filled(job, job->sizes.saved_bytes / job->element_bytes, 0),
        .scratch = filled(job, job->sizes.scratch_bytes / job->element_bytes, 0),
        .x = filled(job, elements, 1),
        .y = filled(job, elements, 0),
        .dy = filled(job, elements, 1),
        .dx = filled(job, elements, 0),
    };
    for (int i = 0; i < 3; i++)
        job->plain[i] = filled(job, most, 0.05);
    return job->io.params && job->io.grads && job->io.saved && job->io.scratch && job->io.x && job->io.y &&
                   job->io.dy && job->io.dx && job->plain[0] && job->plain[1] && job->plain[2]
               ? 0
               : -1;
}

static void finish(job_t *job)
{
    void *const memory[] = {(void *)job->io.params, job->io.grads, job->io.saved,      job->io.scratch,
                            (void *)job->io.x,      job->io.y,     (void *)job->io.dy, job->io.dx,
                            job->plain[0],          job->plain[1], job->plain[2]};

    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        free(memory[i]);
    job->rig.vt->close(job->attention);
}

/* Best of ROUNDS of each, taken in turns, so that both see the same machine. */
static int report(job_t *job)
{
    static const char *const names[] = {"forward", "backward_input", "backward_weight"};
    const pass_fn passes[] = {job->rig.vt->forward, job->rig.vt->backward_input, job->rig.vt->backward_weight};
    double best[3], best_plain[3], flops[3];

    for (int r = 0; r < ROUNDS; r++)
        for (int p = 0; p < 3; p++) {
            const int64_t start = rig_now_ns(&job->rig.host);
            int64_t middle, end;

            if (passes[p](job->attention, &job->io, rig_stream(&job->rig)) < 0)
                return -1;
            middle = rig_now_ns(&job->rig.host);
            flops[p] = plain(job, (pass_t)p);
            end = rig_now_ns(&job->rig.host);
            if (r == 0 || (double)(middle - start) < best[p])
                best[p] = (double)(middle - start);
            if (r == 0 || (double)(end - middle) < best_plain[p])
                best_plain[p] = (double)(end - middle);
        }
    for (int p = 0; p < 3; p++)
        printf("%-16s %9.3f ms %8.1f GFLOP/s   plain %8.1f GFLOP/s   ratio %.3f\n", names[p], best[p] * 1e-6,
               flops[p] / best[p], flops[p] / best_plain[p], best_plain[p] / best[p]);
    return 0;
}

static int measure(dp_dtype_t dtype, const uint32_t *n)
{
    job_t job = {.element_bytes = dtype == DP_F32 ? sizeof(float) : sizeof(double)};
    int failed = 1;

    if (rig_open(&job.rig, "attention_cpu") < 0) {
        fprintf(stderr, "attention_cpu: %s\n", dp_last_error());
        return 1;
    }
    job.config = rig_config(&job.rig, dtype, n[0], n[1], n[2], n[3], n[4], n[5]);
    job.config.attention.value_dim = n[6] != 0 ? n[6] : n[5];
    job.tokens = (size_t)n[0] * n[1];
    if (attention_open(job.rig.vt, &job.rig.host, &job.config, &job.attention) < 0) {
        fprintf(stderr, "%s\n", job.rig.message);
        return 1;
    }
    printf("%s batch %u sequence %u hidden %u heads %u kv_heads %u head_dim %u value_dim %u\n",
           dtype == DP_F32 ? "f32" : "f64", n[0], n[1], n[2], n[3], n[4], n[5], job.config.attention.value_dim);
    if (prepare(&job) == 0 && report(&job) == 0)
        failed = 0;
    else
        fprintf(stderr, "attention_cpu: %s\n", job.rig.message[0] != '\0' ? job.rig.message : "no memory");
    finish(&job);
    return failed;
}

int main(int argc, char **argv)
{
    static const uint32_t cases[][7] = {{4, 512, 512, 8, 8, 64, 0},
                                        {1, 2048, 512, 8, 2, 64, 0},
                                        {4, 128, 256, 4, 4, 64, 0},
                                        {2, 256, 1024, 8, 8, 128, 0}};
    uint32_t given[7] = {0};
    int failed = 0;

    if (setenv("DUALPIPE_PLUGIN_PATH", DP_BENCH_PLUGINS, 0) != 0)
        return 1;
    if (argc == 1) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
            failed |= measure(DP_F32, cases[i]);
        return failed | measure(DP_F64, cases[0]);
    }
    if (argc < 8 || argc > 9 || (strcmp(argv[1], "f32") != 0 && strcmp(argv[1], "f64") != 0)) {
        fprintf(stderr, "usage: %s [f32|f64 BATCH SEQUENCE HIDDEN HEADS KV_HEADS HEAD_DIM [VALUE_DIM]]\n", argv[0]);
        return 2;
    }
    for (int i = 2; i < argc; i++)
        given[i - 2] = (uint32_t)strtoul(argv[i], NULL, 10);
    return measure(strcmp(argv[1], "f32") == 0 ? DP_F32 : DP_F64, given);
}
