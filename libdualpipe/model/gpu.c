/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu.c: kinds of GPUs. Rates and memory are of NVIDIA's data sheets and of what nvidia-smi says;
 * shares of them are what our kernels reached on an H200 (docs/gpu.md): 0.62 of the data sheet in
 * products of experts, 0.47 and 0.40 in attention's core, and 0.8 of a link as the usual rule. */
#include "base/sized.h"

#include <dualpipe/model.h>
#include <string.h>

#define MIB    1048576.0
#define GIB    (1024 * MIB)
#define SHARES .products = 0.6, .core = 0.43, .links = 0.8, .latency = 20, .reserve = 3 * GIB
#define GPU(tflops, memory, near, far)                                                                                 \
    {                                                                                                                  \
        sizeof(dp_gpu_t), 8, tflops, memory, near, far, SHARES                                                         \
    }

static const struct {
    const char *name;
    dp_gpu_t gpu;
} kinds[] = {
    {"a100", GPU(312, 81920 * MIB, 300, 25)},   {"h100", GPU(989, 81559 * MIB, 450, 50)},
    {"h200", GPU(989, 143771 * MIB, 450, 50)},  {"h800", GPU(989, 81559 * MIB, 200, 50)},
    {"b200", GPU(2250, 183359 * MIB, 900, 50)},
};

dp_status_t dp_gpu_find(const char *name, dp_gpu_t *gpu_out)
{
    dp_status_t status = dp__sized_check("dp_gpu_find: gpu_out", gpu_out, "dp_gpu_t", DP_GPU_MIN);

    if (status != DP_OK)
        return status;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (name != NULL && strcmp(kinds[i].name, name) == 0) {
            dp_sized_put(gpu_out, &kinds[i].gpu);
            return DP_OK;
        }
    return dp_fail(DP_ERR_INVALID, "no GPU \"%s\" is known; those are %s", name != NULL ? name : "", dp_gpu_names());
}

const char *dp_gpu_names(void)
{
    return "a100 h100 h200 h800 b200";
}
