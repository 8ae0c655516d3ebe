/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_program_refusals.c: what lowering and verify say of schedules and programs that cannot
 * run. */
#include "tests/support/executor.h"
#include "tests/support/suite.h"

#include <stdio.h>

static dp_schedule_t *schedule;
static dp_program_t *program;

static void set_up(const char *method, int32_t ranks, int32_t microbatches, int32_t forward_only)
{
    dp_schedule_request_t request = {sizeof(request), method, ranks, microbatches, 0, forward_only, 0};

    ck_assert_int_eq(dp_schedule_generate(&request, &schedule), DP_OK);
    ck_assert_int_eq(dp_program_lower(schedule, NULL, &program), DP_OK);
}

static void tear_down(void)
{
    dp_program_free(program);
    dp_schedule_free(schedule);
    program = NULL;
    schedule = NULL;
}

/* ---- lowering ---- */

/* "F00 B00 | ...": letter, chunk, micro-batch; | separates ranks. */
static void of_text(const char *text, dp_placement_t placement, int32_t ranks, int32_t microbatches, int32_t chunks)
{
    int64_t nops[4] = {0};
    int32_t r = 0;
    dp_op_t *op;

    for (const char *c = text; *c != '\0'; c++) {
        r += *c == '|';
        nops[r] += *c == 'F' || *c == 'B';
    }
    ck_assert_int_eq(dp_schedule_create("custom", placement, ranks, microbatches, chunks, nops, &schedule), DP_OK);
    schedule->forward_only = strchr(text, 'B') == NULL;
    op = schedule->ops;
    for (const char *c = text; *c != '\0'; c++)
        if (*c == 'F' || *c == 'B')
            *op++ = (dp_op_t){*c == 'F' ? DP_OP_F : DP_OP_B, (int16_t)(c[1] - '0'), -1, c[2] - '0', -1};
}

START_TEST(channels_keep_their_order)
{
    of_text("F00 F01 B00 B01 | F01 F00 B01 B00", DP_PLACE_LINE, 2, 2, 1);
    ck_assert_int_eq(dp_schedule_verify(schedule), DP_OK);
    ck_assert_int_eq(dp_program_lower(schedule, NULL, &program), DP_ERR_REJECTED);
    ck_assert_str_eq(dp_last_error(), "program: rank 0 makes F chunk 0 mb 0 as message 0 of its channel, rank 1 "
                                      "consumes it as message 1: both must have the same order");
    tear_down();
    /* inside a rank any order will do: the local edge of a V gets the slots that it takes */
    of_text("F00 F01 F11 F10", DP_PLACE_V, 1, 2, 2);
    ck_assert_int_eq(dp_program_lower(schedule, NULL, &program), DP_OK);
    ck_assert_int_eq(program->nchannels, 1);
    ck_assert_int_eq(program->channels[0].slots, 2);
    ck_assert_msg(dp_program_verify(program, NULL) == DP_OK, "%s", dp_last_error());
    ck_assert(ex_run(program, EX_CREDITS, 1));
    program->channels[0].slots = 1;
    ck_assert_int_eq(dp_program_verify(program, NULL), DP_ERR_REJECTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "all slots of the local edge are still in use"));
    tear_down();
}
END_TEST

