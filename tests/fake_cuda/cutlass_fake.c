/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cutlass_fake.c: moe_cuda_cutlass.so for the emulator, whose kernels are those of
 * cutlass_kernels.cu: the same calls and, but for what is inside of the parameter, the same
 * launches. */
#include "cutlass_fake.h"

#include "moe_cuda/cutlass/products.h"

#include <string.h>

static const char *const kernels[MOE_CUTLASS_KINDS] = {
    [MOE_CUTLASS_NN] = "fake_cutlass_nn",
    [MOE_CUTLASS_NT] = "fake_cutlass_nt",
    [MOE_CUTLASS_NT_PAIR] = "fake_cutlass_nt_pair",
    [MOE_CUTLASS_TN] = "fake_cutlass_tn",
    [MOE_CUTLASS_NN_TWO] = "fake_cutlass_nn_two",
    [MOE_CUTLASS_NT_TWO] = "fake_cutlass_nt_two",
    [MOE_CUTLASS_NT_PAIR_TWO] = "fake_cutlass_nt_pair_two",
};

static void describe(int kind, uint32_t blocks, moe_cutlass_launch_t *out)
{
    *out = (moe_cutlass_launch_t){
        .kernel = kernels[kind],
        .params_bytes = sizeof(fake_cutlass_params_t),
        .workspace_bytes = (size_t)blocks * FAKE_CUTLASS_BLOCK_BYTES,
        .threads = FAKE_CUTLASS_THREADS,
        .shared_bytes = 200 << 10,
    };
}

static CUresult fill(int kind, const moe_cutlass_groups_t *groups, float beta, moe_cutlass_encode_fn encode,
                     void *params_out)
{
    const cuuint64_t sizes[3] = {1, 1, 1}, strides[2] = {0, 0};
    const cuuint32_t box[3] = {64, kind == MOE_CUTLASS_NN || kind == MOE_CUTLASS_NN_TWO ? 128 : 64, 1},
                     steps[3] = {1, 1, 1};
    fake_cutlass_params_t params;

    memset(&params, 0, sizeof(params));
    params.groups = *groups;
    params.beta = beta;
    memcpy(params_out, &params, sizeof(params));
    return encode((CUtensorMap *)((char *)params_out + offsetof(fake_cutlass_params_t, map)),
                  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, groups->at[0], sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static const unsigned char image[] = {0x50, 0xed, 0x55, 0xba};

__attribute__((visibility("default"))) const moe_cutlass_products_t moe_cutlass_products = {
    .abi = MOE_CUTLASS_ABI,
    .version = "of the emulator",
    .image = image,
    .describe = describe,
    .fill = fill,
};
