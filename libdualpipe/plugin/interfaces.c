/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * interfaces.c: the tables of the six interfaces, described once: functions that must be there,
 * defaults of the others. Callers get a completed copy of a plugin's table and never ask whether a
 * member is there. */
#include "plugin/interfaces.h"
#include "base/memory.h"

#include <dualpipe/attention.h>
#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/draft/ep.h>
#include <dualpipe/moe.h>
#include <dualpipe/profiler.h>

#include <pthread.h>
#include <string.h>

typedef void (*function_t)(void);

/* When a member must be there. */
typedef enum need {
    ALWAYS,
    WITH,    /* when the table has this capability */
    WITHOUT, /* when it has not */
    LIKE,    /* when that other member is there */
    NEVER
} need_t;

typedef struct slot {
    const char *name;
    size_t at;
    need_t need;
    uint32_t caps;        /* of WITH, WITHOUT */
    size_t like;          /* of LIKE */
    function_t otherwise; /* NULL: stays NULL */
} slot_t;

typedef struct interface {
    const char *id;
    size_t least, bytes; /* of the table in ABI 1.0, and here */
    const slot_t *slots;
    size_t nslots;
    void (*finish)(void *table); /* NULL: nothing is left to do once the defaults are in */
} interface_t;

/* Every table begins with them; only those with capabilities are asked for them. */
typedef struct head {
    uint32_t struct_size, caps;
} head_t;

/* ---- dp.device/1 ---- */

static void *no_stream_native(dp_stream_t *s)
{
    (void)s;
    return NULL;
}

static dp_status_t no_launch(dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    (void)s, (void)fn, (void)arg, (void)bytes;
    return dp_fail(DP_ERR_UNSUPPORTED, "the device runs no functions of the host (DP_DEVICE_CAP_LAUNCH)");
}

static dp_status_t no_partition(dp_device_t *device, uint32_t sms[DP_LANE_COUNT])
{
    (void)device;
    memset(sms, 0, DP_LANE_COUNT * sizeof(*sms));
    return DP_OK;
}

static dp_status_t no_graphs(void)
{
    return dp_fail(DP_ERR_UNSUPPORTED, "the device has no graphs (DP_DEVICE_CAP_GRAPH)");
}

static dp_status_t no_capture_begin(dp_stream_t *origin)
{
    (void)origin;
    return no_graphs();
}

static dp_status_t no_capture_end(dp_stream_t *origin, dp_graph_t **graph_out)
{
    (void)origin, (void)graph_out;
    return no_graphs();
}

static dp_status_t no_graph_launch(dp_graph_t *graph, dp_stream_t *s)
{
    (void)graph, (void)s;
    return no_graphs();
}

static void no_graph_close(dp_graph_t *graph)
{
    (void)graph;
}

static dp_status_t no_watch(dp_device_t *device, dp_watch_fn check, void *arg)
{
    (void)device, (void)check, (void)arg;
    return dp_fail(DP_ERR_UNSUPPORTED, "the device has no watches: its functions return what has failed "
                                       "(DP_DEVICE_CAP_LAUNCH)");
}

static void no_unwatch(dp_device_t *device, dp_watch_fn check, void *arg)
{
    (void)device, (void)check, (void)arg;
}

/* All memory of such a device is the host's as well. */
static void finish_device(void *table)
{
    dp_device_vt_t *vt = table;

    if (vt->host_allocate == NULL || vt->host_release == NULL) {
        vt->host_allocate = vt->allocate;
        vt->host_release = vt->release;
    }
}

#define MUST(type, member)                                                                                             \
    {                                                                                                                  \
        .name = #member, .at = offsetof(type, member)                                                                  \
    }
#define MAY(type, member, when, bits, default_fn)                                                                      \
    {                                                                                                                  \
        .name = #member, .at = offsetof(type, member), .need = when, .caps = bits, .otherwise = (function_t)default_fn \
    }
#define MUST_LIKE(type, member, other, default_fn)                                                                     \
    {                                                                                                                  \
        .name = #member, .at = offsetof(type, member), .need = LIKE, .like = offsetof(type, other),                    \
        .otherwise = (function_t)default_fn                                                                            \
    }

