/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_ends.c: dp.comm/1: how instances begin, what steps may not do, deadlines, and how everything
 * ends. */
#include "comm_rig.h"
#include "guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- open ---- */

static void senseless_configs_are_refused(conform_t *t)
{
    static const char *const what[] = {"struct_size 0",
                                       "a struct_size that ends before reduce_bytes",
                                       "no name",
                                       "rank -1",
                                       "a rank behind the last one",
                                       "no ranks",
                                       "no world_ranks",
                                       "no device"};
    dp_comm_config_t config;
    dp_comm_t *none = NULL;
    int64_t before;
    rig_t rig;

    if (!conform_rig_device(&rig, t))
        return;
    for (int i = 0; i < 8; i++) {
        config = conform_rig_config(&rig, "senseless");
        if (i < 2)
            config.struct_size = i == 0 ? 0 : (uint32_t)(DP_COMM_CONFIG_MIN - 1);
        else if (i == 2)
            config.name = NULL;
        else if (i < 5)
            config.rank = i == 3 ? -1 : config.nranks;
        else if (i == 5)
            config.nranks = 0;
        else if (i == 6)
            config.world_ranks = NULL;
        else
            config.device = NULL;
        before = conform_host_blocks(t->host);
        EXPECT_STATUS(t, rig.vt->open(t->host, &config, &none), DP_ERR_INVALID, "open with %s", what[i]);
        EXPECT(t, none == NULL, "open with %s failed and has written its output", what[i]);
        EXPECT(t, conform_host_blocks(t->host) == before, "open with %s failed and left memory behind", what[i]);
    }
    rig.vt->close(NULL);
    conform_rig_close_device(&rig);
}

/* Structs of a newer host are longer: taken when nothing is asked for that nobody knows yet, else
 * refused. */
static void longer_configs_are_taken(conform_t *t)
{
    struct {
        dp_comm_config_t known;
        unsigned char more[64];
    } open;
    struct {
        dp_channel_config_t known;
        unsigned char more[64];
    } channel;
    struct {
        dp_exchange_config_t known;
        unsigned char more[64];
    } exchange;
    dp_channel_end_t *end;
    dp_exchange_t *x;
    dp_status_t status;
    double one = 1, *there;
    rig_t rig;

    if (!conform_rig_device(&rig, t) || (there = conform_room(&rig, sizeof(one))) == NULL)
        return;
    memset(&open, 0, sizeof(open));
    memset(&channel, 0, sizeof(channel));
    memset(&exchange, 0, sizeof(exchange));
    open.known = conform_rig_config(&rig, "longer");
    open.known.struct_size = sizeof(open);
    open.more[63] = 1;
    EXPECT_STATUS(t, conform_rig_join(&rig, &open.known), DP_ERR_UNSUPPORTED,
                  "open with a config that asks for what is not known");
    open.more[63] = 0;
    EXPECT_STATUS(t, conform_rig_join(&rig, &open.known), DP_OK, "open with a config that is 64 bytes longer");
    channel.known = (dp_channel_config_t){.struct_size = sizeof(channel),
                                          .id = 1,
                                          .peer = 1 - t->rank,
                                          .sender = t->rank == 0,
                                          .slots = 2,
                                          .slot_bytes = 64,
                                          .label = "longer"};
    channel.more[63] = 1;
    EXPECT_STATUS(t, rig.vt->channel_open(rig.comm, &channel.known, &end), DP_ERR_UNSUPPORTED,
                  "channel_open with a config that asks for what is not known");
    channel.more[63] = 0;
    EXPECT_STATUS(t, rig.vt->channel_open(rig.comm, &channel.known, &end), DP_OK,
                  "channel_open with a config that is 64 bytes longer");
    exchange.known =
        (dp_exchange_config_t){.struct_size = sizeof(exchange), .id = 1, .row_bytes = 16, .capacity_rows = 2};
    exchange.more[0] = 1;
    EXPECT_STATUS(t, rig.vt->exchange_open(rig.comm, &exchange.known, &x), DP_ERR_UNSUPPORTED,
                  "exchange_open with a config that asks for what is not known");
    exchange.more[0] = 0;
    status = rig.vt->exchange_open(rig.comm, &exchange.known, &x);
    EXPECT(t, status == DP_OK || status == DP_ERR_UNSUPPORTED,
           "exchange_open with a config that is 64 bytes longer returned %s: %s", dp_status_name(status),
           conform_last_error());
    channel.known.struct_size = 0;
    EXPECT_STATUS(t, rig.vt->channel_open(rig.comm, &channel.known, &end), DP_ERR_INVALID,
                  "channel_open with struct_size 0");
    exchange.known.struct_size = 0;
    if (status == DP_OK)
        EXPECT_STATUS(t, rig.vt->exchange_open(rig.comm, &exchange.known, &x), DP_ERR_INVALID,
                      "exchange_open with struct_size 0");
    EXPECT_OK(t, rig.vt->start(rig.comm));
    EXPECT_OK(t, conform_move(&rig, there, &one, sizeof(one)));
    EXPECT_OK(t, rig.vt->all_reduce(rig.comm, there, 1, DP_F64, rig.streams[DP_LANE_REDUCE]));
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_OK(t, conform_move(&rig, &one, there, sizeof(one)));
    EXPECT(t, one == 2, "ones of two ranks were summed to %g", one);
    conform_rig_close(&rig);
}

