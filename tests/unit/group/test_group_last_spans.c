/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_last_spans.c: what is kept of a flight recorder when nobody makes progress, and how it
 * comes from another host. */
#include "tests/support/suite.h"
#include "tests/support/two_ranks.h"
#include "timeline/timeline.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORDS = 100 };

typedef struct rig {
    dp__process_t *hub, *spoke;
    dp__recorder_t recorder; /* of rank 1 */
} rig_t;

/* Rank 1 on another host has been through RECORDS - 1 passes, and is in one that began before all
 * of them. */
static void open_rig(rig_t *rig)
{
    static const uint8_t mark[16];
    size_t bytes;
    void *memory;

    ck_assert_int_eq(dp__recorder_bytes(RECORDS, &bytes), DP_OK);
    memory = dp__calloc(1, bytes);
    ck_assert_ptr_nonnull(memory);
    dp__recorder_format(memory, bytes, RECORDS, mark, &rig->recorder);
    rig->recorder.rank = 1;
    dp__recorder_set_name(&rig->recorder, 1, "mlp");
    for (int i = 0; i < RECORDS; i++)
        rig->recorder.records[i] = (dp_span_t){.start_ns = 1000 + 10 * i,
                                               .end_ns = i == 0 ? 0 : 1005 + 10 * i,
                                               .kind = DP_SPAN_COMPUTE,
                                               .segment = 0,
                                               .microbatch = i,
                                               .name = 1};
    rig->hub = two_open(0, 3);
    rig->spoke = two_open(1, 3);
    rig->spoke->recorders = &rig->recorder;
    for (int32_t r = 1; r < 3; r++)
        rig->hub->peers.rows[r] = (dp__peer_t){r, 100 + r, dp__machine_add(rig->hub, "host", "there"), 0};
    ck_assert_int_eq(dp_timeline_create(3, DP__LAST_SPANS, &rig->hub->last.timeline), DP_OK);
}

static void close_rig(rig_t *rig)
{
    rig->spoke->recorders = NULL;
    dp__free(rig->recorder.memory);
    two_close(rig->hub);
    two_close(rig->spoke);
}

static size_t write_told(rig_t *rig, unsigned char **bytes_out)
{
    const size_t bytes = dp__told_spans_write(rig->spoke, bytes_out);

    ck_assert_ptr_nonnull(*bytes_out);
    ck_assert_uint_gt(bytes, 8 + 8);
    return bytes;
}

START_TEST(what_is_not_over_is_kept_and_then_the_latest)
{
    rig_t rig;
    const dp_span_t *spans;
    int64_t count;
    bool open = false;

    open_rig(&rig);
    ck_assert(dp__last_spans_take(&rig.recorder, 1, rig.hub->last.timeline, 2));
    /* not its recorder */
    ck_assert(!dp__last_spans_take(&rig.recorder, 2, rig.hub->last.timeline, 1));
    spans = dp_timeline_spans(rig.hub->last.timeline, 2, &count);
    ck_assert_int_eq(count, DP__LAST_SPANS);
    for (int64_t i = 0; i < count; i++) {
        const char *name = dp_timeline_name_text(rig.hub->last.timeline, spans[i].name);

        if (spans[i].microbatch == 0) {
            open = true;
            ck_assert_str_eq(name, "not over: mlp");
            ck_assert_int_gt(spans[i].end_ns, 1000000); /* now */
            continue;
        }
        ck_assert_str_eq(name, "mlp");
        ck_assert_int_ge(spans[i].microbatch, RECORDS - (DP__LAST_SPANS - 1));
    }
    ck_assert(open);
    close_rig(&rig);
}
END_TEST

/* A rank that was stopped behind the last pass of a step is said to be there: its trace has that
 * step. */
