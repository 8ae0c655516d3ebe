/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_exchanges.c: dp.comm/1: all-to-all-v. A backend may leave exchanges out; its cases are
 * skipped then. */
#include "comm_rig.h"
#include "guard.h"

#include <string.h>

#define EXPECT_RIGHT(t, rig, what)                                                                                     \
    EXPECT(t, (rig).wrong == 0, "%s: %llu counts or bytes are not those that were sent", (what),                       \
           (unsigned long long)(rig).wrong)

/* Opens an exchange; leaves the case when the backend has none. */
#define OPEN_EXCHANGE(t, rig, id, row_bytes, slots, x)                                                                 \
    do {                                                                                                               \
        dp_status_t open_status = conform_rig_exchange(&(rig), id, row_bytes, slots, x);                               \
        if (open_status == DP_ERR_UNSUPPORTED) {                                                                       \
            conform_skip(t, "the backend has no exchanges");                                                           \
            conform_rig_close(&(rig));                                                                                 \
            return;                                                                                                    \
        }                                                                                                              \
        EXPECT(t, open_status == DP_OK, "exchange_open returned %s: %s", dp_status_name(open_status),                  \
               conform_last_error());                                                                                  \
    } while (0)

/* The same for one that can be posted. */
#define OPEN_POSTED(t, rig, id, row_bytes, slots, x)                                                                   \
    do {                                                                                                               \
        OPEN_EXCHANGE(t, rig, id, row_bytes, slots, x);                                                                \
        if (!DP_HAS((rig).vt, dp_comm_vt_t, exchange_post)) {                                                          \
            conform_skip(t, "the backend posts no exchanges");                                                         \
            conform_rig_close(&(rig));                                                                                 \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

static void exchanges_bring_every_row(conform_t *t)
{
    enum { ROUNDS = 24 };
    static const size_t row_bytes[] = {16, 48, 1024};
    dp_exchange_t *xs[3];
    rows_t out, in;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "experts", 0) || !conform_rows_open(&rig, 1024, &out))
        return;
    for (uint32_t i = 0; i < 3; i++)
        OPEN_EXCHANGE(t, rig, i, row_bytes[i], i == 1 ? 0 : i + 1, &xs[i]);
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t number = 0; number < ROUNDS; number++)
        for (uint32_t i = 0; i < 3; i++) {
            dp_stream_t *s = rig.streams[DP_LANE_ALL_TO_ALL];

            out.row_bytes = row_bytes[i];
            EXPECT_OK(t, conform_exchange_rows(&rig, xs[i], &out, number, s, &in));
            EXPECT_OK(t, conform_look_at_rows(&rig, &in, s));
            EXPECT_OK(t, rig.vt->exchange_release(xs[i], number, s));
        }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "exchanges");
    conform_rig_close(&rig);
}

static void exchanges_may_lie_unreleased(conform_t *t)
{
    enum { SLOTS = 3 };
    dp_stream_t *s;
    dp_exchange_t *x;
    rows_t out, in[SLOTS];
    rig_t rig;

    if (!conform_rig_open(&rig, t, "held", 0) || !conform_rows_open(&rig, 32, &out))
        return;
    s = rig.streams[DP_LANE_ALL_TO_ALL];
    OPEN_EXCHANGE(t, rig, 9, 32, SLOTS, &x);
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < SLOTS; i++)
            EXPECT_OK(t, conform_exchange_rows(&rig, x, &out, round * SLOTS + i, s, &in[i]));
        for (uint32_t i = 0; i < SLOTS; i++)
            EXPECT_OK(t, conform_look_at_rows(&rig, &in[i], s));
        for (uint32_t i = 0; i < SLOTS; i++)
            EXPECT_OK(t, rig.vt->exchange_release(x, round * SLOTS + i, s));
    }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "as many exchanges as there are slots, received and not released");
    EXPECT_STATUS(t, rig.vt->exchange_release(x, 4 * SLOTS, s), DP_ERR_INVALID, "a release of an exchange never made");
    conform_rig_close(&rig);
}

