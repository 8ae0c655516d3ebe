/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_attention_cpu.c: what attention_cpu does beyond the contract (test_conform_attention): its
 * tiles of 64 queries and 256 keys, numbers at the edges of a type, memory as its README says, what
 * it refuses and how it says so, its BLAS. */
#include "conform/kernel.h"

#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dp_dtype_t dtypes[] = {DP_F32, DP_F64};

static layer_t sized(dp_dtype_t dtype, uint32_t sequence, uint32_t hidden, uint32_t heads, uint32_t kv_heads,
                     uint32_t head_dim)
{
    return (layer_t){.dtype = dtype,
                     .batch = 1,
                     .sequence = sequence,
                     .hidden = hidden,
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .head_dim = head_dim};
}

/* Latent attention: `rope_dim` of head_dim rotated, values as wide as the rest. */
static layer_t latent(dp_dtype_t dtype, uint32_t sequence, uint32_t hidden, uint32_t heads, uint32_t head_dim,
                      uint32_t rope_dim, uint32_t q_rank, uint32_t kv_rank)
{
    return (layer_t){.dtype = dtype,
                     .batch = 1,
                     .sequence = sequence,
                     .hidden = hidden,
                     .heads = heads,
                     .head_dim = head_dim,
                     .rope_dim = rope_dim,
                     .q_rank = q_rank,
                     .kv_rank = kv_rank};
}

/* An instance and a micro-batch of it. */
static bool begin(conform_t *t, lab_t *lab, block_t *b, pass_t *p, layer_t layer)
{
    if (lab != NULL && lab->t == NULL && !conform_lab_open(lab, t))
        return false;
    memset(b, 0, sizeof(*b));
    CHECK(t, conform_block_open(b, lab, &layer, 3) || conform_failed(t), "%s", conform_last_error());
    return !conform_failed(t) && conform_pass_open(p, b, 0);
}

static bool end(block_t *b, pass_t *p)
{
    return conform_pass_close(p) && conform_block_close(b);
}

static void tiles_of_all_lengths(conform_t *t)
{
    static const uint32_t sequences[] = {2, 63, 64, 65, 128, 129, 255, 256, 257, 320, 515};
    lab_t lab = {0};
    block_t b;
    pass_t p, *all = &p;

    for (size_t i = 0; i < 2 * sizeof(sequences) / sizeof(sequences[0]); i++) {
        layer_t layer = sized(dtypes[i % 2], sequences[i / 2], 8, 4, 2, 4);

        layer.value_dim = 6;
        if (!begin(t, &lab, &b, &p, layer) || !conform_pass_run(&p, FORWARD, WEIGHT) ||
            !conform_pass_output_is_right(&p) || !conform_gradients_are_right(&b, &all, 1, false) || !end(&b, &p))
            return;
        layer = latent(dtypes[i % 2], sequences[i / 2], 8, 2, 6, 2, i % 4 < 2 ? 5 : 0, 6);
        layer.batch = 2;
        if (!begin(t, &lab, &b, &p, layer) || !conform_pass_run(&p, FORWARD, WEIGHT) ||
            !conform_pass_output_is_right(&p) || !conform_gradients_are_right(&b, &all, 1, false) || !end(&b, &p))
            return;
    }
    conform_lab_close(&lab);
}

/* ---- edges of a type ---- */

/* All elements of parameter `number` times `factor`. */
static bool scale_param(block_t *b, uint32_t number, double factor)
{
    for (size_t i = 0; i < b->list[number].count; i++)
        b->values[b->list[number].offset + i] *= factor;
    if (b->layer.dtype == DP_F32)
        for (size_t i = 0; i < b->sizes.param_count; i++)
            b->values[i] = (double)(float)b->values[i];
    return conform_area_write(b->lab, &b->params, b->values);
}

static bool are_finite(lab_t *lab, const area_t *area, const char *what)
{
    double *values = conform_area_read(lab, area);

    for (size_t i = 0; values != NULL && i < conform_area_count(area); i++)
        CHECK(lab->t, isfinite(values[i]), "%s, element %zu is %g", what, i, values[i]);
    free(values);
    return values != NULL;
}