START_TEST(a_step_that_began_first_and_ended_last_is_kept)
{
    rig_t rig;
    const dp_span_t *spans;
    int64_t count, steps = 0;

    open_rig(&rig);
    rig.recorder.records[0] =
        (dp_span_t){.start_ns = 999, .end_ns = 1000 + 10 * RECORDS, .step = 1, .kind = DP_SPAN_STEP};
    ck_assert(dp__last_spans_take(&rig.recorder, 1, rig.hub->last.timeline, 1));
    spans = dp_timeline_spans(rig.hub->last.timeline, 1, &count);
    ck_assert_int_eq(count, DP__LAST_SPANS);
    for (int64_t i = 0; i < count; i++)
        steps += spans[i].kind == DP_SPAN_STEP;
    ck_assert_int_eq(steps, 1);
    close_rig(&rig);
}
END_TEST

/* Where rank 0 does not answer, each of the others writes a file, and one of them has ended when
 * the last looks. */
START_TEST(a_rank_that_has_ended_is_not_left_out)
{
    static const uint8_t mark[16];
    rig_t rig;
    dp__recorder_t newer;
    size_t bytes;
    int64_t count;
    void *memory;

    open_rig(&rig);
    dp__recorder_close(&rig.recorder);
    ck_assert(dp__last_spans_take(&rig.recorder, 1, rig.hub->last.timeline, 1));
    ck_assert_ptr_nonnull(dp_timeline_spans(rig.hub->last.timeline, 1, &count));
    ck_assert_int_eq(count, DP__LAST_SPANS);
    /* what an engine that was closed has left does not stand beside what the next one does */
    ck_assert_int_eq(dp__recorder_bytes(1, &bytes), DP_OK);
    memory = dp__calloc(1, bytes);
    ck_assert_ptr_nonnull(memory);
    dp__recorder_format(memory, bytes, 1, mark, &newer);
    newer.rank = 1;
    newer.next = &rig.recorder;
    newer.records[0] = (dp_span_t){.start_ns = 1, .end_ns = 2, .kind = DP_SPAN_COMPUTE};
    ck_assert(dp__last_spans_take(&newer, 1, rig.hub->last.timeline, 2));
    ck_assert_ptr_nonnull(dp_timeline_spans(rig.hub->last.timeline, 2, &count));
    ck_assert_int_eq(count, 1);
    dp__free(memory);
    close_rig(&rig);
}
END_TEST

START_TEST(another_host_tells_and_its_clock_is_bounded_by_the_round_trip)
{
    rig_t rig;
    unsigned char *told;
    size_t bytes;
    int64_t count, theirs = 7;
    dp_row_clock_t clock = {.struct_size = sizeof(clock)};

    open_rig(&rig);
    bytes = write_told(&rig, &told);
    memcpy(told, &theirs, sizeof(theirs)); /* their clock began just now */
    for (int i = 0; i < RECORDS; i++)
        rig.recorder.records[i].end_ns = 0;
    rig.hub->hub.hang_report.asked_ns = dp__now_ns() - 4000000;
    ck_assert(dp__told_spans_read(rig.hub, 1, told, told + bytes));
    ck_assert_ptr_nonnull(dp_timeline_spans(rig.hub->last.timeline, 1, &count));
    ck_assert_int_eq(count, DP__LAST_SPANS);
    ck_assert_int_eq(dp_timeline_clock(rig.hub->last.timeline, 1, &clock), DP_OK);
    ck_assert_int_ge(clock.bound_ns, 2000000);
    ck_assert_int_le(clock.offset_ns, dp__now_ns() - 7);
    ck_assert_int_ge(clock.offset_ns, rig.hub->hub.hang_report.asked_ns - 7);
    /* the same rank does not tell of one on another host, nor of itself with bytes that are cut
     * off */
    told[8] = 0;
    ck_assert(!dp__told_spans_read(rig.hub, 1, told, told + bytes));
    told[8] = 1;
    for (size_t cut = 1; cut < bytes; cut += 7)
        if (cut != bytes - 8)
            ck_assert(!dp__told_spans_read(rig.hub, 1, told, told + bytes - cut));
    dp__free(told);
    close_rig(&rig);
}
END_TEST