/* Rank 0 reads slowly on another stream, and releases behind that; the others are ahead of it. */
static void rows_are_kept_until_their_release_runs(conform_t *t)
{
    enum { SLOTS = 2, ROUNDS = 5 };
    dp_stream_t *s, *reader;
    dp_event_t *there[SLOTS];
    dp_exchange_t *x;
    rows_t out, in[SLOTS];
    /* freed at the end: that may wait for the whole device, where ranks that are threads wait */
    gate_t gates[ROUNDS];
    uint32_t made = 0;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "late", 0) || !conform_rows_open(&rig, 1024, &out))
        return;
    s = rig.streams[DP_LANE_ALL_TO_ALL];
    reader = rig.streams[t->rank == 0 ? DP_LANE_COMPUTE : DP_LANE_ALL_TO_ALL];
    OPEN_EXCHANGE(t, rig, 1, 1024, SLOTS, &x);
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (int i = 0; i < SLOTS; i++)
        if ((there[i] = conform_event(&rig)) == NULL)
            return;
    for (uint32_t i = 0; i < ROUNDS + SLOTS; i++) {
        if (i >= SLOTS) { /* the slot that exchange i will use */
            gate_t *gate = &gates[made];
            bool slow = t->rank == 0 && conform_gate_make(gate, rig.device_vt, rig.device, t->host) == DP_OK;

            EXPECT_OK(t, rig.device_vt->stream_wait(reader, there[i % SLOTS]));
            if (slow)
                EXPECT_OK(t, conform_gate_hold(gate, reader));
            EXPECT_OK(t, conform_look_at_rows(&rig, &in[i % SLOTS], reader));
            EXPECT_OK(t, rig.vt->exchange_release(x, i - SLOTS, reader));
            EXPECT_OK(t, conform_exchange_rows(&rig, x, &out, i, s, &in[i % SLOTS]));
            if (slow) {
                conform_nap_ms(30);
                conform_gate_open(gate);
                EXPECT_OK(t, rig.device_vt->synchronize(reader, -1));
                made++;
            }
        } else {
            EXPECT_OK(t, conform_exchange_rows(&rig, x, &out, i, s, &in[i]));
        }
        EXPECT_OK(t, rig.device_vt->event_record(there[i % SLOTS], s));
    }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    while (made > 0)
        conform_gate_free(&gates[--made]);
    EXPECT_RIGHT(t, rig, "rows read on one stream while the next exchange into the same slot ran on another");
    conform_rig_close(&rig);
}

/* Rank 0's stream is held while its exchange is enqueued; rows and counts are what they are when it
 * gets there. */
static void rows_and_counts_are_read_when_the_stream_gets_there(conform_t *t)
{
    dp_stream_t *s;
    dp_exchange_t *x;
    rows_t out, in;
    gate_t gate;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "when", 0) || !conform_rows_open(&rig, 64, &out))
        return;
    s = rig.streams[DP_LANE_ALL_TO_ALL];
    OPEN_EXCHANGE(t, rig, 1, 64, 2, &x);
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (conform_gate_make(&gate, rig.device_vt, rig.device, t->host) != DP_OK) {
        conform_skip(t, "nothing holds a stream of this device");
        conform_rig_close(&rig);
        return;
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (i == 1)
            EXPECT_OK(t, conform_gate_hold(&gate, s));
        EXPECT_OK(t, conform_exchange_rows(&rig, x, &out, i, s, &in));
        EXPECT_OK(t, conform_look_at_rows(&rig, &in, s));
        EXPECT_OK(t, rig.vt->exchange_release(x, i, s));
    }
    conform_nap_ms(10);
    conform_gate_open(&gate);
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "rows that were made by work enqueued before the exchange, and not yet run");
    conform_gate_free(&gate);
    conform_rig_close(&rig);
}

static void a_read_of_rows_goes_no_further_than_its_counts(conform_t *t)
{
    enum { ROW = 48 };
    dp_stream_t *s;
    dp_exchange_t *x;
    guard_t guard;
    rows_t out, in;
    rig_t rig;

    if (strcmp(t->device->kind, "cpu") != 0) {
        conform_skip(t, "memory of a %s device cannot be fenced", t->device->kind);
        return;
    }
    if (!conform_rig_open(&rig, t, "fenced", 0) || !conform_rows_open(&rig, ROW, &out))
        return;
    s = rig.streams[DP_LANE_ALL_TO_ALL];
    EXPECT(t, conform_guard_open(&guard, 2 * CAPACITY * ROW), "no memory for a fence");
    OPEN_EXCHANGE(t, rig, 1, ROW, 2, &x);
    EXPECT_OK(t, rig.vt->start(rig.comm));
    /* a first exchange from plain memory says how many rows there are */
    for (uint32_t i = 0; i < 8; i++) {
        int32_t total = 0;

        EXPECT_OK(t, conform_exchange_rows(&rig, x, &out, 2 * i, s, &in));
        EXPECT_OK(t, rig.vt->exchange_release(x, 2 * i, s));
        EXPECT_OK(t, conform_synchronize_all(&rig));
        for (int32_t p = 0; p < t->size; p++)
            total += out.counts[p];
        {
            unsigned char *plain = out.rows;
            const int32_t *counts;
            const void *rows;

            memcpy(guard.end - (size_t)total * ROW, plain, (size_t)total * ROW);
            EXPECT_OK(t, rig.vt->exchange(x, 2 * i + 1, guard.end - (size_t)total * ROW, out.offsets, out.counts, &rows,
                                          &counts, s));
            EXPECT_OK(t, rig.vt->exchange_release(x, 2 * i + 1, s));
            EXPECT_OK(t, conform_synchronize_all(&rig));
        }
    }
    EXPECT(t, conform_meet(t), "another rank failed");
    conform_rig_close(&rig);
    conform_guard_close(&guard);
}