/* Elements `first` to `end` of got and wanted, to `tolerance` of the largest wanted and `least`. */
static bool is_near(conform_t *t, const char *what, const double *got, const double *wanted, size_t first,
                    size_t behind, double tolerance, double least)
{
    double size = least;

    for (size_t i = first; i < behind; i++)
        size = fmax(size, fabs(wanted[i]));
    for (size_t i = first; i < behind; i++)
        CHECK(t, fabs(got[i] - wanted[i]) <= tolerance * size, "%s, element %zu is %.12g, not %.12g", what, i, got[i],
              wanted[i]);
    return true;
}

/* Tokens from `from` on against the formula. */
static bool output_is_near(pass_t *p, size_t from, double tolerance)
{
    const block_t *b = p->block;
    double *got = conform_area_read(b->lab, &p->y), *wanted = calloc(conform_area_count(&p->y), sizeof(*wanted));
    bool near;

    conform_reference_attention(&b->layer, b->values, p->xs[0], from, wanted);
    near = got != NULL &&
           is_near(b->lab->t, "y", got, wanted, from * b->layer.hidden, conform_area_count(&p->y), tolerance, 1);
    free(got);
    free(wanted);
    return near;
}

/* Logits around 1e4: a logit's own rounding, 1e4 * 2^-53, is what the double result may be off
 * by. */
static void large_logits_equal_the_formula(conform_t *t)
{
    lab_t lab = {0};
    block_t b;
    pass_t p;

    if (!begin(t, &lab, &b, &p, sized(DP_F64, 300, 16, 2, 1, 8)) || !scale_param(&b, 1, 1e4) ||
        !conform_pass_run(&p, FORWARD, WEIGHT) || !output_is_near(&p, 0, 1e-9) || !are_finite(&lab, &p.dx, "dx") ||
        !are_finite(&lab, &b.grads, "a gradient") || !end(&b, &p))
        return;
    conform_lab_close(&lab);
}

/* All tokens are the same, so that all values are: whatever the logits, probabilities that add up
 * to 1 make y of one value, and the gradient of wv does not depend on them. Rotations make the
 * logits differ. */
static void probabilities_add_up_at_any_logits(conform_t *t)
{
    static const double scales[] = {1e-20, 1, 1e3, 1e6};
    lab_t lab = {0};

    for (int i = 0; i < 8; i++) {
        static double *y, *grads;
        const double tolerance = dtypes[i / 4] == DP_F32 ? 4e-6 : 1e-14;
        double *now;
        block_t b;
        pass_t p;

        if (!begin(t, &lab, &b, &p, sized(dtypes[i / 4], 300, 16, 2, 1, 8)) || !scale_param(&b, 1, scales[i % 4]))
            return;
        for (size_t k = 0; k < conform_area_count(&p.x); k++)
            p.xs[0][k] = p.xs[0][k % 16];
        if (!conform_area_write(&lab, &p.x, p.xs[0]) || !conform_pass_run(&p, FORWARD, WEIGHT))
            return;
        if (i % 4 == 0) {
            free(y);
            free(grads);
            y = conform_area_read(&lab, &p.y);
            grads = conform_block_gradients(&b);
        }
        now = conform_area_read(&lab, &p.y);
        if (now == NULL || !is_near(t, "y", now, y, 0, conform_area_count(&p.y), tolerance, 0))
            return;
        free(now);
        now = conform_block_gradients(&b);
        if (now == NULL ||
            !is_near(t, "the gradient of wv", now, grads, b.list[3].offset, b.list[4].offset, tolerance, 0))
            return;
        free(now);
        if (!end(&b, &p))
            return;
    }
    conform_lab_close(&lab);
}

/* RMSNorm takes the size out of x: its squares may leave the range of float. Below sqrt(eps) the
 * norm fades out. */
