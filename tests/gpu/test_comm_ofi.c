/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_comm_ofi.c: comm_ofi with memory of a GPU, staged through the host's, and on the emulated
 * device also where the provider reaches it by itself (hmem_provider.c): what is received lies on
 * the device; and the contract of dp.comm/1. make check tries the cases below, all of them take
 * minutes:
 *
 *     sh tests/gpu/test_comm_ofi_fake.sh --plugin comm_ofi --device device_cuda */
#include "conform/conform.h"
#include "gpu.h"
#include "tests/support/debug.h"

#include <dlfcn.h>

#ifdef __SANITIZE_ADDRESS__
/* LeakSanitizer guesses where the thread-local memory of modules begins, is wrong here now and
 * then, and ends at an address that is none. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "intercept_tls_get_addr=0";
}
#endif

enum { ROWS = 4, ROW_BYTES = 32, BYTES = 512 };

typedef struct rig {
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *vt;
    dp_device_t *device;
    dp_stream_t *s;
    dp_comm_t *comm;
    dp_channel_end_t *to, *from;
    dp_exchange_t *x;
} rig_t;

static dp_status_t rig_open(rig_t *rig, const conform_t *t)
{
    static const int32_t world[2] = {0, 1};
    dp_device_config_t device = {.struct_size = sizeof(device)};
    dp_comm_config_t comm = {.struct_size = sizeof(comm), .name = "own", .nranks = 2, .world_ranks = world};
    dp_channel_config_t channel = {
        .struct_size = sizeof(channel), .slots = 2, .slot_bytes = BYTES, .label = "F chunk 1"};
    dp_exchange_config_t x = {
        .struct_size = sizeof(x), .row_bytes = ROW_BYTES, .capacity_rows = ROWS, .label = "dispatch"};
    dp_status_t status;

    memset(rig, 0, sizeof(*rig));
    rig->device_vt = comm.device_vt = t->device;
    rig->vt = comm.vt = t->comm;
    comm.rank = t->rank;
    channel.peer = 1 - t->rank;
    status = t->device->open(t->host, &device, &rig->device);
    comm.device = rig->device;
    if (status == DP_OK)
        status = t->device->stream_open(rig->device, DP_LANE_P2P, &rig->s);
    if (status == DP_OK)
        status = t->comm->open(t->host, &comm, &rig->comm);
    if (status == DP_OK)
        status = t->comm->channel_open(rig->comm, &channel, &rig->from);
    channel.sender = 1;
    if (status == DP_OK)
        status = t->comm->channel_open(rig->comm, &channel, &rig->to);
    if (status == DP_OK)
        status = t->comm->exchange_open(rig->comm, &x, &rig->x);
    return status == DP_OK ? t->comm->start(rig->comm) : status;
}

static bool on_device(const conform_t *t, const void *memory)
{
    const cuda_driver_t *cu = NULL;
    unsigned type = 0;

    return cuda_driver(t->host, &cu) == DP_OK &&
           cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)memory) ==
               CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
}

static void what_is_received_lies_on_the_device(conform_t *t)
{
    const dp_message_tag_t tag = {.bytes = BYTES};
    const int32_t *counts;
    const void *in, *rows;
    void *out, *wanted;
    rig_t rig;

    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, rig.device_vt->allocate(rig.device, BYTES, &out));
    /* no rows for anybody */
    EXPECT_OK(t, rig.device_vt->allocate(rig.device, 2 * 2 * sizeof(int32_t), &wanted));
    EXPECT_OK(t, rig.vt->send(rig.to, out, &tag, rig.s));
    EXPECT_OK(t, rig.vt->recv(rig.from, &tag, &in, rig.s));
    EXPECT_OK(t, rig.vt->release(rig.from, 0, rig.s));
    EXPECT_OK(t, rig.vt->exchange(rig.x, 0, out, wanted, (int32_t *)wanted + 2, &rows, &counts, rig.s));
    EXPECT_OK(t, rig.vt->exchange_release(rig.x, 0, rig.s));
    EXPECT(t, on_device(t, in), "the message lies in memory of the host");
    EXPECT(t, on_device(t, rows) && on_device(t, counts), "rows or their counts lie in memory of the host");
    EXPECT_OK(t, rig.device_vt->synchronize(rig.s, -1));
    rig.vt->close(rig.comm);
    rig.device_vt->release(rig.device, out);
    rig.device_vt->release(rig.device, wanted);
    rig.device_vt->stream_close(rig.s);
    rig.device_vt->close(rig.device);
}

