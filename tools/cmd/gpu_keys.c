/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu_keys.c: assumptions by name. */
#include "gpu_keys.h"

#include "tools/io/cost_keys.h"
#include "tools/io/input.h"
#include "tools/io/size.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MOST_BYTES = 65536 };

static const struct {
    const char *name;
    size_t at; /* 0: the number of GPUs of a host */
    double scale, most;
    bool required; /* of a file */
} keys[] = {
    {"TFLOPS", offsetof(dp_gpu_t, tflops), 1, 1e6, true},
    {"GIB", offsetof(dp_gpu_t, memory), SIZE_GIB, 1e5, true},
    {"HOST", 0, 1, 4096, true},
    {"NEAR", offsetof(dp_gpu_t, near), 1, 1e6, true},
    {"FAR", offsetof(dp_gpu_t, far), 1, 1e6, true},
    {"PRODUCTS", offsetof(dp_gpu_t, products), 1, 1, false},
    {"CORE", offsetof(dp_gpu_t, core), 1, 1, false},
    {"LINKS", offsetof(dp_gpu_t, links), 1, 1, false},
    {"LATENCY", offsetof(dp_gpu_t, latency), 1, 1e9, false},
    {"RESERVE", offsetof(dp_gpu_t, reserve), SIZE_GIB, 1e5, false},
};
enum { KEYS = sizeof(keys) / sizeof(keys[0]) };

static double *member(dp_gpu_t *gpu, size_t k)
{
    return (double *)(void *)((char *)gpu + keys[k].at);
}

const char *gpu_key(const dp_gpu_t *gpu, size_t k, double *value_out)
{
    dp_gpu_t copy = *gpu;

    if (k >= KEYS)
        return NULL;
    *value_out = keys[k].at == 0 ? gpu->host : *member(&copy, k) / keys[k].scale;
    return keys[k].name;
}

/* KEY=VALUE at the beginning of a text; the text behind it. */
static dp_status_t take_pair(dp_gpu_t *gpu, const char *text, const char **end_out)
{
    const size_t length = strcspn(text, "= \t");
    const char *at = text + length + strspn(text + length, " \t");
    double value = 0;

    for (size_t k = 0; k < KEYS && *at == '='; k++) {
        if (strlen(keys[k].name) != length || strncmp(keys[k].name, text, length) != 0)
            continue;
        *end_out = cost_keys_number(at + 1, &value);
        if (*end_out == NULL || (**end_out != ',' && **end_out != '\0') || value <= 0 || value > keys[k].most)
            return dp_fail(DP_ERR_INVALID, "%s: a number above 0, at most %g, is expected", keys[k].name, keys[k].most);
        if (keys[k].at == 0 && value != floor(value))
            return dp_fail(DP_ERR_INVALID, "%s: a whole number is expected", keys[k].name);
        if (keys[k].at == 0)
            gpu->host = (int32_t)value;
        else
            *member(gpu, k) = value * keys[k].scale;
        return DP_OK;
    }
    return dp_fail(DP_ERR_INVALID,
                   "at \"%.60s\": KEY=VALUE is expected, of TFLOPS, GIB, HOST, NEAR, FAR, PRODUCTS, CORE, LINKS, "
                   "LATENCY and RESERVE",
                   text);
}

dp_status_t gpu_assume(dp_gpu_t *gpu, const char *text)
{
    const char *at = text;
    dp_status_t status = DP_OK;
    char message[256];

    while (*at != '\0' && status >= 0) {
        status = take_pair(gpu, at, &at);
        at += status >= 0 && *at == ',';
    }
    if (status >= 0)
        return status;
    snprintf(message, sizeof(message), "%s", dp_last_error());
    return dp_fail(status, "--assume %s: %s", text, message);
}

static dp_status_t take_line(void *gpu, char *line)
{
    const char *end = "";
    size_t length;
    dp_status_t status;

    line[strcspn(line, "#\r")] = '\0';
    line += strspn(line, " \t");
    for (length = strlen(line); length > 0 && strchr(" \t", line[length - 1]) != NULL; length--)
        line[length - 1] = '\0';
    if (*line == '\0')
        return DP_OK;
    status = take_pair(gpu, line, &end);
    return status >= 0 && *end != '\0' ? dp_fail(DP_ERR_INVALID, "one KEY=VALUE a line is expected") : status;
}

dp_status_t gpu_read(const char *name, dp_gpu_t *gpu)
{
    dp_status_t status = dp_gpu_find(name, gpu);

    if (status >= 0)
        return status;
    status = dp_gpu_find("h100", gpu); /* shares, latency and reserve are the same for all */
    gpu->tflops = gpu->memory = gpu->near = gpu->far = gpu->host = 0;
    if (status >= 0)
        status = input_lines(name, MOST_BYTES, take_line, gpu);
    if (status == DP_ERR_IO)
        return dp_fail(DP_ERR_INVALID, "--gpu %s: neither a file that can be read nor one of %s", name, dp_gpu_names());
    for (size_t k = 0; k < KEYS && status >= 0; k++) {
        double value;
        const char *key = gpu_key(gpu, k, &value);

        if (keys[k].required && value == 0)
            status = dp_fail(DP_ERR_INVALID, "%s: %s=NUMBER is missing", name, key);
    }
    return status;
}
