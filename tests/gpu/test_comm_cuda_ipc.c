/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_comm_cuda_ipc.c: the transport over peer memory: the contract of dp.comm/1 in each of its
 * ways to wait and to share, then what is its own: graphs that are replayed, deadlines of kernels,
 * a simulated link, a driver that fails. */
#include "conform/conform.h"
#include "gpu.h"
#include "tests/support/debug.h"

#define BYTES 512 /* of a message */

typedef struct rig {
    conform_t *t;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *vt;
    dp_device_t *device;
    dp_stream_t *s;
    dp_comm_t *comm;
    dp_channel_end_t *to, *from;
    dp_exchange_t *x;
} rig_t;

static dp_status_t rig_open(rig_t *rig, conform_t *t, uint32_t slots)
{
    static const int32_t world[CONFORM_RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
    dp_device_config_t device = {.struct_size = sizeof(device)};
    dp_comm_config_t comm = {
        .struct_size = sizeof(comm), .name = "graphs", .world_ranks = world, .reduce_bytes = 65536};
    dp_channel_config_t channel = {
        .struct_size = sizeof(channel), .slots = slots, .slot_bytes = BYTES, .label = "F chunk 1"};
    dp_exchange_config_t exchange = {
        .struct_size = sizeof(exchange), .row_bytes = 16, .capacity_rows = 4, .slots = 2, .label = "dispatch"};
    dp_status_t status;

    memset(rig, 0, sizeof(*rig));
    device.device = getenv("DP_FAKE_DEVICES") != NULL ? 1 + (uint32_t)t->rank % 2 : 1;
    rig->t = t;
    rig->device_vt = t->device;
    rig->vt = t->comm;
    status = t->device->open(t->host, &device, &rig->device);
    if (status == DP_OK)
        status = t->device->stream_open(rig->device, DP_LANE_P2P, &rig->s);
    comm.rank = t->rank;
    comm.nranks = t->size;
    comm.vt = t->comm;
    comm.device_vt = t->device;
    comm.device = rig->device;
    if (status == DP_OK)
        status = t->comm->open(t->host, &comm, &rig->comm);
    channel.peer = (t->rank + 1) % t->size;
    channel.sender = 1;
    if (status == DP_OK && t->size > 1)
        status = t->comm->channel_open(rig->comm, &channel, &rig->to);
    channel.peer = (t->rank + t->size - 1) % t->size;
    channel.sender = 0;
    if (status == DP_OK && t->size > 1)
        status = t->comm->channel_open(rig->comm, &channel, &rig->from);
    if (status == DP_OK)
        status = t->comm->exchange_open(rig->comm, &exchange, &rig->x);
    return status == DP_OK ? t->comm->start(rig->comm) : status;
}

static void rig_close(rig_t *rig)
{
    rig->vt->close(rig->comm);
    if (rig->s != NULL)
        rig->device_vt->stream_close(rig->s);
    rig->device_vt->close(rig->device);
}

static dp_status_t rest(rig_t *rig)
{
    return rig->device_vt->synchronize(rig->s, -1);
}

static dp_status_t move(rig_t *rig, void *to, const void *from, size_t bytes)
{
    dp_status_t status = rig->device_vt->copy(rig->s, to, from, bytes);

    return status == DP_OK ? rest(rig) : status;
}

/* ---- graphs ---- */

/* What a step works on, in device memory. */
typedef struct data {
    float *value, *one;     /* [BYTES / 4] what is sent: grows by one each time */
    float *received;        /* [2][BYTES / 4] */
    float *sum;             /* [8] */
    unsigned char *rows;    /* [size][16] */
    unsigned char *rows_in; /* [size * 4][16] */
    int32_t *numbers;       /* offsets [8], counts [8] */
    int32_t *counts_in;     /* [8] */
} data_t;

static dp_status_t data_open(rig_t *rig, data_t *d)
{
    const dp_device_vt_t *vt = rig->device_vt;
    void **const places[] = {(void **)&d->value, (void **)&d->one,     (void **)&d->received, (void **)&d->sum,
                             (void **)&d->rows,  (void **)&d->rows_in, (void **)&d->numbers,  (void **)&d->counts_in};
    float ones[BYTES / 4];
    int32_t numbers[16];
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && status == DP_OK; i++)
        status = vt->allocate(rig->device, 4 * BYTES, places[i]);
    for (int i = 0; i < BYTES / 4; i++)
        ones[i] = 1;
    for (int i = 0; i < 8; i++) { /* one row for each rank */
        numbers[i] = i;
        numbers[8 + i] = 1;
    }
    if (status == DP_OK)
        status = move(rig, d->one, ones, sizeof(ones));
    return status == DP_OK ? move(rig, d->numbers, numbers, sizeof(numbers)) : status;
}