/* Both names can be guessed, and somebody has put links there. */
START_TEST(no_link_is_followed)
{
    char folder[] = "/tmp/last_spans_XXXXXX", path[64], part[96], prey[64], text[DP__LAST_SPANS_TEXT];
    struct stat st;
    rig_t rig;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/hang.json", folder);
    snprintf(part, sizeof(part), "%s.part-%d", path, (int)gettid());
    snprintf(prey, sizeof(prey), "%s/prey", folder);
    ck_assert_int_eq(close(open(prey, O_WRONLY | O_CREAT, 0600)), 0);
    ck_assert_int_eq(symlink(prey, path), 0);
    ck_assert_int_eq(symlink(prey, part), 0);
    setenv("DUALPIPE_HANG_TRACE", path, 1);
    open_rig(&rig);
    (void)dp__last_spans_take(&rig.recorder, 1, rig.hub->last.timeline, 1);
    dp__last_spans_name(&rig.hub->last, text, sizeof(text));
    dp__last_spans_write(&rig.hub->last);
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert(S_ISREG(st.st_mode) && st.st_size > 0);
    ck_assert_int_eq(stat(prey, &st), 0);
    ck_assert_int_eq(st.st_size, 0);
    ck_assert_int_eq(remove(path) + remove(prey) + rmdir(folder), 0);
    close_rig(&rig);
}
END_TEST

START_TEST(a_file_is_named_before_it_is_there_and_then_it_is_whole)
{
    char folder[] = "/tmp/last_spans_XXXXXX", path[64], text[DP__LAST_SPANS_TEXT], head[16] = "";
    rig_t rig;
    FILE *file;
    struct stat st;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/hang.json", folder);
    setenv("DUALPIPE_HANG_TRACE", path, 1);
    open_rig(&rig);
    (void)dp__last_spans_take(&rig.recorder, 1, rig.hub->last.timeline, 1);
    dp__last_spans_name(&rig.hub->last, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, path));
    ck_assert_int_ne(stat(path, &st), 0);
    dp__last_spans_write(&rig.hub->last);
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(head, 1, 8, file), 8);
    ck_assert_int_eq(memcmp(head, "{\"displa", 8), 0);
    fclose(file);
    ck_assert_int_eq(remove(path), 0);
    ck_assert_int_eq(rmdir(folder), 0); /* nothing else was left */
    close_rig(&rig);
}
END_TEST

static void *name_and_drop(void *path)
{
    dp__last_spans_t last = {.timeline = NULL};
    char text[DP__LAST_SPANS_TEXT];

    (void)path;
    ck_assert(dp__last_spans_open(&last, 1));
    dp__last_spans_name(&last, text, sizeof(text));
    ck_assert_str_ne(text, "");
    dp__last_spans_drop(&last);
    return NULL;
}

/* Ranks that are threads find out together that no rank makes progress; one of them ends the job
 * and writes. */