START_TEST(bad_options)
{
    dp_lower_options_t options = {.struct_size = sizeof(options), .slots = -2};

    set_up("1f1b", 2, 2, 0);
    dp_program_free(program);
    ck_assert_int_eq(dp_program_lower(schedule, &options, &program), DP_ERR_INVALID);
    ck_assert_ptr_null(program);
    options.slots = DP_MAX_MICROBATCHES + 1;
    ck_assert_int_eq(dp_program_lower(schedule, &options, &program), DP_ERR_INVALID);
    options.slots = 0;
    options.transport = (dp_transport_t)2;
    ck_assert_int_eq(dp_program_lower(schedule, &options, &program), DP_ERR_INVALID);
    options = (dp_lower_options_t){.struct_size = 0};
    ck_assert_int_eq(dp_program_lower(schedule, &options, &program), DP_ERR_INVALID);
    ck_assert_str_eq(dp_last_error(), "program: the options: struct_size is 0, at least 16 is needed: set it to "
                                      "sizeof(dp_lower_options_t)");
    ck_assert_int_eq(dp_program_lower(schedule, NULL, &program), DP_OK);
    ck_assert_int_eq(program->channels[0].slots, 2);
    program->transport = (dp_transport_t)2;
    ck_assert_int_eq(dp_program_verify(program, NULL), DP_ERR_INVALID);
    program->transport = (dp_transport_t)-1;
    ck_assert_int_eq(dp_program_verify(program, NULL), DP_ERR_INVALID);
    tear_down();
}
END_TEST

/* A newer caller's structs are longer than this library's: it writes what it knows, and refuses
 * what is set behind that. */
START_TEST(structs_may_be_longer_than_known)
{
    struct {
        dp_lower_options_t known;
        int64_t more;
    } options = {{.struct_size = sizeof(options), .slots = 3}, 5};
    struct {
        dp_verify_report_t known;
        int64_t more;
    } report = {{.struct_size = sizeof(report)}, 7};
    dp_verify_report_t none = {.struct_size = DP_VERIFY_REPORT_MIN - 1};

    set_up("1f1b", 2, 4, 0);
    dp_program_free(program);
    ck_assert_int_eq(dp_program_lower(schedule, &options.known, &program), DP_ERR_UNSUPPORTED);
    options.more = 0;
    ck_assert_int_eq(dp_program_lower(schedule, &options.known, &program), DP_OK);
    ck_assert_int_eq(program->channels[0].slots, 3);
    ck_assert_int_eq(dp_program_verify(program, &report.known), DP_OK);
    ck_assert_int_eq(report.known.safe_slots, 1);
    ck_assert_uint_eq(report.known.struct_size, sizeof(report));
    ck_assert_int_eq(report.more, 7);
    ck_assert_int_eq(dp_program_verify(program, &none), DP_ERR_INVALID);
    tear_down();
}
END_TEST

/* Lowers `schedule` for both transports, and lets the executor judge, too. Sends in bundles stand
 * where their slot is free: any number of slots will do. */
static void check_both(int32_t slots, int32_t safe_slots)
{
    for (int t = DP_TRANSPORT_CREDITS; t <= DP_TRANSPORT_BUNDLES; t++) {
        dp_lower_options_t options = {.struct_size = sizeof(options), .transport = (dp_transport_t)t, .slots = slots};
        dp_verify_report_t report = {.struct_size = sizeof(report)};
        bool completes = t == DP_TRANSPORT_BUNDLES || slots >= safe_slots;

        ck_assert_int_eq(dp_program_lower(schedule, &options, &program), DP_OK);
        ck_assert_int_eq(dp_program_verify(program, &report), completes ? DP_OK : DP_ERR_REJECTED);
        ck_assert_int_eq(report.safe_slots, t == DP_TRANSPORT_CREDITS ? safe_slots : 0);
        if (!completes)
            ck_assert_ptr_nonnull(strstr(dp_last_error(), "SEND F chunk 0 mb 2 to rank 1 (line "));
        for (unsigned seed = 0; seed < 3; seed++)
            ck_assert(ex_run(program, t == DP_TRANSPORT_CREDITS ? EX_CREDITS : EX_STRICT, seed) == completes);
        dp_program_free(program);
    }
    program = NULL;
}

/* Both ranks send 5 micro-batches before they look at the other's. */
START_TEST(many_slots_may_be_needed)
{
    of_text("F00 F01 F02 F03 F04 F10 F05 F11 F12 F13 F14 F15 | F10 F11 F12 F13 F14 F00 F15 F01 F02 F03 "
            "F04 F05",
            DP_PLACE_BIDIRECTIONAL, 2, 12, 2);
    check_both(2, 5);
    check_both(5, 5);
    tear_down();
}
END_TEST