static void data_close(rig_t *rig, data_t *d)
{
    void *const places[] = {d->value, d->one, d->received, d->sum, d->rows, d->rows_in, d->numbers, d->counts_in};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        rig->device_vt->release(rig->device, places[i]);
}

/* One message each way round the ring, into received[which]. */
static dp_status_t pass_on(rig_t *rig, const data_t *d, uint32_t number, int which)
{
    const dp_comm_vt_t *vt = rig->vt;
    dp_message_tag_t tag = {.number = number, .step = 7, .microbatch = (int32_t)number % 2, .bytes = BYTES};
    const void *in;
    dp_status_t status = rig->device_vt->add(rig->s, d->value, d->one, BYTES / 4, DP_F32);

    if (status == DP_OK && rig->t->size == 1)
        return rig->device_vt->copy(rig->s, d->received + which * (BYTES / 4), d->value, BYTES);
    if (status == DP_OK)
        status = vt->send(rig->to, d->value, &tag, rig->s);
    if (status == DP_OK)
        status = vt->recv(rig->from, &tag, &in, rig->s);
    if (status == DP_OK)
        status = rig->device_vt->copy(rig->s, d->received + which * (BYTES / 4), in, BYTES);
    return status == DP_OK ? vt->release(rig->from, number, rig->s) : status;
}

static dp_status_t swap_rows(rig_t *rig, const data_t *d, uint32_t number)
{
    const int32_t *counts;
    const void *rows;
    dp_status_t status = DP_OK;

    for (int p = 0; p < rig->t->size && status == DP_OK; p++)
        status = rig->device_vt->copy(rig->s, d->rows + 16 * p, d->value, 16);
    if (status == DP_OK)
        status = rig->vt->exchange(rig->x, number, d->rows, d->numbers, d->numbers + 8, &rows, &counts, rig->s);
    if (status == DP_OK)
        status = rig->device_vt->copy(rig->s, d->rows_in, rows, (size_t)rig->t->size * 4 * 16);
    if (status == DP_OK)
        status = rig->device_vt->copy(rig->s, d->counts_in, counts, (size_t)rig->t->size * sizeof(*counts));
    return status == DP_OK ? rig->vt->exchange_release(rig->x, number, rig->s) : status;
}

/* Messages, exchanges and a sum of the value. */
static dp_status_t step(rig_t *rig, const data_t *d, uint32_t messages, uint32_t exchanges)
{
    dp_status_t status = pass_on(rig, d, messages, 0);

    if (status == DP_OK)
        status = pass_on(rig, d, messages + 1, 1);
    if (status == DP_OK)
        status = swap_rows(rig, d, exchanges);
    if (status == DP_OK)
        status = swap_rows(rig, d, exchanges + 1);
    if (status == DP_OK)
        status = rig->device_vt->copy(rig->s, d->sum, d->value, 32);
    return status == DP_OK ? rig->vt->all_reduce(rig->comm, d->sum, 8, DP_F32, rig->s) : status;
}

