/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * config.c: a model from the config.json that Hugging Face's transformers write. */
#include "base/memory.h"
#include "base/sized.h"
#include "megatron.h"
#include "shape.h"
#include "titan.h"
#include "trace/json.h"

#include <stdio.h>
#include <string.h>

enum { MOST_KEYS = 512, KEY_BYTES = 64 };

typedef struct entry {
    char key[KEY_BYTES];
    dp__trace_json_kind_t kind;
    char text[KEY_BYTES]; /* of a string or number; of a list, how many values it has */
} entry_t;

typedef struct config {
    const char *path, *text;
    size_t bytes, used;
    dp__trace_json_reader_t *json;
    entry_t *entries;
    size_t count;
    dp_status_t status; /* of the first number that was wrong */
} config_t;

/* ---- reading ---- */

static dp_status_t hand_over(void *user, void *buffer, size_t room, size_t *bytes_out)
{
    config_t *c = user;

    *bytes_out = c->bytes - c->used < room ? c->bytes - c->used : room;
    memcpy(buffer, c->text + c->used, *bytes_out);
    c->used += *bytes_out;
    return DP_OK;
}

/* Behind the [ of a list: how many values it has, as text. */
static dp_status_t count_values(config_t *c, char *text, size_t room)
{
    dp__trace_json_token_t token;
    dp_status_t status = dp__trace_json_next(c->json, &token);
    int values = 0;

    for (; status >= 0 && token.kind != DP__JSON_ARRAY_END; values++) {
        status = dp__trace_json_skip(c->json, &token);
        if (status >= 0)
            status = dp__trace_json_next(c->json, &token);
    }
    snprintf(text, room, "%d", values);
    return status;
}

static dp_status_t add_entry(config_t *c, const char *key, const dp__trace_json_token_t *token)
{
    entry_t *e = &c->entries[c->count];

    for (size_t i = 0; i < c->count; i++)
        if (strcmp(c->entries[i].key, key) == 0)
            return dp_fail(DP_ERR_INVALID, "%s: the key %s is there twice", c->path, key);
    if (c->count == MOST_KEYS)
        return dp_fail(DP_ERR_INVALID, "%s: more than %d keys", c->path, MOST_KEYS);
    snprintf(e->key, sizeof(e->key), "%s", key);
    snprintf(e->text, sizeof(e->text), "%s", token->text);
    e->kind = token->kind;
    c->count++;
    return token->kind == DP__JSON_ARRAY ? count_values(c, e->text, sizeof(e->text))
                                         : dp__trace_json_skip(c->json, token);
}

static dp_status_t read_keys(config_t *c)
{
    dp__trace_json_token_t token;
    dp_status_t status = dp__trace_json_next(c->json, &token);
    char key[KEY_BYTES];

    if (status >= 0 && token.kind != DP__JSON_OBJECT)
        return dp_fail(DP_ERR_INVALID, "it is no object");
    while (status >= 0) {
        status = dp__trace_json_next(c->json, &token);
        if (status < 0 || token.kind == DP__JSON_OBJECT_END)
            break;
        snprintf(key, sizeof(key), "%s", token.text);
        status = dp__trace_json_next(c->json, &token);
        if (status >= 0)
            status = add_entry(c, key, &token);
    }
    return status;
}

