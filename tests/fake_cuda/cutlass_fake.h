/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cutlass_fake.h: the parameter of the emulator's grouped products; read by C and CUDA. */
#ifndef DP_FAKE_CUTLASS_FAKE_H
#define DP_FAKE_CUTLASS_FAKE_H

#include "moe_cuda/kernels.h"

enum { FAKE_CUTLASS_THREADS = 384, FAKE_CUTLASS_BLOCK_BYTES = 512 };

typedef struct fake_cutlass_params {
    __attribute__((aligned(64))) unsigned char map[128];
    moe_cutlass_groups_t groups;
    float beta;
} fake_cutlass_params_t;

#endif