static void size_of_activations_does_not_matter(conform_t *t)
{
    static const double sizes[] = {1, 1e-15, 1e15, 1e30};
    double *ours = NULL, *now;
    lab_t lab = {0};

    for (int i = 0; i < 4; i++) {
        block_t b;
        pass_t p;

        if (!begin(t, &lab, &b, &p, sized(DP_F32, 40, 16, 2, 1, 8)))
            return;
        for (size_t k = 0; k < conform_area_count(&p.x); k++)
            p.xs[0][k] = (double)(float)(sizes[i] * p.xs[0][k]);
        if (!conform_area_write(&lab, &p.x, p.xs[0]) || !conform_pass_run(&p, FORWARD, WEIGHT) ||
            !are_finite(&lab, &p.y, "y") || !are_finite(&lab, &p.dx, "dx") ||
            (now = conform_block_gradients(&b)) == NULL)
            return;
        for (size_t k = 0; i == 1 && k < b.sizes.param_count; k++)
            EXPECT(t, fabs(now[k]) <= 1e-4, "activations of 1e-15 give a gradient of %g", now[k]);
        if (i > 1 && !is_near(t, "a gradient of large activations", now, ours, 0, b.sizes.param_count, 1e-4, 1))
            return;
        if (i == 0)
            ours = now;
        else
            free(now);
        if (!end(&b, &p))
            return;
    }
    free(ours);
    conform_lab_close(&lab);
}

/* Sums of thousands of small probabilities, positions far from 0; the last tokens are compared. */
static void long_sequences(conform_t *t)
{
    lab_t lab = {0};

    for (int i = 0; i < 2; i++) {
        block_t b;
        pass_t p;

        if (!begin(t, &lab, &b, &p, sized(dtypes[i], 4099, 4, 1, 1, 4)) || !conform_pass_run(&p, FORWARD, WEIGHT) ||
            !output_is_near(&p, 4099 - 70, dtypes[i] == DP_F32 ? 2e-5 : 1e-12) || !are_finite(&lab, &p.dx, "dx") ||
            !end(&b, &p))
            return;
    }
    conform_lab_close(&lab);
}

/* float over a long sequence with gradients as double computes them from the same numbers. */
static void long_sequences_in_f32_have_the_gradients_of_f64(conform_t *t)
{
    double *dx[2], *grads[2];
    lab_t lab = {0};

    for (int i = 0; i < 2; i++) {
        const double *values, *x, *dy;
        static block_t b[2];
        static pass_t p[2];

        if (!begin(t, &lab, &b[i], &p[i], sized(dtypes[i], 2050, 8, 2, 1, 4)))
            return;
        values = b[0].values, x = p[0].xs[0], dy = p[0].dys[0]; /* rounded to float */
        memmove(b[i].values, values, b[i].sizes.param_count * sizeof(double));
        memmove(p[i].xs[0], x, conform_area_count(&p[i].x) * sizeof(double));
        memmove(p[i].dys[0], dy, conform_area_count(&p[i].x) * sizeof(double));
        if (!conform_area_write(&lab, &b[i].params, b[i].values) || !conform_area_write(&lab, &p[i].x, p[i].xs[0]) ||
            !conform_area_write(&lab, &p[i].dy, p[i].dys[0]) || !conform_pass_run(&p[i], FORWARD, WEIGHT))
            return;
        dx[i] = conform_area_read(&lab, &p[i].dx);
        grads[i] = conform_block_gradients(&b[i]);
        if (i == 1 && (!is_near(t, "dx", dx[0], dx[1], 0, conform_area_count(&p[1].dx), 1e-4, 1) ||
                       !is_near(t, "a gradient", grads[0], grads[1], 0, b[1].sizes.param_count, 1e-5, 0) ||
                       !end(&b[0], &p[0]) || !end(&b[1], &p[1])))
            return;
    }
    for (int i = 0; i < 2; i++) {
        free(dx[i]);
        free(grads[i]);
    }
    conform_lab_close(&lab);
}

/* NaN is for the engine to find, not for a kernel to hide. */
static void nan_shows_from_its_token_on(conform_t *t)
{
    lab_t lab = {0};

    for (int i = 0; i < 2; i++) {
        double *y;
        block_t b;
        pass_t p;

        if (!begin(t, &lab, &b, &p, sized(dtypes[i], 130, 6, 2, 1, 4)))
            return;
        p.xs[0][70 * 6 + 2] = NAN;
        if (!conform_area_write(&lab, &p.x, p.xs[0]))
            return;
        EXPECT_OK(t, conform_pass_call(&p, 0));
        if (!conform_lab_wait(&lab, 0, "forward") || (y = conform_area_read(&lab, &p.y)) == NULL)
            return;
        for (size_t k = 70 * 6; k < 130 * 6; k++)
            EXPECT(t, isnan(y[k]), "token 70 has a NaN, the output of token %zu is %g", k / 6, y[k]);
        free(y);
        if (!end(&b, &p))
            return;
    }
    conform_lab_close(&lab);
}

