/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * megatron.c: a model from arguments of Megatron-LM: a command line or script (--num-layers 61), or
 * YAML (num_layers: 61). Of those that shape a model, all are read or refused; the rest is of
 * training. Source: Megatron-LM: megatron/training/arguments.py. */
#include "megatron.h"

#include "shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 256 };

typedef struct arguments {
    const char *name;
    dp_model_t m;
    char key[WORD_BYTES]; /* that waits for its value; "" none */
    int64_t groups, kv_channels, vocab, padded_vocab, divisible_by, tp, moe_ffn, context;
    char norm[WORD_BYTES], positions[WORD_BYTES], moe_layers[WORD_BYTES];
    int32_t grouped, untied, no_bias, qkv_bias, latent;
} arguments_t;

#define MEMBER(name) offsetof(arguments_t, name)
static const struct {
    const char *key;
    size_t number, flag, text; /* one of them is not 0 */
} known[] = {
    {"num-layers", MEMBER(m.layers), 0, 0},
    {"hidden-size", MEMBER(m.hidden), 0, 0},
    {"ffn-hidden-size", MEMBER(m.ffn), 0, 0},
    {"num-attention-heads", MEMBER(m.heads), 0, 0},
    {"group-query-attention", 0, MEMBER(grouped), 0},
    {"num-query-groups", MEMBER(groups), 0, 0},
    {"kv-channels", MEMBER(kv_channels), 0, 0},
    {"max-position-embeddings", MEMBER(m.sequence), 0, 0},
    {"vocab-size", MEMBER(vocab), 0, 0},
    {"padded-vocab-size", MEMBER(padded_vocab), 0, 0},
    {"make-vocab-size-divisible-by", MEMBER(divisible_by), 0, 0},
    {"tensor-model-parallel-size", MEMBER(tp), 0, 0},
    {"context-parallel-size", MEMBER(context), 0, 0},
    {"normalization", 0, 0, MEMBER(norm)},
    {"position-embedding-type", 0, 0, MEMBER(positions)},
    {"swiglu", 0, MEMBER(m.gated), 0},
    {"quick-geglu", 0, MEMBER(m.gated), 0},
    {"untie-embeddings-and-output-weights", 0, MEMBER(untied), 0},
    {"disable-bias-linear", 0, MEMBER(no_bias), 0},
    {"add-qkv-bias", 0, MEMBER(qkv_bias), 0},
    {"qk-layernorm", 0, MEMBER(m.qk_norm), 0},
    {"multi-latent-attention", 0, MEMBER(latent), 0},
    {"q-lora-rank", MEMBER(m.q_rank), 0, 0},
    {"kv-lora-rank", MEMBER(m.kv_rank), 0, 0},
    {"qk-head-dim", MEMBER(m.head_dim), 0, 0},
    {"qk-pos-emb-head-dim", MEMBER(m.rope_dim), 0, 0},
    {"v-head-dim", MEMBER(m.value_dim), 0, 0},
    {"num-experts", MEMBER(m.experts), 0, 0},
    {"moe-router-topk", MEMBER(m.top_k), 0, 0},
    {"moe-ffn-hidden-size", MEMBER(moe_ffn), 0, 0},
    {"moe-shared-expert-intermediate-size", MEMBER(m.shared_ffn), 0, 0},
    {"moe-shared-expert-gate", 0, MEMBER(m.shared_gate), 0},
    {"moe-router-enable-expert-bias", 0, MEMBER(m.router_bias), 0},
    {"moe-router-group-topk", MEMBER(m.node_limit), 0, 0},
    {"moe-layer-freq", 0, 0, MEMBER(moe_layers)},
};
enum { KNOWN = sizeof(known) / sizeof(known[0]) };

/* Other kinds of layers than there are here. */
static const char *const refused[] = {"hybrid-",
                                      "is-hybrid-model",
                                      "mamba-",
                                      "linear-",
                                      "encoder-",
                                      "decoder-",
                                      "heterogeneous-",
                                      "moe-latent-",
                                      "experimental-attention-",
                                      "dsa-",
                                      "spec",
                                      "attention-output-gate"};

/* ---- reading ---- */

static dp_status_t take_number(arguments_t *a, const char *key, const char *text, int64_t *into)
{
    char *end;
    const long long value = strtoll(text, &end, 10);

    if (end == text || *end != '\0' || value < 0 || value > 1 << 30)
        return dp_fail(DP_ERR_INVALID, "%s: %s %s: a whole number from 0 to %d is expected", a->name, key, text,
                       1 << 30);
    *into = value;
    return DP_OK;
}

