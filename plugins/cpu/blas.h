/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * blas.h: the BLAS library that a plugin is linked to: its kernels, whether they compute right, and
 * its threads. All of it belongs to the process, so every plugin that calls BLAS decides alike. */
#ifndef PLUGINS_CPU_BLAS_H
#define PLUGINS_CPU_BLAS_H

#include <dualpipe/plugin.h>

/* For a plugin's init. Products are compared with plain loops. An OpenBLAS that does not know the
 * processor, or whose kernels compute wrong, is given the best right ones, where nobody has used it
 * yet; what cannot be changed is said. DP_ERR_UNSUPPORTED: its products are wrong. */
dp_status_t cpu_blas_choose(const dp_host_t *host, const char *plugin);

/* "OpenBLAS 0.3.21, kernels SkylakeX": what computes, after cpu_blas_choose(). */
const char *cpu_blas_about(void);

/* How many threads one call uses: OPENBLAS_NUM_THREADS, else the host's share of cores, else 1. */
void cpu_blas_set_threads(const dp_host_t *host);

#endif