/* Rank 1 never opens, and the job ends: open, or else start, has to end with it and say why. */
static void the_end_of_the_job_ends_open(conform_t *t)
{
    int64_t begin = t->host->now_ns(t->host);
    dp_status_t status;
    rig_t rig;

    if (!conform_rig_device(&rig, t))
        return;
    if (t->rank == 1) {
        conform_nap_ms(100);
        conform_abort(t, DP_ERR_INTERRUPTED, "somebody had enough");
        conform_rig_close_device(&rig);
        return;
    }
    conform_forget_error();
    status = conform_rig_open_comm(&rig, "alone", t->rank, t->size, NULL, 0);
    if (status == DP_OK)
        status = rig.vt->start(rig.comm);
    EXPECT(t, status == DP_ERR_INTERRUPTED,
           "open and start in a job that ended with DP_ERR_INTERRUPTED have to return that, not %s: %s",
           dp_status_name(status), conform_last_error());
    EXPECT(t, strstr(conform_last_error(), "somebody had enough") != NULL,
           "the message has to be the job's first cause (\"somebody had enough\"), it is: %s", conform_last_error());
    EXPECT(t, t->host->now_ns(t->host) - begin < conform_scaled_ns(5), "the end took more than five seconds");
    rig.vt->close(rig.comm);
    conform_rig_close_device(&rig);
}

/* ---- what steps may not do ---- */

static int64_t blocks_given(const conform_t *t)
{
    return conform_host_given(t->host) + conform_rig_blocks_given();
}

static void steps_allocate_nothing(conform_t *t)
{
    enum { BYTES = 300, STEPS = 12 };
    int64_t before, after, calls;
    const char *name;
    dp_exchange_t *x = NULL;
    line_t to, from;
    rows_t out, in;
    double *sums;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "steps", 0) || !conform_rows_open(&rig, 64, &out) ||
        (sums = conform_room(&rig, STEPS * 1000 * sizeof(double))) == NULL)
        return;
    EXPECT_OK(t, conform_line_open(&rig, 0, 1 - t->rank, true, 2, BYTES, &to));
    EXPECT_OK(t, conform_line_open(&rig, 0, 1 - t->rank, false, 2, BYTES, &from));
    if (conform_rig_exchange(&rig, 0, 64, 2, &x) == DP_ERR_UNSUPPORTED)
        x = NULL;
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 0 || t->mode == CONFORM_PROCESSES)
        (void)conform_watch_module((const void *)t->comm->send);
    EXPECT(t, conform_meet(t), "the other rank failed");
    before = blocks_given(t);
    if (t->rank == 0 || t->mode == CONFORM_PROCESSES)
        conform_watch_begin();
    EXPECT(t, conform_meet(t), "the other rank failed");
    for (uint32_t i = 0; i < STEPS; i++) {
        dp_stream_t *s = rig.streams[DP_LANE_ALL_TO_ALL];

        EXPECT_OK(t, conform_send_message(&to, i, conform_size_of_message(i, BYTES)));
        EXPECT_OK(t, conform_receive_message(&from, i, conform_size_of_message(i, BYTES)));
        if (x != NULL) {
            EXPECT_OK(t, conform_exchange_rows(&rig, x, &out, i, s, &in));
            EXPECT_OK(t, conform_look_at_rows(&rig, &in, s));
            EXPECT_OK(t, rig.vt->exchange_release(x, i, s));
        }
        EXPECT_OK(t, rig.vt->all_reduce(rig.comm, sums + (size_t)i * 1000, 1000, DP_F64, rig.streams[DP_LANE_REDUCE]));
    }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT(t, conform_meet(t), "the other rank failed");
    after = blocks_given(t);
    calls = conform_watch_end(&name);
    EXPECT(t, after == before,
           "%lld blocks were allocated from the host or the device in %d steps: nothing may be, from start to close",
           (long long)(after - before), STEPS);
    EXPECT(t, calls == 0,
           "%s and its kin were called %lld times in %d steps: nothing may be allocated from start to close", name,
           (long long)calls, STEPS);
    EXPECT(t, conform_meet(t), "the other rank failed");
    conform_rig_close(&rig);
}

