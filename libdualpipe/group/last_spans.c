/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * last_spans.c: the trace file of a job that makes no progress. It is named in the report before it
 * is written, because nobody waits for a disk to hear why the job ends. */
#include "group/last_spans.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- from the recorders ---- */

typedef struct latest {
    dp_span_t spans[DP__LAST_SPANS];
    const dp__recorder_t *from[DP__LAST_SPANS]; /* whose names they use */
    int32_t count;
} latest_t;

static bool is_open(const dp_span_t *span)
{
    return span->end_ns == 0;
}

/* What a rank is in matters more than anything that is over, and of what is over the last matters
 * most: a step, which begins before all that is in it, is over after it. */
static bool matters_less(const dp_span_t *a, const dp_span_t *b)
{
    if (is_open(a) != is_open(b))
        return is_open(b);
    return is_open(a) ? a->start_ns < b->start_ns : a->end_ns < b->end_ns;
}

static void keep(latest_t *latest, const dp__recorder_t *recorder, const dp_span_t *span)
{
    int32_t at = latest->count;

    if (at < DP__LAST_SPANS) {
        latest->count++;
    } else {
        at = 0;
        for (int32_t i = 1; i < DP__LAST_SPANS; i++)
            if (matters_less(&latest->spans[i], &latest->spans[at]))
                at = i;
        if (!matters_less(&latest->spans[at], span))
            return;
    }
    latest->spans[at] = *span;
    latest->from[at] = recorder;
}

static void look_into(const dp__recorder_t *recorder, latest_t *latest)
{
    for (uint32_t i = 0; i < recorder->capacity; i++) {
        const dp_span_t span = dp__recorder_span(recorder, i);

        if (span.start_ns > 0)
            keep(latest, recorder, &span);
    }
}

/* A rank that has no recorder any more has ended, and perhaps for the same cause: then its newest
 * one says what it did. */
static void find_latest(const dp__recorder_t *recorders, int32_t rank, latest_t *latest)
{
    const dp__recorder_t *closed = NULL;

    latest->count = 0;
    for (const dp__recorder_t *recorder = recorders; recorder != NULL; recorder = recorder->next) {
        if (recorder->rank != rank)
            continue;
        if (!dp__recorder_is_closed(recorder))
            look_into(recorder, latest);
        else if (closed == NULL)
            closed = recorder;
    }
    if (latest->count == 0 && closed != NULL)
        look_into(closed, latest);
}

/* A span has no member that says that it is not over: its name does. */
static void add_span(dp_timeline_t *timeline, int32_t row, const dp__recorder_t *recorder, dp_span_t span,
                     int64_t now_ns)
{
    char name[DP__RECORDER_NAME_BYTES] = "", text[DP__RECORDER_NAME_BYTES + 16];

    if (span.name != 0)
        dp__recorder_name(recorder, span.name, name);
    snprintf(text, sizeof(text), "%s%s", is_open(&span) ? "not over: " : "", name);
    span.name = 0;
    if (text[0] != '\0' && dp_timeline_name(timeline, text, &span.name) < 0)
        span.name = 0; /* 255 names are used up */
    if (is_open(&span))
        span.end_ns = now_ns > span.start_ns ? now_ns : span.start_ns;
    /* a record that was torn while it was read is no loss */
    (void)dp_timeline_add(timeline, row, &span);
}

bool dp__last_spans_take(const dp__recorder_t *recorders, int32_t rank, dp_timeline_t *timeline, int32_t row)
{
    const int64_t now_ns = dp__now_ns();
    latest_t latest;

    find_latest(recorders, rank, &latest);
    for (int32_t i = 0; i < latest.count; i++)
        add_span(timeline, row, latest.from[i], latest.spans[i], now_ns);
    return latest.count > 0;
}

/* ---- the file ---- */

bool dp__last_spans_open(dp__last_spans_t *last, int32_t ranks)
{
    const char *wanted = secure_getenv("DUALPIPE_HANG_TRACE");

    if (last->timeline != NULL || (wanted != NULL && wanted[0] == '\0'))
        return last->timeline != NULL;
    if (dp_timeline_create(ranks, DP__LAST_SPANS, &last->timeline) >= 0)
        return true;
    dp_log(DP_LOG_WARN, "group", "the last spans of the ranks are not written: %s", dp_last_error());
    return false;
}

static void give_up(dp__last_spans_t *last, const char *path, const char *why)
{
    dp_log(DP_LOG_WARN, "group",
           "the last spans of the ranks are not written to %s: %s (DUALPIPE_HANG_TRACE names another file)", path, why);
    dp__last_spans_drop(last);
}

/* With the folder, where there is room for it: who reads the report is somewhere else. The name of
 * the part is this thread's own: of ranks that are threads, several may come here at once. false:
 * the name is too long. */
static bool choose_path(dp__last_spans_t *last)
{
    const char *wanted = secure_getenv("DUALPIPE_HANG_TRACE");
    char name[sizeof(last->path)], folder[sizeof(last->path)];

    if (wanted == NULL)
        snprintf(name, sizeof(name), "dualpipe-hang-%d.json", (int)getpid());
    else if (snprintf(name, sizeof(name), "%s", wanted) >= (int)sizeof(name))
        return false;
    if (name[0] == '/' || getcwd(folder, sizeof(folder)) == NULL ||
        snprintf(last->path, sizeof(last->path), "%s/%s", folder, name) >= (int)sizeof(last->path))
        snprintf(last->path, sizeof(last->path), "%s", name);
    snprintf(last->part, sizeof(last->part), "%.199s.part-%d", last->path, (int)gettid());
    return true;
}

/* A new one: its name can be guessed, and others may write to that folder. */
static FILE *create_file(const char *path)
{
    int fd;
    FILE *file;

    if (unlink(path) != 0 && errno != ENOENT)
        return NULL;
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && file == NULL)
        close(fd);
    return file;
}

void dp__last_spans_name(dp__last_spans_t *last, char *text, size_t bytes)
{
    text[0] = '\0';
    if (last->timeline == NULL)
        return;
    if (!choose_path(last)) {
        give_up(last, secure_getenv("DUALPIPE_HANG_TRACE"), "the name is too long");
        return;
    }
    last->file = create_file(last->part);
    if (last->file == NULL)
        give_up(last, last->path, strerror(errno));
    else
        snprintf(text, bytes, "; last spans of all ranks: %s", last->path);
}

static dp_status_t write_text(void *user, const char *text, size_t bytes)
{
    return fwrite(text, 1, bytes, user) == bytes ? DP_OK : dp_fail(DP_ERR_IO, "%s", strerror(errno));
}

void dp__last_spans_write(dp__last_spans_t *last)
{
    FILE *file = last->file;
    dp_status_t status;

    if (file == NULL)
        return;
    status = dp_timeline_write_chrome(last->timeline, write_text, file);
    if (fclose(file) != 0 && status >= 0)
        status = dp_fail(DP_ERR_IO, "%s", strerror(errno));
    last->file = NULL;
    if (status >= 0 && rename(last->part, last->path) != 0)
        status = dp_fail(DP_ERR_IO, "%s", strerror(errno));
    if (status < 0) {
        (void)remove(last->part);
        give_up(last, last->path, dp_last_error());
    } else
        dp__last_spans_drop(last);
}

void dp__last_spans_drop(dp__last_spans_t *last)
{
    if (last->file != NULL) {
        fclose(last->file);
        (void)remove(last->part);
    }
    dp_timeline_free(last->timeline);
    *last = (dp__last_spans_t){.timeline = NULL};
}
