/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * backend.c: which comm plugins a pipeline uses: one, two that are joined ("shm+ofi": within a
 * host, and between hosts), or what fits the job ("auto"). */
#include "base/do.h"
#include "base/hash.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "group/reform.h"
#include "mixed/mixed.h"
#include "plugin/candidates.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const dp_host_places_t *places_of(const dp_pipeline_t *p)
{
    return p->host->get_service(p->host, DP_HOST_PLACES);
}

/* ---- names ---- */

static bool is_name(const char *text, size_t n)
{
    return n > 0 && strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") >= n;
}

/* The '+' between two plugins; one inside of a path is none. NULL: there is but one plugin. */
static const char *find_plus(const char *text)
{
    for (const char *at = strchr(text, '+'); at != NULL; at = strchr(at + 1, '+')) {
        size_t n = (size_t)(at - text);

        if (is_name(text, n) || (n > 3 && strncmp(at - 3, ".so", 3) == 0))
            return at;
    }
    return NULL;
}

dp_status_t dp__backend_name(const char *given, char name[DP__NAME_BYTES])
{
    char comm[DP__NAME_BYTES], near[DP__NAME_BYTES], far[DP__NAME_BYTES];
    const char *plus;
    size_t n;

    DO(dp__plugin_named("comm", given, comm));
    if (comm[0] == '\0' || strcmp(comm, DP__AUTO) == 0) {
        snprintf(name, DP__NAME_BYTES, "%s", DP__AUTO);
        return DP_OK;
    }
    plus = find_plus(comm);
    if (plus == NULL)
        return dp__full_name("comm", comm, "", name);
    n = (size_t)(plus - comm);
    if (plus[1] == '\0')
        return dp_fail(DP_ERR_INVALID, "comm \"%.80s\": two comm backends are said as NEAR+FAR: shm+ofi", comm);
    snprintf(near, sizeof(near), "%.*s", (int)n, comm);
    DO(dp__full_name("comm", near, "", near));
    DO(dp__full_name("comm", plus + 1, "", far));
    if (strlen(near) + strlen(far) + 2 > DP__NAME_BYTES)
        return dp_fail(DP_ERR_INVALID, "the names of two comm backends have more than %d characters together",
                       DP__NAME_BYTES - 2);
    memcpy(stpcpy(stpcpy(name, near), "+"), far, strlen(far) + 1);
    return DP_OK;
}

/* ---- one, or two ---- */

static dp_status_t load(const char *name, const dp_comm_vt_t **vt_out)
{
    const dp_plugin_t *plugin;
    const void *table;

    DO(dp_plugin_load(name, &plugin));
    DO(dp_plugin_interface(plugin, DP_IFACE_COMM, DP_COMM_VT_MIN, &table));
    *vt_out = table;
    return DP_OK;
}

/* The first rank that does not live where rank 0 does. */
static int32_t first_abroad(const dp_host_places_t *places)
{
    int32_t r = 0;

    while (r < places->ranks && places->host_of[r] == 0)
        r++;
    return r;
}

static dp_status_t find_one(dp_pipeline_t *p, const char *name, dp__backend_t *backend)
{
    const dp_host_places_t *places = places_of(p);

    DO(load(name, &backend->vt));
    if (places->hosts > 1 && (backend->vt->caps & DP_COMM_CAP_HOSTS) == 0)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "%s reaches ranks of one host only, and rank %d is on another host than rank 0 (%s): take auto, "
                       "or two backends as in %s+ofi",
                       name, first_abroad(places), dp__group_apart(p->group, 0, first_abroad(places)), name);
    snprintf(backend->near, sizeof(backend->near), "%s", name);
    snprintf(backend->far, sizeof(backend->far), "%s", name);
    return DP_OK;
}

