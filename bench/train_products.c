/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * train_products.c: seconds that the matrix products of one step of bench/train_torch.sh's model
 * take alone, on one thread, as the plugins for CPU cores compute them; the median of the rounds.
 * Weights and gradients are those of 8 layers, so they come from where they do in a step. Experts
 * have the mean number of rows.
 *   bench/train_products HIDDEN [ROUNDS] */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "plugins/cpu/blas.h"
#include "plugins/cpu/product.h"

enum { LAYERS = 8, MICROBATCHES = 8, BATCH = 4, SEQ = 64, TOKENS = BATCH * SEQ, EXPERTS = 8, TOP = 2, VOCAB = 256 };
enum { MATRICES = 3 * (EXPERTS + 1) + 4, MOST_ROUNDS = 99 };

static size_t d, heads;
static float *weights, *grads, *x, *y, *z;

static void log_line(const dp_host_t *h, int level, const char *origin, const char *message)
{
    (void)h, (void)level;
    fprintf(stderr, "%s: %s\n", origin, message);
}

static dp_status_t fail(const dp_host_t *h, dp_status_t status, const char *file, int line, const char *fmt, ...)
{
    va_list list;

    (void)h, (void)file, (void)line;
    va_start(list, fmt);
    vfprintf(stderr, fmt, list);
    va_end(list);
    return status;
}

static void *allocate(const dp_host_t *h, size_t bytes, size_t alignment)
{
    void *memory = NULL;

    (void)h;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void release(const dp_host_t *h, void *memory)
{
    (void)h;
    free(memory);
}

static float *filled(size_t count)
{
    float *memory = allocate(NULL, count * sizeof(*memory), 64);

    if (memory == NULL)
        exit(1);
    for (size_t i = 0; i < count; i++)
        memory[i] = (float)(i % 17) * 0.01f - 0.08f;
    return memory;
}

/* The products of a linear layer: forward and both backwards; x and y stay as they are. w: its
 * number among MATRICES. */
static void linear(int layer, int w, size_t rows, size_t from, size_t to)
{
    const size_t at = ((size_t)layer * MATRICES + (size_t)w) * d * d;

    cpu_product_f32(CblasNoTrans, CblasNoTrans, rows, to, from, 1, x, from, weights + at, to, 0, z, to);
    cpu_product_f32(CblasNoTrans, CblasTrans, rows, from, to, 1, y, to, weights + at, to, 0, z, from);
    cpu_product_f32(CblasTrans, CblasNoTrans, from, to, rows, 1, x, from, y, to, 1, grads + at, to);
}

/* One head of one sequence, forward and backward. */
static void attend(void)
{
    const size_t dim = d / heads;

    for (int again = 0; again < 3; again++) /* logits, twice, and gradients of probabilities */
        cpu_product_f32(CblasNoTrans, CblasTrans, SEQ, SEQ, dim, 1, x, d, y, d, 0, z, SEQ);
    for (int again = 0; again < 2; again++) /* output, gradient of queries */
        cpu_product_f32(CblasNoTrans, CblasNoTrans, SEQ, dim, SEQ, 1, x, SEQ, y, d, 0, z, d);
    for (int again = 0; again < 2; again++) /* gradients of keys and values */
        cpu_product_f32(CblasTrans, CblasNoTrans, SEQ, dim, SEQ, 1, x, SEQ, y, d, 0, z, dim);
}

static void glu(int layer, int w, size_t rows)
{
    for (int i = 0; i < 3; i++)
        linear(layer, w + i, rows, d, d);
}

static void run_layer(int layer)
{
    linear(layer, 0, TOKENS, d, d);
    linear(layer, 1, TOKENS, d, d / 2);
    linear(layer, 2, TOKENS, d, d / 2);
    for (size_t h = 0; h < BATCH * heads; h++)
        attend();
    linear(layer, 3, TOKENS, d, d);
    for (int e = 0; e < EXPERTS; e++)
        glu(layer, 4 + 3 * e, TOKENS * TOP / EXPERTS);
    glu(layer, 4 + 3 * EXPERTS, TOKENS);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double p = *(const double *)a, q = *(const double *)b;

    return (p > q) - (p < q);
}

int main(int argc, char **argv)
{
    const dp_host_t host = {.log = log_line, .fail = fail, .allocate = allocate, .release = release};
    const int rounds = argc > 2 ? atoi(argv[2]) : 3;
    double seconds[MOST_ROUNDS];

    d = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    heads = d > 128 ? 8 : 4;
    if (d < 64 || d % 64 != 0 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: %s HIDDEN [ROUNDS]: a multiple of 64, 1 to %d\n", argv[0], MOST_ROUNDS);
        return 2;
    }
    if (cpu_blas_choose(&host, "train_products") < 0)
        return 1;
    weights = filled((size_t)LAYERS * MATRICES * d * d);
    grads = filled((size_t)LAYERS * MATRICES * d * d);
    x = filled(TOKENS * (d + VOCAB));
    y = filled(TOKENS * (d + VOCAB));
    z = filled(TOKENS * (d + VOCAB));
    for (int round = 0; round < rounds; round++) {
        const double begin = now();

        for (int m = 0; m < MICROBATCHES; m++) {
            for (int layer = 0; layer < LAYERS; layer++)
                run_layer(layer);
            linear(0, 4, TOKENS, d, VOCAB); /* the head; it reaches into the matrices behind */
        }
        seconds[round] = now() - begin;
    }
    qsort(seconds, (size_t)rounds, sizeof(*seconds), by_value);
    printf("%.4f\n", seconds[rounds / 2]);
    return 0;
}
