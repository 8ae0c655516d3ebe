/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu_keys.h: what is assumed of a GPU, by name: --assume, and files of other kinds. */
#ifndef DP_TOOLS_GPU_KEYS_H
#define DP_TOOLS_GPU_KEYS_H

#include <dualpipe/model.h>

/* One of the kinds known, else a file of lines KEY=VALUE: all that a data sheet has, and HOST. */
dp_status_t gpu_read(const char *name, dp_gpu_t *gpu);
/* KEY=VALUE,...: changes numbers of it. */
dp_status_t gpu_assume(dp_gpu_t *gpu, const char *text);

/* "TFLOPS" with its value in *value_out; NULL behind the last. */
const char *gpu_key(const dp_gpu_t *gpu, size_t number, double *value_out);

#endif