/* ---- deadlines ---- */

/* What waits on rank 0 for rank 1, each on a separate stream. */
typedef enum trap { TRAP_RECV, TRAP_SEND, TRAP_EXCHANGE, TRAP_SUM, TRAPS } trap_t;
static const char *const traps[TRAPS] = {"a receive", "a send", "an exchange", "a sum"};

typedef struct waits {
    rig_t rig;
    line_t lines[2]; /* by trap */
    dp_exchange_t *x;
    rows_t out, in;
    double *sum;
    dp_stream_t *on[TRAPS];
} waits_t;

static bool waits_open(waits_t *w, conform_t *t)
{
    rig_t *rig = &w->rig;
    dp_status_t status;

    memset(w, 0, sizeof(*w));
    if (!conform_rig_open(rig, t, "waits", 0) || !conform_rows_open(rig, 16, &w->out) ||
        (w->sum = conform_room(rig, sizeof(double))) == NULL)
        return false;
    /* rank 0 receives */
    status = conform_line_open(rig, 0, 1 - t->rank, t->rank == 1, 1, 8, &w->lines[TRAP_RECV]);
    if (status == DP_OK)
        status = conform_line_open(rig, 1, 1 - t->rank, t->rank == 0, 1, 8, &w->lines[TRAP_SEND]);
    if (status == DP_OK)
        status = conform_rig_exchange(rig, 0, 16, 2, &w->x);
    if (status == DP_ERR_UNSUPPORTED) {
        w->x = NULL;
        status = DP_OK;
    }
    if (status == DP_OK)
        status = rig->vt->start(rig->comm);
    if (status != DP_OK)
        conform_fail(t, __FILE__, __LINE__, "two channels, an exchange and start returned %s: %s",
                     dp_status_name(status), conform_last_error());
    w->on[TRAP_RECV] = w->lines[TRAP_RECV].way;
    w->on[TRAP_SEND] = w->lines[TRAP_SEND].way;
    w->on[TRAP_EXCHANGE] = rig->streams[DP_LANE_ALL_TO_ALL];
    w->on[TRAP_SUM] = rig->streams[DP_LANE_REDUCE];
    return status == DP_OK;
}

/* Enqueues what waits for the other rank: a receive, one message more than there are slots, an
 * exchange, a sum. A backend that buffers may let a send go; only one-sided ones have a known
 * number of credits. */
static dp_status_t wait_for_peer(waits_t *w, trap_t trap)
{
    rig_t *rig = &w->rig;
    line_t *line = &w->lines[trap == TRAP_SEND];
    size_t bytes = 8;
    dp_status_t status;

    if (trap == TRAP_RECV)
        return conform_receive_bundle(&line, 1, 0, &bytes);
    if (trap == TRAP_SEND) {
        status = conform_send_message(line, 0, 8);
        return status == DP_OK && !rig->matched ? conform_send_message(line, 1, 8) : status;
    }
    if (trap == TRAP_EXCHANGE)
        return w->x != NULL ? conform_exchange_rows(rig, w->x, &w->out, 0, w->on[trap], &w->in) : DP_OK;
    return rig->vt->all_reduce(rig->comm, w->sum, 1, DP_F64, w->on[trap]);
}

