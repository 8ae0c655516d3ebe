/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * tensors.c: all that a rank keeps, by names that do not depend on the layout, and which of the
 * ranks that hold the same saves it. */
#include "base/do.h"
#include "base/memory.h"
#include "engine/saving.h"

#include <stdio.h>
#include <string.h>

/* ".pipeline<number>", or an expert's number instead of its replica's; "[<first>:<end>]" */
enum { SUFFIX = 64 };

/* Ranks that hold the same, and which of them we are. */
typedef struct holders {
    int32_t n, which;
    size_t bytes, at; /* of all that they hold; of what was listed so far */
} holders_t;

typedef struct listing {
    const dp_pipeline_t *p;
    dp__kept_list_t *list;
    size_t room; /* of a name */
    holders_t dense, sharded;
} listing_t;

/* ---- names ---- */

enum { REPLICAS = sizeof("replicas.") - 1 };

/* The name of a replica's parameter as that of its expert where none is replicated: with the
 * expert's number, and as moe.h calls it. */
static dp_status_t name_expert(char *name, size_t room, const char *param, int32_t replica, int32_t expert)
{
    const char *found = NULL, *kind;
    char number[16];
    size_t digits;
    ptrdiff_t head;

    digits = (size_t)snprintf(number, sizeof(number), "%d", replica);
    for (const char *c = param; c != NULL; c = strchr(c, '.')) {
        c += *c == '.';
        if (strncmp(c, number, digits) == 0 && c[digits] == '.')
            found = c;
    }
    if (found == NULL)
        return dp_fail(DP_ERR_INVALID, "parameter %s has not the number %d of its replica in its name", param, replica);
    head = found - param;
    kind = head >= REPLICAS && strncmp(found - REPLICAS, "replicas.", REPLICAS) == 0 ? "experts." : "";
    head -= kind[0] != '\0' ? REPLICAS : 0;
    snprintf(name, room, "%.*s%s%d%s", (int)head, param, kind, expert, found + digits);
    return DP_OK;
}

static dp_status_t name_param(char *name, size_t room, const char *state, const dp_param_t *param,
                              const int32_t *placement)
{
    const int n = state != NULL ? snprintf(name, room, "%s.", state) : 0;
    const char *own = param->shared != NULL ? param->shared : param->name;

    if (param->sharded && placement != NULL)
        return name_expert(name + n, room - (size_t)n, param->name, param->expert, placement[param->expert]);
    snprintf(name + n, room - (size_t)n, "%s", own);
    return DP_OK;
}

/* ---- who saves what ---- */

/* A stage with two paths is held by the ranks of both. */
static void set_holders(listing_t *l, const dp__chunk_t *chunk)
{
    const dp__grid_t *g = &l->p->grid;
    const int32_t paths = dp_schedule_paths(l->p->schedule);

    l->dense = (holders_t){g->dp * g->ep * paths, (g->d * g->ep + g->e) * paths + chunk->place.path, 0, 0};
    l->sharded = (holders_t){g->dp * paths, g->d * paths + chunk->place.path, 0, 0};
}

/* All holders list the same in the same order: each saves what has its middle in the holder's share
 * of the bytes. */
static bool take_share(holders_t *h, size_t bytes)
{
    const double middle = (double)h->at + (double)bytes / 2;
    int32_t share = h->bytes > 0 ? (int32_t)(middle / (double)h->bytes * h->n) : 0;

    h->at += bytes;
    if (share >= h->n)
        share = h->n - 1;
    return share == h->which;
}

/* ---- the list ---- */

static dp_status_t append_tensor(listing_t *l, const dp__kept_t *kept)
{
    if (!dp__name_is_good(kept->name))
        return dp_fail(DP_ERR_INVALID, "\"%.300s\" cannot be the name of a tensor: at most %d plain characters",
                       kept->name, DP__NAME_MOST);
    l->list->at[l->list->n++] = *kept;
    return DP_OK;
}

static char *next_name(const listing_t *l)
{
    return l->list->names + l->list->n * l->room;
}

