/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * profiler.c: the contract of dp.profiler/1. What is seen are copies on a stream of a device, one
 * in each range. */
#include "conform.h"
#include "guard.h"

#include <dualpipe/profiler.h>

#include <stdio.h>
#include <string.h>

#define BYTES 4096
#define MOST  512

/* A device with a stream, and a profiler. */
typedef struct rig {
    conform_t *t;
    const dp_profiler_vt_t *vt;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    dp_stream_t *s;
    unsigned char *memory; /* two blocks of BYTES */
    dp_profiler_t *profiler;
    dp_activity_t seen[MOST];
    size_t count;
    uint64_t lost;
} rig_t;

/* False: the case has failed, or is skipped because this machine has nothing to profile. */
static bool rig_open(rig_t *rig, conform_t *t, uint32_t activities)
{
    dp_device_config_t device = {.struct_size = sizeof(device)};
    dp_profiler_config_t config = {.struct_size = sizeof(config), .activities = activities};
    dp_status_t status;

    memset(rig, 0, sizeof(*rig));
    rig->t = t;
    rig->vt = t->table;
    rig->device_vt = t->device;
    status = t->device->open(t->host, &device, &rig->device);
    if (status == DP_OK)
        status = t->device->stream_open(rig->device, DP_LANE_COMPUTE, &rig->s);
    if (status == DP_OK)
        status = t->device->allocate(rig->device, 2 * BYTES, (void **)&rig->memory);
    if (status != DP_OK) {
        conform_fail(t, __FILE__, __LINE__, "opening the device that is to be profiled failed: %s",
                     conform_last_error());
        return false;
    }
    conform_forget_error();
    status = rig->vt->open(t->host, &config, &rig->profiler);
    if (status == DP_OK)
        return true;
    if (status == DP_ERR_UNSUPPORTED && conform_last_error()[0] != '\0')
        conform_skip(t, "the profiler cannot be used here: %s", conform_last_error());
    else
        conform_fail(t, __FILE__, __LINE__, "open returned %s: %s", dp_status_name(status), conform_last_error());
    return false;
}

static void rig_close(rig_t *rig)
{
    rig->vt->close(rig->profiler);
    rig->device_vt->release(rig->device, rig->memory);
    rig->device_vt->stream_close(rig->s);
    rig->device_vt->close(rig->device);
}

/* One copy, in its own range. */
static dp_status_t work_on_stream(rig_t *rig, uint64_t operation)
{
    dp_status_t status;

    rig->vt->begin(rig->profiler, operation, "a copy");
    status = rig->device_vt->copy(rig->s, rig->memory, rig->memory + BYTES, BYTES);
    rig->vt->end(rig->profiler);
    return status;
}

/* Everything that there is, `room` at a time, added to what was seen before. DP_ERR_OVERFLOW: more
 * than there was room. */
static dp_status_t collect_records(rig_t *rig, size_t room)
{
    size_t count = room;
    dp_status_t status = rig->device_vt->synchronize(rig->s, -1);

    while (status == DP_OK && count == room && rig->count + room < MOST) {
        dp_activity_t *behind = &rig->seen[rig->count + room];

        behind->operation = UINT64_MAX;
        status = rig->vt->collect(rig->profiler, rig->seen + rig->count, room, &count, &rig->lost);
        if (status == DP_OK && (count > room || behind->operation != UINT64_MAX))
            return DP_ERR_OVERFLOW;
        rig->count += status == DP_OK ? count : 0;
    }
    return status;
}

static int seen_of(const rig_t *rig, uint64_t operation)
{
    int count = 0;

    for (size_t i = 0; i < rig->count; i++)
        count += rig->seen[i].operation == operation;
    return count;
}

static void configs_are_judged(conform_t *t)
{
    struct {
        dp_profiler_config_t known;
        unsigned char more[64];
    } longer;
    const dp_profiler_vt_t *vt = t->table;
    dp_profiler_config_t config = {.struct_size = 0};
    dp_profiler_t *profiler = NULL;
    dp_status_t status;

    EXPECT_STATUS(t, vt->open(t->host, &config, &profiler), DP_ERR_INVALID, "open with struct_size 0");
    EXPECT(t, profiler == NULL, "an open that failed has written its output");
    vt->close(NULL);
    memset(&longer, 0, sizeof(longer));
    longer.known = (dp_profiler_config_t){.struct_size = sizeof(longer)};
    longer.more[7] = 1;
    EXPECT_STATUS(t, vt->open(t->host, &longer.known, &profiler), DP_ERR_UNSUPPORTED,
                  "open with a config that asks for what is not known");
    longer.more[7] = 0;
    conform_forget_error();
    status = vt->open(t->host, &longer.known, &profiler);
    EXPECT(t, status == DP_OK || status == DP_ERR_UNSUPPORTED,
           "open with a config that is 64 bytes longer returned %s: %s", dp_status_name(status), conform_last_error());
    EXPECT(t, status == DP_OK || conform_last_error()[0] != '\0',
           "open returned DP_ERR_UNSUPPORTED and did not say what is missing");
    vt->close(status == DP_OK ? profiler : NULL);
}