/* What is wrong is found out on the stream, for the call as well if it is still under way. */
static dp_status_t exchange_to_the_end(rig_t *rig, dp_exchange_t *x, const rows_t *out)
{
    const int32_t *counts;
    const void *rows;
    dp_status_t status =
        rig->vt->exchange(x, 0, out->rows, out->offsets, out->counts, &rows, &counts, rig->streams[DP_LANE_ALL_TO_ALL]);

    return status == DP_OK ? conform_synchronize_all(rig) : status;
}

/* Rank 1 has `rows` rows for rank 0, the others one for everybody. */
static void send_rows(conform_t *t, int32_t count, dp_status_t expected)
{
    int32_t counts[CONFORM_RANKS_MAX] = {1, 1}, offsets[CONFORM_RANKS_MAX] = {0, 0};
    dp_exchange_t *x;
    dp_status_t status;
    rows_t out;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "overflow", 0) || !conform_rows_open(&rig, 16, &out))
        return;
    OPEN_EXCHANGE(t, rig, 2, 16, 0, &x);
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 1)
        counts[0] = count;
    EXPECT_OK(t, conform_move(&rig, out.counts, counts, sizeof(counts)));
    EXPECT_OK(t, conform_move(&rig, out.offsets, offsets, sizeof(offsets)));
    /* its overflow ends the job, and every wait of ours */
    EXPECT(t, conform_meet(t), "the other rank failed");
    if (expected == DP_OK) {
        EXPECT_STATUS(t, exchange_to_the_end(&rig, x, &out), DP_OK, "an exchange of exactly capacity_rows rows");
    } else if (t->rank == 1) {
        EXPECT_STATUS(t, exchange_to_the_end(&rig, x, &out), expected, "an exchange of capacity_rows + 1 rows");
        EXPECT(t, strstr(conform_last_error(), "dispatch") != NULL,
               "the message of DP_ERR_OVERFLOW has to name the exchange by its label, it is: %s", conform_last_error());
        conform_abort(t, DP_ERR_OVERFLOW, "too many rows on rank 1"); /* as the engine does */
    } else {
        status = exchange_to_the_end(&rig, x, &out);
        EXPECT(t, status == expected,
               "a rank whose peer has too many rows for it has to end with the job's cause, not %s",
               dp_status_name(status));
    }
    conform_rig_close(&rig);
}

static void too_many_rows_are_an_overflow(conform_t *t)
{
    send_rows(t, CAPACITY + 1, DP_ERR_OVERFLOW);
}

static void the_capacity_can_be_used(conform_t *t)
{
    send_rows(t, CAPACITY, DP_OK);
}