/* What of parameter `index` the state has, NULL: nothing. */
static const dp_shard_t *find_shard(const dp__chunk_t *chunk, uint32_t index)
{
    for (uint32_t i = 0; i < chunk->nshards; i++)
        if (chunk->shards[i].param == index)
            return &chunk->shards[i];
    return NULL;
}

/* Of a parameter that is not cut. */
static size_t whole_at(const dp__chunk_t *chunk, uint32_t index)
{
    const dp_shard_t *shard = find_shard(chunk, index);

    return shard != NULL ? shard->at : 0;
}

/* Our shard of the state that goes with a parameter: it is saved, but for that of a shared one's
 * second end. */
static dp_status_t list_shard(listing_t *l, const dp__chunk_t *chunk, const dp_state_t *state, uint32_t index)
{
    const dp_param_t *param = &chunk->stage->param_list[index];
    const dp_shard_t *shard = find_shard(chunk, index);
    const size_t size = dp_dtype_bytes(state->dtype);
    char *name = next_name(l);
    dp__kept_t kept = {.name = name, .dtype = state->dtype, .host = state->host != 0, .optional = state->optional != 0};

    if (shard == NULL)
        return DP_OK;
    kept.count = shard->count;
    kept.first = shard->first;
    kept.whole = param->count;
    kept.memory = (char *)state->memory + shard->at * size;
    kept.mine = !dp__tie_is_second(l->p, chunk->place.stage, param);
    DO(name_param(name, l->room, state->name, param, NULL));
    snprintf(name + strlen(name), l->room - strlen(name), "[%zu:%zu]", shard->first, shard->first + shard->count);
    return append_tensor(l, &kept);
}

/* Parameters of a chunk, or the state that goes with them (NULL: parameters themselves). measure:
 * only adds up what the holders have. */
static dp_status_t list_params(listing_t *l, const dp__chunk_t *chunk, const dp_state_t *state, bool measure)
{
    const dp_stage_t *stage = chunk->stage;
    const dp_dtype_t dtype = state != NULL ? state->dtype : l->p->options.dtype;
    char *memory = state != NULL ? state->memory : chunk->params;
    const size_t size = dp_dtype_bytes(dtype);

    for (int32_t i = 0; i < stage->nparts; i++)
        for (uint32_t k = 0; k < stage->parts[i].sizes.nparams; k++) {
            const uint32_t index = stage->parts[i].first_param + k;
            const dp_param_t *param = &stage->param_list[index];
            const bool shards = state != NULL && state->scope == DP_STATE_SHARDS;
            const size_t at = shards && dp__zero_is_on(l->p) ? whole_at(chunk, index) : param->offset;
            const int32_t *placement = param->sharded ? stage->parts[i].part.placement : NULL;
            const bool first =
                dp__first_replica(placement, param->expert) && !dp__tie_is_second(l->p, chunk->place.stage, param);
            holders_t *holders = param->sharded ? &l->sharded : &l->dense;
            dp__kept_t kept = {
                .name = next_name(l),
                .dtype = dtype,
                .count = param->count,
                .memory = memory + at * size,
                .host = state != NULL && state->host,
                .parameter = state == NULL,
                .optional = state != NULL && state->optional,
            };

            if (shards && dp__shard_is_cut(l->p, &stage->parts[i].part, param)) {
                DO(measure ? DP_OK : list_shard(l, chunk, state, index));
                continue;
            }
            if (measure) {
                holders->bytes += first ? param->count * size : 0;
                continue;
            }
            kept.mine = first && take_share(holders, param->count * size);
            DO(name_param((char *)kept.name, l->room, state != NULL ? state->name : NULL, param, placement));
            DO(append_tensor(l, &kept));
        }
    return DP_OK;
}

static dp_status_t list_state(listing_t *l, const dp_state_t *state, bool mine)
{
    const dp__grid_t *g = &l->p->grid;
    const dp__kept_t kept = {
        .name = next_name(l),
        .dtype = state->dtype,
        .count = state->count,
        .memory = state->memory,
        .host = state->host,
        .mine = mine,
        .optional = state->optional,
    };

    if (state->scope == DP_STATE_PIPELINE)
        snprintf((char *)kept.name, l->room, "%s.pipeline%d", state->name, g->d * g->ep + g->e);
    else
        snprintf((char *)kept.name, l->room, "%s", state->name);
    return append_tensor(l, &kept);
}