/* Rank 1 wants a gradient before it looks at three activations that rank 0 sends ahead of it: with
 * two slots the third activation is in the way, and no receive can stand where its message is
 * due. */
START_TEST(messages_in_each_others_way)
{
    of_text("F00 F01 F02 F10 B10 F11 B11 F12 B12 B00 B01 B02 | F10 F11 F12 B10 F00 B00 F01 B01 F02 B02 "
            "B11 B12",
            DP_PLACE_BIDIRECTIONAL, 2, 6, 2);
    check_both(2, 3);
    check_both(3, 3);
    tear_down();
}
END_TEST

/* ---- what verify says of a changed program ---- */

static dp_instr_t *find(int32_t rank, int kind, int op)
{
    for (int64_t i = program->first[rank]; i < program->first[rank + 1]; i++)
        if (program->instrs[i].kind == kind && program->instrs[i].op == op)
            return &program->instrs[i];
    ck_abort_msg("no such instruction");
}

static void check(const char *message)
{
    ck_assert_int_eq(dp_program_verify(program, NULL), DP_ERR_REJECTED);
    ck_assert_msg(strstr(dp_last_error(), message) != NULL, "%s", dp_last_error());
}

/* Puts a value in a field, looks at the verdict, and puts the old one back. */
#define REFUSED(field, value, message)                                                                                 \
    do {                                                                                                               \
        __typeof__(field) before = (field);                                                                            \
        (field) = (value);                                                                                             \
        check(message);                                                                                                \
        (field) = before;                                                                                              \
        ck_assert_int_eq(dp_program_verify(program, NULL), DP_OK);                                                     \
    } while (0)

START_TEST(channels_are_compared_with_the_placement)
{
    set_up("dualpipe", 4, 8, 0);
    REFUSED(program->nchannels, program->nchannels - 1, "verify: 11 channels; the placement has 12");
    REFUSED(program->channels[3].src, 3, "verify: channel 3 goes from rank 3 chunk");
    REFUSED(program->channels[3].op, DP_OP_W, "verify: channel 3 goes from rank");
    REFUSED(program->channels[3].messages, 3, "verify: channel 3 has 3 messages for 4 micro-batches");
    REFUSED(program->channels[3].slots, 0, "verify: channel 3 has 0 slots");
    REFUSED(program->activation_slots[1], 5, "verify: rank 0 chunk 1 has 5 activation slots for 4 micro-batches");
    REFUSED(program->activation_slots[1], -1, "verify: rank 0 chunk 1 has -1 activation slots");
    REFUSED(program->activation_slots[0], 1, "activation slot out of range");
    REFUSED(program->ranks, 3, "verify: a program for 3 ranks x 2 chunks, a schedule for 4 x 2");
    REFUSED(program->instrs[0].kind, 7, "verify: rank 0 line 0 has unknown kind 7");
    tear_down();
}
END_TEST