static void mistakes_with_exchanges_are_refused(conform_t *t)
{
    dp_exchange_config_t config = {.struct_size = sizeof(config), .id = 1, .row_bytes = 24, .capacity_rows = 4};
    dp_stream_t *s;
    dp_exchange_t *x, *none = NULL;
    rows_t out, in;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "mistakes", 0) || !conform_rows_open(&rig, 16, &out))
        return;
    s = rig.streams[DP_LANE_ALL_TO_ALL];
    OPEN_EXCHANGE(t, rig, 2, 16, 2, &x);
    EXPECT_STATUS(t, rig.vt->exchange_open(rig.comm, &config, &none), DP_ERR_INVALID,
                  "an exchange of rows of 24 bytes, not a multiple of 16");
    config.row_bytes = 16;
    config.capacity_rows = 0;
    EXPECT_STATUS(t, rig.vt->exchange_open(rig.comm, &config, &none), DP_ERR_INVALID, "an exchange of capacity 0");
    config.capacity_rows = 4;
    config.id = 2;
    EXPECT_STATUS(t, rig.vt->exchange_open(rig.comm, &config, &none), DP_ERR_INVALID, "the same exchange opened twice");
    EXPECT(t, none == NULL, "an exchange_open that failed has written its output");
    EXPECT_STATUS(t, conform_exchange_rows(&rig, x, &out, 0, s, &in), DP_ERR_INVALID, "an exchange before start");
    EXPECT_OK(t, rig.vt->start(rig.comm));
    EXPECT_STATUS(t, conform_exchange_rows(&rig, x, &out, 1, s, &in), DP_ERR_INVALID,
                  "the first exchange made with number 1");
    EXPECT_STATUS(t, rig.vt->exchange_release(x, 0, s), DP_ERR_INVALID, "a release of an exchange not made");
    for (uint32_t i = 0; i < 2; i++)
        EXPECT_OK(t, conform_exchange_rows(&rig, x, &out, i, s, &in));
    EXPECT_STATUS(t, rig.vt->exchange_release(x, 1, s), DP_ERR_INVALID, "a release of exchange 1 before that of 0");
    for (uint32_t i = 0; i < 2; i++)
        EXPECT_OK(t, rig.vt->exchange_release(x, i, s));
    EXPECT_OK(t, conform_synchronize_all(&rig));
    conform_rig_close(&rig);
}

/* ---- posted ---- */

/* Two of each exchange are under way, among those of the other exchange. */
static void posted_exchanges_bring_every_row(conform_t *t)
{
    enum { ROUNDS = 24, SLOTS = 2 };
    static const size_t row_bytes[] = {16, 1040};
    rows_t out[2][SLOTS], in[2][SLOTS], whole;
    dp_exchange_t *xs[2];
    dp_stream_t *s;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "posted", 0) || !conform_rows_open(&rig, row_bytes[0], &whole))
        return;
    s = rig.streams[DP_LANE_COMPUTE];
    for (uint32_t i = 0; i < 2; i++) {
        OPEN_POSTED(t, rig, i, row_bytes[i], SLOTS, &xs[i]);
        for (int slot = 0; slot < SLOTS; slot++)
            if (!conform_rows_open(&rig, row_bytes[i], &out[i][slot]))
                return;
    }
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t number = 0; number <= ROUNDS; number++)
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t before = number - 1;

            if (number < ROUNDS)
                EXPECT_OK(t,
                          conform_post_rows(&rig, xs[i], &out[i][number % SLOTS], number, s, &in[i][number % SLOTS]));
            if (number == 0)
                continue;
            EXPECT_OK(t, rig.vt->exchange_wait(xs[i], before, s));
            EXPECT_OK(t, conform_look_at_rows(&rig, &in[i][before % SLOTS], s));
            EXPECT_OK(t, rig.vt->exchange_release(xs[i], before, s));
        }
    EXPECT_OK(t, conform_exchange_rows(&rig, xs[0], &whole, ROUNDS, s, &in[0][0]));
    EXPECT_OK(t, conform_look_at_rows(&rig, &in[0][0], s));
    EXPECT_OK(t, rig.vt->exchange_release(xs[0], ROUNDS, s));
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "posted exchanges");
    conform_rig_close(&rig);
}

/* Rank 0 posts before all others, and waits behind them. */
static void a_post_waits_for_no_peer(conform_t *t)
{
    dp_exchange_t *x;
    dp_stream_t *s;
    rows_t out, in;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "early", 0) || !conform_rows_open(&rig, 64, &out))
        return;
    s = rig.streams[DP_LANE_COMPUTE];
    OPEN_POSTED(t, rig, 1, 64, 2, &x);
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (int32_t turn = 0; turn < 2; turn++) {
        if (turn == (t->rank == 0 ? 0 : 1))
            EXPECT_OK(t, conform_post_rows(&rig, x, &out, 0, s, &in));
        if (turn == 1 && t->rank > 0)
            EXPECT_OK(t, rig.vt->exchange_wait(x, 0, s));
        /* without ONE_SIDED rows may need their rank to wait as well */
        if (turn == 0 || (t->rank > 0 && !rig.matched))
            EXPECT_OK(t, conform_synchronize_all(&rig));
        EXPECT(t, conform_meet(t), "another rank failed");
    }
    if (t->rank == 0)
        EXPECT_OK(t, rig.vt->exchange_wait(x, 0, s));
    EXPECT_OK(t, conform_look_at_rows(&rig, &in, s));
    EXPECT_OK(t, rig.vt->exchange_release(x, 0, s));
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_RIGHT(t, rig, "an exchange that one rank posted early and awaited late");
    conform_rig_close(&rig);
}