static bool can_wait(const waits_t *w, trap_t trap)
{
    return !(trap == TRAP_SEND && w->rig.matched) && !(trap == TRAP_EXCHANGE && w->x == NULL);
}

/* Rank 1 comes after two seconds; the job's own limit is twenty. */
static void a_late_peer_is_waited_for(conform_t *t)
{
    waits_t w;

    if (!waits_open(&w, t))
        return;
    if (t->rank == 1)
        conform_nap_ms((int)(conform_scaled_ns(2) / 1000000));
    for (int trap = 0; trap < TRAPS && t->rank == 0; trap++)
        EXPECT_OK(t, wait_for_peer(&w, (trap_t)trap));
    if (t->rank == 1) {
        EXPECT_OK(t, conform_send_message(&w.lines[TRAP_RECV], 0, 8));
        EXPECT_OK(t, conform_receive_message(&w.lines[TRAP_SEND], 0, 8));
        if (!w.rig.matched)
            EXPECT_OK(t, conform_receive_message(&w.lines[TRAP_SEND], 1, 8));
        EXPECT_OK(t, wait_for_peer(&w, TRAP_EXCHANGE));
        EXPECT_OK(t, wait_for_peer(&w, TRAP_SUM));
    }
    for (int trap = 0; trap < TRAPS; trap++)
        EXPECT_STATUS(t, w.rig.device_vt->synchronize(w.on[trap], -1), DP_OK,
                      "%s whose peer came two seconds later, in a job that waits for twenty,", traps[trap]);
    EXPECT_OK(t, conform_synchronize_all(&w.rig));
    EXPECT(t, w.rig.wrong == 0, "a message of a late peer is not the one that was sent");
    conform_rig_close(&w.rig);
}

/* The job's limit is one second and rank 1 does nothing: every wait has to end by itself and say
 * for whom it waited. Where the streams of the device wait on their own, it is the device that sees
 * the limit pass. */
static void a_peer_that_never_comes_is_a_timeout(conform_t *t)
{
    const int64_t patience = conform_scaled_ns(t->hang_seconds + 3);
    waits_t w;
    bool host_runs;

    if (!waits_open(&w, t))
        return;
    host_runs = (w.rig.device_vt->caps & DP_DEVICE_CAP_LAUNCH) != 0;
    if (t->rank == 1) { /* alive, but in no wait, which would end as well */
        while (!conform_raised(t, 0) && dp_group_health(t->group) == DP_OK)
            conform_nap_ms(5);
    } else {
        for (int trap = 0; trap < TRAPS; trap++)
            if (can_wait(&w, (trap_t)trap))
                EXPECT_OK(t, wait_for_peer(&w, (trap_t)trap));
        for (int trap = 0; trap < TRAPS; trap++) {
            if (!can_wait(&w, (trap_t)trap))
                continue;
            EXPECT_STATUS(t, w.rig.device_vt->synchronize(w.on[trap], host_runs ? patience : -1), DP_ERR_TIMEOUT,
                          "%s whose peer never comes, in a job that waits for %g s,", traps[trap], t->hang_seconds);
            EXPECT(
                t, !host_runs || strstr(conform_last_error(), "rank 1") != NULL,
                "%s whose peer never comes has to end after the job's limit (%g s) with a message that names rank 1; "
                "three seconds later there is: %s",
                traps[trap], t->hang_seconds, conform_last_error());
        }
        if (host_runs)
            EXPECT_STATUS(t, w.rig.device_vt->query_error(w.rig.device), DP_ERR_TIMEOUT,
                          "query_error of the device after a wait ended at the job's limit");
        conform_raise(t, 0);
    }
    conform_abort(t, DP_ERR_TIMEOUT, "rank 1 never came"); /* as an engine does */
    conform_rig_close(&w.rig);
}

