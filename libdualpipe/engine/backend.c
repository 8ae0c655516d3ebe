/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * backend.c: which comm plugins a pipeline uses: one, two that are joined ("shm+ofi": within a host, and between
 * hosts), or what fits the job ("auto"). */
#include "base/memory.h"
#include "engine/engine.h"
#include "group/reform.h"
#include "mixed/mixed.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What auto tries, the best first. On one host the first near one, across several it with the first far one. Ranks on
 * hosts of their own each have no use for a near one, but in other jobs of the same launch others may. */
typedef struct choice {
    const char *kind; /* of the device; NULL: any other */
    const char *near[2], *far[2];
} choice_t;

static const choice_t choices[] = {
    {"cuda", {"comm_cuda_ipc", "comm_nccl"}, {"comm_nccl", NULL}},
    {NULL, {"comm_shm", NULL}, {"comm_ofi", "comm_mpi"}},
};

enum { LISTED = 2 };

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
    dp_status_t status = dp__plugin_named("comm", given, comm);

    if (status < 0)
        return status;
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
    status = dp__full_name("comm", near, "", near);
    if (status >= 0)
        status = dp__full_name("comm", plus + 1, "", far);
    if (status >= 0 && strlen(near) + strlen(far) + 2 > DP__NAME_BYTES)
        return dp_fail(DP_ERR_INVALID, "the names of two comm backends have more than %d characters together",
                       DP__NAME_BYTES - 2);
    if (status >= 0)
        memcpy(stpcpy(stpcpy(name, near), "+"), far, strlen(far) + 1);
    return status;
}

/* ---- one, or two ---- */

static dp_status_t load(const char *name, const dp_comm_vt_t **vt_out)
{
    const dp_plugin_t *plugin;
    const void *table;
    dp_status_t status = dp_plugin_load(name, &plugin);

    if (status >= 0)
        status = dp_plugin_interface(plugin, DP_IFACE_COMM, DP_COMM_VT_MIN, &table);
    if (status >= 0)
        *vt_out = table;
    return status;
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
    dp_status_t status = load(name, &backend->vt);

    if (status >= 0 && places->hosts > 1 && (backend->vt->caps & DP_COMM_CAP_HOSTS) == 0)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "%s reaches ranks of one host only, and rank %d is on another host than rank 0 (%s): take auto, "
                       "or two backends as in %s+ofi",
                       name, first_abroad(places), dp__group_apart(p->group, 0, first_abroad(places)), name);
    snprintf(backend->near, sizeof(backend->near), "%s", name);
    snprintf(backend->far, sizeof(backend->far), "%s", name);
    return status;
}

static dp_status_t find_two(const char *near, const char *far, dp__backend_t *backend)
{
    const dp_comm_vt_t *near_vt = NULL, *far_vt = NULL;
    dp_status_t status = load(near, &near_vt);

    if (status >= 0)
        status = load(far, &far_vt);
    if (status < 0)
        return status;
    if ((far_vt->caps & DP_COMM_CAP_HOSTS) == 0)
        return dp_fail(DP_ERR_UNSUPPORTED, "%s+%s: %s, which is to reach other hosts, says that it reaches none", near,
                       far, far);
    snprintf(backend->near, sizeof(backend->near), "%s", near);
    snprintf(backend->far, sizeof(backend->far), "%s", far);
    return dp__mixed_table(near_vt, far_vt, &backend->vt);
}

/* ---- auto ---- */

static const choice_t *choice_for(const dp_device_vt_t *device)
{
    const choice_t *choice = choices;

    while (choice->kind != NULL && strcmp(choice->kind, device->kind) != 0)
        choice++;
    return choice;
}

/* What this rank can load: a bit for each of near, then of far. What fails for want of memory is not absent. */
static dp_status_t find_loadable(const dp_pipeline_t *p, const choice_t *choice, bool wants_far, uint32_t *found)
{
    const bool exports = (p->device_vt->caps & DP_DEVICE_CAP_EXPORT) != 0;

    *found = 0;
    for (int i = 0; i < 2 * LISTED; i++) {
        const char *name = i < LISTED ? choice->near[i] : wants_far ? choice->far[i - LISTED] : NULL;
        const dp_comm_vt_t *vt;
        dp_status_t status;

        if (name == NULL || (!exports && strcmp(name, "comm_cuda_ipc") == 0))
            continue;
        status = load(name, &vt);
        if (status == DP_ERR_NOMEM)
            return status;
        if (status >= 0)
            *found |= 1u << i;
    }
    return DP_OK;
}

/* The first of a list that all ranks can load. */
static const char *first_of(const char *const *list, uint32_t found)
{
    for (int i = 0; i < LISTED; i++)
        if ((found >> i & 1) != 0)
            return list[i];
    return NULL;
}

static dp_status_t name_missing(const choice_t *choice, bool far, const uint32_t *all, int32_t n)
{
    const char *const *list = far ? choice->far : choice->near;
    int32_t r = 0;

    while (r < n - 1 && (all[r] >> (far ? LISTED : 0) & ((1u << LISTED) - 1)) != 0)
        r++;
    return dp_fail(DP_ERR_PLUGIN,
                   "no comm backend for ranks %s fits all ranks: rank %d has %s%s%s (dualpipe plugin list), and the "
                   "others must have the same; name one with comm or DUALPIPE_PLUGINS=comm=",
                   far ? "on several hosts" : "of one host", r, list[1] != NULL ? "not one of " : "no ", list[0],
                   list[1] != NULL ? ", " : "");
}

/* All ranks choose the same: what each can load is known to all. */
static dp_status_t choose(dp_pipeline_t *p, const char **near_out, const char **far_out)
{
    const choice_t *choice = choice_for(p->device_vt);
    bool wants_far = places_of(p)->hosts > 1;
    int32_t n = dp_group_size(p->group);
    uint32_t mine, found = UINT32_MAX, *all;
    dp_status_t status = find_loadable(p, choice, wants_far, &mine);

    if (status < 0)
        return status;
    all = dp__calloc((size_t)n, sizeof(*all));
    if (all == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to compare the plugins of %d ranks", n);
    status = dp_group_all_gather(p->group, &mine, sizeof(mine), all);
    for (int32_t r = 0; r < n; r++)
        found &= all[r];
    *near_out = first_of(choice->near, found);
    *far_out = wants_far ? first_of(choice->far, found >> LISTED) : NULL;
    if (status >= 0 && wants_far && *far_out == NULL)
        status = name_missing(choice, true, all, n);
    else if (status >= 0 && !wants_far && *near_out == NULL)
        status = name_missing(choice, false, all, n);
    dp__free(all);
    return status;
}

dp_status_t dp__backend_find(dp_pipeline_t *p, const char *name, dp__backend_t *backend)
{
    char near_name[DP__NAME_BYTES];
    const char *near = NULL, *far = NULL, *plus = find_plus(name);
    dp_status_t status;

    *backend = (dp__backend_t){0};
    if (strcmp(name, DP__AUTO) == 0) {
        status = choose(p, &near, &far);
        if (status < 0)
            return status;
        if (near == NULL || far == NULL || strcmp(near, far) == 0)
            return find_one(p, far != NULL ? far : near, backend);
        return find_two(near, far, backend);
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