/* Bytes that copies moved between host and device, in this process. */
static uint64_t staged(void)
{
    uint64_t (*ask)(void) = (__typeof__(ask))dlsym(dlopen(debug_entry("lib.cuda"), RTLD_LAZY), "fake_bytes_staged");

    return ask();
}

static bool upload(const conform_t *t, void *to, const void *from, size_t bytes)
{
    const cuda_driver_t *cu = NULL;

    return cuda_driver(t->host, &cu) == DP_OK &&
           cu->cuMemcpyHtoD((CUdeviceptr)(uintptr_t)to, from, bytes) == CUDA_SUCCESS;
}

static bool download(const conform_t *t, void *to, const void *from, size_t bytes)
{
    const cuda_driver_t *cu = NULL;

    return cuda_driver(t->host, &cu) == DP_OK &&
           cu->cuMemcpyDtoH(to, (CUdeviceptr)(uintptr_t)from, bytes) == CUDA_SUCCESS;
}

/* One message and an exchange of ROWS rows each way: all that may go through the host is numbers of
 * rows. */
static void only_what_has_to_is_staged(conform_t *t)
{
    enum { MESSAGES = 3 };
    const int32_t wanted[4] = {ROWS, ROWS, 0, ROWS};
    const bool direct = getenv("DP_TEST_HMEM") != NULL;
    unsigned char sent[BYTES], got[BYTES];
    const int32_t *counts;
    const void *in, *rows;
    void *out, *numbers;
    uint64_t before, moved;
    rig_t rig;

    if (!gpu_is_fake()) {
        conform_skip(t, "only the emulated driver counts copies");
        return;
    }
    for (int i = 0; i < BYTES; i++)
        sent[i] = (unsigned char)(i * 7 + 31 * t->rank);
    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, rig.device_vt->allocate(rig.device, BYTES, &out));
    EXPECT_OK(t, rig.device_vt->allocate(rig.device, sizeof(wanted), &numbers));
    EXPECT(t, upload(t, out, sent, BYTES) && upload(t, numbers, wanted, sizeof(wanted)), "no copy to the device");
    EXPECT(t, conform_meet(t), "the other rank failed");
    before = staged();
    EXPECT(t, conform_meet(t), "the other rank failed");
    for (uint32_t i = 0; i < MESSAGES; i++) {
        const dp_message_tag_t tag = {.number = i, .bytes = i == 1 ? 0 : BYTES};

        EXPECT_OK(t, rig.vt->send(rig.to, out, &tag, rig.s));
        EXPECT_OK(t, rig.vt->recv(rig.from, &tag, &in, rig.s));
        EXPECT_OK(t, rig.vt->release(rig.from, i, rig.s));
    }
    EXPECT_OK(t, rig.vt->exchange(rig.x, 0, out, (int32_t *)numbers + 2, numbers, &rows, &counts, rig.s));
    EXPECT_OK(t, rig.device_vt->synchronize(rig.s, -1));
    EXPECT(t, conform_meet(t), "the other rank failed");
    moved = staged() - before;
    EXPECT(t, direct ? moved <= 2 * 3 * 2 * sizeof(int32_t) : moved >= 2 * 2 * BYTES,
           "%llu bytes went through the host", (unsigned long long)moved);
    for (int i = 0; i < BYTES; i++)
        sent[i] = (unsigned char)(i * 7 + 31 * (1 - t->rank));
    EXPECT(t, download(t, got, in, BYTES) && memcmp(got, sent, BYTES) == 0, "another message than was sent");
    EXPECT(t,
           download(t, got, (const char *)rows + (1 - t->rank) * ROWS * ROW_BYTES, ROWS * ROW_BYTES) &&
               memcmp(got, sent + t->rank * ROWS * ROW_BYTES, ROWS * ROW_BYTES) == 0,
           "other rows than were sent");
    EXPECT_OK(t, rig.vt->exchange_release(rig.x, 0, rig.s));
    EXPECT_OK(t, rig.device_vt->synchronize(rig.s, -1));
    rig.vt->close(rig.comm);
    rig.device_vt->release(rig.device, out);
    rig.device_vt->release(rig.device, numbers);
    rig.device_vt->stream_close(rig.s);
    rig.device_vt->close(rig.device);
}

