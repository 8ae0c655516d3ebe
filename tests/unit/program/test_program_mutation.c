/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_program_mutation.c: broken programs are rejected, and an independent executor agrees on the
 * doubtful ones. */
#include "tests/support/braided.h"
#include "tests/support/executor.h"
#include "tests/support/suite.h"

#include <stdio.h>

static const struct {
    const char *method;
    int32_t ranks, microbatches;
    unsigned braided; /* 0, or a seed that gives an accepted schedule of braids */
} subjects[] = {{"dualpipe", 4, 8, 0},
                {"dualpipev", 2, 4, 0},
                {"1f1b", 4, 8, 0},
                {"zbv", 3, 5, 0},
                {"interleaved_overlap", 2, 4, 0},
                {"1f1b", 2, 4, 1},
                {"zb1p", 2, 4, 1},
                {"dualpipe", 2, 4, 1}};
#define SUBJECTS ((int)(sizeof(subjects) / sizeof(subjects[0])))

static dp_schedule_t *schedule;
static dp_program_t *program;

/* The first legal schedule of braids from a seed on. */
static dp_schedule_t *accepted_braids(const dp_schedule_t *plain, unsigned seed, const dp_lower_options_t *options)
{
    for (unsigned end = seed + 2000; seed < end; seed++) {
        dp_schedule_t *s = braided(plain, 2 + (int)(seed % 2), 4, 1 + seed / 2 % 2, seed);
        dp_program_t *p = NULL;
        bool good = s != NULL && dp_program_lower(s, options, &p) == DP_OK && dp_program_verify(p, NULL) == DP_OK;

        dp_program_free(p);
        if (good)
            return s;
        dp_schedule_free(s);
    }
    ck_abort_msg("no legal braids of %s: %s", plain->method, dp_last_error());
    return NULL;
}

static void set_up(int subject, int32_t slots, dp_transport_t transport)
{
    dp_schedule_request_t request = {
        sizeof(request), subjects[subject].method, subjects[subject].ranks, subjects[subject].microbatches, 0, 0, 0};
    dp_lower_options_t options = {.struct_size = sizeof(options), .transport = transport, .slots = slots};

    ck_assert_int_eq(dp_schedule_generate(&request, &schedule), DP_OK);
    if (subjects[subject].braided != 0) {
        dp_schedule_t *plain = schedule;

        schedule = accepted_braids(plain, subjects[subject].braided, &options);
        dp_schedule_free(plain);
    }
    ck_assert_int_eq(dp_program_lower(schedule, &options, &program), DP_OK);
}

static void tear_down(void)
{
    dp_program_free(program);
    dp_schedule_free(schedule);
}

/* A copy of the program with room for one more instruction. */
static dp_program_t copy_of(const dp_program_t *p)
{
    dp_program_t q = *p;
    size_t count = (size_t)p->first[p->ranks];

    q.first = malloc(((size_t)p->ranks + 1) * sizeof(*q.first));
    memcpy(q.first, p->first, ((size_t)p->ranks + 1) * sizeof(*q.first));
    q.instrs = malloc((count + 1) * sizeof(*q.instrs));
    memcpy(q.instrs, p->instrs, count * sizeof(*q.instrs));
    return q;
}

static void drop(dp_program_t *q)
{
    free(q->first);
    free(q->instrs);
}

/* Operations keep naming the same receives: those at or behind `from` move by `by`. */
static void shift_inputs(dp_program_t *q, int rank, int from, int by)
{
    for (int64_t i = q->first[rank]; i < q->first[rank + 1]; i++) {
        if (q->instrs[i].in >= from)
            q->instrs[i].in += by;
        if (q->instrs[i].in2 >= from)
            q->instrs[i].in2 += by;
    }
}

/* Every transfer is a bundle alone, so that no mutation is refused for its numbering alone. */
static void number_bundles(dp_program_t *q)
{
    for (int r = 0; r < q->ranks && q->transport == DP_TRANSPORT_BUNDLES; r++) {
        int32_t bundle = 0;

        for (int64_t i = q->first[r]; i < q->first[r + 1]; i++)
            q->instrs[i].bundle =
                q->instrs[i].kind == DP_INSTR_SEND || q->instrs[i].kind == DP_INSTR_RECV ? bundle++ : -1;
    }
}