/* ---- memory and refusals ---- */

/* What README.md says is kept, and no more than the rounding of ten arrays above it. */
static void saved_is_as_small_as_documented(conform_t *t)
{
    const size_t d = 20, per_token = 2 * d + 4 * (6 + 10) + 2 * (6 + 10) + 2 * 4 + 1;
    lab_t lab = {0};

    for (int i = 0; i < 2; i++) {
        layer_t layer = sized(dtypes[i], 300, 20, 4, 2, 6);
        const size_t least = (300 * per_token + d) * dp_dtype_bytes(dtypes[i]);
        block_t b;
        pass_t p;

        layer.value_dim = 10;
        if (!begin(t, &lab, &b, &p, layer))
            return;
        EXPECT(t, b.sizes.saved_bytes >= least && b.sizes.saved_bytes < least + 10 * 64 && b.sizes.work_bytes == 0,
               "saved_bytes is %zu, documented are %zu; work_bytes is %zu", b.sizes.saved_bytes, least,
               b.sizes.work_bytes);
        if (!end(&b, &p))
            return;
    }
    conform_lab_close(&lab);
}

/* The same of latent attention. Two sequences: what the keys have in common is summed for each by
 * itself. */
static void saved_of_latents_is_as_small_as_documented(conform_t *t)
{
    lab_t lab = {0};

    for (int i = 0; i < 4; i++) {
        const size_t d = 20, q_rank = i < 2 ? 9 : 0, bytes = dp_dtype_bytes(dtypes[i % 2]);
        const size_t latents = q_rank > 0 ? 2 * (q_rank + 7) + 4 + 2 : 2 * 7 + 4 + 1;
        const size_t per_token = 2 * d + 1 + 3 * (10 + 6) + 3 * (6 + 6) + 2 * 3 + latents;
        const size_t least = (2 * 150 * per_token + d + q_rank + 7) * bytes;
        layer_t layer = latent(dtypes[i % 2], 150, 20, 3, 10, 4, (uint32_t)q_rank, 7);
        block_t b;
        pass_t p;

        layer.batch = 2;
        if (!begin(t, &lab, &b, &p, layer))
            return;
        EXPECT(t, b.sizes.saved_bytes >= least && b.sizes.saved_bytes < least + 18 * 64 && b.sizes.work_bytes == 0,
               "saved_bytes is %zu, documented are %zu; work_bytes is %zu", b.sizes.saved_bytes, least,
               b.sizes.work_bytes);
        if (!end(&b, &p))
            return;
    }
    conform_lab_close(&lab);
}

static bool refused(lab_t *lab, const layer_t *layer, dp_status_t status, const char *field, const char *value)
{
    block_t b = {.lab = lab, .kind = conform_kernel_kind(lab->t), .layer = *layer};
    dp_status_t came;

    conform_forget_error();
    came = b.kind->open(&b);
    CHECK(lab->t,
          came == status && strstr(conform_last_error(), field) != NULL && strstr(conform_last_error(), value) != NULL,
          "open returned %s, \"%s\": it has to be %s and to name %s %s", dp_status_name(came), conform_last_error(),
          dp_status_name(status), field, value);
    return true;
}

