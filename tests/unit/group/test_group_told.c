/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_told.c: what rank 0 tells who asks: a user what all ranks do, ranks of other hosts
 * its time; and what the launcher tells it: who has ended. */
#include "tests/support/suite.h"
#include "tests/support/two_ranks.h"

#include "group/ends.h"

#include <endian.h>
#include <sys/mman.h>

/* ---- what the ranks do ---- */

/* What a user reads of a job of `size` ranks, where rank r computes for r ms; rank 1 has said
 * nothing. */
static char *ask(int32_t size)
{
    static char text[256 * 1024];
    dp__process_t *p = two_open(0, size);
    ssize_t n;
    int ends[2];

    for (int32_t r = 0; r < size; r++)
        p->peers.rows[r] = (dp__peer_t){r, 0, 0, 0};
    for (int32_t r = 0; r < size && size == 4; r++) /* rank 2 attends for longer than the others */
        for (int step = 0; step < DP__PACE_STEPS; step++)
            dp__pace_hear(p->hub.paces, size, r,
                          &(dp__step_call_t){.count = (uint64_t)size, .pace_ns = r == 2 ? 500000 : 250000});
    p->hub.hang_report.answers = dp__calloc((size_t)size, sizeof(*p->hub.hang_report.answers));
    for (int32_t r = 0; r < size; r++)
        p->hub.hang_report.answers[r] = (dp__answer_t){.came = r != 1,
                                                       .doing = {.peer = -1},
                                                       .progress = {.steps = 7,
                                                                    .step_ns = 2000000,
                                                                    .busy_ns = r == 1 ? 0 : (uint64_t)r * 1000000,
                                                                    .resident_bytes = 1 << 20}};
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    p->hub.status.askers[p->hub.status.count++] = ends[0];
    dp__status_answer(p);
    ck_assert_int_eq(p->hub.status.count, 0);
    for (n = 0; n < (ssize_t)sizeof(text) - 1;) { /* to its end: the other side is closed */
        const ssize_t more = read(ends[1], text + n, sizeof(text) - 1 - (size_t)n);

        if (more <= 0)
            break;
        n += more;
    }
    text[n] = '\0';
    close(ends[1]);
    two_close(p);
    return text;
}

START_TEST(a_job_is_told_with_its_straggler)
{
    const char *text = ask(4);

    ck_assert_ptr_nonnull(strstr(text, "job of 4 ranks"));
    ck_assert_ptr_nonnull(strstr(text, "7 steps, the latest took 2.0 ms; 4.0 MiB resident\n"));
    /* of 2 and 3 */
    ck_assert_ptr_nonnull(strstr(text, "rank 3 computes longest: 3.0 ms of it, 1.20 times the mean\n"));
    ck_assert_ptr_nonnull(strstr(text, "rank 2 takes 2.00 times as long as its peers for the same work, in the latest "
                                       "16 steps\n"));
    ck_assert_ptr_nonnull(strstr(text, "does not answer"));
    ck_assert_ptr_nonnull(strstr(text, "2.0 ms, computes 3.0 ms, 1.0 MiB; has recorded nothing"));
    ck_assert_ptr_null(strstr(text, "ranks more"));
}
END_TEST

/* More than the socket takes without waiting: rank 0 does not wait for a reader, and says how many
 * it leaves out. */
START_TEST(of_a_job_of_thousands_it_says_how_many_are_left_out)
{
    const char *text = ask(4096), *more = strstr(text, "and "), *end;
    int32_t left, first, lines = 0;

    ck_assert_ptr_nonnull(more);
    ck_assert_int_eq(sscanf(more, "and %d ranks more, from %d on", &left, &first), 2);
    ck_assert_int_eq(left + first, 4096);
    ck_assert_int_gt(first, 100);
    for (end = text; (end = strchr(end, '\n')) != NULL; end++)
        lines++;
    ck_assert_int_eq(lines, 2 + first + 1);
}
END_TEST

START_TEST(nobody_who_asks_is_no_work)
{
    dp__process_t *p = two_open(0, 2);

    dp__status_answer(p); /* there are no answers to read */
    dp__status_close(p);
    ck_assert_int_eq(p->hub.status.listener, -1);
    two_close(p);
}
END_TEST

/* ---- rank 0's time ---- */

