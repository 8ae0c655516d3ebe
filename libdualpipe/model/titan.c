/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * titan.c: a model from a TOML file of torchtitan, which names one of the flavors in its code. Of
 * the file only name and flavor in [model] are read. Sizes: torchtitan: torchtitan/models/llama3,
 * deepseek_v3 and qwen3, __init__.py. */
#include "titan.h"

#include <stdio.h>
#include <string.h>

enum { WORD_BYTES = 64 };

#define LLAMA3(n, d, h, inner)                                                                                         \
    {                                                                                                                  \
        .type = "llama", .layers = (n), .hidden = (d), .heads = (h), .kv_heads = 8, .head_dim = 128, .value_dim = 128, \
        .ffn = (inner), .vocab = 128256, .sequence = 131072                                                            \
    }
#define DEEPSEEK(n, d, h, q, inner, few, all, k, width, shared, words, groups, bias)                                   \
    {                                                                                                                  \
        .type = "deepseek_v3", .layers = (n), .hidden = (d), .heads = (h), .kv_heads = (h), .head_dim = 192,           \
        .value_dim = 128, .q_rank = (q), .kv_rank = 512, .rope_dim = 64, .ffn = (inner), .dense_first = (few),         \
        .experts = (all), .top_k = (k), .expert_ffn = (width), .shared_ffn = (shared) * (width), .vocab = (words),     \
        .node_limit = (groups), .router_bias = (bias), .sequence = 16384                                               \
    }
#define QWEN3(n, d, h, inner, ties)                                                                                    \
    {                                                                                                                  \
        .type = "qwen3", .layers = (n), .hidden = (d), .heads = (h), .kv_heads = 8, .head_dim = 128, .value_dim = 128, \
        .ffn = (inner), .qk_norm = 1, .tied = (ties), .vocab = 151936, .sequence = 40960                               \
    }
#define QWEN3_MOE(n, d, h, inner, width)                                                                               \
    {                                                                                                                  \
        .type = "qwen3_moe", .layers = (n), .hidden = (d), .heads = (h), .kv_heads = 4, .head_dim = 128,               \
        .value_dim = 128, .ffn = (inner), .experts = 128, .top_k = 8, .expert_ffn = (width), .qk_norm = 1,             \
        .vocab = 151936, .sequence = 40960                                                                             \
    }

static const struct {
    const char *name, *flavor;
    dp_model_t model;
} flavors[] = {
    {"llama3", "8B", LLAMA3(32, 4096, 32, 14336)},
    {"llama3", "70B", LLAMA3(80, 8192, 64, 28672)},
    {"llama3", "405B", LLAMA3(126, 16384, 128, 53248)},
    {"deepseek_v3", "16B", DEEPSEEK(27, 2048, 16, 0, 10944, 1, 64, 6, 1408, 2, 102400, 0, 0)},
    {"deepseek_v3", "236B", DEEPSEEK(60, 5120, 128, 1536, 12288, 1, 160, 6, 1536, 2, 102400, 3, 0)},
    {"deepseek_v3", "671B", DEEPSEEK(61, 7168, 128, 1536, 18432, 3, 256, 8, 2048, 1, 129280, 4, 1)},
    {"qwen3", "0.6B", QWEN3(28, 1024, 16, 3072, 1)},
    {"qwen3", "1.7B", QWEN3(28, 2048, 16, 6144, 1)},
    {"qwen3", "4B", QWEN3(36, 2560, 32, 9728, 1)},
    {"qwen3", "8B", QWEN3(36, 4096, 32, 12288, 0)},
    {"qwen3", "14B", QWEN3(40, 5120, 40, 17408, 0)},
    {"qwen3", "32B", QWEN3(64, 5120, 64, 25600, 0)},
    {"qwen3", "30B-A3B", QWEN3_MOE(48, 2048, 32, 6144, 768)},
    {"qwen3", "235B-A22B", QWEN3_MOE(94, 4096, 64, 12288, 1536)},
};

/* The next line without blanks at its ends; NULL behind the last one. */
static const char *next_line(const char **text, size_t *bytes, size_t *length_out)
{
    const char *line = *text, *stop = *bytes > 0 ? memchr(line, '\n', *bytes) : NULL;
    size_t length = stop != NULL ? (size_t)(stop - line) : *bytes, used = length + (stop != NULL);

    if (*bytes == 0)
        return NULL;
    *text += used;
    *bytes -= used;
    for (; length > 0 && (*line == ' ' || *line == '\t'); length--)
        line++;
    while (length > 0 && (line[length - 1] == ' ' || line[length - 1] == '\t' || line[length - 1] == '\r'))
        length--;
    *length_out = length;
    return line;
}

/* [model], whatever stands behind it. */
static bool begins_model(const char *line, size_t length)
{
    return length >= 7 && strncmp(line, "[model]", 7) == 0;
}

bool dp__model_is_titan(const char *text, size_t bytes)
{
    const char *line;
    size_t length;

    while ((line = next_line(&text, &bytes, &length)) != NULL)
        if (begins_model(line, length))
            return true;
    return false;
}

/* KEY = "VALUE", in quotes of either kind. */
static void take_value(const char *line, size_t length, const char *key, char *value)
{
    const size_t named = strlen(key);
    const char *from, *to, *const end = line + length;

    if (length <= named || strncmp(line, key, named) != 0)
        return;
    for (from = line + named; from < end && (*from == ' ' || *from == '\t' || *from == '='); from++)
        continue;
    if (from == line + named || from == end || (*from != '"' && *from != '\''))
        return;
    to = memchr(from + 1, *from, (size_t)(end - from - 1));
    if (to != NULL && to - from - 1 < WORD_BYTES)
        snprintf(value, WORD_BYTES, "%.*s", (int)(to - from - 1), from + 1);
}

dp_status_t dp__model_read_titan(const char *name, const char *text, size_t bytes, dp_model_t *model_out)
{
    char model[WORD_BYTES] = "", flavor[WORD_BYTES] = "", known[256] = "";
    const char *line;
    size_t length;
    bool inside = false;

    while ((line = next_line(&text, &bytes, &length)) != NULL) {
        inside = length > 0 && *line == '[' ? begins_model(line, length) : inside;
        if (inside) {
            take_value(line, length, "name", model);
            take_value(line, length, "flavor", flavor);
        }
    }
    for (size_t i = 0; i < sizeof(flavors) / sizeof(flavors[0]); i++) {
        const size_t used = strlen(known);

        if (strcmp(flavors[i].name, model) == 0 && strcmp(flavors[i].flavor, flavor) == 0) {
            *model_out = flavors[i].model;
            model_out->struct_size = sizeof(*model_out);
            model_out->gated = model_out->moe_every = 1;
            return DP_OK;
        }
        snprintf(known + used, sizeof(known) - used, "%s%s %s", i > 0 ? ", " : "", flavors[i].name, flavors[i].flavor);
    }
    return dp_fail(
        DP_ERR_INVALID,
        "%s: [model] name \"%s\", flavor \"%s\" of torchtitan is not known here; those are %s. Of others take "
        "the config.json of Hugging Face's hub",
        name, model, flavor, known);
}
