/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * hook_cupti.c: activities by CUPTI, which is opened at run time, and ranges by NVTX. CUPTI records
 * for the whole process: what is here is shared by all ranks of it, and each finds its own by the
 * number in its operations' tags. */
#include "records.h"

#include "plugins/common/check.h"
#include "plugins/common/debug.h"

#include <cupti.h>
#include <nvtx3/nvToolsExt.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACTIVITIES   65536
#define BUFFER_BYTES ((size_t)4 << 20)

#define FUNCTIONS(X)                                                                                                   \
    X(cuptiActivityRegisterCallbacks)                                                                                  \
    X(cuptiActivityEnable)                                                                                             \
    X(cuptiActivityDisable)                                                                                            \
    X(cuptiActivityGetNextRecord)                                                                                      \
    X(cuptiActivityGetNumDroppedRecords)                                                                               \
    X(cuptiActivityFlushAll)                                                                                           \
    X(cuptiActivityPushExternalCorrelationId)                                                                          \
    X(cuptiActivityPopExternalCorrelationId)                                                                           \
    X(cuptiGetTimestamp)                                                                                               \
    X(cuptiGetResultString)

typedef struct cupti {
#define MEMBER(function) __typeof__(function) *function;
    FUNCTIONS(MEMBER)
#undef MEMBER
} cupti_t;

struct dp_profiler {
    const dp_host_t *host;
    uint16_t owner;
};

static const CUpti_ActivityKind kinds[] = {
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,    CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};
#define NKINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cupti_t cupti;
static bool started;
static cupti_records_t records;
static uint8_t open_owners[65536 / 8];
static uint16_t last_owner;
static nvtxDomainHandle_t domain;

/* ---- what CUPTI calls ---- */

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *most)
{
    void *memory = NULL;

    *bytes = posix_memalign(&memory, 8, BUFFER_BYTES) == 0 ? BUFFER_BYTES : 0;
    *buffer = memory;
    *most = 0;
}

static void add_activity(uint32_t kind, uint64_t start, uint64_t end, uint32_t stream, uint64_t bytes, const char *name,
                         uint32_t correlation)
{
    dp_activity_t a = {
        .start_ns = (int64_t)start, .end_ns = (int64_t)end, .bytes = bytes, .kind = kind, .stream = stream};

    snprintf(a.name, sizeof(a.name), "%s", name != NULL ? name : "");
    cupti_records_add(&records, &a, correlation);
}