static dp_status_t find_two(const char *near, const char *far, dp__backend_t *backend)
{
    const dp_comm_vt_t *near_vt = NULL, *far_vt = NULL;

    DO(load(near, &near_vt));
    DO(load(far, &far_vt));
    if ((far_vt->caps & DP_COMM_CAP_HOSTS) == 0)
        return dp_fail(DP_ERR_UNSUPPORTED, "%s+%s: %s, which is to reach other hosts, says that it reaches none", near,
                       far, far);
    snprintf(backend->near, sizeof(backend->near), "%s", near);
    snprintf(backend->far, sizeof(backend->far), "%s", far);
    return dp__mixed_table(near_vt, far_vt, &backend->vt);
}

/* ---- auto ---- */

enum { USABLE = 1, REACHES_HOSTS = 2 };

/* Transports that this rank may choose, and what each rank said of them. All ranks go through
 * those of rank 0 in its order, so that nobody maps what a better one makes unnecessary. */
typedef struct search {
    dp_pipeline_t *p;
    dp__candidate_t own[DP__CANDIDATES];
    int nown;
    uint64_t (*names)[DP__CANDIDATES]; /* [ranks] hashes; 0: none */
    /* the first rank that could not take what rank 0 can; ranks: none */
    int32_t lacks;
    const char *near, *far; /* of own: what was found; NULL: none yet */
} search_t;

static const char *find_own(const search_t *search, uint64_t hash)
{
    const int32_t rank = dp_group_rank(search->p->group);

    for (int i = 0; i < search->nown; i++)
        if (search->names[rank][i] == hash)
            return search->own[i].name;
    return NULL;
}

/* What this rank can do with a candidate. What fails for want of memory is not absent. */
static dp_status_t try_candidate(const search_t *search, const char *name, uint32_t *answer)
{
    const dp_comm_vt_t *vt;
    dp_status_t status = name != NULL ? load(name, &vt) : DP_ERR_PLUGIN;

    *answer = 0;
    if (status < 0)
        return status == DP_ERR_NOMEM ? status : DP_OK;
    if (vt->serves == NULL || vt->serves(search->p->device_vt) != 0)
        *answer = USABLE | ((vt->caps & DP_COMM_CAP_HOSTS) != 0 ? REACHES_HOSTS : 0);
    return DP_OK;
}

/* *answer: what all ranks can do with candidate i of rank 0. */
static dp_status_t ask_candidate(search_t *search, int i, const char **name, uint32_t *answer)
{
    uint32_t mine, *all;
    dp_status_t status;

    *name = find_own(search, search->names[0][i]);
    DO(try_candidate(search, *name, &mine));
    all = dp__ask_ranks(search->p, &mine, sizeof(mine), &status);
    *answer = UINT32_MAX;
    for (int32_t r = 0; all != NULL && r < dp_group_size(search->p->group); r++) {
        *answer &= all[r];
        if (all[r] == 0 && all[0] != 0 && r < search->lacks)
            search->lacks = r;
    }
    dp__free(all);
    return status;
}

static dp_status_t tell_no_candidate(const search_t *search, bool far)
{
    char why[96] = "none of those that rank 0 has serves its device";

    if (search->lacks < dp_group_size(search->p->group))
        snprintf(why, sizeof(why), "rank %d cannot take one that rank 0 can", search->lacks);
    else if (search->names[0][0] == 0)
        snprintf(why, sizeof(why), "rank 0 has none");
    return dp_fail(DP_ERR_PLUGIN,
                   "no comm backend for ranks %s fits all ranks: %s (dualpipe plugin list); all ranks must have the "
                   "same; name one with comm or DUALPIPE_PLUGINS=comm=",
                   far ? "on several hosts" : "of one host", why);
}

