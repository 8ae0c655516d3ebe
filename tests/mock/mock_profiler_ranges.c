/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_profiler_ranges.c: a profiler that keeps the contract of dp.profiler/1 where nothing can be
 * seen: each range counts as one activity, from its end on. DP_TEST_FAULT=name seeds one fault, at
 * the places that say IF("name"). */
#include <dualpipe/profiler.h>

#include <stdlib.h>
#include <string.h>

#define ROOM  4096
#define DEPTH 16

struct dp_profiler {
    const dp_host_t *host;
    uint64_t open[DEPTH], lost;
    int depth;
    size_t count, room;
    dp_activity_t kept[ROOM];
};

static int is_fault(const char *name)
{
    const char *wanted = getenv("DP_TEST_FAULT");

    return wanted != NULL && strcmp(wanted, name) == 0;
}
#define IF(name) (is_fault(name))

static dp_profiler_t *first; /* for the fault of ranks that share everything */

static dp_status_t profiler_open(const dp_host_t *host, const dp_profiler_config_t *config,
                                 dp_profiler_t **profiler_out)
{
    dp_profiler_t *p;

    if ((config->struct_size < DP_PROFILER_CONFIG_MIN && !IF("any_size_taken")) ||
        (config->struct_size != sizeof(*config) && IF("one_size_taken")))
        return DP_FAIL(host, DP_ERR_INVALID, "struct_size is %u", config->struct_size);
    if (!IF("drops_what_is_new") && dp_sized_unknown(config, sizeof(*config)) != 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "the config asks for what is not known here");
    p = host->allocate(host, sizeof(*p), 64);
    if (p == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for a profiler");
    memset(p, 0, sizeof(*p));
    p->host = host;
    p->room = config->activities > 0 && config->activities < ROOM ? config->activities : ROOM;
    if (__atomic_load_n(&first, __ATOMIC_ACQUIRE) == NULL)
        __atomic_store_n(&first, p, __ATOMIC_RELEASE);
    *profiler_out = p;
    return DP_OK;
}

static void profiler_close(dp_profiler_t *p)
{
    if (p != NULL && !IF("leaves_memory"))
        p->host->release(p->host, p);
}

static void profiler_begin(dp_profiler_t *p, uint64_t operation, const char *name)
{
    static void *kept;

    (void)name;
    p->open[p->depth++] = IF("operation_cut") ? operation & 0xffff : operation;
    if (IF("allocates")) {
        __atomic_store_n(&kept, malloc(16), __ATOMIC_RELAXED);
        free(kept);
    }
}

static void profiler_end(dp_profiler_t *p)
{
    uint64_t operation = p->open[IF("outermost_counts") ? 0 : p->depth - 1];
    int64_t now = p->host->now_ns(p->host) - (IF("other_clock") ? 3600000000000 : 0);
    dp_profiler_t *to = IF("ranks_share") ? first : p;

    p->depth--;
    if (to->count >= to->room && !IF("keeps_more")) {
        to->lost += !IF("lost_not_counted");
        return;
    }
    if (to->count < ROOM)
        to->kept[to->count++] = (dp_activity_t){.start_ns = now,
                                                .end_ns = now,
                                                .operation = operation,
                                                .kind = DP_ACTIVITY_COPY,
                                                .bytes = 1,
                                                .name = "copy"};
}

static dp_status_t profiler_collect(dp_profiler_t *p, dp_activity_t *out, size_t room, size_t *count_out,
                                    uint64_t *lost_out)
{
    size_t n = p->count < room ? p->count : room;

    for (size_t i = 0; i < n; i++)
        out[i] = p->kept[IF("youngest_first") ? n - 1 - i : i];
    if (!IF("given_again")) {
        p->count -= n;
        memmove(p->kept, p->kept + n, p->count * sizeof(*p->kept));
    } else if (n < room || p->lost++ > 0) {
        p->count = n < room ? p->count : 0;
    }
    *count_out = n;
    if (lost_out != NULL)
        *lost_out = p->lost;
    return DP_OK;
}

static const void *get_interface(const char *id)
{
    static const dp_profiler_vt_t table = {
        .struct_size = sizeof(table),
        .open = profiler_open,
        .close = profiler_close,
        .begin = profiler_begin,
        .end = profiler_end,
        .collect = profiler_collect,
    };

    return strcmp(id, DP_IFACE_PROFILER) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(mock_profiler_ranges) = {
    DP_PLUGIN_HEAD,
    .name = "mock_profiler_ranges",
    .version = "0.1",
    .summary = "a profiler to which each range is an activity",
    .get_interface = get_interface,
};