/* A channel each, and in every round another stream for each of them. */
static void any_number_of_streams_is_served(conform_t *t)
{
    enum { STREAMS = 24, ROUNDS = 3 };
    dp_channel_config_t channel = {.struct_size = sizeof(channel), .slots = 2, .slot_bytes = BYTES, .label = "many"};
    dp_channel_end_t *to[STREAMS], *from[STREAMS];
    dp_stream_t *streams[STREAMS];
    const void *in;
    void *out;
    rig_t rig;

    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, rig.device_vt->allocate(rig.device, BYTES, &out));
    channel.peer = 1 - t->rank;
    for (uint32_t i = 0; i < STREAMS; i++) {
        EXPECT_OK(t, rig.device_vt->stream_open(rig.device, DP_LANE_P2P, &streams[i]));
        channel.id = 1 + i;
        channel.sender = 1;
        EXPECT_OK(t, rig.vt->channel_open(rig.comm, &channel, &to[i]));
        channel.sender = 0;
        EXPECT_OK(t, rig.vt->channel_open(rig.comm, &channel, &from[i]));
    }
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const dp_message_tag_t tag = {.number = round, .bytes = BYTES};

        for (uint32_t i = 0; i < STREAMS; i++) {
            dp_stream_t *s = streams[(i + round) % STREAMS];

            EXPECT_OK(t, rig.vt->send(to[i], out, &tag, s));
            EXPECT_OK(t, rig.vt->recv(from[i], &tag, &in, s));
            EXPECT_OK(t, rig.vt->release(from[i], round, s));
        }
        for (uint32_t i = 0; i < STREAMS; i++)
            EXPECT_OK(t, rig.device_vt->synchronize(streams[i], -1));
    }
    rig.vt->close(rig.comm);
    rig.device_vt->release(rig.device, out);
    for (uint32_t i = 0; i < STREAMS; i++)
        rig.device_vt->stream_close(streams[i]);
    rig.device_vt->stream_close(rig.s);
    rig.device_vt->close(rig.device);
}