static void mistakes_with_posts_are_refused(conform_t *t)
{
    enum { SLOTS = 2 };
    rows_t out[SLOTS], in;
    dp_exchange_t *x;
    dp_stream_t *s;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "misposted", 0) || !conform_rows_open(&rig, 16, &out[0]) ||
        !conform_rows_open(&rig, 16, &out[1]))
        return;
    s = rig.streams[DP_LANE_COMPUTE];
    OPEN_POSTED(t, rig, 2, 16, SLOTS, &x);
#define REFUSED(call, what) EXPECT_STATUS(t, call, DP_ERR_INVALID, what)
#define POST(number)        conform_post_rows(&rig, x, &out[(number) % SLOTS], number, s, &in)
    REFUSED(POST(0), "a post before start");
    EXPECT_OK(t, rig.vt->start(rig.comm));
    REFUSED(rig.vt->exchange_wait(x, 0, s), "a wait before the post");
    REFUSED(POST(1), "a first post with number 1");
    EXPECT_OK(t, POST(0));
    REFUSED(POST(0), "a second post with the same number");
    REFUSED(rig.vt->exchange_wait(x, 1, s), "a wait for another number");
    REFUSED(rig.vt->exchange_release(x, 0, s), "a release before the wait");
    REFUSED(conform_exchange_rows(&rig, x, &out[1], 1, s, &in), "an exchange with a post that was not awaited");
    EXPECT_OK(t, POST(1));
    REFUSED(rig.vt->exchange_wait(x, 1, s), "a wait for the later of two posts");
    EXPECT_OK(t, rig.vt->exchange_wait(x, 0, s));
    REFUSED(rig.vt->exchange_wait(x, 0, s), "a second wait");
    REFUSED(POST(2), "one more post than there are slots");
    EXPECT_OK(t, rig.vt->exchange_wait(x, 1, s));
    REFUSED(rig.vt->exchange_release(x, 1, s), "a release of exchange 1 before that of 0");
    for (uint32_t i = 0; i < SLOTS; i++)
        EXPECT_OK(t, rig.vt->exchange_release(x, i, s));
    EXPECT_OK(t, POST(2));
    EXPECT_OK(t, rig.vt->exchange_wait(x, 2, s));
    EXPECT_OK(t, rig.vt->exchange_release(x, 2, s));
#undef REFUSED
#undef POST
    EXPECT_OK(t, conform_synchronize_all(&rig));
    conform_rig_close(&rig);
}

const conform_case_t conform_comm_exchanges[] = {
    {CONFORM_CASE(exchanges_bring_every_row, 4,
                  "Every rank gets the rows and counts that each rank put into an exchange, no rows included."),
     .flags = CONFORM_ALL_SIZES},
    {CONFORM_CASE(exchanges_may_lie_unreleased, 3,
                  "As many exchanges as there are slots may lie received and unreleased.")},
    {CONFORM_CASE(rows_are_kept_until_their_release_runs, 3,
                  "Rows stay until their release has run, on whatever stream that was enqueued.")},
    {CONFORM_CASE(rows_and_counts_are_read_when_the_stream_gets_there, 2,
                  "exchange reads rows, offsets and counts when its stream gets there, not when it is called.")},
    {CONFORM_CASE(a_read_of_rows_goes_no_further_than_its_counts, 2,
                  "exchange reads the rows it sends and no byte more.")},
    {CONFORM_CASE(the_capacity_can_be_used, 2, "capacity_rows rows for one rank arrive.")},
    {CONFORM_CASE(too_many_rows_are_an_overflow, 2,
                  "More rows than the capacity are DP_ERR_OVERFLOW on the stream, with the label of the exchange.")},
    {CONFORM_CASE(mistakes_with_exchanges_are_refused, 2,
                  "Senseless configs, wrong numbers, calls before start: DP_ERR_INVALID.")},
    {CONFORM_CASE(posted_exchanges_bring_every_row, 3,
                  "With exchange_post, if the backend has it, rows and counts are there behind the wait, with others "
                  "posted in between, no rows included."),
     .flags = CONFORM_ALL_SIZES},
    {CONFORM_CASE(a_post_waits_for_no_peer, 3,
                  "A post ends before the peers make theirs; with ONE_SIDED their waits end before ours.")},
    {CONFORM_CASE(mistakes_with_posts_are_refused, 2,
                  "A wait before its post, a release before its wait, wrong numbers, more posts than slots: "
                  "DP_ERR_INVALID.")},
    {0},
};
