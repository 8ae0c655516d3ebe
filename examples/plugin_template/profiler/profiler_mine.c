/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * profiler_mine.c: a profiler to start from. A real one asks a tracing library of its device what
 * ran, and hands `begin` on to it as a range; this one knows only what it sees itself: how long the
 * calls took that put an operation's work on its streams. Each thread that calls begin is its own
 * "stream". */
#include <dualpipe/profiler.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACTIVITIES 65536
#define DEPTH      16 /* ranges in each other; deeper ones are counted as lost */

struct dp_profiler {
    const dp_host_t *host;
    pthread_mutex_t lock;
    dp_activity_t *ring;
    uint64_t length, written, taken, lost;
};

/* The open ranges of this thread; instances share it, as ranges nest whatever they belong to. */
static _Thread_local struct {
    int depth;
    struct {
        const dp_profiler_t *profiler;
        int64_t start_ns;
        uint64_t operation;
        char name[sizeof(((dp_activity_t *)0)->name)];
    } range[DEPTH];
} ranges;

static uint32_t thread_number(void)
{
    static uint32_t threads;
    static _Thread_local uint32_t number;

    if (number == 0)
        number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    return number - 1;
}

static void mine_close(dp_profiler_t *p)
{
    if (p == NULL)
        return;
    pthread_mutex_destroy(&p->lock);
    p->host->release(p->host, p->ring);
    p->host->release(p->host, p);
}

static dp_status_t mine_open(const dp_host_t *host, const dp_profiler_config_t *config, dp_profiler_t **profiler_out)
{
    const uint64_t length = config->activities != 0 ? config->activities : ACTIVITIES;
    dp_profiler_t *p;
    dp_status_t status;

    status = DP_TAKE(host, "profiler_mine", dp_profiler_config_t, DP_PROFILER_CONFIG_MIN, NULL, config);
    if (status < 0)
        return status;
    p = host->allocate(host, sizeof(*p), 16);
    if (p == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "profiler_mine: no memory for an instance");
    memset(p, 0, sizeof(*p));
    p->host = host;
    p->length = length;
    p->ring = host->allocate(host, length * sizeof(*p->ring), 16);
    if (p->ring == NULL) {
        host->release(host, p);
        return DP_FAIL(host, DP_ERR_NOMEM, "profiler_mine: no memory for %llu activities", (unsigned long long)length);
    }
    pthread_mutex_init(&p->lock, NULL);
    *profiler_out = p;
    return DP_OK;
}

static void mine_begin(dp_profiler_t *p, uint64_t operation, const char *name)
{
    const int depth = ranges.depth++;

    if (depth >= DEPTH)
        return;
    ranges.range[depth].profiler = p;
    ranges.range[depth].start_ns = p->host->now_ns(p->host);
    ranges.range[depth].operation = operation;
    snprintf(ranges.range[depth].name, sizeof(ranges.range[depth].name), "%s", name != NULL ? name : "");
}

static void mine_end(dp_profiler_t *p)
{
    const int depth = --ranges.depth;

    pthread_mutex_lock(&p->lock);
    if (depth >= DEPTH || p->written - p->taken == p->length) {
        p->lost++;
    } else if (depth >= 0 && ranges.range[depth].profiler == p) {
        dp_activity_t *a = &p->ring[p->written++ % p->length];

        *a = (dp_activity_t){.start_ns = ranges.range[depth].start_ns,
                             .end_ns = p->host->now_ns(p->host),
                             .operation = ranges.range[depth].operation,
                             .kind = DP_ACTIVITY_KERNEL,
                             .stream = thread_number()};
        memcpy(a->name, ranges.range[depth].name, sizeof(a->name));
    }
    pthread_mutex_unlock(&p->lock);
}

static dp_status_t mine_collect(dp_profiler_t *p, dp_activity_t *out, size_t room, size_t *count_out,
                                uint64_t *lost_out)
{
    size_t count = 0;

    pthread_mutex_lock(&p->lock);
    while (count < room && p->taken != p->written)
        out[count++] = p->ring[p->taken++ % p->length];
    if (lost_out != NULL)
        *lost_out = p->lost;
    pthread_mutex_unlock(&p->lock);
    *count_out = count;
    return DP_OK;
}

static const dp_profiler_vt_t table = {
    .struct_size = sizeof(table),
    .open = mine_open,
    .close = mine_close,
    .begin = mine_begin,
    .end = mine_end,
    .collect = mine_collect,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_PROFILER) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(profiler_mine) = {
    DP_PLUGIN_HEAD,
    .name = "profiler_mine",
    .version = "0.1",
    .summary = "a template: how long calls took that enqueue work",
    .get_interface = get_interface,
};
