/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * shape.c: checks a configuration and says which sizes follow from it. */
#include "moe.h"

#include <math.h>

#include "plugins/common/check.h"
#include "plugins/common/do.h"

static dp_status_t check_config_structs(const dp_host_t *host, const char *plugin, const dp_moe_config_t *c)
{
    dp_status_t status = DP_TAKE(host, plugin, dp_moe_config_t, DP_MOE_CONFIG_MIN, NULL, c);

    return status < 0 ? status : DP_TAKE(host, plugin, dp_block_shape_t, DP_BLOCK_SHAPE_MIN, NULL, c->shape);
}

static dp_status_t check_block(const dp_host_t *host, const moe_rules_t *rules, const dp_block_shape_t *s)
{
    if (s->dtype != DP_F32 && s->dtype != DP_F64 && !(rules->bf16 && s->dtype == DP_BF16))
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "%s computes in %s, not in dtype %d", rules->plugin,
                       rules->bf16 ? "DP_F32, DP_F64 and DP_BF16" : "DP_F32 and DP_F64", (int)s->dtype);
    if (s->batch == 0 || s->sequence == 0 || s->hidden == 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: batch %u, sequence %u, hidden %u: each must be at least 1",
                       rules->plugin, s->batch, s->sequence, s->hidden);
    return DP_OK;
}

static dp_status_t check_experts(const dp_host_t *host, const moe_rules_t *rules, const dp_moe_config_t *c)
{
    if (c->experts == 0 || c->experts > (uint32_t)rules->most_experts || c->expert_hidden == 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: %u experts of width %u: must be 1 to %d, and at least 1",
                       rules->plugin, c->experts, c->expert_hidden, rules->most_experts);
    if (c->top_k == 0 || c->top_k > c->experts)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: top_k %u: must be 1 to the number of experts, %u", rules->plugin,
                       c->top_k, c->experts);
    if (c->gate != DP_GATE_SOFTMAX && c->gate != DP_GATE_SIGMOID)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: gate %d is neither softmax (0) nor sigmoid (1)", rules->plugin,
                       (int)c->gate);
    if (c->normalize > 1)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: normalize %u: must be 0 or 1", rules->plugin, c->normalize);
    return DP_OK;
}

static bool has_groups(const dp_moe_config_t *c)
{
    return c->route_groups > 1;
}

static dp_status_t check_groups(const dp_host_t *host, const moe_rules_t *rules, const dp_moe_config_t *c)
{
    if (!has_groups(c))
        return DP_OK;
    if (c->experts % c->route_groups != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: route_groups %u: must divide the %u experts", rules->plugin,
                       c->route_groups, c->experts);
    if (c->route_limit == 0 || c->route_limit > c->route_groups ||
        c->top_k > (uint64_t)c->route_limit * (c->experts / c->route_groups))
        return DP_FAIL(host, DP_ERR_INVALID,
                       "%s: route_limit %u: must be 1 to the number of groups, %u, of %u experts each, and leave top_k "
                       "%u to choose from",
                       rules->plugin, c->route_limit, c->route_groups, c->experts / c->route_groups, c->top_k);
    return DP_OK;
}

static bool good_real(float value)
{
    return isfinite(value) && value >= 0;
}

static dp_status_t check_reals(const dp_host_t *host, const moe_rules_t *rules, const dp_moe_config_t *c)
{
    if (!good_real(c->scale) || !good_real(c->aux_alpha) || !good_real(c->shape->norm_eps))
        return DP_FAIL(host, DP_ERR_INVALID,
                       "%s: scale %g, aux_alpha %g, norm_eps %g: none may be negative or infinite", rules->plugin,
                       (double)c->scale, (double)c->aux_alpha, (double)c->shape->norm_eps);
    if (!good_real(c->capacity))
        return DP_FAIL(host, DP_ERR_INVALID, "%s: capacity %g: must be 0 or positive", rules->plugin,
                       (double)c->capacity);
    return DP_OK;
}

