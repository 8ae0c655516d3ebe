/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_plugin_interfaces.c: tables as the library hands them out: what must be there, what stands
 * in for the rest, and plugins whose table is longer than ours. */
#include <dualpipe/attention.h>
#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/draft/ep.h>
#include <dualpipe/moe.h>
#include <dualpipe/profiler.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"

typedef void (*function_t)(void);

/* A table of any interface, and something behind it that only its plugin knows. */
typedef union table {
    uint32_t struct_size;
    dp_device_vt_t device;
    dp_comm_vt_t comm;
    dp_attention_vt_t attention;
    dp_moe_vt_t moe;
    dp_profiler_vt_t profiler;
    uint64_t bytes[128];
} table_t;

static const void *given;

static const void *give(const char *id)
{
    (void)id;
    return given;
}

static const dp_plugin_t plugin = {
    DP_PLUGIN_HEAD,
    .name = "mine",
    .get_interface = give,
};

static void nothing(void)
{
}

/* As many functions as the interface has, from `first` on, and its size. Lives until the test's
 * process ends, as the tables of plugins do. */
static table_t *whole(size_t first, size_t bytes)
{
    static const function_t function = nothing;
    table_t *t = calloc(1, sizeof(*t));

    ck_assert_ptr_nonnull(t);
    for (size_t at = first; at < bytes; at += sizeof(function))
        memcpy((char *)t + at, &function, sizeof(function));
    t->struct_size = (uint32_t)bytes;
    return t;
}

static table_t *whole_device(uint32_t caps)
{
    table_t *t = whole(offsetof(dp_device_vt_t, open), sizeof(dp_device_vt_t));

    t->device.caps = caps;
    t->device.kind = "mine";
    return t;
}

static table_t *whole_comm(uint32_t caps)
{
    table_t *t = whole(offsetof(dp_comm_vt_t, open), sizeof(dp_comm_vt_t));

    t->comm.caps = caps;
    return t;
}

static const void *ask(const char *id, const table_t *table)
{
    const void *found = NULL;

    given = table;
    ck_assert_msg(dp_plugin_interface(&plugin, id, sizeof(uint32_t), &found) == DP_OK, "%s", dp_last_error());
    return found;
}

static void expect_missing(const char *id, const table_t *table, const char *slot)
{
    const void *found = NULL;
    char sentence[200];

    given = table;
    ck_assert_msg(dp_plugin_interface(&plugin, id, sizeof(uint32_t), &found) == DP_ERR_PLUGIN, "%s without %s", id,
                  slot);
    snprintf(sentence, sizeof(sentence), "plugin mine: its table %s has no %s", id, slot);
    ck_assert_str_eq(dp_last_error(), sentence);
    ck_assert_ptr_null(found);
}

typedef struct member {
    const char *name;
    size_t at;
} member_t;

#define D(member)                                                                                                      \
    {                                                                                                                  \
#member, offsetof(dp_device_vt_t, member)                                                                      \
    }
#define C(member)                                                                                                      \
    {                                                                                                                  \
#member, offsetof(dp_comm_vt_t, member)                                                                        \
    }

static void expect_each_needed(const char *id, table_t *(*make)(uint32_t caps), uint32_t caps, const member_t *members,
                               size_t n)
{
    for (size_t i = 0; i < n; i++) {
        table_t *t = make(caps);

        memset((char *)t + members[i].at, 0, sizeof(function_t));
        expect_missing(id, t, members[i].name);
        free(t);
    }
}

START_TEST(a_device_must_have)
{
    static const member_t always[] = {D(kind),        D(open),        D(close),        D(allocate),    D(release),
                                      D(copy),        D(zero),        D(add),          D(stream_open), D(stream_close),
                                      D(event_open),  D(event_close), D(event_record), D(stream_wait), D(stamp),
                                      D(synchronize), D(query_error)};
    static const member_t launch[] = {D(launch)},
                          graph[] = {D(capture_begin), D(capture_end), D(graph_launch), D(graph_close)},
                          gpu[] = {D(watch), D(unwatch), D(host_allocate), D(host_release)};

    expect_each_needed(DP_IFACE_DEVICE, whole_device, 0, always, sizeof(always) / sizeof(always[0]));
    expect_each_needed(DP_IFACE_DEVICE, whole_device, DP_DEVICE_CAP_LAUNCH, launch, 1);
    expect_each_needed(DP_IFACE_DEVICE, whole_device, DP_DEVICE_CAP_GRAPH, graph, 4);
    expect_each_needed(DP_IFACE_DEVICE, whole_device, 0, gpu, 4);
}
END_TEST