/* value NULL: the key stands alone. */
static dp_status_t take_pair(arguments_t *a, const char *key, const char *value)
{
    const bool off = value != NULL && (strcmp(value, "false") == 0 || strcmp(value, "null") == 0);
    char *const base = (char *)a;

    for (size_t k = 0; k < KNOWN; k++) {
        if (strcmp(known[k].key, key) != 0)
            continue;
        if (known[k].flag != 0)
            *(int32_t *)(void *)(base + known[k].flag) = !off;
        else if (value == NULL)
            return dp_fail(DP_ERR_INVALID, "%s: %s has no value", a->name, key);
        else if (known[k].text != 0)
            snprintf(base + known[k].text, WORD_BYTES, "%s", value);
        else if (!off)
            return take_number(a, key, value, (int64_t *)(void *)(base + known[k].number));
        return DP_OK;
    }
    for (size_t k = 0; k < sizeof(refused) / sizeof(refused[0]) && !off; k++)
        if (strncmp(key, refused[k], strlen(refused[k])) == 0)
            return dp_fail(DP_ERR_INVALID, "%s: %s: such layers are not known here", a->name, key);
    return DP_OK;
}

/* --num-layers or num_layers: as num-layers. */
static void name_key(const char *word, size_t length, char *key)
{
    while (length > 0 && *word == '-')
        word++, length--;
    snprintf(key, WORD_BYTES, "%.*s", (int)length, word);
    for (char *at = key; *at != '\0'; at++)
        *at = *at == '_' ? '-' : *at;
}

static dp_status_t take_word(arguments_t *a, const char *word, size_t length, bool first)
{
    const char *const equals = memchr(word, '=', length);
    const bool dashed = length > 2 && strncmp(word, "--", 2) == 0, yaml = first && word[length - 1] == ':';
    char value[WORD_BYTES];
    dp_status_t status = DP_OK;

    if (!dashed && !yaml && a->key[0] == '\0')
        return DP_OK;
    if (a->key[0] != '\0' && (dashed || yaml))
        status = take_pair(a, a->key, NULL);
    if (dashed && equals != NULL && status >= 0) {
        name_key(word, (size_t)(equals - word), a->key);
        length -= (size_t)(equals + 1 - word);
        word = equals + 1;
    } else if (dashed || yaml) {
        name_key(word, length - (word[length - 1] == ':'), a->key);
        return status;
    }
    snprintf(value, sizeof(value), "%.*s", (int)length, word);
    if (status >= 0)
        status = take_pair(a, a->key, value);
    a->key[0] = '\0';
    return status;
}

/* Words between blanks, quotes and the brackets of a shell's list left out, until a comment. */
static dp_status_t take_line(arguments_t *a, const char *line, const char *end)
{
    static const char between[] = " \t\r\"'\\,";
    bool first = true;
    dp_status_t status = DP_OK;

    while (line < end && status >= 0) {
        size_t length = 0;

        while (line < end && strchr(between, *line) != NULL)
            line++;
        while (line + length < end && strchr(between, line[length]) == NULL)
            length++;
        if (length == 0 || *line == '#')
            break;
        if (length < WORD_BYTES)
            status = take_word(a, line, length, first);
        line += length;
        first = false;
    }
    return status;
}

static dp_status_t read_lines(arguments_t *a, const char *text, size_t bytes)
{
    const char *const end = text + bytes;
    dp_status_t status = DP_OK;

    while (text < end && status >= 0) {
        const char *const stop = memchr(text, '\n', (size_t)(end - text));

        status = take_line(a, text, stop != NULL ? stop : end);
        text = stop != NULL ? stop + 1 : end;
    }
    return status >= 0 && a->key[0] != '\0' ? take_pair(a, a->key, NULL) : status;
}

/* ---- what it means ---- */

/* [0]*3+[1]*58, in brackets or not: dense layers first. 1: all have experts. */
static bool find_dense(arguments_t *a)
{
    const char *at = a->moe_layers + (a->moe_layers[0] == '(');
    long counts[2] = {0, 0};

    if (strcmp(at, "1") == 0 || *at == '\0')
        return true;
    for (long kind = 0; kind < 2; kind++) {
        char *end;

        if (strncmp(at, kind == 0 ? "[0]" : "[1]", 3) != 0)
            continue;
        counts[kind] = 1;
        at += 3;
        if (*at == '*') {
            counts[kind] = strtol(at + 1, &end, 10);
            at = end;
        }
        at += kind == 0 && *at == '+';
    }
    a->m.dense_first = counts[0];
    return (*at == '\0' || strcmp(at, ")") == 0) && counts[0] + counts[1] == a->m.layers;
}