static dp_status_t check_ranks(const dp_host_t *host, const moe_rules_t *rules, const dp_moe_config_t *c)
{
    const uint32_t ranks = (uint32_t)c->comm_size, replicas = c->replicas;

    if (c->comm_size < 1 || c->comm_size > rules->most_ranks || c->comm_rank < 0 || c->comm_rank >= c->comm_size)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: rank %d of an expert group of %d (at most %d)", rules->plugin,
                       c->comm_rank, c->comm_size, rules->most_ranks);
    if (replicas == 0 && c->experts % ranks != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: %u experts cannot be spread evenly over an expert group of %u ranks",
                       rules->plugin, c->experts, ranks);
    if (replicas != 0 && (replicas < c->experts || replicas > (uint32_t)rules->most_experts || replicas % ranks != 0))
        return DP_FAIL(host, DP_ERR_INVALID,
                       "%s: %u replicas of %u experts on an expert group of %u ranks: must be at least one for each "
                       "expert, at most %d, and as many on every rank",
                       rules->plugin, replicas, c->experts, ranks, rules->most_experts);
    return DP_OK;
}

static dp_status_t check_switch(const dp_host_t *host, const moe_rules_t *rules, const char *name, uint64_t value,
                                const char *why_not)
{
    if (value == 0 || (value == 1 && why_not == NULL))
        return DP_OK;
    return DP_FAIL(host, value > 1 ? DP_ERR_INVALID : DP_ERR_UNSUPPORTED, "%s: %s is %llu: %s", rules->plugin, name,
                   (unsigned long long)value, value > 1 ? "must be 0 or 1" : why_not);
}

static const char *why_not_posted(const moe_rules_t *rules, const dp_moe_config_t *c)
{
    return !rules->posted                                     ? "it does not post what it sends: give 0"
           : c->ep_vt != NULL                                 ? "a plugin of dp.ep.draft/1 posts nothing: give 0"
           : !DP_HAS(c->comm_vt, dp_comm_vt_t, exchange_post) ? "the comm has no exchange_post: give 0"
                                                              : NULL;
}

static dp_status_t check_moe_config(const dp_host_t *host, const moe_rules_t *rules, const dp_moe_config_t *c)
{
    DO(check_config_structs(host, rules->plugin, c));
    DO(check_block(host, rules, c->shape));
    DO(check_experts(host, rules, c));
    DO(check_groups(host, rules, c));
    DO(check_reals(host, rules, c));
    DO(check_switch(host, rules, "apart", c->apart,
                    rules->apart ? NULL : "it has no separate call for shared experts: give 0"));
    DO(check_switch(host, rules, "posted", c->posted, why_not_posted(rules, c)));
    return check_ranks(host, rules, c);
}

/* One chosen score divided by itself is 1, whatever the router says. */
static void warn_of_constant_weights(const dp_host_t *host, const moe_rules_t *rules, const dp_moe_config_t *c)
{
    if (c->top_k == 1 && c->normalize && c->experts > 1 && c->comm_rank == 0)
        host->log(host, DP_LOG_WARN, rules->plugin,
                  "top_k 1 with normalize 1: every weight is the same, so the loss does not train the router; give "
                  "normalize 0");
}

/* a * b as a count that kernels and BLAS can index with 32 bits. */
static bool multiply_sizes(int64_t a, int64_t b, int32_t *out)
{
    int64_t p;

    if (__builtin_mul_overflow(a, b, &p) || p > INT32_MAX)
        return false;
    *out = (int32_t)p;
    return true;
}

/* Room for the even share of rows times the capacity asked for; at most `all`. */
static int32_t rows_for(double capacity, double even, int32_t all)
{
    const double rows = ceil(capacity * even);

    return capacity > 0 && rows < (double)all ? (int32_t)rows : all;
}

static bool add_sizes(int64_t a, int64_t b, int32_t *out)
{
    return multiply_sizes(a + b, 1, out);
}

/* What is sent: see dims.h. Lists of heads that overflow a capacity are written all the same, so
 * room for those that we send does not depend on it. */
static bool count_sent(moe_dims_t *n)
{
    const int64_t chosen = (int64_t)n->tokens * n->top_k, heads = chosen > n->rows ? chosen : n->rows;
    const int64_t lists = 2 * (int64_t)n->ranks + heads * (int64_t)sizeof(moe_head_t) / n->row_bytes;
    const int32_t list = MOE_LIST_ROWS(n->pair_rows, n->row_bytes);
    int32_t unused;

    return add_sizes(n->pair_rows < n->tokens ? n->pair_rows : n->tokens, list, &n->out_room) &&
           add_sizes(n->pair_rows, list, &n->back_room) && multiply_sizes(n->back_room, n->ranks, &unused) &&
           add_sizes(heads, lists, &n->sent_rows);
}

