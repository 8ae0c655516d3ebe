/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_moe_cpu.c: moe_cpu beyond the contract (test_conform_moe): moe_cases.h, and its BLAS. */
#include "moe_cases.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void try_threads(conform_t *t)
{
    const layer_t layer = moe_layer(DP_F32, 7, 5, 8, 2, 3, 1);
    int (*get_threads)(void) = NULL;
    void (*set_threads)(int) = NULL;
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int told = 2; told >= 0; told--) { /* 2: to load the library */
        void *handle;
        block_t b = {0};

        if (told == 1)
            setenv("OPENBLAS_NUM_THREADS", "1", 1);
        else
            unsetenv("OPENBLAS_NUM_THREADS");
        if (set_threads != NULL)
            set_threads(2);
        if (!moe_try(&lab, &b, &layer) || !conform_block_close(&b))
            return;
        handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
        if (handle == NULL) {
            conform_skip(t, "the BLAS is not OpenBLAS");
            return;
        }
        *(void **)&get_threads = dlsym(handle, "openblas_get_num_threads");
        *(void **)&set_threads = dlsym(handle, "openblas_set_num_threads");
        EXPECT(t, told == 2 || get_threads() == (told == 1 ? 2 : 1), "%d threads %s", get_threads(),
               told == 1 ? "where OPENBLAS_NUM_THREADS leaves it to the library" : "where nobody said how many");
    }
    conform_lab_close(&lab);
}

/* As the case before it left the environment. */
static void blas_uses_one_thread_unless_told_otherwise(conform_t *t)
{
    const char *told = getenv("OPENBLAS_NUM_THREADS");
    char text[16];

    snprintf(text, sizeof(text), "%s", told != NULL ? told : "");
    try_threads(t);
    if (told != NULL)
        setenv("OPENBLAS_NUM_THREADS", text, 1);
    else
        unsetenv("OPENBLAS_NUM_THREADS");
}

static const conform_case_t cases[] = {
    MOE_CASES,
    MOE_LONG_CASES,
    {CONFORM_CASE(blas_uses_one_thread_unless_told_otherwise, 0, "BLAS is left alone when the user set it.")},
    {0},
};

int main(int argc, char **argv)
{
    static const conform_suite_t suite = {.name = "moe_cpu",
                                          .interface = DP_IFACE_MOE,
                                          .plugin = "moe_cpu",
                                          .table_bytes = DP_MOE_VT_MIN,
                                          .needs = CONFORM_NEEDS_DEVICE,
                                          .cases = cases};
    static const conform_suite_t *const suites[] = {&suite, NULL};

    return conform_main(suites, NULL, argc, argv);
}