START_TEST(lines_are_compared_with_what_they_mean)
{
    dp_instr_t *send, *recv, *reduce, *weight, *first;

    set_up("dualpipe", 4, 8, 0);
    send = find(1, DP_INSTR_SEND, DP_OP_B);
    recv = find(1, DP_INSTR_RECV, DP_OP_F);
    reduce = find(1, DP_INSTR_REDUCE, 0);
    weight = find(1, DP_INSTR_COMPUTE, DP_OP_W);
    first = find(0, DP_INSTR_COMPUTE, DP_OP_F);
    REFUSED(send->channel, -1, "no such channel");
    REFUSED(send->channel, program->nchannels, "no such channel");
    REFUSED(send->channel, recv->channel, "its channel belongs to another chunk");
    REFUSED(send->peer, 3, "its channel ends at another rank");
    REFUSED(send->microbatch, 4, "micro-batch out of range");
    REFUSED(send->microbatch, 1, "the operation that makes its data has not run yet");
    REFUSED(send->number, 1, "it is not the next message of its channel");
    REFUSED(recv->bundle, 0, "it names a bundle, but one-sided transfers form none");
    REFUSED(recv->microbatch, 1, "the receive that it names carries something else");
    REFUSED(first->in, 0, "it names a receive, but an end of the path has none");
    REFUSED(weight->in, 0, "it names a receive that it has no use for");
    REFUSED(weight->slot, weight->slot + 1, "its activation slot does not hold its micro-batch");
    REFUSED(weight->chunk, 5, "chunk or micro-batch out of range");
    REFUSED(reduce->chunk, 2, "no such chunk");
    REFUSED(reduce->chunk, 1 - reduce->chunk, "weight gradients of its chunk are still to come");
    REFUSED(reduce->peer, 3, "another rank holds the copy of its stage");
    tear_down();
}
END_TEST

static bool is_transfer(const dp_instr_t *i)
{
    return i->kind == DP_INSTR_SEND || i->kind == DP_INSTR_RECV;
}

static void shift_bundles(dp_instr_t *from, const dp_instr_t *end, int32_t by)
{
    for (; from < end; from++)
        from->bundle += is_transfer(from) ? by : 0;
}

/* A bundle may be taken apart, but not joined with transfers of another direction or other ranks,
 * nor across other work. */
START_TEST(bundles_hold_neighbours_of_one_direction)
{
    dp_schedule_request_t request = {sizeof(request), "dualpipe", 2, 8, 0, 0, 0};
    dp_lower_options_t options = {.struct_size = sizeof(options), .transport = DP_TRANSPORT_BUNDLES};
    int taken = 0, refused = 0;

    ck_assert_int_eq(dp_schedule_generate(&request, &schedule), DP_OK);
    ck_assert_int_eq(dp_program_lower(schedule, &options, &program), DP_OK);
    for (int32_t r = 0; r < program->ranks; r++) {
        dp_instr_t *prior = NULL, *end = &program->instrs[program->first[r + 1]];

        for (dp_instr_t *i = &program->instrs[program->first[r]]; i < end; prior = is_transfer(i) ? i : prior, i++) {
            if (!is_transfer(i) || prior == NULL)
                continue;
            REFUSED(i->bundle, prior->bundle + 2, "bundles must rise one by one from 0");
            if (i->bundle == prior->bundle) {
                shift_bundles(i, end, 1);
                ck_assert_msg(dp_program_verify(program, NULL) == DP_OK, "%s", dp_last_error());
                ck_assert(ex_run(program, EX_BUNDLES, (unsigned)taken++));
                shift_bundles(i, end, -1);
            } else {
                shift_bundles(i, end, -1);
                check("its bundle holds something else than neighbours of one direction between two ranks");
                shift_bundles(i, end, 1);
                refused++;
            }
        }
    }
    ck_assert_int_gt(taken, 3);
    ck_assert_int_gt(refused, 20);
    tear_down();
}
END_TEST

START_TEST(bends_are_checked)
{
    dp_instr_t *op;

    set_up("dualpipev", 2, 4, 0);
    op = &program->instrs[program->first[2] - 1]; /* rank 1's last: a REDUCE */
    ck_assert_int_eq(op->kind, DP_INSTR_REDUCE);
    for (op = &program->instrs[program->first[1]]; op->kind != DP_INSTR_COMPUTE || op->chunk != 1; op++)
        ;
    REFUSED(op->in, 0, "it names a receive, but its input is made on this rank");
    REFUSED(op->microbatch, 3, "the operation of this rank that makes its input has not run yet");
    for (int32_t c = 0; c < program->nchannels; c++)
        if (program->channels[c].src == program->channels[c].dst && program->channels[c].slots > 1)
            REFUSED(program->channels[c].slots, 1, "all slots of the local edge are still in use");
    op = find(0, DP_INSTR_SEND, DP_OP_F);
    for (int32_t c = 0; c < program->nchannels; c++)
        if (program->channels[c].src == program->channels[c].dst)
            REFUSED(op->channel, c, "its channel is a local edge, which has no transfers");
    tear_down();
}
END_TEST

