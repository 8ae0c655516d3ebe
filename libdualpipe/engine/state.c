/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * state.c: what the trainer keeps besides the parameters: named, once. */
#include "base/do.h"
#include "base/memory.h"
#include "base/sized.h"
#include "engine/engine.h"
#include "stage/dtype.h"

#include <stdbool.h>
#include <string.h>

enum { NAME_LENGTH = 127 };

static bool of_chunk(const dp_state_t *s)
{
    return s->scope == DP_STATE_PARAMS || s->scope == DP_STATE_STAGE || s->scope == DP_STATE_SHARDS;
}

static bool with_params(const dp_state_t *s)
{
    return s->scope == DP_STATE_PARAMS || s->scope == DP_STATE_SHARDS;
}

static dp_status_t check_name(const dp_state_t *s)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char all[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    if (s->name == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_register_state: state.name is NULL");
    if (strspn(s->name, letters) == 0 || s->name[strspn(s->name, all)] != '\0' || strlen(s->name) > NAME_LENGTH)
        return dp_fail(
            DP_ERR_INVALID,
            "dp_pipeline_register_state: \"%.200s\" is no name: a letter, then letters, digits and . _ -, at "
            "most %d in all",
            s->name, NAME_LENGTH);
    return DP_OK;
}

/* PARAMS and SHARDS get the count of their chunk. */
static dp_status_t check_shape(const dp_pipeline_t *p, dp_state_t *s)
{
    size_t bytes;

    if ((int)s->scope < DP_STATE_PARAMS || s->scope > DP_STATE_SHARDS)
        return dp_fail(DP_ERR_INVALID, "state \"%s\": scope %d is none of dp_state_scope_t", s->name, (int)s->scope);
    if ((int)s->dtype < DP_F32 || s->dtype > DP_U8)
        return dp_fail(DP_ERR_INVALID, "state \"%s\": dtype is %s", s->name, dp__dtype_name(s->dtype));
    if (of_chunk(s) && (s->chunk < 0 || s->chunk >= p->nchunks))
        return dp_fail(DP_ERR_INVALID, "state \"%s\": chunk %d: this rank has %d", s->name, s->chunk, p->nchunks);
    if (with_params(s) && s->count != 0)
        return dp_fail(DP_ERR_INVALID, "state \"%s\": count is %zu; of a state that goes with parameters it is 0",
                       s->name, s->count);
    if (with_params(s))
        s->count =
            s->scope == DP_STATE_SHARDS ? p->chunks[s->chunk].shard_count : p->chunks[s->chunk].stage->info.param_count;
    if (!with_params(s) && (s->count == 0 || !dp__mul(s->count, dp_dtype_bytes(s->dtype), &bytes)))
        return dp_fail(DP_ERR_INVALID, "state \"%s\": a count of %zu elements cannot be", s->name, s->count);
    if (s->memory == NULL && s->count > 0)
        return dp_fail(DP_ERR_INVALID, "state \"%s\": memory is NULL", s->name);
    return DP_OK;
}

static dp_status_t check_unique(const dp_pipeline_t *p, const dp_state_t *s)
{
    for (int32_t i = 0; i < p->states.n; i++) {
        const dp_state_t *other = &p->states.at[i];
        const bool both = with_params(s) && s->scope == other->scope;

        if (strcmp(other->name, s->name) == 0 && !(both && other->chunk != s->chunk))
            return dp_fail(DP_ERR_INVALID, "state \"%s\" is registered already", s->name);
    }
    return DP_OK;
}

static dp_status_t append_state(dp_pipeline_t *p, dp_state_t *s)
{
    const size_t n = (size_t)p->states.n;
    dp_state_t *grown = NULL;

    s->name = dp__strdup(s->name);
    if (s->name != NULL)
        grown = dp__enlarge(p->states.at, n * sizeof(*grown), (n + 1) * sizeof(*grown));
    if (grown == NULL) {
        dp__free((char *)s->name);
        return dp_fail(DP_ERR_NOMEM, "no memory for a list of %zu states", n + 1);
    }
    p->states.at = grown;
    grown[p->states.n++] = *s;
    return DP_OK;
}

dp_status_t dp_pipeline_register_state(dp_pipeline_t *p, const dp_state_t *state)
{
    dp_state_t own;

    DO(dp__take("dp_pipeline_register_state: state", dp_state_t, DP_STATE_MIN, &own, state));
    DO(dp__pipeline_check(p, "dp_pipeline_register_state"));
    if (p->buddy.head != NULL)
        return dp_fail(DP_ERR_INVALID,
                       "dp_pipeline_register_state was called after dp_pipeline_recover: the copies of this rank's "
                       "state (buddy) have no room for it");
    DO(check_name(&own));
    DO(check_shape(p, &own));
    DO(check_unique(p, &own));
    return append_state(p, &own);
}

void dp__states_free(dp_pipeline_t *p)
{
    for (int32_t i = 0; i < p->states.n; i++)
        dp__free((char *)p->states.at[i].name);
    dp__free(p->states.at);
    p->states = (dp__states_t){0};
}