static void work_belongs_to_its_operation(conform_t *t)
{
    static const uint64_t operations[] = {1, 2, 3, 1000000, DP_PROFILER_OPERATION_MAX};
    int64_t before = t->host->now_ns(t->host), after;
    static rig_t rig;

    if (!rig_open(&rig, t, 0))
        return;
    /* of no operation */
    EXPECT_OK(t, rig.device_vt->copy(rig.s, rig.memory, rig.memory + BYTES, BYTES));
    for (int i = 0; i < 5; i++)
        EXPECT_OK(t, work_on_stream(&rig, operations[i]));
    EXPECT_OK(t, rig.device_vt->copy(rig.s, rig.memory, rig.memory + BYTES, BYTES));
    EXPECT_STATUS(t, collect_records(&rig, 64), DP_OK, "collect, with room for 64,");
    after = t->host->now_ns(t->host);
    for (int i = 0; i < 5; i++)
        EXPECT(t, seen_of(&rig, operations[i]) == 1, "operation %llu made one copy, collect gave %d activities of it",
               (unsigned long long)operations[i], seen_of(&rig, operations[i]));
    EXPECT(t, rig.count == 5, "%zu activities were given, there were five copies in ranges", rig.count);
    for (size_t i = 0; i < rig.count; i++) {
        const dp_activity_t *a = &rig.seen[i];

        EXPECT(t, before - 1000000 <= a->start_ns && a->start_ns <= a->end_ns && a->end_ns <= after + 1000000,
               "an activity lies from %lld to %lld ns, it was made between %lld and %lld of the host's clock",
               (long long)a->start_ns, (long long)a->end_ns, (long long)before, (long long)after);
        EXPECT(t, i == 0 || rig.seen[i - 1].start_ns <= a->start_ns, "activities have to come oldest first");
        EXPECT(t, a->kind <= DP_ACTIVITY_FILL && memchr(a->name, '\0', sizeof(a->name)) != NULL && a->name[0] != '\0',
               "an activity has kind %u and %s name", a->kind, a->name[0] == '\0' ? "no" : "an endless");
        EXPECT(t, a->reserved[0] == 0 && a->reserved[1] == 0 && a->reserved[2] == 0, "reserved members are not zero");
    }
    EXPECT(t, rig.lost == 0, "%llu activities are said to be lost of five", (unsigned long long)rig.lost);
    rig_close(&rig);
}

static void the_innermost_range_counts(conform_t *t)
{
    static rig_t rig;

    if (!rig_open(&rig, t, 0))
        return;
    rig.vt->begin(rig.profiler, 1, "outer");
    EXPECT_OK(t, work_on_stream(&rig, 2));
    EXPECT_OK(t, rig.device_vt->copy(rig.s, rig.memory, rig.memory + BYTES, BYTES));
    rig.vt->end(rig.profiler);
    EXPECT_OK(t, collect_records(&rig, 64));
    EXPECT(t, seen_of(&rig, 2) == 1 && seen_of(&rig, 1) == 1,
           "a copy in a range within a range, and one behind it: %d activities of the inner, %d of the outer operation",
           seen_of(&rig, 2), seen_of(&rig, 1));
    rig_close(&rig);
}

static void what_was_given_is_forgotten(conform_t *t)
{
    enum { COPIES = 40 };
    size_t nothing = 7;
    static rig_t rig;

    if (!rig_open(&rig, t, 0))
        return;
    for (uint64_t i = 1; i <= COPIES; i++)
        EXPECT_OK(t, work_on_stream(&rig, i));
    EXPECT_STATUS(t, collect_records(&rig, 3), DP_OK, "collect, with room for 3, again and again,");
    for (uint64_t i = 1; i <= COPIES; i++)
        EXPECT(t, seen_of(&rig, i) == 1, "with room for 3 at a time, operation %llu of %d was given %d times",
               (unsigned long long)i, COPIES, seen_of(&rig, i));
    EXPECT_STATUS(t, rig.vt->collect(rig.profiler, rig.seen, MOST, &nothing, NULL), DP_OK,
                  "collect without lost_out, when all was given,");
    EXPECT(t, nothing == 0, "%zu activities were given a second time", nothing);
    EXPECT_OK(t, work_on_stream(&rig, 99));
    rig.count = 0;
    EXPECT_OK(t, collect_records(&rig, 64));
    EXPECT(t, rig.count == 1 && rig.seen[0].operation == 99, "after a collect a new copy gave %zu activities",
           rig.count);
    rig_close(&rig);
}