static dp_program_t without(int rank, int at)
{
    dp_program_t q = copy_of(program);
    int64_t i = q.first[rank] + at;

    memmove(&q.instrs[i], &q.instrs[i + 1], (size_t)(q.first[q.ranks] - i - 1) * sizeof(*q.instrs));
    for (int r = rank + 1; r <= q.ranks; r++)
        q.first[r]--;
    shift_inputs(&q, rank, at + 1, -1);
    number_bundles(&q);
    return q;
}

static dp_program_t doubled(int rank, int at)
{
    dp_program_t q = copy_of(program);
    int64_t i = q.first[rank] + at;

    memmove(&q.instrs[i + 1], &q.instrs[i], (size_t)(q.first[q.ranks] - i) * sizeof(*q.instrs));
    for (int r = rank + 1; r <= q.ranks; r++)
        q.first[r]++;
    shift_inputs(&q, rank, at + 1, 1);
    number_bundles(&q);
    return q;
}

static void swap_names(int32_t *in, int a, int b)
{
    *in = *in == a ? b : *in == b ? a : *in;
}

static dp_program_t swapped(int rank, int at)
{
    dp_program_t q = copy_of(program);
    dp_instr_t *i = &q.instrs[q.first[rank] + at], t = i[0];

    i[0] = i[1];
    i[1] = t;
    for (int64_t k = q.first[rank]; k < q.first[rank + 1]; k++) {
        swap_names(&q.instrs[k].in, at, at + 1);
        swap_names(&q.instrs[k].in2, at, at + 1);
    }
    number_bundles(&q);
    return q;
}

static bool verdict(const dp_program_t *q)
{
    dp_status_t status = dp_program_verify(q, NULL);

    ck_assert_msg(status == DP_OK || status == DP_ERR_REJECTED, "%s", dp_status_name(status));
    if (status < 0)
        ck_assert_int_gt(strlen(dp_last_error()), 20);
    return status == DP_OK;
}

static bool completes(const dp_program_t *q, unsigned seed)
{
    return ex_run(q, q->transport == DP_TRANSPORT_BUNDLES ? EX_STRICT : EX_CREDITS, seed);
}

static void check_rejected(dp_program_t q, const char *mutation, int rank, int at)
{
    ck_assert_msg(!verdict(&q), "%s of rank %d line %d was accepted", mutation, rank, at);
    ck_assert(!completes(&q, 1));
    drop(&q);
}

START_TEST(deletions_are_rejected)
{
    set_up(_i / 2, 2, (dp_transport_t)(_i % 2));
    for (int r = 0; r < program->ranks; r++)
        for (int at = 0; at < program->first[r + 1] - program->first[r]; at++)
            check_rejected(without(r, at), "deletion", r, at);
    tear_down();
}
END_TEST

START_TEST(duplications_are_rejected)
{
    set_up(_i / 2, 2, (dp_transport_t)(_i % 2));
    for (int r = 0; r < program->ranks; r++)
        for (int at = 0; at < program->first[r + 1] - program->first[r]; at++)
            check_rejected(doubled(r, at), "duplication", r, at);
    tear_down();
}
END_TEST

START_TEST(wrong_peers_are_rejected)
{
    int count = 0;

    set_up(_i / 2, 2, (dp_transport_t)(_i % 2));
    for (int r = 0; r < program->ranks; r++)
        for (int at = 0; at < program->first[r + 1] - program->first[r]; at++)
            for (int peer = -1; peer <= program->ranks; peer++) {
                dp_program_t q = copy_of(program);
                dp_instr_t *i = &q.instrs[q.first[r] + at];

                if (i->kind == DP_INSTR_COMPUTE || i->kind == DP_INSTR_START || peer == i->peer) {
                    drop(&q);
                    continue;
                }
                i->peer = peer;
                check_rejected(q, "wrong peer", r, at);
                count++;
            }
    ck_assert_int_gt(count, 50);
    tear_down();
}
END_TEST

