/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * blas_threads.c: how many threads one BLAS call uses. */
#include "internal.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

void attention_set_blas_threads(const dp_host_t *host)
{
    const char *chosen = getenv("OPENBLAS_NUM_THREADS");
    const dp_host_sm_t *share = host->get_service(host, DP_HOST_SM);
    void (*set_threads)(int);
    int threads = 1;

    if (chosen != NULL && *chosen != '\0')
        return; /* the library has read it itself */
    if (share != NULL && share->struct_size >= offsetof(dp_host_sm_t, comm_sms) && share->compute_sms > 0)
        threads = share->compute_sms < INT_MAX ? (int)share->compute_sms : INT_MAX;
    *(void **)&set_threads = dlsym(RTLD_DEFAULT, "openblas_set_num_threads");
    if (set_threads != NULL)
        set_threads(threads);
}