START_TEST(a_device_may_leave_out)
{
    table_t *t = whole_device(DP_DEVICE_CAP_LAUNCH | DP_DEVICE_CAP_HOST_MEMORY);
    uint32_t sms[DP_LANE_COUNT] = {7, 7, 7, 7};
    dp_graph_t *graph = NULL;
    const dp_device_vt_t *vt;

    t->device.stream_native = NULL;
    t->device.partition = NULL;
    t->device.capture_begin = NULL;
    t->device.capture_end = NULL;
    t->device.graph_launch = NULL;
    t->device.graph_close = NULL;
    t->device.watch = NULL;
    t->device.unwatch = NULL;
    t->device.host_allocate = NULL;
    vt = ask(DP_IFACE_DEVICE, t);
    ck_assert_ptr_null(vt->stream_native(NULL));
    ck_assert_int_eq(vt->partition(NULL, sms), DP_OK);
    ck_assert(sms[0] == 0 && sms[1] == 0 && sms[2] == 0 && sms[3] == 0);
    ck_assert_int_eq(vt->capture_begin(NULL), DP_ERR_UNSUPPORTED);
    ck_assert_int_eq(vt->capture_end(NULL, &graph), DP_ERR_UNSUPPORTED);
    ck_assert_int_eq(vt->graph_launch(NULL, NULL), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "graphs"));
    vt->graph_close(NULL);
    ck_assert_int_eq(vt->watch(NULL, NULL, NULL), DP_ERR_UNSUPPORTED);
    vt->unwatch(NULL, NULL, NULL);
    /* both, so that what one gives the other takes back */
    ck_assert(vt->host_allocate == vt->allocate && vt->host_release == vt->release);

    t = whole_device(0);
    t->device.launch = NULL;
    vt = ask(DP_IFACE_DEVICE, t);
    ck_assert_int_eq(vt->launch(NULL, NULL, NULL, 0), DP_ERR_UNSUPPORTED);
    ck_assert(vt->host_allocate == t->device.host_allocate);
}
END_TEST

START_TEST(a_transport_must_have)
{
    static const member_t always[] = {C(open), C(close),   C(channel_open), C(start),       C(send),
                                      C(recv), C(release), C(all_reduce),   C(memory_bytes)};
    static const member_t matched[] = {C(bundle_begin), C(bundle_end)};
    static const member_t trio[] = {C(exchange_open), C(exchange), C(exchange_release)};

    expect_each_needed(DP_IFACE_COMM, whole_comm, DP_COMM_CAP_ONE_SIDED, always, sizeof(always) / sizeof(always[0]));
    expect_each_needed(DP_IFACE_COMM, whole_comm, 0, matched, 2);
    expect_each_needed(DP_IFACE_COMM, whole_comm, 0, trio, 3); /* all three or none */
}
END_TEST

START_TEST(a_transport_may_leave_out)
{
    table_t *t = whole_comm(DP_COMM_CAP_ONE_SIDED);
    const dp_comm_vt_t *vt;

    t->comm.bundle_begin = NULL;
    t->comm.bundle_end = NULL;
    t->comm.exchange_open = NULL;
    t->comm.exchange = NULL;
    t->comm.exchange_release = NULL;
    t->comm.reduce_scatter = NULL;
    t->comm.all_gather = NULL;
    vt = ask(DP_IFACE_COMM, t);
    ck_assert(vt->reduce_scatter == NULL && vt->all_gather == NULL); /* the engine asks */
    ck_assert_int_eq(vt->bundle_begin(NULL, NULL), DP_OK);
    ck_assert_int_eq(vt->bundle_end(NULL, NULL), DP_OK);
    ck_assert_int_eq(vt->exchange_open(NULL, NULL, NULL), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "exchanges"));
    ck_assert_int_eq(vt->exchange(NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL), DP_ERR_UNSUPPORTED);
    ck_assert_int_eq(vt->exchange_release(NULL, 0, NULL), DP_ERR_UNSUPPORTED);
}
END_TEST

/* Kernels may lack the function that recomputes, the last of their tables; whichever else is
 * missing is named. */