#define D(member)                      MUST(dp_device_vt_t, member)
#define D_MAY(member, when, bits, def) MAY(dp_device_vt_t, member, when, bits, def)
static const slot_t device_slots[] = {
    D(kind),
    D(open),
    D(close),
    D(allocate),
    D(release),
    D(copy),
    D(zero),
    D(add),
    D(stream_open),
    D(stream_close),
    D_MAY(stream_native, NEVER, 0, no_stream_native),
    D(event_open),
    D(event_close),
    D(event_record),
    D(stream_wait),
    D_MAY(launch, WITH, DP_DEVICE_CAP_LAUNCH, no_launch),
    D(stamp),
    D(synchronize),
    D(query_error),
    D_MAY(partition, NEVER, 0, no_partition),
    D_MAY(capture_begin, WITH, DP_DEVICE_CAP_GRAPH, no_capture_begin),
    D_MAY(capture_end, WITH, DP_DEVICE_CAP_GRAPH, no_capture_end),
    D_MAY(graph_launch, WITH, DP_DEVICE_CAP_GRAPH, no_graph_launch),
    D_MAY(graph_close, WITH, DP_DEVICE_CAP_GRAPH, no_graph_close),
    D_MAY(watch, WITHOUT, DP_DEVICE_CAP_LAUNCH, no_watch),
    D_MAY(unwatch, WITHOUT, DP_DEVICE_CAP_LAUNCH, no_unwatch),
    D_MAY(host_allocate, WITHOUT, DP_DEVICE_CAP_HOST_MEMORY, NULL),
    D_MAY(host_release, WITHOUT, DP_DEVICE_CAP_HOST_MEMORY, NULL),
};

/* ---- dp.comm/1 ---- */

static dp_status_t no_bundle(dp_comm_t *comm, dp_stream_t *s)
{
    (void)comm, (void)s;
    return DP_OK; /* one-sided transfers need no brackets */
}

static dp_status_t no_exchanges(void)
{
    return dp_fail(DP_ERR_UNSUPPORTED, "the transport has no exchanges: it cannot serve a mixture of experts");
}

static dp_status_t no_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    (void)comm, (void)config, (void)exchange_out;
    return no_exchanges();
}

static dp_status_t no_exchange(dp_exchange_t *exchange, uint32_t number, const void *send, const int32_t *send_offsets,
                               const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                               dp_stream_t *s)
{
    (void)exchange, (void)number, (void)send, (void)send_offsets, (void)send_counts, (void)rows_out, (void)counts_out,
        (void)s;
    return no_exchanges();
}

static dp_status_t no_exchange_release(dp_exchange_t *exchange, uint32_t number, dp_stream_t *s)
{
    (void)exchange, (void)number, (void)s;
    return no_exchanges();
}

#define C(member)                         MUST(dp_comm_vt_t, member)
#define C_MAY(member, when, bits, def)    MAY(dp_comm_vt_t, member, when, bits, def)
#define C_LIKE(member, other, default_fn) MUST_LIKE(dp_comm_vt_t, member, other, default_fn)
static const slot_t comm_slots[] = {
    C(open),
    C(close),
    C(channel_open),
    C_LIKE(exchange_open, exchange, no_exchange_open),
    C(start),
    C(send),
    C(recv),
    C(release),
    C_MAY(bundle_begin, WITHOUT, DP_COMM_CAP_ONE_SIDED, no_bundle),
    C_MAY(bundle_end, WITHOUT, DP_COMM_CAP_ONE_SIDED, no_bundle),
    C_LIKE(exchange, exchange_open, no_exchange),
    C_LIKE(exchange_release, exchange_open, no_exchange_release),
    C(all_reduce),
    C(memory_bytes),
    C_MAY(reduce_scatter, NEVER, 0, NULL), /* the engine has both made of all_reduce */
    C_MAY(all_gather, NEVER, 0, NULL),
    C_MAY(instance_caps, NEVER, 0, NULL), /* dp_comm_caps() */
    C_MAY(serves, NEVER, 0, NULL),
    C_LIKE(exchange_post, exchange_wait, NULL),
    C_LIKE(exchange_wait, exchange_post, NULL),
};

/* ---- dp.attention/1, dp.moe/1, dp.ep.draft/1, dp.profiler/1 ---- */

#define A(member) MUST(dp_attention_vt_t, member)
static const slot_t attention_slots[] = {
    A(open), A(close), A(sizes), A(params), A(forward), A(backward_input), A(backward_weight),
};

#define M(member) MUST(dp_moe_vt_t, member)
static const slot_t moe_slots[] = {
    M(open),
    M(close),
    M(sizes),
    M(params),
    M(route),
    M(dispatch),
    M(experts),
    M(combine),
    M(combine_backward),
    M(experts_backward_input),
    M(experts_backward_weight),
    M(dispatch_backward),
    M(route_backward_input),
    M(route_backward_weight),
};

#define E(member) MUST(dp_ep_vt_t, member)
static const slot_t ep_slots[] = {
    E(open), E(close), E(sizes), E(dispatch), E(combine), E(combine_backward), E(dispatch_backward),
};

#define P(member) MUST(dp_profiler_vt_t, member)
static const slot_t profiler_slots[] = {
    P(open), P(close), P(begin), P(end), P(collect),
};

