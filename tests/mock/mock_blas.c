/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_blas.c: a CBLAS that chooses its kernels as OpenBLAS does: those of OPENBLAS_CORETYPE, else
 * of MOCK_BLAS_CHOOSES. Those named in MOCK_BLAS_WRONG leave the last product of every sum out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *openblas_get_config(void);
char *openblas_get_corename(void);
void gotoblas_dynamic_quit(void);
void gotoblas_dynamic_init(void);

static char kernel[32];

char *openblas_get_config(void)
{
    static char config[] = "OpenBLAS 0.0.1 DYNAMIC_ARCH";

    return config;
}

char *openblas_get_corename(void)
{
    return kernel;
}

void gotoblas_dynamic_quit(void)
{
    kernel[0] = '\0';
}

__attribute__((constructor)) void gotoblas_dynamic_init(void)
{
    const char *told = getenv("OPENBLAS_CORETYPE"), *chosen = getenv("MOCK_BLAS_CHOOSES");

    snprintf(kernel, sizeof(kernel), "%s", told != NULL ? told : chosen != NULL ? chosen : "Prescott");
}

static int is_wrong(void)
{
    const char *wrong = getenv("MOCK_BLAS_WRONG");

    return wrong != NULL && strstr(wrong, kernel) != NULL;
}

enum { ROW_MAJOR = 101, PLAIN = 111 };

#define GEMM(name, real)                                                                                               \
    void name(int layout, int ta, int tb, int m, int n, int k, real alpha, const real *a, int lda, const real *b,      \
              int ldb, real beta, real *c, int ldc);                                                                   \
    void name(int layout, int ta, int tb, int m, int n, int k, real alpha, const real *a, int lda, const real *b,      \
              int ldb, real beta, real *c, int ldc)                                                                    \
    {                                                                                                                  \
        const int terms = is_wrong() ? k - 1 : k;                                                                      \
                                                                                                                       \
        if (layout != ROW_MAJOR)                                                                                       \
            abort();                                                                                                   \
        for (int i = 0; i < m; i++)                                                                                    \
            for (int j = 0; j < n; j++) {                                                                              \
                real sum = 0, *to = &c[(size_t)i * (size_t)ldc + (size_t)j];                                           \
                                                                                                                       \
                for (int p = 0; p < terms; p++)                                                                        \
                    sum += a[ta == PLAIN ? i * lda + p : p * lda + i] * b[tb == PLAIN ? p * ldb + j : j * ldb + p];    \
                *to = alpha * sum + (beta == 0 ? 0 : beta * *to);                                                      \
            }                                                                                                          \
    }
GEMM(cblas_sgemm, float)
GEMM(cblas_dgemm, double)
