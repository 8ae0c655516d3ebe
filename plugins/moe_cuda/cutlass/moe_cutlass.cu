/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_cutlass.cu: the image of CUTLASS's kernels. */
#include "kinds.cuh"

#define TWO __cluster_dims__(2, 1, 1)
#define KERNEL(kind, cluster)                                                                                          \
    extern "C" __global__ void cluster __launch_bounds__(kind::MaxThreadsPerBlock, kind::MinBlocksPerMultiprocessor)   \
        moe_cutlass_##kind(const __grid_constant__ kind::Params params)                                                \
    {                                                                                                                  \
        extern __shared__ char shared[];                                                                               \
                                                                                                                       \
        kind()(params, shared);                                                                                        \
    }
KERNEL(kind_nn, )
KERNEL(kind_nt, )
KERNEL(kind_nt_pair, )
KERNEL(kind_tn, )
KERNEL(kind_nn_two, TWO)
KERNEL(kind_nt_two, TWO)
KERNEL(kind_nt_pair_two, TWO)