START_TEST(wrong_microbatches_are_rejected)
{
    set_up(_i / 2, 2, (dp_transport_t)(_i % 2));
    for (int r = 0; r < program->ranks; r++)
        for (int at = 0; at < program->first[r + 1] - program->first[r]; at++)
            for (int change = -1; change <= 1; change += 2)
                for (int half = 0; half < 2; half++) {
                    dp_program_t q = copy_of(program);
                    dp_instr_t *i = &q.instrs[q.first[r] + at];

                    if (i->kind == DP_INSTR_REDUCE || (half == 1 && i->microbatch2 < 0)) {
                        drop(&q);
                        continue;
                    }
                    *(half == 0 ? &i->microbatch : &i->microbatch2) += change;
                    check_rejected(q, "wrong micro-batch", r, at);
                }
    tear_down();
}
END_TEST

/* Channels, numbers, slots, inputs: wherever the verdict depends on the field, it has to agree with
 * the executor. */
START_TEST(wrong_fields_get_the_executors_verdict)
{
    int rejected = 0;

    set_up(_i / 2, 2, (dp_transport_t)(_i % 2));
    for (int r = 0; r < program->ranks; r++)
        for (int at = 0; at < program->first[r + 1] - program->first[r]; at++)
            for (int field = 0; field < 7; field++)
                for (int change = -1; change <= 1; change += 2) {
                    dp_program_t q = copy_of(program);
                    dp_instr_t *i = &q.instrs[q.first[r] + at];
                    int32_t *fields[] = {&i->channel, &i->number, &i->slot, &i->slot2, &i->in, &i->in2, NULL};
                    bool transfer = i->kind == DP_INSTR_SEND || i->kind == DP_INSTR_RECV;

                    if (fields[field] == NULL)
                        i->chunk = (int16_t)(i->chunk + change);
                    else if (*fields[field] >= 0 && (field < 2) == transfer)
                        *fields[field] += change;
                    else {
                        drop(&q);
                        continue;
                    }
                    if (field == 6 && transfer) {
                        /* the chunk of a transfer only repeats what its channel says, and must do
                         * so */
                        ck_assert(!verdict(&q));
                    } else {
                        bool accepted = verdict(&q);

                        ck_assert_msg(accepted == completes(&q, 7), "rank %d line %d field %d: %s", r, at, field,
                                      accepted ? "accepted" : dp_last_error());
                        rejected += !accepted;
                    }
                    drop(&q);
                }
    ck_assert_int_gt(rejected, 100);
    tear_down();
}
END_TEST

/* Two neighbours change places: often harmless, sometimes a deadlock, sometimes wrong data. What
 * completes one thing after the other also completes with transfers beside computing. */
START_TEST(swaps_get_the_executors_verdict)
{
    int accepted = 0, rejected = 0;

    set_up(_i / 4, 1 + _i % 4 / 2, (dp_transport_t)(_i % 2));
    for (int r = 0; r < program->ranks; r++)
        for (int at = 0; at + 1 < program->first[r + 1] - program->first[r]; at++) {
            dp_program_t q = swapped(r, at);
            bool ok = verdict(&q);

            for (unsigned seed = 1; seed <= 3; seed++) {
                ck_assert_msg(ok == completes(&q, seed), "swap of rank %d lines %d and %d: %s", r, at, at + 1,
                              ok ? "accepted" : dp_last_error());
                if (ok && q.transport == DP_TRANSPORT_BUNDLES)
                    ck_assert(ex_run(&q, EX_BUNDLES, seed));
            }
            *(ok ? &accepted : &rejected) += 1;
            drop(&q);
        }
    ck_assert_int_gt(accepted, 5);
    ck_assert_int_gt(rejected, 5);
    tear_down();
}
END_TEST

/* Braids at random, many of them not legal: what lowering makes of them gets the executor's
 * verdict, and what is refused before that is so with a reason. */