#define COUNT(slots) (sizeof(slots) / sizeof((slots)[0]))
static const interface_t interfaces[] = {
    {DP_IFACE_DEVICE, DP_DEVICE_VT_MIN, sizeof(dp_device_vt_t), device_slots, COUNT(device_slots), finish_device},
    {DP_IFACE_COMM, DP_COMM_VT_MIN, sizeof(dp_comm_vt_t), comm_slots, COUNT(comm_slots), NULL},
    {DP_IFACE_ATTENTION, DP_ATTENTION_VT_MIN, sizeof(dp_attention_vt_t), attention_slots, COUNT(attention_slots), NULL},
    {DP_IFACE_MOE, DP_MOE_VT_MIN, sizeof(dp_moe_vt_t), moe_slots, COUNT(moe_slots), NULL},
    {DP_IFACE_EP, DP_EP_VT_MIN, sizeof(dp_ep_vt_t), ep_slots, COUNT(ep_slots), NULL},
    {DP_IFACE_PROFILER, DP_PROFILER_VT_MIN, sizeof(dp_profiler_vt_t), profiler_slots, COUNT(profiler_slots), NULL},
};

/* ---- completing ---- */

typedef struct completed {
    struct completed *next;
    const void *original;
    const interface_t *interface;
    uint64_t table[];
} completed_t;

static struct {
    pthread_mutex_t mutex;
    completed_t *first;
} cache = {PTHREAD_MUTEX_INITIALIZER, NULL};

static const interface_t *find_interface(const char *id)
{
    for (size_t i = 0; i < COUNT(interfaces); i++)
        if (strcmp(interfaces[i].id, id) == 0)
            return &interfaces[i];
    return NULL;
}

static bool is_there(const void *table, size_t at)
{
    function_t function;

    memcpy(&function, (const char *)table + at, sizeof(function));
    return function != NULL;
}

static bool needed(const slot_t *slot, const void *table)
{
    const head_t *head = table;

    switch (slot->need) {
    case ALWAYS:
        return true;
    case WITH:
        return (head->caps & slot->caps) != 0;
    case WITHOUT:
        return (head->caps & slot->caps) == 0;
    case LIKE:
        return is_there(table, slot->like);
    default:
        return false;
    }
}

static dp_status_t fill_table(const dp_plugin_t *plugin, const interface_t *interface, void *table)
{
    /* all are judged before any default stands in for one */
    for (size_t i = 0; i < interface->nslots; i++) {
        const slot_t *slot = &interface->slots[i];

        if (!is_there(table, slot->at) && needed(slot, table))
            return dp_fail(DP_ERR_PLUGIN, "plugin %s: its table %s has no %s", plugin->name, interface->id, slot->name);
    }
    for (size_t i = 0; i < interface->nslots; i++) {
        const slot_t *slot = &interface->slots[i];

        if (!is_there(table, slot->at))
            memcpy((char *)table + slot->at, &slot->otherwise, sizeof(slot->otherwise));
    }
    if (interface->finish != NULL)
        interface->finish(table);
    return DP_OK;
}

static dp_status_t make(const dp_plugin_t *plugin, const interface_t *interface, const void *original,
                        completed_t **made_out)
{
    completed_t *made = dp__calloc(1, sizeof(*made) + interface->bytes);
    dp_status_t status;

    if (made == NULL)
        return dp_fail(DP_ERR_NOMEM, "plugin %s: no memory for its table %s", plugin->name, interface->id);
    made->original = original;
    made->interface = interface;
    /* a table may be longer */
    (void)dp_sized_take(made->table, (uint32_t)interface->bytes, original);
    status = fill_table(plugin, interface, made->table);
    if (status < 0) {
        dp__free(made);
        return status;
    }
    *made_out = made;
    return DP_OK;
}

bool dp__interface_known(const char *id)
{
    return find_interface(id) != NULL;
}

dp_status_t dp__interface_complete(const dp_plugin_t *plugin, const char *id, const void **table)
{
    const interface_t *interface = find_interface(id);
    const head_t *head = *table;
    dp_status_t status = DP_OK;
    completed_t *found;

    if (head->struct_size < interface->least)
        return dp_fail(DP_ERR_PLUGIN,
                       "plugin %s: its table %s has %u bytes, at least %zu are needed: rebuild the plugin",
                       plugin->name, id, head->struct_size, interface->least);
    pthread_mutex_lock(&cache.mutex);
    for (found = cache.first; found != NULL; found = found->next)
        if (found->original == *table && found->interface == interface)
            break;
    if (found == NULL) {
        status = make(plugin, interface, *table, &found);
        if (status >= 0) {
            found->next = cache.first;
            cache.first = found;
        }
    }
    pthread_mutex_unlock(&cache.mutex);
    if (status >= 0)
        *table = found->table;
    return status;
}

void dp__interfaces_prepare(const dp_plugin_t *plugin)
{
    for (size_t i = 0; i < COUNT(interfaces); i++) {
        const void *table = plugin->get_interface(interfaces[i].id);

        if (table != NULL)
            (void)dp__interface_complete(plugin, interfaces[i].id, &table);
    }
}