static dp_status_t search_candidates(search_t *search, bool wants_far)
{
    for (int i = 0; i < DP__CANDIDATES && search->names[0][i] != 0; i++) {
        const char *name;
        uint32_t answer;

        if (search->near != NULL && (search->far != NULL || !wants_far))
            return DP_OK;
        DO(ask_candidate(search, i, &name, &answer));
        if (search->near == NULL && (answer & USABLE) != 0)
            search->near = name;
        if (wants_far && search->far == NULL && (answer & REACHES_HOSTS) != 0)
            search->far = name;
    }
    return (wants_far ? search->far : search->near) != NULL ? DP_OK : tell_no_candidate(search, wants_far);
}

/* All ranks choose the same: what each can do with a candidate is known to all. */
static dp_status_t choose(search_t *search, dp_pipeline_t *p)
{
    uint64_t mine[DP__CANDIDATES] = {0};
    dp_status_t status;

    *search = (search_t){.p = p, .lacks = dp_group_size(p->group)};
    search->nown = dp__plugin_candidates("comm_", search->own);
    if (search->nown < 0)
        return search->nown;
    for (int i = 0; i < search->nown; i++)
        mine[i] = dp__hash_text(DP__HASH_BEGIN, search->own[i].name);
    search->names = dp__ask_ranks(p, mine, sizeof(mine), &status);
    if (search->names != NULL)
        status = search_candidates(search, places_of(p)->hosts > 1);
    dp__free(search->names);
    return status;
}

dp_status_t dp__backend_find(dp_pipeline_t *p, const char *name, dp__backend_t *backend)
{
    char near_name[DP__NAME_BYTES];
    const char *plus = find_plus(name);
    search_t search;

    *backend = (dp__backend_t){0};
    if (strcmp(name, DP__AUTO) == 0) {
        DO(choose(&search, p));
        if (search.far == NULL || search.near == search.far)
            return find_one(p, search.near, backend);
        return find_two(search.near, search.far, backend);
    }
    if (plus == NULL)
        return find_one(p, name, backend);
    snprintf(near_name, sizeof(near_name), "%.*s", (int)(plus - name), name);
    return find_two(near_name, plus + 1, backend);
}

/* ---- telling ---- */

const char *dp_pipeline_comm(const dp_pipeline_t *p, int32_t a, int32_t b)
{
    const dp_host_places_t *places;

    if (p == NULL)
        return NULL;
    places = places_of(p);
    if (a < 0 || b < 0 || a >= places->ranks || b >= places->ranks)
        return NULL;
    return places->host_of[a] == places->host_of[b] ? p->backend.near : p->backend.far;
}

/* "0-3 8", runs of ranks of one host; cut where it gets long */
static void list_ranks(const dp_host_places_t *places, int32_t host, char *text, size_t bytes)
{
    size_t at = 0;

    text[0] = '\0';
    for (int32_t r = 0, end; r < places->ranks && at + 24 < bytes; r = end) {
        for (end = r + 1; end < places->ranks && places->host_of[end] == places->host_of[r];)
            end++;
        if (places->host_of[r] != host)
            continue;
        at += (size_t)snprintf(text + at, bytes - at, end - r > 1 ? "%s%d-%d" : "%s%d", at > 0 ? " " : "", r, end - 1);
    }
}

void dp__backend_log(const dp_pipeline_t *p)
{
    const dp_host_places_t *places = places_of(p);
    char text[512] = "", ranks[128];
    size_t at = 0;

    if (dp_group_rank(p->group) != 0)
        return;
    if (places->hosts == 1) {
        dp_log(DP_LOG_INFO, "engine", "%d ranks on one host talk over %s", places->ranks, p->backend.near);
        return;
    }
    for (int32_t h = 0; h < places->hosts && at + sizeof(ranks) + 4 < sizeof(text); h++) {
        list_ranks(places, h, ranks, sizeof(ranks));
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s[%s]", h > 0 ? " " : "", ranks);
    }
    dp_log(DP_LOG_INFO, "engine", "%d ranks on %d hosts %s talk over %s within a host and %s between hosts",
           places->ranks, places->hosts, text, p->backend.near, p->backend.far);
}