static void refusals_name_the_setting(conform_t *t)
{
    layer_t good = sized(DP_F32, 16, 12, 4, 2, 6);
    lab_t lab;
    layer_t l;

    if (!conform_lab_open(&lab, t))
        return;
#define REFUSED(change, status, field, value)                                                                          \
    do {                                                                                                               \
        l = good;                                                                                                      \
        change;                                                                                                        \
        if (!refused(&lab, &l, status, field, value))                                                                  \
            return;                                                                                                    \
    } while (0)
    REFUSED(l.batch = 0, DP_ERR_INVALID, "shape.batch", "is 0");
    REFUSED(l.heads = 0x80000000u, DP_ERR_INVALID, "heads", "2147483648");
    REFUSED(l.head_dim = 7, DP_ERR_INVALID, "head_dim", "7");
    REFUSED(l.kv_heads = 3, DP_ERR_INVALID, "heads", "3");
    REFUSED(l.kv_heads = 8, DP_ERR_INVALID, "kv_heads", "8");
    REFUSED(l.norm_eps = -1, DP_ERR_INVALID, "norm_eps", "-1");
    REFUSED(l.theta = INFINITY, DP_ERR_INVALID, "rope_theta", "inf");
    REFUSED(l.dtype = DP_BF16, DP_ERR_UNSUPPORTED, "shape.dtype", "DP_BF16");
    REFUSED(l.dtype = (dp_dtype_t)99, DP_ERR_UNSUPPORTED, "shape.dtype", "99");
    REFUSED(l.batch = 1u << 16; l.sequence = 1u << 15, DP_ERR_INVALID, "shape.batch * shape.sequence", "65536 * 32768");
    REFUSED(l.heads = 1u << 20; l.head_dim = 1u << 12, DP_ERR_INVALID, "heads * head_dim", "1048576 * 4096");
    REFUSED(l.value_dim = INT_MAX, DP_ERR_INVALID, "value_dim", "2147483647");
    REFUSED(l.sequence = l.hidden = INT_MAX; l.heads = l.kv_heads = 1;
            l.head_dim = INT_MAX - 1, DP_ERR_INVALID, "sequence 2147483647",
            "address space"); /* each product fits an int, the whole no address space */
    REFUSED(l.q_rank = 8, DP_ERR_INVALID, "q_rank", "8");
    REFUSED(l.rope_dim = 2, DP_ERR_INVALID, "rope_dim", "2");
    REFUSED(l.kv_rank = 8, DP_ERR_INVALID, "kv_heads is 2", "8");
    good = latent(DP_F32, 16, 12, 4, 6, 2, 5, 8);
    REFUSED(l.rope_dim = 0, DP_ERR_INVALID, "rope_dim", "0");
    REFUSED(l.rope_dim = 3, DP_ERR_INVALID, "rope_dim", "3");
    REFUSED(l.rope_dim = 6, DP_ERR_INVALID, "rope_dim", "head_dim = 6");
    REFUSED(l.q_rank = 0x80000000u, DP_ERR_INVALID, "q_rank", "2147483648");
    REFUSED(l.kv_rank = 0x80000000u, DP_ERR_INVALID, "kv_rank", "2147483648");
    REFUSED(l.kv_rank = INT_MAX, DP_ERR_INVALID, "kv_rank + rope_dim", "2147483647 + 2");
    REFUSED(l.hidden = 1u << 30; l.q_rank = l.kv_rank = 1u << 30;
            l.heads = 1u << 20, DP_ERR_INVALID, "q_rank 1073741824", "address space");
    conform_lab_close(&lab);
}

static void unfit_devices_are_refused(conform_t *t)
{
    const layer_t layer = sized(DP_F32, 16, 12, 4, 2, 6);
    dp_device_vt_t other;
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    other = *lab.vt;
    lab.vt = &other;
    other.launch = NULL;
    if (!refused(&lab, &layer, DP_ERR_UNSUPPORTED, "device_vt", "launch"))
        return;
    other = *t->device;
    other.caps &= ~(uint32_t)DP_DEVICE_CAP_HOST_MEMORY;
    if (!refused(&lab, &layer, DP_ERR_UNSUPPORTED, "device_vt", "DP_DEVICE_CAP_HOST_MEMORY"))
        return;
    lab.vt = t->device;
    conform_lab_close(&lab);
}

/* A job that is over ends a pass that would run for long. */
static void an_aborted_job_ends_the_pass(conform_t *t)
{
    lab_t lab = {0};
    block_t b;
    pass_t p;

    if (!begin(t, &lab, &b, &p, sized(DP_F32, 4096, 64, 8, 8, 64)))
        return;
    EXPECT_OK(t, conform_pass_call(&p, 0));
    conform_abort(t, DP_ERR_PEER, "a peer is gone");
    EXPECT_STATUS(t, lab.vt->synchronize(lab.lanes[0], -1), DP_ERR_PEER, "%s", "a pass of a job that is over");
    EXPECT(t, conform_pass_close(&p) && conform_block_close(&b),
           "the pass that was ended has written beside its memory");
    conform_lab_close(&lab);
}

/* ---- BLAS ---- */