/* What is of chunk c; states: parameters, or else what was registered with them. */
static dp_status_t list_chunk(listing_t *l, int32_t c, bool states, bool measure)
{
    const dp__chunk_t *chunk = &l->p->chunks[c];

    if (!states)
        return list_params(l, chunk, NULL, measure);
    for (int32_t i = 0; i < l->p->states.n; i++) {
        const dp_state_t *state = &l->p->states.at[i];
        holders_t *holders = state->sharded ? &l->sharded : &l->dense;

        if (state->chunk != c)
            continue;
        if (state->scope == DP_STATE_PARAMS || state->scope == DP_STATE_SHARDS)
            DO(list_params(l, chunk, state, measure));
        else if (state->scope == DP_STATE_STAGE && measure)
            holders->bytes += dp__state_bytes(state);
        else if (state->scope == DP_STATE_STAGE)
            DO(list_state(l, state, take_share(holders, dp__state_bytes(state))));
    }
    return DP_OK;
}

static dp_status_t list_all(listing_t *l)
{
    const dp_pipeline_t *p = l->p;
    holders_t dense[DP_MAX_CHUNKS], sharded[DP_MAX_CHUNKS];

    for (int states = 0; states < 2; states++)
        for (int32_t c = 0; c < p->nchunks; c++) {
            if (states == 0) {
                set_holders(l, &p->chunks[c]);
                (void)list_chunk(l, c, false, true);
                (void)list_chunk(l, c, true, true);
            } else {
                l->dense = dense[c], l->sharded = sharded[c];
            }
            DO(list_chunk(l, c, states != 0, false));
            dense[c] = l->dense, sharded[c] = l->sharded;
        }
    for (int32_t i = 0; i < p->states.n; i++) {
        const dp_state_t *state = &p->states.at[i];

        if (state->scope == DP_STATE_PIPELINE)
            DO(list_state(l, state, p->grid.p == 0));
        if (state->scope == DP_STATE_JOB)
            DO(list_state(l, state, dp_group_rank(p->group) == 0));
    }
    return DP_OK;
}

/* Room for all names, and for all tensors. */
static dp_status_t allocate_tensors(listing_t *l)
{
    const dp_pipeline_t *p = l->p;
    size_t n = (size_t)p->states.n, longest = 0, state = 0;

    for (int32_t i = 0; i < p->states.n; i++)
        if (strlen(p->states.at[i].name) > state)
            state = strlen(p->states.at[i].name);
    for (int32_t c = 0; c < p->nchunks; c++) {
        const dp__stage_info_t *info = &p->chunks[c].stage->info;

        n += info->nparams * (size_t)(p->states.n + 1);
        for (uint32_t i = 0; i < info->nparams; i++)
            if (strlen(info->param_list[i].name) > longest)
                longest = strlen(info->param_list[i].name);
    }
    l->room = state + longest + DP__SHARED_BYTES + SUFFIX;
    return dp__arrays(DP__ARRAY(l->list->at, n), DP__ARRAY(l->list->names, (n + 1) * l->room))
               ? DP_OK
               : dp_fail(DP_ERR_NOMEM, "no memory for a list of %zu tensors", n);
}

dp_status_t dp__kept_list(const dp_pipeline_t *p, dp__kept_list_t *list_out)
{
    listing_t l = {.p = p, .list = list_out};
    dp_status_t status;

    *list_out = (dp__kept_list_t){0};
    status = allocate_tensors(&l);
    if (status >= 0)
        status = list_all(&l);
    if (status < 0)
        dp__kept_list_free(list_out);
    return status;
}

void dp__kept_list_free(dp__kept_list_t *list)
{
    dp__free(list->at);
    *list = (dp__kept_list_t){0};
}