static dp_status_t read_config(config_t *c)
{
    char message[256];
    dp_status_t status;

    c->entries = dp__calloc(MOST_KEYS, sizeof(*c->entries));
    if (c->entries == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for %d keys", c->path, MOST_KEYS);
    status = dp__trace_json_open(hand_over, c, &c->json);
    if (status >= 0)
        status = read_keys(c);
    if (status >= 0 || status == DP_ERR_NOMEM)
        return status;
    snprintf(message, sizeof(message), "%s", dp_last_error());
    return dp_fail(DP_ERR_INVALID, "%s: %s", c->path, message);
}

/* ---- asking ---- */

static const entry_t *find(const config_t *c, const char *key)
{
    for (size_t i = 0; i < c->count; i++)
        if (strcmp(c->entries[i].key, key) == 0 && c->entries[i].kind != DP__JSON_NULL)
            return &c->entries[i];
    return NULL;
}

/* A whole number of at least `least`; `otherwise` where the key is not there: below 0, it has to
 * be. */
static int64_t number(config_t *c, const char *key, int64_t least, int64_t otherwise)
{
    const entry_t *e = find(c, key);
    int64_t value = otherwise;

    if (e == NULL && otherwise < 0 && c->status >= 0)
        c->status = dp_fail(DP_ERR_INVALID, "%s: the key %s is missing", c->path, key);
    if (e != NULL &&
        (e->kind != DP__JSON_NUMBER || !dp__trace_json_integer(e->text, &value) || value < least || value > 1 << 30) &&
        c->status >= 0)
        c->status = dp_fail(DP_ERR_INVALID, "%s: %s is no whole number from %lld to %d", c->path, key, (long long)least,
                            1 << 30);
    return value;
}

static bool flag(config_t *c, const char *key, bool otherwise)
{
    const entry_t *e = find(c, key);

    if (e == NULL)
        return otherwise;
    if (e->kind != DP__JSON_TRUE && e->kind != DP__JSON_FALSE && c->status >= 0)
        c->status = dp_fail(DP_ERR_INVALID, "%s: %s is neither true nor false", c->path, key);
    return e->kind == DP__JSON_TRUE;
}

/* ---- kinds of models ---- */

static void read_common(config_t *c, dp_model_t *m)
{
    m->hidden = number(c, "hidden_size", 1, -1);
    m->layers = number(c, "num_hidden_layers", 1, -1);
    m->vocab = number(c, "vocab_size", 1, -1);
    m->heads = number(c, "num_attention_heads", 1, -1);
    m->kv_heads = number(c, "num_key_value_heads", 1, m->heads);
    m->head_dim = number(c, "head_dim", 1, m->heads > 0 ? m->hidden / m->heads : 0);
    m->value_dim = m->head_dim;
    m->ffn = number(c, "intermediate_size", 1, -1);
    m->sequence = number(c, "max_position_embeddings", 1, -1);
    m->tied = flag(c, "tie_word_embeddings", false);
    m->gated = true;
    m->moe_every = 1;
}

static void read_llama(config_t *c, dp_model_t *m)
{
    read_common(c, m);
    m->qkv_bias = m->o_bias = flag(c, "attention_bias", false);
    m->mlp_bias = flag(c, "mlp_bias", false);
}

static void read_qwen2(config_t *c, dp_model_t *m)
{
    read_common(c, m);
    m->qkv_bias = true;
}

static void read_qwen3(config_t *c, dp_model_t *m)
{
    read_common(c, m);
    m->qkv_bias = m->o_bias = flag(c, "attention_bias", false);
    m->qk_norm = true;
}

static void read_mixtral(config_t *c, dp_model_t *m)
{
    read_common(c, m);
    m->experts = number(c, "num_local_experts", 1, -1);
    m->top_k = number(c, "num_experts_per_tok", 1, -1);
    m->expert_ffn = m->ffn;
}

static void read_qwen_experts(config_t *c, dp_model_t *m)
{
    const entry_t *dense = find(c, "mlp_only_layers");

    m->experts = number(c, "num_experts", 1, -1);
    m->top_k = number(c, "num_experts_per_tok", 1, -1);
    m->expert_ffn = number(c, "moe_intermediate_size", 1, -1);
    m->moe_every = number(c, "decoder_sparse_step", 1, 1);
    if (dense != NULL && (dense->kind != DP__JSON_ARRAY || strcmp(dense->text, "0") != 0) && c->status >= 0)
        c->status = dp_fail(DP_ERR_INVALID, "%s: only an empty list mlp_only_layers is known", c->path);
}

static void read_qwen2_moe(config_t *c, dp_model_t *m)
{
    read_qwen2(c, m);
    read_qwen_experts(c, m);
    m->shared_ffn = number(c, "shared_expert_intermediate_size", 1, -1);
    m->shared_gate = true;
}

static void read_qwen3_moe(config_t *c, dp_model_t *m)
{
    read_qwen3(c, m);
    read_qwen_experts(c, m);
}

static void read_deepseek(config_t *c, dp_model_t *m)
{
    read_llama(c, m);
    m->q_rank = number(c, "q_lora_rank", 0, 0);
    m->kv_rank = number(c, "kv_lora_rank", 1, -1);
    m->rope_dim = number(c, "qk_rope_head_dim", 1, -1);
    m->head_dim = m->rope_dim + number(c, "qk_nope_head_dim", 1, -1);
    m->value_dim = number(c, "v_head_dim", 1, -1);
    m->kv_heads = m->heads;
    m->experts = number(c, "n_routed_experts", 1, -1);
    m->top_k = number(c, "num_experts_per_tok", 1, -1);
    m->expert_ffn = number(c, "moe_intermediate_size", 1, -1);
    m->shared_ffn = number(c, "n_shared_experts", 0, 0) * m->expert_ffn;
    m->dense_first = number(c, "first_k_dense_replace", 0, 0);
    m->node_limit = number(c, "topk_group", 0, 0);
    if (number(c, "moe_layer_freq", 1, 1) != 1 && c->status >= 0)
        c->status = dp_fail(DP_ERR_INVALID, "%s: only moe_layer_freq 1 is known", c->path);
}

static void read_deepseek_v3(config_t *c, dp_model_t *m)
{
    read_deepseek(c, m);
    m->router_bias = true; /* e_score_correction_bias */
}

static void read_gpt_oss(config_t *c, dp_model_t *m)
{
    read_common(c, m);
    m->qkv_bias = m->o_bias = m->router_bias = m->expert_bias = m->sinks = true;
    m->experts = number(c, "num_local_experts", 1, -1);
    m->top_k = number(c, "num_experts_per_tok", 1, -1);
    m->expert_ffn = m->ffn;
}

static void read_gpt2(config_t *c, dp_model_t *m)
{
    m->hidden = number(c, "n_embd", 1, -1);
    m->layers = number(c, "n_layer", 1, -1);
    m->heads = m->kv_heads = number(c, "n_head", 1, -1);
    m->head_dim = m->value_dim = m->heads > 0 ? m->hidden / m->heads : 0;
    m->vocab = number(c, "vocab_size", 1, -1);
    m->sequence = m->positions = number(c, "n_positions", 1, -1);
    m->ffn = number(c, "n_inner", 1, 4 * m->hidden);
    m->tied = flag(c, "tie_word_embeddings", true);
    m->qkv_bias = m->o_bias = m->mlp_bias = m->norm_bias = true;
    m->moe_every = 1;
}

static const struct {
    const char *type;
    void (*read)(config_t *c, dp_model_t *m);
} types[] = {
    {"deepseek_v2", read_deepseek},
    {"deepseek_v3", read_deepseek_v3},
    {"gpt2", read_gpt2},
    {"gpt_oss", read_gpt_oss},
    {"llama", read_llama},
    {"mistral", read_llama},
    {"mixtral", read_mixtral},
    {"qwen2", read_qwen2},
    {"qwen2_moe", read_qwen2_moe},
    {"qwen3", read_qwen3},
    {"qwen3_moe", read_qwen3_moe},
};

const char *dp_model_types(void)
{
    return "deepseek_v2, deepseek_v3, gpt2, gpt_oss, llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe";
}

static dp_status_t make_model(config_t *c, dp_model_t *m)
{
    const entry_t *type = find(c, "model_type");

    if (type == NULL || type->kind != DP__JSON_STRING)
        return dp_fail(DP_ERR_INVALID, "%s: there is no model_type, as a config.json of Hugging Face's hub has",
                       c->path);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(type->text, types[i].type) != 0)
            continue;
        snprintf(m->type, sizeof(m->type), "%s", types[i].type);
        types[i].read(c, m);
        return c->status;
    }
    return dp_fail(DP_ERR_INVALID, "%s: models of type %s are not known here; those are %s", c->path, type->text,
                   dp_model_types());
}