/* ---- the end ---- */

static void end_of_the_job_ends_every_wait(conform_t *t)
{
    int64_t begin;
    waits_t w;

    if (!waits_open(&w, t))
        return;
    for (int trap = 0; trap < TRAPS && t->rank == 0; trap++)
        if (can_wait(&w, (trap_t)trap))
            EXPECT_OK(t, wait_for_peer(&w, (trap_t)trap));
    for (int trap = 0; trap < TRAPS && t->rank == 0; trap++)
        if (can_wait(&w, (trap_t)trap))
            EXPECT_STATUS(t, w.rig.device_vt->synchronize(w.on[trap], 10000000), DP_ERR_TIMEOUT,
                          "%s whose peer does nothing, for 10 ms,", traps[trap]);
    EXPECT(t, conform_meet(t), "the other rank failed");
    begin = t->host->now_ns(t->host);
    if (t->rank == 1)
        conform_abort(t, DP_ERR_INTERRUPTED, "somebody had enough");
    for (int trap = 0; trap < TRAPS && t->rank == 0; trap++) {
        if (!can_wait(&w, (trap_t)trap))
            continue;
        EXPECT_STATUS(t, w.rig.device_vt->synchronize(w.on[trap], conform_scaled_ns(5)), DP_ERR_INTERRUPTED,
                      "%s when the job ended with DP_ERR_INTERRUPTED", traps[trap]);
        EXPECT(t, strstr(conform_last_error(), "somebody had enough") != NULL,
               "the message has to be the job's first cause (\"somebody had enough\"), it is: %s",
               conform_last_error());
    }
    conform_rig_close(&w.rig);
    EXPECT(t, t->host->now_ns(t->host) - begin < conform_scaled_ns(5), "the end took more than five seconds");
}

/* All ranks have got here. A barrier cannot tell: a rank that dies behind it may take the news of
 * its end along. */
static void await_all(conform_t *t)
{
    conform_raise(t, t->rank);
    for (int32_t r = 0; r < t->size; r++)
        while (!conform_raised(t, r) && !conform_failed(t))
            conform_nap_ms(1);
}

static void *die_soon(void *arg)
{
    usleep(*(unsigned *)arg);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* One sends large messages to the other until rank 1 dies in the middle of one: what has arrived is
 * whole, nothing hangs. */
static void killed_among_messages(conform_t *t, bool sender_dies)
{
    enum { BYTES = 1 << 20 };
    unsigned delay = 3000 + (unsigned)(getpid() % 13) * 700;
    dp_status_t status = DP_OK;
    pthread_t thread;
    int64_t begin;
    line_t line;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "doomed", 0))
        return;
    EXPECT_OK(t, conform_line_open(&rig, 0, 1 - t->rank, (t->rank == 1) == sender_dies, 2, BYTES, &line));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    await_all(t);
    begin = t->host->now_ns(t->host);
    if (t->rank == 1)
        EXPECT(t, pthread_create(&thread, NULL, die_soon, &delay) == 0, "no thread");
    for (uint32_t i = 0; i < 1000000 && status == DP_OK; i++) {
        conform_forget_error();
        status = line.sends ? conform_send_message(&line, i, BYTES) : conform_receive_message(&line, i, BYTES);
        if (status == DP_OK && i % 4 == 3)
            status = conform_synchronize_all(&rig);
    }
    EXPECT(t, status == DP_ERR_PEER, "messages with a rank that was killed have to end with DP_ERR_PEER, not %s: %s",
           dp_status_name(status), conform_last_error());
    EXPECT(t, strstr(conform_last_error(), "rank 1") != NULL, "the message has to name the dead rank 1, it is: %s",
           conform_last_error());
    (void)conform_synchronize_all(&rig);
    EXPECT(t, rig.wrong == 0, "%llu bytes of messages that had arrived are wrong", (unsigned long long)rig.wrong);
    conform_rig_close(&rig);
    EXPECT(t, t->host->now_ns(t->host) - begin < conform_scaled_ns(10), "the end took more than ten seconds");
}

static void killed_while_sending(conform_t *t)
{
    killed_among_messages(t, true);
}

