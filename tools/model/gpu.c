/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu.c: kinds of GPUs. Rates and memory are of NVIDIA's data sheets and of what nvidia-smi says;
 * shares of them are what our kernels reached on an H200 (docs/gpu.md): 0.62 of the data sheet in
 * products of experts, 0.47 and 0.40 in attention's core, and 0.8 of a link as the usual rule. */
#include "estimate.h"

#include "tools/io/cost_keys.h"

#include <string.h>

#define MIB    1048576.0
#define GIB    (1024 * MIB)
#define SHARES .products = 0.6, .core = 0.43, .links = 0.8, .latency = 20, .reserve = 3 * GIB

static const gpu_t kinds[] = {
    {"a100", 312, 81920 * MIB, 8, 300, 25, SHARES},   {"h100", 989, 81559 * MIB, 8, 450, 50, SHARES},
    {"h200", 989, 143771 * MIB, 8, 450, 50, SHARES},  {"h800", 989, 81559 * MIB, 8, 200, 50, SHARES},
    {"b200", 2250, 183359 * MIB, 8, 900, 50, SHARES},
};

const gpu_t *gpu_find(const char *name)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}

const char *gpu_names(void)
{
    return "a100 h100 h200 h800 b200";
}

dp_status_t gpu_assume(gpu_t *gpu, const char *text)
{
    const struct {
        const char *key;
        double *value;
        double scale, most;
    } keys[] = {
        {"TFLOPS", &gpu->tflops, 1, 1e6}, {"GIB", &gpu->memory, GIB, 1e5},    {"NEAR", &gpu->near, 1, 1e6},
        {"FAR", &gpu->far, 1, 1e6},       {"PRODUCTS", &gpu->products, 1, 1}, {"CORE", &gpu->core, 1, 1},
        {"LINKS", &gpu->links, 1, 1},     {"LATENCY", &gpu->latency, 1, 1e9}, {"RESERVE", &gpu->reserve, GIB, 1e5},
    };
    const char *at = text;

    while (*at != '\0') {
        const char *equals = strchr(at, '='), *end = NULL;
        double value = 0;

        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && equals != NULL; i++)
            if (strlen(keys[i].key) == (size_t)(equals - at) && strncmp(keys[i].key, at, (size_t)(equals - at)) == 0) {
                end = cost_keys_number(equals + 1, &value);
                if (end == NULL || (*end != ',' && *end != '\0') || value <= 0 || value > keys[i].most)
                    return dp_fail(DP_ERR_INVALID, "--assume %s: %s: a number above 0, at most %g, is expected", text,
                                   keys[i].key, keys[i].most);
                *keys[i].value = value * keys[i].scale;
            }
        if (end == NULL)
            return dp_fail(DP_ERR_INVALID,
                           "--assume %s: at \"%s\": KEY=VALUE is expected, of TFLOPS, GIB, NEAR, FAR, PRODUCTS, CORE, "
                           "LINKS, LATENCY and RESERVE",
                           text, at);
        at = *end == ',' ? end + 1 : end;
    }
    return DP_OK;
}