/* Threads per call of the BLAS library that the plugin brought along; -1: it is not OpenBLAS. */
static int threads_after_open(conform_t *t, lab_t *lab)
{
    void *blas = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
    int (*get_threads)(void) = NULL;
    int threads;
    block_t b;
    pass_t p;

    if (blas == NULL)
        return -1;
    *(void **)&get_threads = dlsym(blas, "openblas_get_num_threads");
    if (get_threads == NULL || !begin(t, lab, &b, &p, sized(DP_F32, 16, 12, 4, 2, 6)))
        return -2;
    threads = get_threads();
    dlclose(blas);
    return end(&b, &p) ? threads : -2;
}

static const void *two_units(const dp_host_t *h, const char *id)
{
    static const dp_host_sm_t share = {.struct_size = sizeof(share), .compute_sms = 2};

    (void)h;
    return strcmp(id, DP_HOST_SM) == 0 ? &share : NULL;
}

static void try_shares(conform_t *t)
{
    const void *(*inner)(const dp_host_t *h, const char *id);
    dp_host_t *host;
    int threads;
    lab_t lab;

    unsetenv("OPENBLAS_NUM_THREADS");
    if (!conform_lab_open(&lab, t))
        return;
    threads = threads_after_open(t, &lab);
    if (threads == -1) {
        conform_skip(t, "the BLAS is not OpenBLAS");
        return;
    }
    EXPECT(t, threads == 1, "%d threads without a share", threads);
    host = (dp_host_t *)lab.host;
    inner = host->get_service;
    host->get_service = two_units;
    threads = threads_after_open(t, &lab);
    EXPECT(t, threads == 2, "%d threads with a share of two", threads);
    host->get_service = inner;
    setenv("OPENBLAS_NUM_THREADS", "3", 1);
    threads = threads_after_open(t, &lab);
    EXPECT(t, threads == 2, "OPENBLAS_NUM_THREADS is the library's, the plugin made it %d", threads);
    conform_lab_close(&lab);
}

/* As the case before it left the environment. */
static void blas_has_the_threads_of_its_share(conform_t *t)
{
    const char *told = getenv("OPENBLAS_NUM_THREADS");
    char text[16];

    snprintf(text, sizeof(text), "%s", told != NULL ? told : "");
    try_shares(t);
    if (told != NULL)
        setenv("OPENBLAS_NUM_THREADS", text, 1);
    else
        unsetenv("OPENBLAS_NUM_THREADS");
}

static const conform_case_t cases[] = {
    {CONFORM_CASE(tiles_of_all_lengths, 0, "Tiles may be whole or ragged, one or several.")},
    {CONFORM_CASE(large_logits_equal_the_formula, 0, "Logits around 1e4 lose no more than their own rounding.")},
    {CONFORM_CASE(probabilities_add_up_at_any_logits, 0, "A row's probabilities add up to 1.")},
    {CONFORM_CASE(size_of_activations_does_not_matter, 0, "RMSNorm works beyond the range of squares.")},
    {CONFORM_CASE(long_sequences, 0, "Thousands of tokens are as exact as few.")},
    {CONFORM_CASE(long_sequences_in_f32_have_the_gradients_of_f64, 0, "Sums of thousands keep float's precision.")},
    {CONFORM_CASE(nan_shows_from_its_token_on, 0, "NaN is not hidden.")},
    {CONFORM_CASE(saved_is_as_small_as_documented, 0, "README.md says what is kept.")},
    {CONFORM_CASE(saved_of_latents_is_as_small_as_documented, 0, "README.md says what latent attention keeps.")},
    {CONFORM_CASE(refusals_name_the_setting, 0, "Messages name the setting and its value.")},
    {CONFORM_CASE(unfit_devices_are_refused, 0, "A device without launch() or host memory is refused by name.")},
    {CONFORM_CASE(an_aborted_job_ends_the_pass, 0, "A pass ends soon when the job is over.")},
    {CONFORM_CASE(blas_has_the_threads_of_its_share, 0, "BLAS runs on as many threads as the host's share.")},
    {0},
};

int main(int argc, char **argv)
{
    static const conform_suite_t suite = {.name = "attention_cpu",
                                          .interface = DP_IFACE_ATTENTION,
                                          .plugin = "attention_cpu",
                                          .table_bytes = DP_ATTENTION_VT_MIN,
                                          .needs = CONFORM_NEEDS_DEVICE,
                                          .cases = cases};
    static const conform_suite_t *const suites[] = {&suite, NULL};

    return conform_main(suites, NULL, argc, argv);
}