START_TEST(forward_only_has_no_gradients)
{
    dp_instr_t *last;

    set_up("1f1b", 2, 2, 1);
    last = &program->instrs[program->first[2] - 1];
    ck_assert_int_eq(last->kind, DP_INSTR_COMPUTE);
    REFUSED(last->kind, DP_INSTR_REDUCE, "a forward-only program has no gradients");
    REFUSED(last->op, DP_OP_B, "a forward-only schedule has forwards alone");
    tear_down();
}
END_TEST

/* The last line of a rank is left out. */
START_TEST(missing_lines)
{
    set_up("1f1b", 2, 2, 0);
    ck_assert_int_eq(program->instrs[program->first[2] - 1].kind, DP_INSTR_REDUCE);
    REFUSED(program->first[2], program->first[2] - 1, "verify: rank 1 reduces 0 of its 1 chunks");
    REFUSED(program->first[2], program->first[2] - 2,
            "verify: rank 1 never sends message 1 of B from its chunk 0 to "
            "rank 0");
    tear_down();
}
END_TEST

/* A message that is received and never used: its consumer names the one before instead. */
START_TEST(unused_messages)
{
    dp_instr_t *op;

    set_up("1f1b", 2, 2, 0);
    op = find(1, DP_INSTR_COMPUTE, DP_OP_F);
    REFUSED(op->in, -1, "no receive stands above it for its input");
    REFUSED(op->in, 40, "no receive stands above it for its input");
    tear_down();
}
END_TEST

/* Mirrors must sum in the same order, or they wait for each other for ever. With both REDUCEs at
 * the end of a rank's list either order is fine for that rank alone. */
START_TEST(mirrors_reduce_in_one_order)
{
    dp_instr_t *last, *before, t;

    set_up("dualpipe", 2, 4, 0);
    last = &program->instrs[program->first[1] - 1];
    ck_assert_int_eq(last->kind, DP_INSTR_REDUCE);
    for (before = last - 1; before->kind != DP_INSTR_REDUCE; before--)
        ;
    t = *before;
    memmove(before, before + 1, (size_t)(last - before - 1) * sizeof(*before));
    *(last - 1) = t;
    for (dp_instr_t *i = before; i < last; i++) { /* the receives between moved up */
        i->in -= i->in > before - program->instrs;
        i->in2 -= i->in2 > before - program->instrs;
    }
    ck_assert_msg(dp_program_verify(program, NULL) == DP_OK, "%s", dp_last_error());
    t = *last;
    *last = *(last - 1);
    *(last - 1) = t;
    check("verify: ranks 0 and 1 reduce their stages in different orders");
    tear_down();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("program_refusals");
    TCase *tc = tcase_create("refusals");

    tcase_add_test(tc, channels_keep_their_order);
    tcase_add_test(tc, bad_options);
    tcase_add_test(tc, structs_may_be_longer_than_known);
    tcase_add_test(tc, many_slots_may_be_needed);
    tcase_add_test(tc, messages_in_each_others_way);
    tcase_add_test(tc, channels_are_compared_with_the_placement);
    tcase_add_test(tc, lines_are_compared_with_what_they_mean);
    tcase_add_test(tc, bundles_hold_neighbours_of_one_direction);
    tcase_add_test(tc, bends_are_checked);
    tcase_add_test(tc, forward_only_has_no_gradients);
    tcase_add_test(tc, missing_lines);
    tcase_add_test(tc, unused_messages);
    tcase_add_test(tc, mirrors_reduce_in_one_order);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