/* After `steps` steps every value is 2 * steps (ranks begin at 100 * rank). */
static void look(rig_t *rig, const data_t *d, int steps)
{
    conform_t *t = rig->t;
    int32_t previous = (t->rank + t->size - 1) % t->size, counts[8];
    float received[2][BYTES / 4], sum[8], rows[8 * 4][4], expected;

    EXPECT_OK(t, move(rig, received, d->received, sizeof(received)));
    EXPECT_OK(t, move(rig, sum, d->sum, sizeof(sum)));
    EXPECT_OK(t, move(rig, rows, d->rows_in, (size_t)t->size * 4 * 16));
    EXPECT_OK(t, move(rig, counts, d->counts_in, (size_t)t->size * 4));
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < BYTES / 4; i++)
            EXPECT(t, received[which][i] == (float)(100 * previous + 2 * steps - 1 + which), "step %d: message %d: %g",
                   steps, which, (double)received[which][i]);
    expected = 0;
    for (int32_t p = 0; p < t->size; p++) {
        expected += (float)(100 * p + 2 * steps);
        EXPECT(t, counts[p] == 1 && rows[4 * p][0] == (float)(100 * p + 2 * steps), "step %d: %d rows of rank %d: %g",
               steps, counts[p], p, (double)rows[4 * p][0]);
    }
    EXPECT(t, sum[0] == expected && sum[7] == expected, "step %d: sum %g instead of %g", steps, (double)sum[0],
           (double)expected);
}

static dp_status_t set_value(rig_t *rig, const data_t *d)
{
    float values[BYTES / 4];

    for (int i = 0; i < BYTES / 4; i++)
        values[i] = (float)(100 * rig->t->rank);
    return move(rig, d->value, values, sizeof(values));
}

/* Steps one by one, then as a graph, with numbers that go on from there; more replays than any slot
 * count. */
static void a_graph_is_replayed(conform_t *t)
{
    dp_graph_t *graph;
    data_t d;
    rig_t rig;

    EXPECT_OK(t, rig_open(&rig, t, 2));
    EXPECT_OK(t, data_open(&rig, &d));
    EXPECT_OK(t, set_value(&rig, &d));
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT_OK(t, step(&rig, &d, 2 * i, 2 * i));
        look(&rig, &d, (int)i + 1);
    }
    EXPECT_OK(t, rig.device_vt->capture_begin(rig.s));
    EXPECT_OK(t, step(&rig, &d, 6, 6));
    EXPECT_OK(t, rig.device_vt->capture_end(rig.s, &graph));
    for (int i = 0; i < 7; i++) {
        EXPECT_OK(t, rig.device_vt->graph_launch(graph, rig.s));
        look(&rig, &d, 4 + i);
    }
    for (int i = 0; i < 5; i++) /* without the host in between */
        EXPECT_OK(t, rig.device_vt->graph_launch(graph, rig.s));
    look(&rig, &d, 15);
    /* only the device knows what is next */
    EXPECT_STATUS(t, swap_rows(&rig, &d, 8), DP_ERR_INVALID, "an exchange after a graph was launched");
    if (t->size > 1) {
        EXPECT_STATUS(t, pass_on(&rig, &d, 8, 0), DP_ERR_INVALID, "a message after a graph was launched");
        EXPECT_STATUS(t, rig.vt->all_reduce(rig.comm, d.sum, 8, DP_F32, rig.s), DP_ERR_INVALID,
                      "a sum after a graph was launched");
    }
    EXPECT_OK(t, rest(&rig));
    rig.device_vt->graph_close(graph);
    data_close(&rig, &d);
    rig_close(&rig);
}

/* One message for two slots: the second replay would use the first slot again. */
static void an_uneven_graph_is_found_out(conform_t *t)
{
    dp_graph_t *graph;
    dp_status_t status;
    data_t d;
    rig_t rig;

    EXPECT_OK(t, rig_open(&rig, t, 2));
    EXPECT_OK(t, data_open(&rig, &d));
    EXPECT_OK(t, rig.device_vt->capture_begin(rig.s));
    EXPECT_OK(t, pass_on(&rig, &d, 0, 0));
    EXPECT_OK(t, rig.device_vt->capture_end(rig.s, &graph));
    EXPECT_OK(t, rig.device_vt->graph_launch(graph, rig.s));
    EXPECT_OK(t, rest(&rig));
    /* its second message would go where our first one lies */
    EXPECT(t, conform_meet(t), "the other rank failed");
    EXPECT_OK(t, rig.device_vt->graph_launch(graph, rig.s));
    status = rest(&rig);
    EXPECT(t, status == DP_ERR_INVALID && strstr(conform_last_error(), "graph") != NULL, "%s: %s",
           dp_status_name(status), conform_last_error());
    EXPECT(t, conform_meet(t), "the other rank failed");
    conform_abort(t, DP_ERR_INVALID, "the end of the case");
    (void)rest(&rig);
    rig.device_vt->graph_close(graph);
    rig.vt->close(rig.comm);
    rig.comm = NULL;
    data_close(&rig, &d);
    rig_close(&rig);
}