START_TEST(braids_get_the_executors_verdict)
{
    static const char *const methods[] = {"1f1b", "zb1p", "dualpipe", "dualpipev", "interleaved", "gpipe"};
    int accepted = 0, rejected = 0;

    for (unsigned seed = 1; seed <= 400; seed++) {
        dp_schedule_request_t request = {sizeof(request), methods[seed % 6], 2, 4, 0, seed % 7 == 0, 0};
        dp_lower_options_t options = {.struct_size = sizeof(options), .transport = (dp_transport_t)(seed / 6 % 2)};
        dp_schedule_t *plain;
        dp_status_t status;

        ck_assert_int_eq(dp_schedule_generate(&request, &plain), DP_OK);
        schedule = braided(plain, 1 + (int)(seed % 5), 4, seed % 4, seed);
        ck_assert_msg(schedule != NULL, "%s", dp_last_error());
        status = dp_program_lower(schedule, &options, &program);
        ck_assert_msg(status == DP_OK || status == DP_ERR_REJECTED, "%s", dp_last_error());
        if (status == DP_OK) {
            bool ok = verdict(program);

            for (unsigned timing = 1; timing <= 3; timing++) {
                ck_assert_msg(ok == completes(program, timing), "%s, seed %u: %s", methods[seed % 6], seed,
                              ok ? "accepted" : dp_last_error());
                if (ok && program->transport == DP_TRANSPORT_BUNDLES)
                    ck_assert(ex_run(program, EX_BUNDLES, timing));
            }
            *(ok ? &accepted : &rejected) += 1;
        } else {
            ck_assert_int_gt(strlen(dp_last_error()), 20);
            rejected++;
        }
        dp_schedule_free(plain);
        tear_down();
        program = NULL;
    }
    ck_assert_int_gt(accepted, 50);
    ck_assert_int_gt(rejected, 50);
}
END_TEST

/* The programs themselves, at several sizes and timings. */
START_TEST(executor_completes_what_is_accepted)
{
    static const struct {
        const char *method;
        int32_t ranks, microbatches, forward_only;
    } sizes[] = {{"dualpipe", 2, 4, 0},  {"dualpipe", 6, 14, 0},   {"dualpipe", 8, 16, 1},
                 {"dualpipev", 1, 3, 0}, {"dualpipev", 3, 7, 0},   {"dualpipev", 4, 9, 1},
                 {"1f1b", 1, 1, 0},      {"1f1b", 5, 3, 0},        {"1f1b", 3, 11, 1},
                 {"gpipe", 3, 6, 0},     {"interleaved", 3, 6, 0}, {"interleaved", 1, 2, 0},
                 {"zb1p", 4, 3, 0},      {"zbv", 4, 9, 0},         {"v-half", 5, 11, 0},
                 {"v-min", 3, 8, 0},     {"v-min", 1, 3, 1},       {"interleaved_overlap", 4, 8, 0}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int32_t slots = 1; slots <= 3; slots++) {
            dp_schedule_request_t request = {
                sizeof(request), sizes[i].method, sizes[i].ranks, sizes[i].microbatches, 0, sizes[i].forward_only, 0};
            dp_lower_options_t options = {.struct_size = sizeof(options), .slots = slots};

            ck_assert_int_eq(dp_schedule_generate(&request, &schedule), DP_OK);
            ck_assert_int_eq(dp_program_lower(schedule, &options, &program), DP_OK);
            ck_assert(verdict(program));
            for (unsigned seed = 1; seed <= 5; seed++)
                ck_assert(ex_run(program, EX_CREDITS, seed));
            dp_program_free(program);
            options.transport = DP_TRANSPORT_BUNDLES;
            ck_assert_int_eq(dp_program_lower(schedule, &options, &program), DP_OK);
            ck_assert(verdict(program));
            for (unsigned seed = 1; seed <= 3; seed++) {
                ck_assert(ex_run(program, EX_BUNDLES, seed));
                ck_assert(ex_run(program, EX_STRICT, seed));
            }
            tear_down();
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("program_mutation");
    TCase *tc = tcase_create("mutations");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, deletions_are_rejected, 0, 2 * SUBJECTS);
    tcase_add_loop_test(tc, duplications_are_rejected, 0, 2 * SUBJECTS);
    tcase_add_loop_test(tc, wrong_peers_are_rejected, 0, 2 * SUBJECTS);
    tcase_add_loop_test(tc, wrong_microbatches_are_rejected, 0, 2 * SUBJECTS);
    tcase_add_loop_test(tc, wrong_fields_get_the_executors_verdict, 0, 2 * SUBJECTS);
    tcase_add_loop_test(tc, swaps_get_the_executors_verdict, 0, 4 * SUBJECTS);
    tcase_add_test(tc, braids_get_the_executors_verdict);
    tcase_add_test(tc, executor_completes_what_is_accepted);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