static void killed_while_receiving(conform_t *t)
{
    killed_among_messages(t, false);
}

/* Stops this process; a moment later its child sends it that signal. */
static void stand_still_until(int number)
{
    const struct timespec moment = {.tv_nsec = 400000000};
    pid_t self = getpid();

    if (fork() == 0) {
        nanosleep(&moment, NULL);
        kill(self, number);
        _exit(0);
    }
    raise(SIGSTOP);
}

/* A large message is in the middle of its way to rank 1, which stands still, and small ones of
 * other channels wait behind it, when the job ends: by `number` to rank 1, or, where that lives on,
 * by rank 0. */
static void ended_with_messages_in_line(conform_t *t, int number, dp_status_t due)
{
    enum { LARGE = 16 << 20, SMALL = 8, LINES = 3 };
    static const dp_lane_t lanes[LINES] = {DP_LANE_P2P, DP_LANE_REDUCE, DP_LANE_ALL_TO_ALL};
    dp_status_t status = DP_OK;
    line_t lines[LINES];
    int64_t begin;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "doomed", 0))
        return;
    if (rig.matched && number != SIGKILL) {
        conform_skip(t, "what cannot be taken back is left to the end of the process, and its launcher may mind");
        conform_rig_close(&rig);
        return;
    }
    for (uint32_t i = 0; i < LINES; i++)
        EXPECT_OK(t, conform_line_open(&rig, i, 1 - t->rank, t->rank == 0, 1, i == 0 ? LARGE : SMALL, &lines[i]));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    await_all(t);
    begin = t->host->now_ns(t->host);
    if (t->rank == 1 && t->mode == CONFORM_PROCESSES)
        stand_still_until(number);
    for (uint32_t n = 0; t->rank == 0 && n < 2 && status == DP_OK; n++) /* there is one slot */
        for (int i = 0; i < LINES && status == DP_OK; i++) {
            dp_message_tag_t tag = conform_tag_of(n, lines[i].bytes);

            status = rig.vt->send(lines[i].end, lines[i].buffers[0], &tag,
                                  rig.matched ? lines[i].way : rig.streams[lanes[i]]);
            if (n == 0 && i == 0)
                usleep(100000);
        }
    if (t->rank == 0 && number == SIGCONT) {
        usleep(100000);
        conform_abort(t, due, "somebody had enough");
    }
    if (t->rank == 0 && status == DP_OK)
        status = conform_synchronize_all(&rig);
    EXPECT(t, t->rank != 0 || status == due, "messages have to end with %s, not %s: %s", dp_status_name(due),
           dp_status_name(status), conform_last_error());
    (void)conform_synchronize_all(&rig);
    conform_rig_close(&rig);
    EXPECT(t, t->host->now_ns(t->host) - begin < conform_scaled_ns(10), "the end took more than ten seconds");
}

static void closed_with_messages_in_line(conform_t *t)
{
    ended_with_messages_in_line(t, SIGCONT, DP_ERR_INTERRUPTED);
}

static void killed_with_messages_in_line(conform_t *t)
{
    ended_with_messages_in_line(t, SIGKILL, DP_ERR_PEER);
}

static void killed_among_sums_and_exchanges(conform_t *t)
{
    enum { COUNT = 100000 };
    unsigned delay = 3000 + (unsigned)(getpid() % 11) * 900;
    dp_status_t status = DP_OK;
    dp_exchange_t *x = NULL;
    pthread_t thread;
    rows_t out, in;
    double *data;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "doomed", 0) || !conform_rows_open(&rig, 1 << 16, &out) ||
        (data = conform_room(&rig, COUNT * sizeof(double))) == NULL)
        return;
    if (conform_rig_exchange(&rig, 0, 1 << 16, 2, &x) == DP_ERR_UNSUPPORTED)
        x = NULL;
    EXPECT_OK(t, rig.vt->start(rig.comm));
    await_all(t);
    if (t->rank == 0)
        EXPECT(t, pthread_create(&thread, NULL, die_soon, &delay) == 0, "no thread");
    for (uint32_t i = 0; i < 1000000 && status == DP_OK; i++) {
        dp_stream_t *s = rig.streams[DP_LANE_ALL_TO_ALL];

        conform_forget_error();
        status = rig.vt->all_reduce(rig.comm, data, COUNT, DP_F64, rig.streams[DP_LANE_REDUCE]);
        if (status == DP_OK && x != NULL)
            status = conform_exchange_rows(&rig, x, &out, i, s, &in);
        if (status == DP_OK && x != NULL)
            status = rig.vt->exchange_release(x, i, s);
        if (status == DP_OK && i % 4 == 3)
            status = conform_synchronize_all(&rig);
    }
    EXPECT(t, status == DP_ERR_PEER,
           "sums and exchanges with a rank that was killed have to end with DP_ERR_PEER, not %s: %s",
           dp_status_name(status), conform_last_error());
    (void)conform_synchronize_all(&rig);
    conform_rig_close(&rig);
}