static bool count_rows(const dp_moe_config_t *c, double capacity, moe_dims_t *n)
{
    const double sent = (double)n->tokens * c->top_k;
    int32_t all;

    if (!multiply_sizes(n->tokens, n->local < n->top_k ? n->local : n->top_k, &all))
        return false;
    n->pair_rows = rows_for(capacity, sent / n->ranks, all);
    if (!multiply_sizes(n->pair_rows, n->ranks, &all))
        return false;
    n->rows = rows_for(capacity, sent, all);
    return count_sent(n);
}

/* Every index of a kernel and every dimension given to BLAS is checked here, none later. */
static bool count_all(const moe_rules_t *rules, const dp_moe_config_t *c, moe_dims_t *n)
{
    const dp_block_shape_t *s = c->shape;
    int32_t unused;

    return multiply_sizes(s->batch, s->sequence, &n->tokens) && n->tokens <= rules->most_tokens &&
           multiply_sizes(s->hidden, 1, &n->hidden) && n->hidden <= INT32_MAX / 8 &&
           (int64_t)n->tokens * n->hidden <= rules->most_elements && multiply_sizes(c->experts, 1, &n->experts) &&
           multiply_sizes(c->expert_hidden, 1, &n->ffn) &&
           multiply_sizes(c->shared_experts, c->expert_hidden, &n->shared) &&
           multiply_sizes(n->tokens, n->experts, &unused) && multiply_sizes(n->tokens, n->top_k, &unused) &&
           multiply_sizes(n->hidden, n->ffn, &unused) && multiply_sizes(n->hidden, n->shared, &unused) &&
           count_rows(c, rules->capacity ? (double)c->capacity : 0, n);
}

dp_status_t moe_dims_init(const dp_host_t *host, const moe_rules_t *rules, const dp_moe_config_t *c, moe_dims_t *n)
{
    size_t element;

    DO(check_moe_config(host, rules, c));
    warn_of_constant_weights(host, rules, c);
    element = dp_dtype_bytes(c->shape->dtype);
    n->replicated = c->replicas != 0;
    n->replicas = (int32_t)(n->replicated ? c->replicas : c->experts);
    n->rank = c->comm_rank;
    n->ranks = c->comm_size;
    n->local = n->replicas / c->comm_size;
    n->top_k = (int32_t)c->top_k;
    n->row_bytes = ((int64_t)c->shape->hidden * (int64_t)element + rules->row_alignment - 1) / rules->row_alignment *
                   rules->row_alignment;
    if (!count_all(rules, c, n))
        return DP_FAIL(host, DP_ERR_OVERFLOW,
                       "%s: batch %u x sequence %u, hidden %u, %u experts of width %u, top_k %u, %d ranks: more rows "
                       "or elements than 32 bits can count; use smaller micro-batches",
                       rules->plugin, c->shape->batch, c->shape->sequence, c->shape->hidden, c->experts,
                       c->expert_hidden, c->top_k, c->comm_size);
    n->stride = (int32_t)(n->row_bytes / (int64_t)element);
    n->vectors = (size_t)n->hidden * element % 16 == 0 && (size_t)n->ffn * element % 16 == 0;
    if (has_groups(c) && c->route_limit < c->route_groups) {
        n->groups = (int32_t)c->route_groups;
        n->limit = (int32_t)c->route_limit;
        n->group_experts = n->experts / n->groups;
        n->group_top = (n->top_k + n->limit - 1) / n->limit;
    }
    n->softmax = c->gate == DP_GATE_SOFTMAX;
    n->normalize = (int32_t)c->normalize;
    n->scale = c->scale > 0 ? (double)c->scale : 1;
    n->norm_eps = c->shape->norm_eps > 0 ? (double)c->shape->norm_eps : 1e-6;
    n->aux_alpha = (double)c->aux_alpha;
    moe_dims_set_tokens(n, n->tokens);
    return DP_OK;
}

void moe_dims_set_tokens(moe_dims_t *n, int32_t tokens)
{
    n->tokens = tokens;
    n->aux = n->aux_alpha * n->experts / ((double)n->top_k * tokens) / tokens;
}