/* ---- waits and links ---- */

static void a_kernel_has_a_deadline(conform_t *t)
{
    dp_message_tag_t tag = {.bytes = 8};
    const void *in;
    dp_status_t status;
    rig_t rig;

    debug_set("ipc.wait", "kernel");
    EXPECT_OK(t, rig_open(&rig, t, 2));
    if (t->rank == 1) {
        EXPECT_OK(t, rig.vt->recv(rig.from, &tag, &in, rig.s));
        usleep(300000); /* the kernel gives up before synchronize does */
        status = rest(&rig);
        EXPECT(t, status == DP_ERR_TIMEOUT && strstr(conform_last_error(), "kernel waited") != NULL, "%s: %s",
               dp_status_name(status), conform_last_error());
    } else { /* a gathering has the same limit */
        usleep((useconds_t)(conform_scaled_ns(3) / 1000));
    }
    EXPECT(t, conform_meet(t), "the other rank failed");
    conform_abort(t, DP_ERR_INVALID, "the end of the case");
    rig_close(&rig);
}

static void senseless_settings_are_refused(conform_t *t)
{
    static const char *const names[] = {"ipc.wait", "ipc.handles", "ipc.link_bytes_per_us"};
    rig_t rig;

    for (int i = 0; i < 3; i++) {
        debug_set(names[i], "nonsense");
        EXPECT_STATUS(t, rig_open(&rig, t, 2), DP_ERR_INVALID, "open with a senseless %s", names[i]);
        EXPECT(t, strstr(conform_last_error(), names[i]) != NULL, "%s", conform_last_error());
        rig_close(&rig);
        debug_set(names[i], NULL);
    }
}

static void a_device_that_exports_nothing_is_refused(conform_t *t)
{
    dp_device_vt_t closed = *t->device;
    const dp_device_vt_t *open = t->device;
    rig_t rig;

    closed.caps &= ~(uint32_t)DP_DEVICE_CAP_EXPORT;
    t->device = &closed;
    EXPECT_STATUS(t, rig_open(&rig, t, 2), DP_ERR_UNSUPPORTED, "opening on a device without DP_DEVICE_CAP_EXPORT");
    EXPECT(t, strstr(conform_last_error(), "DP_DEVICE_CAP_EXPORT") != NULL, "%s", conform_last_error());
    rig_close(&rig);
    t->device = open;
}

/* A link only slows down: what a transfer takes at least is what the link would take. */
static void a_simulated_link_takes_its_time(conform_t *t)
{
    int64_t *stamps;
    data_t d;
    rig_t rig;

    debug_set("ipc.link_bytes_per_us", "0.1"); /* 512 bytes: 5.12 ms */
    EXPECT_OK(t, rig_open(&rig, t, 2));
    EXPECT_OK(t, data_open(&rig, &d));
    EXPECT(t, (stamps = calloc(3, sizeof(*stamps))) != NULL, "no memory");
    EXPECT_OK(t, rig.device_vt->stamp(rig.s, &stamps[0]));
    EXPECT_OK(t, pass_on(&rig, &d, 0, 0));
    EXPECT_OK(t, rig.device_vt->stamp(rig.s, &stamps[1]));
    EXPECT_OK(t, swap_rows(&rig, &d, 0)); /* a row: 0.16 ms */
    EXPECT_OK(t, rig.device_vt->stamp(rig.s, &stamps[2]));
    EXPECT_OK(t, rest(&rig));
    EXPECT(t, stamps[1] - stamps[0] >= 5000000, "a message took %lld ns", (long long)(stamps[1] - stamps[0]));
    EXPECT(t, stamps[2] - stamps[1] >= 150000, "rows took %lld ns", (long long)(stamps[2] - stamps[1]));
    data_close(&rig, &d);
    rig_close(&rig);
    free(stamps);
}

/* ---- a driver that fails ---- */

/* One rank, all it can do; in a separate process, because the driver reads its orders once. 0: it
 * went well, 1: an error. */