static void take_record(const CUpti_Activity *record)
{
    if (record->kind == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) {
        const CUpti_ActivityExternalCorrelation *e = (const void *)record;

        cupti_records_link(&records, e->correlationId, e->externalId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const CUpti_ActivityKernel10 *k = (const void *)record;

        add_activity(DP_ACTIVITY_KERNEL, k->start, k->end, k->streamId, 0, k->name, k->correlationId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *m = (const void *)record;

        add_activity(DP_ACTIVITY_COPY, m->start, m->end, m->streamId, m->bytes, "copy", m->correlationId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const void *)record;

        add_activity(DP_ACTIVITY_FILL, m->start, m->end, m->streamId, m->bytes, "fill", m->correlationId);
    }
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t filled)
{
    CUpti_Activity *record = NULL;
    size_t dropped = 0;

    (void)bytes;
    pthread_mutex_lock(&lock);
    while (filled > 0 && cupti.cuptiActivityGetNextRecord(buffer, filled, &record) == CUPTI_SUCCESS)
        take_record(record);
    if (cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
        records.lost += dropped;
    pthread_mutex_unlock(&lock);
    free(buffer);
}

/* ---- start; under the lock ---- */

static void *open_cupti(char *tried, size_t bytes)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so", NULL};
    char file[1024];
    const char *chosen = debug_value("lib.cupti", file, sizeof(file));
    const char *const only[] = {chosen, NULL};
    size_t used = 0;

    for (const char *const *name = chosen != NULL ? only : names; *name != NULL; name++) {
        void *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        const char *why = library == NULL ? dlerror() : NULL;

        if (library != NULL)
            return library;
        if (used < bytes)
            used +=
                (size_t)snprintf(tried + used, bytes - used, "%s%s", used > 0 ? "; " : "", why != NULL ? why : *name);
    }
    return NULL;
}

static dp_status_t check_cupti(const dp_host_t *host, CUptiResult result, const char *what)
{
    const char *words = NULL;

    if (result == CUPTI_SUCCESS)
        return DP_OK;
    (void)cupti.cuptiGetResultString(result, &words);
    return DP_FAIL(host, DP_ERR_UNSUPPORTED, "%s: CUPTI says \"%s\"", what, words != NULL ? words : "an unknown error");
}

static dp_status_t find_functions(const dp_host_t *host)
{
    char tried[512] = "";
    void *library = open_cupti(tried, sizeof(tried));

    if (library == NULL)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "CUPTI was not found (%s)", tried);
#define FIND(function)                                                                                                 \
    *(void **)&cupti.function = dlsym(library, #function);                                                             \
    if (cupti.function == NULL)                                                                                        \
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "CUPTI has no %s: it is older than this plugin", #function);
    FUNCTIONS(FIND)
#undef FIND
    return DP_OK;
}

static dp_status_t make_record_room(const dp_host_t *host, uint32_t activities)
{
    uint32_t room = activities > 0 ? activities : ACTIVITIES, link_room = 1024;
    cupti_records_entry_t *entries;
    cupti_records_link_t *links;

    while (link_room < 4 * (uint64_t)room && link_room < 1u << 30)
        link_room *= 2;
    entries = calloc(room, sizeof(*entries));
    links = calloc(link_room, sizeof(*links));
    if (entries == NULL || links == NULL) {
        free(entries);
        free(links);
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for %u activities", room);
    }
    cupti_records_init(&records, entries, room, links, link_room);
    return DP_OK;
}

static dp_status_t start_collecting(const dp_host_t *host, uint32_t activities)
{
    dp_status_t status = find_functions(host);

    if (status == DP_OK && records.entries == NULL)
        status = make_record_room(host, activities);
    if (status == DP_OK)
        status = check_cupti(host, cupti.cuptiActivityRegisterCallbacks(give_buffer, take_buffer),
                             "handing buffers to CUPTI");
    for (int i = 0; i < NKINDS && status == DP_OK; i++)
        status = check_cupti(host, cupti.cuptiActivityEnable(kinds[i]), "switching records on");
    started = status == DP_OK;
    return status;
}

/* ---- the table ---- */

static bool owner_open(uint16_t owner)
{
    return open_owners[owner / 8] >> owner % 8 & 1;
}

static dp_status_t profiler_open(const dp_host_t *host, const dp_profiler_config_t *config,
                                 dp_profiler_t **profiler_out)
{
    dp_profiler_t *p;
    dp_status_t status = DP_TAKE(host, "hook_cupti", dp_profiler_config_t, DP_PROFILER_CONFIG_MIN, NULL, config);

    if (status < 0)
        return status;
    p = host->allocate(host, sizeof(*p), 16);
    if (p == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for a profiler");
    pthread_mutex_lock(&lock);
    if (domain == NULL)
        domain = nvtxDomainCreateA("dualpipe"); /* NULL again when no tool listens */
    if (!started)
        status = start_collecting(host, config->activities);
    if (status == DP_OK) {
        do
            last_owner++;
        while (last_owner == 0 || owner_open(last_owner));
        open_owners[last_owner / 8] |= (uint8_t)(1 << last_owner % 8);
        *p = (dp_profiler_t){.host = host, .owner = last_owner};
    }
    pthread_mutex_unlock(&lock);
    if (status < 0) {
        host->release(host, p);
        return status;
    }
    *profiler_out = p;
    return DP_OK;
}

/* Recording ends with the last one. */
static void profiler_close(dp_profiler_t *p)
{
    static const uint8_t nobody[sizeof(open_owners)];
    bool last;

    if (p == NULL)
        return;
    pthread_mutex_lock(&lock);
    open_owners[p->owner / 8] &= (uint8_t) ~(1 << p->owner % 8);
    last = memcmp(open_owners, nobody, sizeof(nobody)) == 0;
    pthread_mutex_unlock(&lock);
    if (last) {
        for (int i = 0; i < NKINDS; i++)
            (void)cupti.cuptiActivityDisable(kinds[i]);
        (void)cupti.cuptiActivityFlushAll(1);
        pthread_mutex_lock(&lock);
        started = false;
        cupti_records_sweep(&records, open_owners);
        pthread_mutex_unlock(&lock);
    }
    p->host->release(p->host, p);
}

static void profiler_begin(dp_profiler_t *p, uint64_t operation, const char *name)
{
    nvtxEventAttributes_t range;

    memset(&range, 0, sizeof(range));
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = name;
    (void)nvtxDomainRangePushEx(domain, &range);
    (void)cupti.cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                       cupti_records_tag(p->owner, operation));
}

static void profiler_end(dp_profiler_t *p)
{
    uint64_t tag;

    (void)p;
    (void)cupti.cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &tag);
    (void)nvtxDomainRangePop(domain);
}

/* CUPTI's clock and the host's, asked for together: the pair with the least time between counts. */
static dp_status_t clock_offset(const dp_host_t *host, int64_t *offset_out)
{
    int64_t best = INT64_MAX;
    dp_status_t status = DP_OK;

    for (int i = 0; i < 8 && status == DP_OK; i++) {
        int64_t before = host->now_ns(host), after;
        uint64_t theirs = 0;

        status = check_cupti(host, cupti.cuptiGetTimestamp(&theirs), "asking for the time");
        after = host->now_ns(host);
        if (after - before < best) {
            best = after - before;
            *offset_out = before + (after - before) / 2 - (int64_t)theirs;
        }
    }
    return status;
}

static dp_status_t profiler_collect(dp_profiler_t *p, dp_activity_t *out, size_t room, size_t *count_out,
                                    uint64_t *lost_out)
{
    int64_t offset = 0;
    dp_status_t status = check_cupti(p->host, cupti.cuptiActivityFlushAll(0), "collecting records");

    if (status == DP_OK)
        status = clock_offset(p->host, &offset);
    if (status < 0)
        return status;
    pthread_mutex_lock(&lock);
    *count_out = cupti_records_take(&records, p->owner, offset, out, room);
    if (lost_out != NULL)
        *lost_out = records.lost;
    if (*count_out < room)
        cupti_records_sweep(&records, open_owners);
    pthread_mutex_unlock(&lock);
    return DP_OK;
}

static const dp_profiler_vt_t table = {
    .struct_size = sizeof(dp_profiler_vt_t),
    .open = profiler_open,
    .close = profiler_close,
    .begin = profiler_begin,
    .end = profiler_end,
    .collect = profiler_collect,
};

static const void *cupti_interface(const char *id)
{
    return strcmp(id, DP_IFACE_PROFILER) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(hook_cupti) = {
    DP_PLUGIN_HEAD,
    .name = "hook_cupti",
    .version = DP_VERSION,
    .summary = "kernel times by CUPTI, ranges by NVTX",
    .get_interface = cupti_interface,
};
