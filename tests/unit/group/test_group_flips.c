/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_flips.c: a byte that changes on the way between two ranks never changes what they come
 * to: what it was part of is refused, and nothing behind it counts. */
#include "tests/support/suite.h"
#include "tests/support/two_ranks.h"

typedef struct talk {
    dp__process_t *hub, *spoke;
    dp__connection_t *at_hub, *at_spoke;
    size_t carried[2]; /* bytes so far: to the hub, to the spoke */
    int way;           /* that has a changed byte; -1: none */
    size_t at;
    uint8_t flips;
    bool changed;
} talk_t;

static const unsigned char entry[12] = "in the store";

/* Brings over what one side has to say. */
static void carry(talk_t *t, dp__connection_t *from, int way)
{
    const size_t bytes = from->wire.out_end - from->wire.out_begin;

    if (way == t->way && t->at >= t->carried[way] && t->at < t->carried[way] + bytes) {
        from->wire.out[from->wire.out_begin + t->at - t->carried[way]] ^= t->flips;
        t->changed = true;
    }
    t->carried[way] += bytes;
    (void)dp__wire_flush(&from->wire);
}

static void pump(talk_t *t)
{
    for (int i = 0; i < 8; i++) {
        carry(t, t->at_spoke, 0);
        two_receive(t->hub, t->at_hub);
        carry(t, t->at_hub, 1);
        two_receive(t->spoke, t->at_spoke);
    }
}

static bool joined(const talk_t *t)
{
    return t->at_hub->phase == DP__PHASE_JOINED && t->at_spoke->phase == DP__PHASE_JOINED;
}

/* Joining, reading from the key-value store, and a control collective. true: all of it was done. */
static bool talk(talk_t *t)
{
    static const char key[] = "key";
    unsigned char read[sizeof(entry)], at_hub[2][8] = {{0}}, at_spoke[2][8] = {{0}};
    static const unsigned char gives[2][9] = {"from hub", "from spo"};
    dp__request_t request = {.id = 1, .data = read, .bytes = sizeof(read)};
    bool all;

    two_connect(t->hub, t->spoke, &t->at_hub, &t->at_spoke);
    pump(t);
    if (!joined(t))
        return false;
    ck_assert_int_eq(dp__peer(t->hub, 1).pid, dp__peer(t->spoke, 1).pid);
    ck_assert_int_eq(dp__peer(t->spoke, 0).pid, dp__peer(t->hub, 0).pid);

    ck_assert_int_eq(dp__kv_put(&t->hub->hub.kv, key, entry, sizeof(entry), false), DP_OK);
    t->spoke->requests.open = &request;
    dp__send(
        t->spoke,
        &(dp__frame_t){
            .type = DP__FRAME_GET, .from = 1, .id = 1, .extra = 3, .bytes = 3, .payload = (const unsigned char *)key});
    pump(t);
    t->spoke->requests.open = NULL;
    if (dp__signal_value(&request.done) != 0) {
        ck_assert_int_eq(request.status, DP_OK);
        ck_assert_mem_eq(read, entry, sizeof(entry));
    }
    t->hub->control = (dp__collective_t){.number = 1, .all_out = at_hub, .bytes = sizeof(at_hub)};
    t->spoke->control = (dp__collective_t){.number = 1, .all_out = at_spoke, .bytes = sizeof(at_spoke)};
    dp__hub_contribute(t->hub, 0, 1, DP__CONTROL_ALL_GATHER, 0, gives[0], 8);
    dp__send(t->spoke, &(dp__frame_t){.type = DP__FRAME_GATHER,
                                      .from = 1,
                                      .id = 1,
                                      .value = DP__CONTROL_ALL_GATHER,
                                      .bytes = 8,
                                      .payload = gives[1]});
    pump(t);
    for (int r = 0; r < 2; r++) {
        if (dp__signal_value(&t->hub->control.over) == 1)
            ck_assert_mem_eq(at_hub[r], gives[r], 8);
        if (dp__signal_value(&t->spoke->control.over) == 1)
            ck_assert_mem_eq(at_spoke[r], gives[r], 8);
    }
    all = dp__signal_value(&request.done) != 0 && dp__signal_value(&t->hub->control.over) == 1 &&
          dp__signal_value(&t->spoke->control.over) == 1;
    return all && joined(t) && !dp__cause_is_set(&t->hub->cause) && !dp__cause_is_set(&t->spoke->cause);
}

static bool talk_with(talk_t *t)
{
    bool done;

    t->hub = two_open(0, 2);
    t->spoke = two_open(1, 2);
    done = talk(t);
    two_close(t->hub);
    two_close(t->spoke);
    return done;
}

static void be_silent(void *user, int level, const char *origin, const char *message)
{
    (void)user, (void)level, (void)origin, (void)message;
}

START_TEST(every_changed_byte_is_noticed)
{
    talk_t plain = {.way = -1};

    dp_log_set(be_silent, NULL, DP_LOG_ERROR);
    ck_assert(talk_with(&plain));
    ck_assert_uint_gt(plain.carried[_i], 300);
    for (size_t at = 0; at < plain.carried[_i]; at++) {
        talk_t t = {.way = _i, .at = at, .flips = (uint8_t)(1u << at % 8)};

        ck_assert_msg(!talk_with(&t), "byte %zu %s was changed, and nobody noticed", at,
                      _i == 0 ? "to rank 0" : "from rank 0");
        ck_assert(t.changed);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group_flips");
    TCase *tc = tcase_create("flips");

    tcase_add_loop_test(tc, every_changed_byte_is_noticed, 0, 2);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