static int try_alone(conform_t *t, const char *orders)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        dp_status_t result;
        data_t d;
        rig_t rig;

        alarm(40);
        setenv("DP_FAKE_FAIL", orders, 1);
        memset(&d, 0, sizeof(d));
        result = rig_open(&rig, t, 2);
        if (result == DP_OK)
            result = data_open(&rig, &d);
        if (result == DP_OK)
            result = step(&rig, &d, 0, 0);
        if (result == DP_OK)
            result = rest(&rig);
        if (result != DP_OK)
            conform_abort(t, result, "a call of the driver failed");
        rig.vt->close(rig.comm);
        _exit(result == DP_OK ? 0 : conform_last_error()[0] != '\0' ? 1 : 2);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Each call fails once, at each of its first times: an error with a message, or not our affair;
 * never a crash or a hang. */
static void each_failure_of_the_driver_is_an_error(conform_t *t)
{
    static const char *const calls[] = {"cuCtxGetCurrent",
                                        "cuDeviceGetAttribute",
                                        "cuMemGetAllocationGranularity",
                                        "cuModuleLoadDataEx",
                                        "cuModuleGetFunction",
                                        "cuMemHostAlloc",
                                        "cuStreamQuery",
                                        "cuMemHostGetDevicePointer",
                                        "cuCtxGetStreamPriorityRange",
                                        "cuMemCreate",
                                        "cuStreamCreateWithPriority",
                                        "cuMemAddressReserve",
                                        "cuMemMap",
                                        "cuMemSetAccess",
                                        "cuMemsetD8Async",
                                        "cuMemcpyHtoDAsync",
                                        "cuStreamIsCapturing",
                                        "cuStreamBatchMemOp",
                                        "cuLaunchKernelEx",
                                        "cuMemcpyDtoDAsync",
                                        "cuMemcpyDtoHAsync"};
    int errors = 0;

    if (!gpu_is_fake()) {
        conform_skip(t, "only the fake driver fails on demand");
        return;
    }
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        for (int time = 1; time <= 3; time++) {
            char orders[64];
            int result;

            snprintf(orders, sizeof(orders), "%s:%d", calls[i], time);
            result = try_alone(t, orders);
            EXPECT(t, result == 0 || result == 1, "%s: %d", orders, result);
            errors += result;
        }
    EXPECT(t, errors >= 30, "only %d failures were seen", errors);
    EXPECT(t, try_alone(t, "") == 0, "without any failure");
}

/* Rank 1 cannot map rank 0's memory, or cannot share its own: both hear of it. */
static void fail_to_share(conform_t *t, const char *orders, const char *method)
{
    dp_status_t status;
    rig_t rig;

    if (!gpu_is_fake()) {
        conform_skip(t, "only the fake driver fails on demand");
        return;
    }
    if (t->mode == CONFORM_THREADS)
        return; /* they share nothing through the driver */
    debug_set("ipc.handles", method);
    if (t->rank == 1)
        setenv("DP_FAKE_FAIL", orders, 1);
    status = rig_open(&rig, t, 2);
    if (t->rank == 1) {
        EXPECT(t, status < 0 && strstr(conform_last_error(), "the CUDA driver says") != NULL, "%s: %s",
               dp_status_name(status), conform_last_error());
        conform_abort(t, status, "rank 1 cannot share memory"); /* as the engine does */
    } else {
        EXPECT(t, status < 0, "rank 0 has started alone");
    }
    rig_close(&rig);
}

static void a_block_that_cannot_be_exported(conform_t *t)
{
    fail_to_share(t, "cuMemExportToShareableHandle:1", "fd");
}

static void a_block_that_cannot_be_imported(conform_t *t)
{
    fail_to_share(t, "cuMemImportFromShareableHandle:2", "fd");
}

static void a_handle_that_cannot_be_opened(conform_t *t)
{
    fail_to_share(t, "cuIpcOpenMemHandle:1", "legacy");
}