/* ---- what is left ---- */

static int shared_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], mode[8];
    int count = 0;

    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL)
        count += sscanf(line, "%*s %7s", mode) == 1 && mode[3] == 's';
    if (maps != NULL)
        fclose(maps);
    return count;
}

static bool anybody_maps(const char *name)
{
    char line[512];
    bool found = false;
    glob_t maps;

    if (glob("/proc/[0-9]*/maps", GLOB_NOSORT, NULL, &maps) != 0)
        return false;
    for (size_t i = 0; i < maps.gl_pathc && !found; i++) {
        FILE *file = fopen(maps.gl_pathv[i], "r");

        while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
            found = strstr(line, "/dev/shm/") != NULL && strstr(line, name) != NULL;
        if (file != NULL)
            fclose(file);
    }
    globfree(&maps);
    return found;
}

/* Names of this user in /dev/shm that no process has mapped: those of other jobs come and go. */
static int idle_names(void)
{
    DIR *folder = opendir("/dev/shm");
    struct dirent *entry;
    struct stat about;
    int count = 0;

    while (folder != NULL && (entry = readdir(folder)) != NULL)
        count += fstatat(dirfd(folder), entry->d_name, &about, 0) == 0 && S_ISREG(about.st_mode) &&
                 about.st_uid == getuid() && !anybody_maps(entry->d_name);
    if (folder != NULL)
        closedir(folder);
    return count;
}

static bool more_idle_names(int than)
{
    int looks = 0;

    while (idle_names() > than && looks < 50) { /* another job makes a name before it maps it */
        conform_nap_ms(20);
        looks++;
    }
    return looks == 50;
}

static void use_and_close(conform_t *t, int round)
{
    double sum = 1, *there;
    dp_exchange_t *x;
    char name[24];
    line_t line;
    rig_t rig;

    snprintf(name, sizeof(name), "round%d", round);
    if (!conform_rig_open(&rig, t, name, 0) || (there = conform_room(&rig, sizeof(sum))) == NULL)
        return;
    EXPECT_OK(t, conform_move(&rig, there, &sum, sizeof(sum)));
    EXPECT_OK(t, conform_line_open(&rig, 0, 1 - t->rank, t->rank == 0, 2, 64, &line));
    (void)conform_rig_exchange(&rig, 0, 64, 2, &x);
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 0)
        EXPECT_OK(t, conform_send_message(&line, 0, 64));
    else
        EXPECT_OK(t, conform_receive_message(&line, 0, 64));
    EXPECT_OK(t, rig.vt->all_reduce(rig.comm, there, 1, DP_F64, rig.streams[DP_LANE_REDUCE]));
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_OK(t, conform_move(&rig, &sum, there, sizeof(sum)));
    EXPECT(t, rig.wrong == 0 && sum == 2, "a message has %llu wrong bytes, the sum of two ones is %g",
           (unsigned long long)rig.wrong, sum);
    rig.vt->close(rig.comm);
    rig.vt->close(NULL);
    EXPECT(t, conform_rig_blocks(&rig) == 0, "%lld blocks of device memory are left after close",
           (long long)conform_rig_blocks(&rig));
    conform_rig_close_device(&rig);
}