START_TEST(who_is_late_leaves_the_file_of_the_first_alone)
{
    char folder[] = "/tmp/last_spans_XXXXXX", path[64];
    dp__last_spans_t last = {.timeline = NULL};
    char text[DP__LAST_SPANS_TEXT];
    pthread_t late;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/hang.json", folder);
    setenv("DUALPIPE_HANG_TRACE", path, 1);
    ck_assert(dp__last_spans_open(&last, 1));
    dp__last_spans_name(&last, text, sizeof(text));
    ck_assert_int_eq(pthread_create(&late, NULL, name_and_drop, NULL), 0);
    ck_assert_int_eq(pthread_join(late, NULL), 0);
    dp__last_spans_write(&last);
    ck_assert_int_eq(remove(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

/* Hosts answer what each rank is doing before they have told of their last spans. */
START_TEST(rank_0_waits_for_the_last_spans_as_well)
{
    unsigned char told[5 * 8 + 8] = {0};
    dp__frame_t answer = {.type = DP__FRAME_TELL, .value = 1, .payload = told, .bytes = sizeof(told)};
    int64_t now;
    rig_t rig;

    memcpy(told + 40, "mlp(F)", 6);
    open_rig(&rig);
    dp__signal_post(&rig.hub->join.done, 1);
    ck_assert(dp__hang_report_open(rig.hub, 0, DP_ERR_TIMEOUT, "no rank makes progress"));
    now = rig.hub->hub.hang_report.asked_ns;
    for (int32_t r = 1; r < 3; r++)
        ck_assert(dp__hang_report_hear(rig.hub, r, &answer));
    ck_assert(!dp__hang_report_over(rig.hub, now));
    answer.value |= 4;
    ck_assert(dp__hang_report_hear(rig.hub, 1, &answer));
    ck_assert(dp__hang_report_hear(rig.hub, 1, &answer)); /* says it twice, and counts once */
    ck_assert(!dp__hang_report_over(rig.hub, now));
    ck_assert(dp__hang_report_hear(rig.hub, 2, &answer));
    ck_assert(dp__hang_report_over(rig.hub, now));
    dp__hang_report_end(rig.hub);
    close_rig(&rig);
}
END_TEST

START_TEST(what_is_done_again_is_called_so)
{
    const dp_span_t span = {.kind = DP_SPAN_COMPUTE, .pass = DP_OP_R, .step = 3, .stage = 2};
    char text[256];

    dp__span_describe(&span, "mlp", text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "step 3: mlp(R) of stage 2"));
}
END_TEST

START_TEST(no_file_is_made_where_none_is_wanted_or_possible)
{
    char text[DP__LAST_SPANS_TEXT], longest[300] = "";
    dp__last_spans_t last = {.timeline = NULL};
    rig_t rig;

    setenv("DUALPIPE_HANG_TRACE", "", 1);
    ck_assert(!dp__last_spans_open(&last, 2));
    dp__last_spans_name(&last, text, sizeof(text));
    ck_assert_str_eq(text, "");
    memset(longest, 'x', sizeof(longest) - 1);
    setenv("DUALPIPE_HANG_TRACE", longest, 1);
    ck_assert(dp__last_spans_open(&last, 2));
    dp__last_spans_name(&last, text, sizeof(text));
    ck_assert_str_eq(text, ""); /* another file is not written over */
    ck_assert_ptr_null(last.timeline);
    setenv("DUALPIPE_HANG_TRACE", "/nowhere/hang.json", 1);
    open_rig(&rig);
    dp__last_spans_name(&rig.hub->last, text, sizeof(text));
    ck_assert_str_eq(text, ""); /* and a warning says why */
    ck_assert_ptr_null(rig.hub->last.timeline);
    dp__last_spans_write(&rig.hub->last);
    close_rig(&rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group_last_spans");

    SUITE_ADD(suite, what_is_not_over_is_kept_and_then_the_latest);
    SUITE_ADD(suite, a_step_that_began_first_and_ended_last_is_kept);
    SUITE_ADD(suite, a_rank_that_has_ended_is_not_left_out);
    SUITE_ADD(suite, another_host_tells_and_its_clock_is_bounded_by_the_round_trip);
    SUITE_ADD(suite, no_link_is_followed);
    SUITE_ADD(suite, a_file_is_named_before_it_is_there_and_then_it_is_whole);
    SUITE_ADD(suite, who_is_late_leaves_the_file_of_the_first_alone);
    SUITE_ADD(suite, rank_0_waits_for_the_last_spans_as_well);
    SUITE_ADD(suite, what_is_done_again_is_called_so);
    SUITE_ADD(suite, no_file_is_made_where_none_is_wanted_or_possible);
    return suite_run(suite);
}
