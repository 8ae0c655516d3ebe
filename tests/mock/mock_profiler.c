/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_profiler.c: a profiler that saw two kernels of each operation, at times made of the
 * operation's number: from 10^9 * (1 + step) + 1000 * span on, for 10 ns, and 30 ns later for 10
 * ns. Notices ranges that do not pair. */
#include <dualpipe/profiler.h>

#include <string.h>

#define MOST 65536

struct dp_profiler {
    const dp_host_t *host;
    int depth, wrong;
    size_t count, given;
    uint64_t operations[MOST];
};

static dp_status_t profiler_open(const dp_host_t *host, const dp_profiler_config_t *config,
                                 dp_profiler_t **profiler_out)
{
    dp_profiler_t *p = host->allocate(host, sizeof(*p), 64);

    (void)config;
    if (p == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for a profiler");
    memset(p, 0, sizeof(*p));
    p->host = host;
    *profiler_out = p;
    return DP_OK;
}

static void profiler_close(dp_profiler_t *p)
{
    if (p != NULL)
        p->host->release(p->host, p);
}

static void profiler_begin(dp_profiler_t *p, uint64_t operation, const char *name)
{
    p->wrong |=
        operation == 0 || operation > DP_PROFILER_OPERATION_MAX || name == NULL || name[0] == '\0' || p->depth != 0;
    p->depth++;
    if (p->count < MOST)
        p->operations[p->count++] = operation;
}

static void profiler_end(dp_profiler_t *p)
{
    p->depth--;
}

static dp_status_t profiler_collect(dp_profiler_t *p, dp_activity_t *out, size_t room, size_t *count_out,
                                    uint64_t *lost_out)
{
    size_t n = 0;

    if (p->wrong || p->depth != 0)
        return DP_FAIL(p->host, DP_ERR_PROTOCOL, "ranges do not pair, or have no names");
    for (; n < room && p->given < 2 * p->count; p->given++) {
        uint64_t operation = p->operations[p->given / 2];
        int64_t start = (int64_t)(1 + (operation >> 24)) * 1000000000 + (int64_t)(operation & 0xffffff) * 1000;

        memset(&out[n], 0, sizeof(out[n]));
        out[n].operation = operation;
        out[n].start_ns = p->given % 2 == 0 ? start + 30 : start; /* in any order */
        out[n].end_ns = out[n].start_ns + 10;
        n++;
    }
    *count_out = n;
    if (lost_out != NULL)
        *lost_out = 0;
    return DP_OK;
}

static const void *get_interface(const char *id)
{
    static const dp_profiler_vt_t table = {sizeof(dp_profiler_vt_t), profiler_open, profiler_close,
                                           profiler_begin,           profiler_end,  profiler_collect};

    return strcmp(id, DP_IFACE_PROFILER) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(mock_profiler) = {
    DP_PLUGIN_HEAD,
    .name = "mock_profiler",
    .version = DP_VERSION,
    .summary = "a profiler with times made up",
    .get_interface = get_interface,
};