/* Ranks as threads hold things together: one of them counts while the others wait. */
static void a_group_leaves_nothing_behind(conform_t *t)
{
    bool counts = t->rank == 0 || t->mode == CONFORM_PROCESSES;
    conform_held_t before = {0, 0, 0}, after;
    int mapped = 0, names = 0;

    for (int round = 0; round < 4; round++) { /* the first one is for what libraries start once */
        use_and_close(t, round);
        EXPECT(t, conform_meet(t), "a rank failed");
        if (round == 0)
            names = idle_names();
        EXPECT(t, conform_meet(t), "a rank failed"); /* looking for names takes a descriptor */
        if (round == 0 && counts) {
            before = conform_held(t);
            mapped = shared_mappings();
        }
        EXPECT(t, conform_meet(t), "a rank failed");
    }
    after = counts ? conform_held(t) : before;
    EXPECT(t, conform_meet(t), "a rank failed");
    EXPECT(t, after.blocks == before.blocks && after.blocks == 0,
           "%lld blocks of the host's memory are left after close", (long long)after.blocks);
    EXPECT(t, after.threads == before.threads, "%d threads after one use, %d after four more closes", before.threads,
           after.threads);
    EXPECT(t, after.descriptors == before.descriptors, "%d descriptors after one use, %d after three more",
           before.descriptors, after.descriptors);
    EXPECT(t, !counts || shared_mappings() == mapped, "%d shared mappings after one use, %d after three more", mapped,
           shared_mappings());
    EXPECT(t, !more_idle_names(names), "names were left in /dev/shm");
    EXPECT(t, conform_meet(t), "a rank failed");
}

const conform_case_t conform_comm_ends[] = {
    {CONFORM_CASE(senseless_configs_are_refused, 1,
                  "open with a struct_size too small, no name, no place among the ranks or no device: DP_ERR_INVALID, "
                  "with a message; close(NULL) is legal.")},
    {CONFORM_CASE(longer_configs_are_taken, 2,
                  "Configs of a newer host are taken while members that nobody knows yet are 0, else "
                  "DP_ERR_UNSUPPORTED; struct_size 0 is DP_ERR_INVALID.")},
    {CONFORM_CASE(the_end_of_the_job_ends_open, 2,
                  "open waits for its peers no longer than the job lives, and gives the job's cause."),
     .flags = CONFORM_ABSENT},
    {CONFORM_CASE(steps_allocate_nothing, 2, "Between start and close nothing is allocated, by whatever means.")},
    {CONFORM_CASE(a_late_peer_is_waited_for, 2,
                  "A peer that comes two seconds late is waited for: the only deadline is the job's.")},
    {CONFORM_CASE(a_peer_that_never_comes_is_a_timeout, 2,
                  "A peer that never comes is DP_ERR_TIMEOUT at the job's limit, with a message that names it."),
     .hang_seconds = 1},
    {CONFORM_CASE(end_of_the_job_ends_every_wait, 2, "When the job ends every wait ends at once with the cause.")},
    {CONFORM_CASE(
        closed_with_messages_in_line, 2,
        "The job ends while a large message and others behind it are on their way to a rank that stands still: "
        "close returns, and all live on.")},
    {CONFORM_CASE(killed_while_sending, 2,
                  "A rank killed while it sends: DP_ERR_PEER names it, and what had arrived is whole."),
     .victim = 1, .flags = CONFORM_VICTIM},
    {CONFORM_CASE(killed_while_receiving, 2, "A rank killed while it receives: DP_ERR_PEER names it."), .victim = 1,
     .flags = CONFORM_VICTIM},
    {CONFORM_CASE(killed_with_messages_in_line, 2,
                  "The same when that rank is killed: DP_ERR_PEER, and who sent to it closes and lives on."),
     .victim = 1, .flags = CONFORM_VICTIM},
    {CONFORM_CASE(killed_among_sums_and_exchanges, 3,
                  "A rank killed among sums and exchanges: DP_ERR_PEER on all others."),
     .flags = CONFORM_VICTIM},
    {CONFORM_CASE(a_group_leaves_nothing_behind, 2,
                  "After close no thread, descriptor, mapping, block of host or device memory or name is left.")},
    {0},
};