static void what_finds_no_room_is_counted(conform_t *t)
{
    enum { COPIES = 40, ROOM = 8 };
    static rig_t rig;

    if (!rig_open(&rig, t, ROOM))
        return;
    for (uint64_t i = 1; i <= COPIES; i++)
        EXPECT_OK(t, work_on_stream(&rig, i));
    EXPECT_OK(t, collect_records(&rig, 64));
    EXPECT(t, rig.count <= ROOM, "%zu activities were given, no more than %d were to be kept", rig.count, ROOM);
    EXPECT(t, rig.count + rig.lost >= COPIES, "of %d activities %zu were given and %llu are said to be lost", COPIES,
           rig.count, (unsigned long long)rig.lost);
    rig_close(&rig);
}

/* Two ranks, each with its own numbers; ranks as threads share what is below. */
static void ranks_get_their_own(conform_t *t)
{
    enum { COPIES = 20 };
    rig_t rig;

    if (!rig_open(&rig, t, 0))
        return;
    EXPECT(t, conform_meet(t), "the other rank failed");
    for (uint64_t i = 0; i < COPIES; i++)
        EXPECT_OK(t, work_on_stream(&rig, 2 * i + 1 + (uint64_t)t->rank));
    EXPECT(t, conform_meet(t), "the other rank failed");
    EXPECT_OK(t, collect_records(&rig, 64));
    for (size_t i = 0; i < rig.count; i++)
        EXPECT(t, (rig.seen[i].operation - 1) % 2 == (uint64_t)t->rank,
               "an activity of the other rank's operation %llu", (unsigned long long)rig.seen[i].operation);
    EXPECT(t, rig.count == COPIES, "%zu activities were given, this rank made %d", rig.count, COPIES);
    EXPECT(t, conform_meet(t), "the other rank failed");
    rig_close(&rig);
}

static void ranges_allocate_nothing(conform_t *t)
{
    int64_t before, calls;
    const char *name;
    static rig_t rig;

    if (!rig_open(&rig, t, 0))
        return;
    (void)conform_watch_module(*(const void *const *)(const void *)&rig.vt->begin);
    before = conform_host_given(t->host);
    conform_watch_begin();
    for (uint64_t i = 1; i <= 200; i++) {
        rig.vt->begin(rig.profiler, i, "a range of no work");
        rig.vt->end(rig.profiler);
    }
    calls = conform_watch_end(&name);
    EXPECT(t, conform_host_given(t->host) == before, "200 ranges asked the host for %lld blocks of memory",
           (long long)(conform_host_given(t->host) - before));
    EXPECT(t, calls == 0, "200 ranges called %s and its kin %lld times: begin and end allocate nothing", name,
           (long long)calls);
    rig_close(&rig);
}

static void nothing_is_left_behind(conform_t *t)
{
    conform_held_t before = {0, 0, 0}, after;
    static rig_t rig;

    for (int round = 0; round < 4; round++) { /* the first one is for what libraries start once */
        if (!rig_open(&rig, t, 0))
            return;
        EXPECT_OK(t, work_on_stream(&rig, 1)); /* and not collected */
        EXPECT_OK(t, rig.device_vt->synchronize(rig.s, -1));
        rig_close(&rig);
        if (round == 0)
            before = conform_held(t);
    }
    after = conform_held(t);
    EXPECT(t, after.blocks == 0, "%lld blocks of the host's memory are left after close", (long long)after.blocks);
    EXPECT(t, after.threads == before.threads && after.descriptors == before.descriptors,
           "%d threads and %d descriptors after one use, %d and %d after three more", before.threads,
           before.descriptors, after.threads, after.descriptors);
}

static const conform_case_t cases[] = {
    {CONFORM_CASE(configs_are_judged, 0,
                  "struct_size 0 is DP_ERR_INVALID, a longer config is taken while what nobody "
                  "knows in it is 0, else DP_ERR_UNSUPPORTED; close(NULL) is legal.")},
    {CONFORM_CASE(
        work_belongs_to_its_operation, 0,
        "Work enqueued in a range is given once with its operation, on the host's clock, oldest first; work outside "
        "of ranges is not.")},
    {CONFORM_CASE(the_innermost_range_counts, 0, "Of nested ranges the innermost names the operation.")},
    {CONFORM_CASE(what_was_given_is_forgotten, 0, "collect gives each activity once, however small the room.")},
    {CONFORM_CASE(what_finds_no_room_is_counted, 0,
                  "No more activities than were asked for are kept, and the others are counted as lost.")},
    {CONFORM_CASE(ranks_get_their_own, 2, "Each rank gets the activities of its operations, as a thread too.")},
    {CONFORM_CASE(ranges_allocate_nothing, 0, "begin and end allocate nothing.")},
    {CONFORM_CASE(nothing_is_left_behind, 0, "After close no thread, descriptor or block of memory is left.")},
    {0},
};

const conform_suite_t conform_profiler = {
    .name = "profiler",
    .interface = DP_IFACE_PROFILER,
    .plugin = "hook_cupti",
    .table_bytes = DP_PROFILER_VT_MIN,
    .needs = CONFORM_NEEDS_DEVICE,
    .cases = cases,
};