START_TEST(the_others_must_have_everything)
{
    static const struct {
        const char *id, *last;
        size_t first, optional, bytes; /* optional: from there on */
    } cases[] = {
        {DP_IFACE_ATTENTION, "backward_weight", offsetof(dp_attention_vt_t, open),
         offsetof(dp_attention_vt_t, recompute), sizeof(dp_attention_vt_t)},
        {DP_IFACE_MOE, "route_backward_weight", offsetof(dp_moe_vt_t, open), offsetof(dp_moe_vt_t, experts_recompute),
         sizeof(dp_moe_vt_t)},
        {DP_IFACE_EP, "dispatch_backward", offsetof(dp_ep_vt_t, open), sizeof(dp_ep_vt_t), sizeof(dp_ep_vt_t)},
        {DP_IFACE_PROFILER, "collect", offsetof(dp_profiler_vt_t, open), sizeof(dp_profiler_vt_t),
         sizeof(dp_profiler_vt_t)},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        table_t *t = whole(cases[i].first, cases[i].bytes);

        (void)ask(cases[i].id, t);
        for (size_t at = cases[i].first; at < cases[i].bytes; at += sizeof(function_t)) {
            const void *found;

            t = whole(cases[i].first, cases[i].bytes);
            memset((char *)t + at, 0, sizeof(function_t));
            given = t;
            ck_assert_int_eq(dp_plugin_interface(&plugin, cases[i].id, sizeof(uint32_t), &found),
                             at < cases[i].optional ? DP_ERR_PLUGIN : DP_OK);
            if (at >= cases[i].optional)
                continue; /* it is known by its address from now on */
            ck_assert_ptr_nonnull(strstr(dp_last_error(), "has no "));
            free(t);
        }
        t = whole(cases[i].first, cases[i].bytes);
        memset((char *)t + cases[i].optional - sizeof(function_t), 0, sizeof(function_t));
        expect_missing(cases[i].id, t, cases[i].last);
        free(t);
    }
}
END_TEST

START_TEST(tables_are_short_or_long)
{
    static const struct {
        const char *id;
        size_t least;
    } cases[] = {
        {DP_IFACE_DEVICE, DP_DEVICE_VT_MIN}, {DP_IFACE_COMM, DP_COMM_VT_MIN}, {DP_IFACE_ATTENTION, DP_ATTENTION_VT_MIN},
        {DP_IFACE_MOE, DP_MOE_VT_MIN},       {DP_IFACE_EP, DP_EP_VT_MIN},     {DP_IFACE_PROFILER, DP_PROFILER_VT_MIN},
    };
    const dp_comm_vt_t *vt;
    table_t *t;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const void *found = NULL;
        char number[32];

        t = whole(8, sizeof(*t));
        t->struct_size = (uint32_t)cases[i].least - 1;
        given = t;
        ck_assert_int_eq(dp_plugin_interface(&plugin, cases[i].id, sizeof(uint32_t), &found), DP_ERR_PLUGIN);
        snprintf(number, sizeof(number), "%zu are needed", cases[i].least);
        ck_assert_ptr_nonnull(strstr(dp_last_error(), number));
        free(t);
    }
    /* a plugin of a later minor: what we do not know is left out of the copy */
    t = whole_comm(DP_COMM_CAP_ONE_SIDED);
    t->struct_size = sizeof(*t);
    memset((char *)t + sizeof(t->comm), 0x5a, sizeof(*t) - sizeof(t->comm));
    vt = ask(DP_IFACE_COMM, t);
    ck_assert_uint_eq(vt->struct_size, sizeof(dp_comm_vt_t));
    ck_assert(vt->open == t->comm.open && vt->memory_bytes == t->comm.memory_bytes);
    ck_assert_uint_eq(vt->caps, DP_COMM_CAP_ONE_SIDED);
}
END_TEST

START_TEST(copies_are_made_once)
{
    table_t *one = whole_comm(DP_COMM_CAP_ONE_SIDED), *other = whole_comm(DP_COMM_CAP_ONE_SIDED);
    const void *first = ask(DP_IFACE_COMM, one), *second = ask(DP_IFACE_COMM, other);

    ck_assert_ptr_ne(first, second);
    ck_assert_ptr_eq(ask(DP_IFACE_COMM, one), first);
    ck_assert_ptr_eq(ask(DP_IFACE_COMM, other), second);
    ck_assert_ptr_eq(ask("com.acme.comm/1", one), one); /* of others we know nothing */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plugin/interfaces");

    SUITE_ADD(suite, a_device_must_have);
    SUITE_ADD(suite, a_device_may_leave_out);
    SUITE_ADD(suite, a_transport_must_have);
    SUITE_ADD(suite, a_transport_may_leave_out);
    SUITE_ADD(suite, the_others_must_have_everything);
    SUITE_ADD(suite, tables_are_short_or_long);
    SUITE_ADD(suite, copies_are_made_once);
    return suite_run(suite);
}