static const conform_case_t own_cases[] = {
    {CONFORM_CASE(a_graph_is_replayed, 4,
                  "A captured step with messages is replayed, and its messages keep their numbers."),
     .flags = CONFORM_ALL_SIZES},
    {CONFORM_CASE(an_uneven_graph_is_found_out, 2,
                  "A graph that does not use a channel's slots evenly is DP_ERR_INVALID.")},
    {CONFORM_CASE(a_kernel_has_a_deadline, 2, "A kernel that waits gives up at the job's limit."), .hang_seconds = 2},
    {CONFORM_CASE(senseless_settings_are_refused, 1,
                  "Senseless values of the keys ipc.* of DUALPIPE_DEBUG are refused by name.")},
    {CONFORM_CASE(a_device_that_exports_nothing_is_refused, 2,
                  "A device whose memory other processes cannot map is refused by name.")},
    {CONFORM_CASE(a_simulated_link_takes_its_time, 2, "DUALPIPE_DEBUG=ipc.link_bytes_per_us slows transfers down.")},
    {CONFORM_CASE(each_failure_of_the_driver_is_an_error, 0,
                  "Whatever call of the driver fails, open and close end with an error and leave nothing.")},
    {CONFORM_CASE(a_block_that_cannot_be_exported, 2,
                  "Memory that cannot be exported is an error with the driver's words.")},
    {CONFORM_CASE(a_block_that_cannot_be_imported, 2,
                  "Memory that cannot be imported is an error with the driver's words.")},
    {CONFORM_CASE(a_handle_that_cannot_be_opened, 2,
                  "A handle that cannot be opened is an error with the driver's words.")},
    {0},
};
static const conform_suite_t own_suite = {
    .name = "comm_cuda_ipc",
    .interface = DP_IFACE_COMM,
    .plugin = "comm_cuda_ipc",
    .table_bytes = sizeof(dp_comm_vt_t),
    .needs = CONFORM_NEEDS_DEVICE,
    .cases = own_cases,
};

/* ---- the program ---- */

#define COMMON "test_comm_cuda_ipc", "--plugin", "comm_cuda_ipc", "--device", "device_cuda"

static int run(const conform_suite_t *suite, const char *variable, const char *value, char **argv)
{
    int argc = 0, result;

    while (argv[argc] != NULL)
        argc++;
    if (variable != NULL) {
        printf("with %s=%s\n", variable, value);
        if (strchr(variable, '.') != NULL)
            debug_set(variable, value);
        else
            setenv(variable, value, 1);
    }
    result = conform_main((const conform_suite_t *[]){suite, NULL}, NULL, argc, argv);
    if (variable != NULL && strchr(variable, '.') != NULL)
        debug_set(variable, NULL);
    else if (variable != NULL)
        unsetenv(variable);
    return result;
}

int main(int argc, char **argv)
{
    char *all[] = {COMMON, NULL};
    char *kernels[] = {COMMON,
                       "messages_arrive_in_order_and_whole",
                       "a_message_of_another_step_is_refused",
                       "a_message_of_another_size_is_refused",
                       "exchanges_may_lie_unreleased",
                       "too_many_rows_are_an_overflow",
                       "sums_follow_each_other",
                       "all_traffic_at_once",
                       "end_of_the_job_ends_every_wait",
                       "a_peer_that_never_comes_is_a_timeout",
                       "killed_while_receiving",
                       NULL};
    char *devices[] = {COMMON, "a_graph_is_replayed", NULL};
    char *handles[] = {COMMON,
                       "--mode",
                       "processes",
                       "credits_are_the_slots",
                       "exchanges_may_lie_unreleased",
                       "killed_while_sending",
                       "a_group_leaves_nothing_behind",
                       NULL};

    gpu_or_skip("test_comm_cuda_ipc");
    if (argc > 1) /* by hand: cases, or another device */
        return conform_main((const conform_suite_t *[]){&conform_comm, &own_suite, NULL}, "comm_cuda_ipc", argc, argv);
    if (gpu_is_fake() && (run(&own_suite, "DP_FAKE_DEVICES", "2", devices) != 0))
        return 1;
    return run(&own_suite, NULL, NULL, all) | run(&conform_comm, NULL, NULL, all) |
           (gpu_is_hurried() ? 0 : run(&conform_comm, "ipc.wait", "kernel", kernels)) |
           run(&conform_comm, "ipc.handles", "legacy", handles);
}