static void shape_attention(arguments_t *a)
{
    dp_model_t *m = &a->m;

    m->kv_heads = a->grouped && !a->latent ? a->groups : m->heads;
    if (!a->latent) {
        m->head_dim = a->kv_channels > 0 ? a->kv_channels : m->heads > 0 ? m->hidden / m->heads : 0;
        m->value_dim = m->head_dim;
        m->q_rank = m->kv_rank = m->rope_dim = 0;
        return;
    }
    m->qk_norm = 0; /* those of the latents are always counted */
    m->kv_rank = m->kv_rank > 0 ? m->kv_rank : 32;
    m->rope_dim = m->rope_dim > 0 ? m->rope_dim : 64;
    m->head_dim = (m->head_dim > 0 ? m->head_dim : 128) + m->rope_dim;
    m->value_dim = m->value_dim > 0 ? m->value_dim : 128;
}

static void shape_experts(arguments_t *a)
{
    dp_model_t *m = &a->m;

    if (m->ffn == 0)
        m->ffn = m->gated ? m->hidden * 4 * 2 / 3 / 64 * 64 : 4 * m->hidden;
    if (m->experts == 0) {
        m->top_k = m->shared_ffn = m->node_limit = 0;
        m->router_bias = m->shared_gate = 0;
        return;
    }
    m->top_k = m->top_k > 0 ? m->top_k : 2;
    m->expert_ffn = a->moe_ffn > 0 ? a->moe_ffn : m->ffn;
    m->expert_bias = !a->no_bias;
}

static dp_status_t shape_model(arguments_t *a)
{
    dp_model_t *m = &a->m;
    const int64_t whole = a->divisible_by * (a->tp > 0 ? a->tp : 1);
    const bool norm_known = a->norm[0] == '\0' || strcmp(a->norm, "LayerNorm") == 0 || strcmp(a->norm, "RMSNorm") == 0;
    const bool learned = a->positions[0] == '\0' || strcmp(a->positions, "learned_absolute") == 0;
    const bool latent_norms = m->qk_norm != 0;

    snprintf(m->type, sizeof(m->type), "megatron");
    if (a->padded_vocab == 0 && a->vocab == 0)
        return dp_fail(DP_ERR_INVALID,
                       "%s: vocab_size is missing: it is the tokenizer's there, here it has to be given", a->name);
    if (!norm_known || (!learned && strcmp(a->positions, "rope") != 0 && strcmp(a->positions, "none") != 0))
        return dp_fail(DP_ERR_INVALID,
                       "%s: normalization %s, position_embedding_type %s: only LayerNorm and RMSNorm, "
                       "learned_absolute, rope and none are known",
                       a->name, a->norm, a->positions);
    if (a->context > 1)
        return dp_fail(DP_ERR_INVALID, "%s: context_parallel_size %lld: context parallelism is not known here", a->name,
                       (long long)a->context);
    if (a->latent && (!a->no_bias || !latent_norms))
        return dp_fail(DP_ERR_INVALID, "%s: latent attention is known with disable_bias_linear and qk_layernorm alone",
                       a->name);
    if (m->experts > 0 && !find_dense(a))
        return dp_fail(DP_ERR_INVALID, "%s: moe_layer_freq %s: 1, or ([0]*A+[1]*B) with as many layers, is expected",
                       a->name, a->moe_layers);
    m->vocab = a->padded_vocab > 0 ? a->padded_vocab : (a->vocab + whole - 1) / whole * whole;
    m->tied = !a->untied;
    m->norm_bias = strcmp(a->norm, "RMSNorm") != 0;
    m->qkv_bias = !a->no_bias || a->qkv_bias;
    m->o_bias = m->mlp_bias = !a->no_bias;
    m->positions = learned ? m->sequence : 0;
    shape_attention(a);
    shape_experts(a);
    return DP_OK;
}

dp_status_t dp__model_read_megatron(const char *name, const char *text, size_t bytes, dp_model_t *model_out)
{
    arguments_t a = {.name = name, .m = {.struct_size = sizeof(a.m)}, .groups = 1, .divisible_by = 128};
    dp_status_t status = read_lines(&a, text, bytes);

    if (status >= 0 && a.m.layers == 0 && a.m.hidden == 0)
        return dp_fail(
            DP_ERR_INVALID,
            "%s: neither a config.json nor arguments of Megatron-LM such as num_layers, nor [model] of torchtitan",
            name);
    if (status >= 0 && a.divisible_by == 0)
        status = dp_fail(DP_ERR_INVALID, "%s: make_vocab_size_divisible_by is 0", name);
    if (status >= 0)
        status = shape_model(&a);
    if (status >= 0)
        *model_out = a.m;
    return status;
}
