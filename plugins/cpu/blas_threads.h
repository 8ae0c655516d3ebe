/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * blas_threads.h: how many threads one BLAS call uses. The number belongs to the process, so every
 * plugin that calls BLAS comes to it in the same way: OPENBLAS_NUM_THREADS, else the host's share
 * of cores, else 1. */
#ifndef PLUGINS_CPU_BLAS_THREADS_H
#define PLUGINS_CPU_BLAS_THREADS_H

#include <dlfcn.h>
#include <dualpipe/plugin.h>
#include <limits.h>
#include <stdlib.h>

static inline void cpu_set_blas_threads(const dp_host_t *host)
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

#endif