static bool begins_object(const char *text, size_t bytes)
{
    size_t at = 0;

    while (at < bytes && strchr(" \t\r\n", text[at]) != NULL)
        at++;
    return at < bytes && text[at] == '{';
}

dp_status_t dp_model_read(const char *name, const char *text, size_t bytes, dp_model_t *model_out)
{
    config_t c = {.path = name, .text = text, .bytes = bytes, .status = DP_OK};
    dp_model_t m = {.struct_size = sizeof(m)}, checked;
    dp_status_t status = dp__sized_check("dp_model_read: model_out", model_out, "dp_model_t", DP_MODEL_MIN);

    if (status == DP_OK && (name == NULL || text == NULL))
        status = dp_fail(DP_ERR_INVALID, "dp_model_read: name and text must not be NULL");
    if (status >= 0 && begins_object(text, bytes)) {
        status = read_config(&c);
        if (status >= 0)
            status = make_model(&c, &m);
    } else if (status >= 0) {
        status = dp__model_is_titan(text, bytes) ? dp__model_read_titan(name, text, bytes, &m)
                                                 : dp__model_read_megatron(name, text, bytes, &m);
    }
    if (status >= 0)
        status = dp__model_take(name, &m, &checked);
    dp__trace_json_close(c.json);
    dp__free(c.entries);
    if (status >= 0)
        dp_sized_put(model_out, &checked);
    return status;
}