/* Data too large to ring have left, and what rings behind them finds no room: it is tried again. */
static void what_rings_behind_data_finds_room(conform_t *t)
{
    enum { MUCH = 1 << 18 };
    const dp_channel_config_t channel = {.struct_size = sizeof(channel),
                                         .id = 1,
                                         .peer = 1 - t->rank,
                                         .sender = t->rank == 0,
                                         .slots = 2,
                                         .slot_bytes = MUCH,
                                         .label = "large"};
    unsigned char *bytes;
    dp_channel_end_t *end;
    const void *in;
    void *out;
    rig_t rig;

    if (t->mode == CONFORM_PROCESSES || t->rank == 0)
        setenv("DP_TEST_BUSY", "1", 1);
    EXPECT(t, conform_meet(t), "the other rank failed");
    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, rig.device_vt->allocate(rig.device, MUCH, &out));
    EXPECT_OK(t, rig.vt->channel_open(rig.comm, &channel, &end));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    bytes = calloc(1, MUCH);
    for (uint32_t i = 0; i < 4; i++) {
        const dp_message_tag_t tag = {.number = i, .bytes = MUCH};

        memset(bytes, t->rank == 0 ? (int)i + 1 : 0, MUCH);
        if (t->rank == 0) {
            EXPECT(t, upload(t, out, bytes, MUCH), "no copy to the device");
            EXPECT_OK(t, rig.vt->send(end, out, &tag, rig.s));
            EXPECT_OK(t, rig.device_vt->synchronize(rig.s, -1));
            continue;
        }
        EXPECT_OK(t, rig.vt->recv(end, &tag, &in, rig.s));
        EXPECT_OK(t, rig.device_vt->synchronize(rig.s, -1));
        EXPECT(t, download(t, bytes, in, MUCH) && bytes[0] == i + 1 && bytes[MUCH - 1] == i + 1, "another message");
        EXPECT_OK(t, rig.vt->release(end, i, rig.s));
    }
    free(bytes);
    EXPECT(t, conform_meet(t), "the other rank failed");
    rig.vt->close(rig.comm);
    rig.device_vt->release(rig.device, out);
    rig.device_vt->stream_close(rig.s);
    rig.device_vt->close(rig.device);
}

static const conform_case_t own_cases[] = {
    {CONFORM_CASE(what_is_received_lies_on_the_device, 2, "Messages, rows and counts lie in memory of the device.")},
    {CONFORM_CASE(only_what_has_to_is_staged, 2,
                  "Data go through memory of the host where the provider asks for it, only there.")},
    {CONFORM_CASE(what_rings_behind_data_finds_room, 2, "A provider without room is asked again.")},
    {CONFORM_CASE(any_number_of_streams_is_served, 2, "An instance is used on as many streams as there are.")},
    {0},
};
static const conform_suite_t own_suite = {
    .name = "comm_ofi",
    .interface = DP_IFACE_COMM,
    .plugin = "comm_ofi",
    .table_bytes = sizeof(dp_comm_vt_t),
    .needs = CONFORM_NEEDS_DEVICE,
    .cases = own_cases,
};

static int run(const conform_suite_t *suite, char **argv)
{
    int argc = 0;

    while (argv[argc] != NULL)
        argc++;
    return conform_main((const conform_suite_t *[]){suite, NULL}, NULL, argc, argv);
}

int main(int argc, char **argv)
{
    char *own[] = {"test_comm_ofi", "--plugin", "comm_ofi", "--device", "device_cuda", NULL};
    char *some[] = {"test_comm_ofi",
                    "--plugin",
                    "comm_ofi",
                    "--device",
                    "device_cuda",
                    "messages_arrive_in_order_and_whole",
                    "a_slot_is_kept_until_its_release_runs",
                    "from_belongs_to_the_sender_again_behind_the_send",
                    "a_message_of_another_size_is_refused",
                    "exchanges_may_lie_unreleased",
                    "rows_and_counts_are_read_when_the_stream_gets_there",
                    "too_many_rows_are_an_overflow",
                    "sums_follow_each_other",
                    "all_traffic_at_once",
                    "steps_allocate_nothing",
                    "end_of_the_job_ends_every_wait",
                    "killed_while_receiving",
                    "a_group_leaves_nothing_behind",
                    NULL};
    int status;

    gpu_or_skip("test_comm_ofi");
    setenv("DUALPIPE_OFI_PROVIDER", "tcp", 0);
    if (argc > 1) /* by hand: cases, or another device */
        return conform_main((const conform_suite_t *[]){&conform_comm, &own_suite, NULL}, "comm_ofi", argc, argv);
    status = run(&own_suite, own) | run(&conform_comm, some);
    if (gpu_is_fake()) {
        printf("with a provider that reaches the device\n");
        setenv("DP_TEST_HMEM", "1", 1);
        status |= run(&own_suite, own) | run(&conform_comm, some);
    }
    return status;
}