static bool hear(dp__process_t *p, uint64_t asked, uint64_t told, uint32_t bytes)
{
    uint64_t times[2] = {htole64(asked), htole64(told)};

    return dp__clock_hear(
        p, &(dp__frame_t){.type = DP__FRAME_CLOCK, .bytes = bytes, .payload = (const unsigned char *)times});
}

START_TEST(an_answer_lies_between_its_question_and_now)
{
    dp__process_t *p = two_open(1, 2);
    uint64_t now = (uint64_t)dp__now_ns();

    ck_assert(!hear(p, now, 5000, 8)); /* half of one */
    /* to a question that was not asked yet */
    ck_assert(!hear(p, now + 1000000000000, 5000, 16));
    ck_assert(!hear(p, now, (uint64_t)INT64_MAX + 1, 16)); /* no time */
    ck_assert_uint_eq(dp__signal_value(&p->clock.answers), 0);
    for (uint32_t i = 0; i < DP__CLOCK_SAMPLES + 3; i++) /* the oldest make room */
        ck_assert(hear(p, now - 1000, 5000 + i, 16));
    ck_assert_uint_eq(dp__signal_value(&p->clock.answers), DP__CLOCK_SAMPLES + 3);
    ck_assert_int_ge(p->clock.samples[2].at_ns, (int64_t)now - 1000);
    two_close(p);
}
END_TEST

START_TEST(a_question_that_is_none_is_refused)
{
    dp__process_t *hub = two_open(0, 2);

    ck_assert(!dp__clock_answer(hub, 1, &(dp__frame_t){.type = DP__FRAME_CLOCK, .bytes = 4}));
    two_close(hub);
}
END_TEST

/* ---- who has ended ---- */

static void hand_down(int fd)
{
    char text[32];

    snprintf(text, sizeof(text), "run=job17,ends=%d", fd);
    setenv("DUALPIPE_LAUNCH", text, 1);
}

START_TEST(ends_are_read_line_by_line_as_they_come)
{
    const int fd = memfd_create("ends", MFD_ALLOW_SEALING);
    dp__ends_t ends;
    char text[64];

    hand_down(fd);
    dp__ends_open(&ends);
    ck_assert_int_eq(ends.fd, fd);
    ck_assert(!dp__ends_next(&ends, text, sizeof(text)));
    ck_assert_int_eq(write(fd, "job17 rank 3 died\njob17 ra", 26), 26);
    ck_assert(dp__ends_next(&ends, text, sizeof(text)));
    ck_assert_str_eq(text, "rank 3 died");
    ck_assert(!dp__ends_next(&ends, text, sizeof(text))); /* a line that is being written */
    ck_assert_int_eq(write(fd, "nk 4 left\njob1 rank 5 died\n", 27), 27);
    ck_assert(dp__ends_next(&ends, text, sizeof(text)));
    ck_assert_str_eq(text, "rank 4 left");
    ck_assert(!dp__ends_next(&ends, text, sizeof(text))); /* of another job, whose name begins so */
    close(fd);
}
END_TEST

START_TEST(a_descriptor_of_something_else_is_left_alone)
{
    dp__ends_t ends;
    char text[64];
    int files[2];

    ck_assert_int_eq(pipe(files), 0);
    for (int i = 0; i < 4; i++) {
        if (i == 0)
            setenv("DUALPIPE_LAUNCH", "run=job17", 1);
        else if (i == 1)
            setenv("DUALPIPE_LAUNCH", "run=job17,ends=two", 1);
        else
            hand_down(i == 2 ? files[0] : 1000);
        dp__ends_open(&ends);
        ck_assert_int_eq(ends.fd, -1);
        ck_assert(!dp__ends_next(&ends, text, sizeof(text)));
    }
    ck_assert_int_eq(fcntl(files[0], F_GETFD) & FD_CLOEXEC, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group/told");

    SUITE_ADD(suite, a_job_is_told_with_its_straggler);
    SUITE_ADD(suite, of_a_job_of_thousands_it_says_how_many_are_left_out);
    SUITE_ADD(suite, nobody_who_asks_is_no_work);
    SUITE_ADD(suite, an_answer_lies_between_its_question_and_now);
    SUITE_ADD(suite, a_question_that_is_none_is_refused);
    SUITE_ADD(suite, ends_are_read_line_by_line_as_they_come);
    SUITE_ADD(suite, a_descriptor_of_something_else_is_left_alone);
    return suite_run(suite);
}
