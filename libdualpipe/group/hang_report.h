/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * hang_report.h: why no rank makes progress, and what `dualpipe status` hears. */
#ifndef DP_GROUP_HANG_REPORT_H
#define DP_GROUP_HANG_REPORT_H

#include "group/recorder.h"
#include "group/wire.h"

#define DP__ASKERS 8 /* that wait for a status at once */

/* What a rank has said of itself in a hang report. */
typedef struct dp__answer {
    bool came, told_spans;
    dp__doing_t doing;
    dp__progress_t progress;
    /* ranks of its host that stand still, each with the letter of its state: "3T 5t" */
    char states[256];
} dp__answer_t;

/* What rank 0 has been told so far. */
typedef struct dp__hang_report {
    dp__answer_t *answers; /* [size]; NULL: there is none */
    int32_t reporter;      /* -1: nobody, it is only asked */
    int32_t missing;       /* answers, ... */
    int32_t silent;        /* ... and ranks that have not told of their last spans */
    dp_status_t status;
    int64_t asked_ns, deadline_ns;
    char text[DP__CAUSE_BYTES];
} dp__hang_report_t;

/* ---- hang_report.c; with the mutex ---- */
/* Somebody has waited too long, which is to end the job. false: then with that text. */
bool dp__hang_report_open(dp__process_t *p, int32_t reporter, dp_status_t status, const char *text);
bool dp__hang_report_hear(dp__process_t *p, int32_t rank, const dp__frame_t *frame);
/* All have answered, or those that will; dp__hang_report_conclude follows. */
bool dp__hang_report_over(dp__process_t *p, int64_t now_ns);
void dp__hang_report_conclude(dp__process_t *p);
void dp__hang_report_end(dp__process_t *p);
/* A rank has gone while it was on: it gave up, and did not die. false: there is none. */
bool dp__hang_report_left(dp__process_t *p);
/* Rank 0 itself does not answer one that has waited too long. */
void dp__hang_report_without_hub(dp__process_t *p, dp_status_t status, const char *text);
/* A rank other than 0 was asked; spans: for its last spans, too. */
void dp__hang_report_tell(dp__process_t *p, bool spans);
/* All are asked, and nothing ends: dp__status_answer follows. false: not now. */
bool dp__hang_report_ask(dp__process_t *p);
/* "is in step 3: ..., waits for rank 2", of a rank that has answered or not. */
void dp__hang_report_describe(dp__process_t *p, int32_t rank, char *text, size_t bytes);

/* ---- told_spans.c; with the mutex ---- */
/* Our last spans, and those of ranks of this host that cannot answer: how many bytes; *bytes_out is
 * for dp__free, NULL when there is nothing to tell or no memory for it. */
size_t dp__told_spans_write(dp__process_t *p, unsigned char **bytes_out);
/* Into p->last. false: no rank of this job would say that. */
bool dp__told_spans_read(dp__process_t *p, int32_t rank, const unsigned char *at, const unsigned char *end);

/* ---- status.c; with the mutex; rank 0's ---- */
void dp__status_open(dp__process_t *p);
void dp__status_close(dp__process_t *p);
void dp__status_accept(dp__process_t *p);
/* By what was said in a hang report that is over. */
void dp__status_answer(dp__process_t *p);
/* Fills *found if a rank is slow. */
void dp__straggler_find(dp__process_t *p, dp_straggler_t *found);

#endif
