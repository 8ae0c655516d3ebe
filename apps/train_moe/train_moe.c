/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * train_moe.c: trains a byte-level mixture-of-experts transformer on text, over a pipeline.
 *
 *   main          options, text, ranks (this process is one, or holds all of them as threads)
 *   run_rank      one rank from opening its pipeline to closing it
 *   train         the loop over steps
 * The other files: model.c and ends.c say what is computed, trainer.c does a step, adamw.c updates,
 * text.c has the data, resume.c the checkpoints, verify.c compares with a serial run, sample.c
 * writes text, report.c and curve.c tell how it went. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "figures.h"
#include "tools/io/output.h"
#include "train_moe.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

double now_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static volatile sig_atomic_t caught_signal;
static atomic_int stoppable; /* ranks of this process that save for SIGTERM, and end */

/* ---- standard output ---- */

/* errno of the first write that failed, as main does not see that of a rank's thread */
static atomic_int output_error;

static void note_output(bool written)
{
    int none = 0;

    if (!written || fflush(stdout) != 0)
        atomic_compare_exchange_strong(&output_error, &none, errno);
}

static void show_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void show_line(const char *fmt, ...)
{
    va_list list;

    va_start(list, fmt);
    note_output(vprintf(fmt, list) >= 0);
    va_end(list);
}

/* What could not be shown makes a run that had nothing else to complain of end with 1. */
static int close_output(int code)
{
    dp_status_t status = output_flush(stdout, "standard output");
    const int error = atomic_load(&output_error);

    if (error != 0)
        status = dp_fail(DP_ERR_IO, "standard output: %s", strerror(error));
    if (status < 0)
        fprintf(stderr, "train_moe: %s\n", dp_last_error());
    return status < 0 && code == 0 ? 1 : code;
}

/* ---- one rank ---- */

typedef struct session {
    options_t options; /* fitted to the number of ranks */
    const text_t *text;
    dp_group_t *group;
    dp_group_environment_t environment;
    trainer_t trainer;
    history_t history;
    dp_schedule_t *schedule; /* of --overlap */
    int32_t *partition;      /* of --partition */
    dp_timeline_t *timeline; /* of the last training steps, on rank 0 */
    size_t resident_before;
    FILE *report; /* into report_text; rank 0 shows it */
    char *report_text;
    size_t report_bytes, shown_bytes;
    bool resumes;    /* begins with a checkpoint */
    bool differs;    /* --verify found a difference */
    bool unsaved;    /* the last save failed */
    bool incomplete; /* an output is missing or was cut */
    bool stopped;    /* by SIGTERM, behind a save */
    int32_t slow;    /* 1 more than the straggler that was told of */
} session_t;

static int is_first_rank(const session_t *s)
{
    return dp_group_rank(s->group) == 0;
}

/* The report's stream remembers where memory was short, as one of open_memstream does not. */
static ssize_t keep_report(void *session, const char *text, size_t bytes)
{
    session_t *s = session;
    char *grown = realloc(s->report_text, s->report_bytes + bytes);

    if (grown == NULL)
        return 0;
    memcpy(grown + s->report_bytes, text, bytes);
    s->report_text = grown;
    s->report_bytes += bytes;
    return (ssize_t)bytes;
}

/* Puts on standard output what the report has gained. */
static void show_report(session_t *s)
{
    size_t gained;

    fflush(s->report);
    gained = s->report_bytes - s->shown_bytes;
    if (ferror(s->report) && is_first_rank(s) && !s->incomplete) {
        fprintf(stderr,
                "train_moe: no memory for all of the report: a part is missing where it is shown and written\n");
        s->incomplete = true;
    }
    if (gained > 0 && is_first_rank(s) && !s->options.quiet)
        note_output(fwrite(s->report_text + s->shown_bytes, 1, gained, stdout) == gained);
    s->shown_bytes = s->report_bytes;
}

/* Where an output goes: the option's file, or `name` in the folder --out. 0: nowhere. */
static int output_path(const session_t *s, const char *file, const char *name, char *path, size_t bytes)
{
    if (*file != '\0')
        snprintf(path, bytes, "%s", file);
    else if (*s->options.out != '\0')
        snprintf(path, bytes, "%s/%s", s->options.out, name);
    else
        return 0;
    return 1;
}

/* A path that cannot be written is better known before the training than after it. */
static dp_status_t check_outputs(const session_t *s)
{
    const options_t *o = &s->options;
    const char *const files[] = {o->trace, o->curve, o->report, o->losses, o->costs_out};
    const char *const names[] = {"trace.json", "curve.svg", "report.txt", "losses.txt", "costs.txt"};
    char path[4096];

    if (!is_first_rank(s) || o->verify)
        return DP_OK;
    if (*o->out != '\0' && mkdir(o->out, 0777) != 0 && errno != EEXIST)
        return dp_fail(DP_ERR_IO, "%s: %s", o->out, strerror(errno));
    for (int i = 0; i < 5; i++)
        if (output_path(s, files[i], names[i], path, sizeof(path))) {
            const bool is_new = access(path, F_OK) != 0;
            FILE *f = fopen(path, "a");
            if (f == NULL)
                return dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno));
            fclose(f);
            if (is_new)
                (void)unlink(path); /* nothing empty lies there while it trains */
        }
    return DP_OK;
}

static dp_status_t prepare_history(session_t *s)
{
    const size_t steps = (size_t)s->options.steps;
    history_t *h = &s->history;

    h->loss = calloc(steps, sizeof(double));
    h->norm = calloc(steps, sizeof(double));
    h->imbalance = calloc(steps, sizeof(double));
    h->step_seconds = calloc(steps, sizeof(double));
    h->valid_step = calloc(steps + 1, sizeof(int64_t)); /* ends with 0 */
    h->valid_loss = calloc(steps, sizeof(double));
    h->frequency_loss = text_frequency_loss(s->text);
    s->report = fopencookie(s, "w", (cookie_io_functions_t){.write = keep_report});
    if (h->loss == NULL || h->norm == NULL || h->imbalance == NULL || h->step_seconds == NULL ||
        h->valid_step == NULL || h->valid_loss == NULL || s->report == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the losses of %zu steps", steps);
    return DP_OK;
}

static void clear_session(session_t *s)
{
    dp_timeline_free(s->timeline);
    dp_schedule_free(s->schedule);
    free(s->partition);
    if (s->report != NULL)
        fclose(s->report);
    free(s->report_text);
    free(s->history.settings);
    free(s->history.loss);
    free(s->history.norm);
    free(s->history.imbalance);
    free(s->history.step_seconds);
    free(s->history.valid_step);
    free(s->history.valid_loss);
}

static void print_progress(const session_t *s, int64_t step, const step_result_t *result)
{
    const options_t *o = &s->options;
    const trainer_t *t = &s->trainer;
    const double each = s->history.seconds / (double)(step + 1);
    const double left = each * (double)(o->steps - 1 - step);
    const int terminal = isatty(STDOUT_FILENO);

    if (!is_first_rank(s) || o->quiet)
        return;
    if (!terminal && step % o->log_every != 0 && step != o->steps - 1)
        return;
    show_line("%sstep %4lld/%lld  loss %.4f  norm %.3f  lr %.1e  %.0f tokens/s  %dm%02ds left%s",
              terminal ? "\r\033[K" : "", (long long)step + 1, (long long)o->steps, result->loss, result->norm,
              result->rate, trainer_tokens(t, step + 1) / s->history.seconds, (int)(left / 60), (int)fmod(left, 60),
              terminal && step != o->steps - 1 ? "" : "\n");
}

/* Once of each that is slow after another. */
static dp_status_t tell_straggler(session_t *s)
{
    const options_t *o = &s->options;
    dp_straggler_t slow = {.struct_size = sizeof(slow)};
    const dp_status_t status = dp_group_straggler(s->group, &slow);

    if (status < 0 || slow.rank < 0 || slow.rank + 1 == s->slow || !is_first_rank(s))
        return status;
    s->slow = slow.rank + 1;
    fprintf(stderr,
            "%strain_moe: %s takes %.2f times as long as its peers for the same work, in the latest %d steps. If that "
            "lasts, cut the layers anew: --partition auto, or with `dualpipe partition --layers 1x%lld --method %s "
            "--ranks %lld --microbatches %lld --rank-scale %lld:%.2f`\n",
            isatty(STDERR_FILENO) ? "\r\033[K" : "", slow.name, slow.times, slow.steps, (long long)o->layers,
            o->schedule, (long long)o->pp, (long long)o->microbatches, slow.rank % (long long)o->pp, slow.times);
    return DP_OK;
}

static dp_status_t validate(session_t *s, int64_t steps)
{
    history_t *h = &s->history;
    double loss;
    const dp_status_t status = trainer_validate(&s->trainer, &loss);

    if (status < 0)
        return status;
    h->valid_step[h->nvalid] = steps;
    h->valid_loss[h->nvalid++] = loss;
    if (is_first_rank(s) && !s->options.quiet)
        show_line("%safter %lld steps: held-out loss %.4f\n", isatty(STDOUT_FILENO) ? "\r\033[K" : "", (long long)steps,
                  loss);
    return DP_OK;
}

static dp_status_t rebalance(session_t *s, int64_t steps)
{
    const double start = now_seconds();
    rebalance_t made;
    const dp_status_t status = trainer_rebalance(&s->trainer, steps, &made);

    s->history.seconds += now_seconds() - start;
    if (status == DP_OK && is_first_rank(s) && !s->options.quiet)
        show_line("%safter %lld steps: max/mean tokens %.3f, then %.3f: %lld replicas moved in %d layers (%.2f MiB)\n",
                  isatty(STDOUT_FILENO) ? "\r\033[K" : "", (long long)steps, made.before.gpu, made.after.gpu,
                  (long long)made.replicas, (int)made.layers, made.sent / (1024 * 1024));
    return status;
}

/* ---- training ---- */

/* Of a pipeline that a death made anew there is nothing to tell. */
static dp_status_t take_timeline(session_t *s)
{
    dp_timeline_t *taken = NULL;
    const dp_status_t status = dp_pipeline_timeline(s->trainer.pipeline, &taken);

    if (s->timeline != NULL && figures_missing(taken)) {
        dp_timeline_free(taken);
    } else {
        dp_timeline_free(s->timeline);
        s->timeline = taken;
    }
    return status;
}

/* A save that has failed costs nothing but itself, and is told of in the end; a death is recovered
 * from. */
static dp_status_t await_save(session_t *s)
{
    const dp_status_t status = *s->options.checkpoint != '\0' ? dp_pipeline_save_wait(s->trainer.pipeline) : DP_OK;

    if (status < 0 && dp_group_health(s->group) < 0)
        return status;
    s->unsaved = status < 0;
    return DP_OK;
}

/* Which checkpoint is the newest, where the last save has failed. */
static void tell_unsaved(const session_t *s)
{
    const char *folder = s->options.checkpoint;
    uint64_t step;

    if (!s->unsaved || !is_first_rank(s))
        return;
    if (dp_checkpoint_newest(folder, UINT64_MAX, &step) == DP_OK)
        fprintf(stderr, "train_moe: the last save failed: the newest checkpoint in %s is that of step %llu\n", folder,
                (unsigned long long)step);
    else
        fprintf(stderr, "train_moe: the last save failed: %s has no checkpoint\n", folder);
}

/* What is done after `steps` steps, before the next one: done again where a death interrupts it. */
static dp_status_t look_back(session_t *s, int64_t steps)
{
    const options_t *o = &s->options;
    history_t *h = &s->history;
    dp_status_t status = DP_OK;

    for (h->nvalid = 0; h->valid_step[h->nvalid] > 0 && h->valid_step[h->nvalid] < steps;)
        h->nvalid++;
    if (steps == 0)
        return DP_OK;
    if (balance_is_due(&s->trainer.balance, steps) && steps < o->steps && steps > h->begun)
        status = rebalance(s, steps);
    /* a validation would push training steps out of the record */
    if (status == DP_OK && steps == o->steps)
        status = take_timeline(s);
    if (status == DP_OK && o->valid_every > 0 && (steps % o->valid_every == 0 || steps == o->steps))
        status = validate(s, steps);
    if (status == DP_OK && steps > h->begun)
        status = checkpoint_save(&s->trainer, h, steps, steps == o->steps);
    if (status == DP_OK && steps == o->steps)
        status = await_save(s);
    return status;
}

/* SIGTERM has come to one rank at least: all save after the same step, and end. */
static dp_status_t stop(session_t *s, int64_t steps)
{
    dp_status_t status = checkpoint_save(&s->trainer, &s->history, steps, true);

    if (status == DP_OK)
        status = await_save(s);
    s->stopped = status == DP_OK;
    if (s->stopped && !s->unsaved && is_first_rank(s))
        fprintf(stderr, "train_moe: SIGTERM: ended after step %lld, which is saved in %s: --resume goes on\n",
                (long long)steps, s->options.checkpoint);
    return status;
}

static dp_status_t take_step(session_t *s, int64_t step, bool *stop_out)
{
    const double start = now_seconds();
    history_t *h = &s->history;
    step_result_t result = {.counts = false};
    dp_status_t status = trainer_step(&s->trainer, step, &result);

    *stop_out = result.stop;
    if (!result.counts)
        return status;
    h->step_seconds[step] = now_seconds() - start;
    h->imbalance[step] = s->trainer.balance.imbalance;
    h->seconds += h->step_seconds[step];
    h->loss[step] = result.loss;
    h->norm[step] = result.norm;
    h->steps = step + 1;
    print_progress(s, step, &result);
    return status == DP_OK ? tell_straggler(s) : status;
}

/* Makes this rank ready for step *step, which is the others' where they hold it, and else that of
 * the newest checkpoint. */
static dp_status_t get_ready(session_t *s, dp_status_t status, int64_t *step)
{
    bool lost = status < 0 || *step >= 0; /* else nothing was there yet */

    for (;;) {
        status = trainer_recover(&s->trainer, status, step);
        if (status == DP_ERR_LOST && *s->options.checkpoint != '\0') {
            if (lost && is_first_rank(s))
                fprintf(stderr, "train_moe: %s\n", dp_last_error());
            lost = true;
            *step = -1;
            status = checkpoint_load(&s->trainer, &s->history, step);
            continue;
        }
        if (status < 0)
            return status;
        status = checkpoint_begin(&s->trainer, *step);
        if (status >= 0 || dp_group_health(s->group) == DP_OK)
            return status;
    }
}

/* A new rank cannot plan a schedule or measure layers alone. */
static bool is_measured(const session_t *s)
{
    return strcmp(s->options.overlap, "planned") == 0 || strcmp(s->options.partition, "auto") == 0;
}

/* A placement of experts that has moved on some ranks and not on others cannot be taken back: all
 * go on from a checkpoint. */
static dp_status_t recover(session_t *s, dp_status_t status, int64_t *step)
{
    const double start = now_seconds();
    const bool corrupt = status == DP_ERR_CORRUPT;

    if ((s->options.eplb > 0 && *s->options.checkpoint == '\0') || is_measured(s))
        return status;
    if (s->options.eplb > 0) {
        balance_forget(&s->trainer.balance);
        *step = -1;
    }
    if (corrupt && s->environment.respawn > 0 && is_first_rank(s))
        fprintf(stderr, "train_moe: %s\n", dp_last_error());
    status = get_ready(s, status, step);
    if (status == DP_OK && is_first_rank(s) && !s->options.quiet)
        show_line("%s%s in %.2f s: step %lld is taken again\n", isatty(STDOUT_FILENO) ? "\r\033[K" : "",
                  corrupt ? "a rank's state was replaced" : "a rank has died and was replaced", now_seconds() - start,
                  (long long)*step + 1);
    return status;
}

static dp_status_t take_steps(session_t *s, int64_t step)
{
    s->history.steps = step;
    for (bool stops = false;;) {
        dp_status_t status = stops ? stop(s, step) : look_back(s, step);

        if (status == DP_OK && (step == s->options.steps || s->stopped))
            return DP_OK;
        if (status == DP_OK)
            status = take_step(s, step, &stops);
        if (status == DP_OK)
            step++;
        else if ((status = recover(s, status, &step)) < 0)
            return status;
        stops = stops && status == DP_OK && step < s->options.steps;
    }
}

static dp_status_t train(session_t *s, int64_t step)
{
    const bool saves = *s->options.checkpoint != '\0';
    dp_status_t status;

    s->trainer.stop = saves ? &caught_signal : NULL;
    atomic_fetch_add(&stoppable, saves);
    status = take_steps(s, step);
    atomic_fetch_sub(&stoppable, saves);
    return status;
}

/* ---- its end ---- */

static dp_status_t gather_memory(session_t *s, memory_use_t **all_out)
{
    dp_memory_report_t announced = {.struct_size = sizeof(announced)};
    memory_use_t mine = {.announced = 0};
    const char *about = s->trainer.model.block != NULL ? dp_moe_block_about(s->trainer.model.block) : NULL;
    dp_status_t status = dp_pipeline_memory(s->trainer.pipeline, &announced);

    if (status < 0)
        return status;
    mine.announced = (double)(announced.total + trainer_bytes(&s->trainer));
    mine.grown = (double)peak_resident_bytes() - (double)s->resident_before;
    snprintf(mine.products, sizeof(mine.products), "%s", about != NULL ? about : "");
    *all_out = calloc((size_t)dp_group_size(s->group), sizeof(**all_out));
    if (*all_out == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a report of %d ranks", dp_group_size(s->group));
    return dp_group_all_gather(s->group, &mine, sizeof(mine), *all_out);
}

static dp_status_t write_losses(const session_t *s)
{
    char path[4096];

    return output_path(s, s->options.losses, "losses.txt", path, sizeof(path)) ? losses_write(&s->history, path)
                                                                               : DP_OK;
}

/* Where a rank died behind the last step: what was asked for of the timeline is missing. */
static void tell_lost(session_t *s, const char *path)
{
    fprintf(stderr,
            "train_moe: %s is not written: the timeline was lost with the process of a rank that died behind the last "
            "step\n",
            path);
    s->incomplete = true;
}

static dp_status_t write_files(session_t *s)
{
    const options_t *o = &s->options;
    char path[4096];
    dp_status_t status = DP_OK;

    if (output_path(s, o->losses, "losses.txt", path, sizeof(path)))
        report_line(s->report, "losses", "%s (to the last bit)", path);
    if (output_path(s, o->curve, "curve.svg", path, sizeof(path)))
        report_line(s->report, "curve", "%s", path);
    if (figures_missing(s->timeline)) {
        if (output_path(s, o->costs_out, "costs.txt", path, sizeof(path)))
            tell_lost(s, path);
        if (output_path(s, o->trace, "trace.json", path, sizeof(path)))
            tell_lost(s, path);
        return DP_OK;
    }
    if (output_path(s, o->costs_out, "costs.txt", path, sizeof(path))) {
        status = costs_write(&s->trainer, s->timeline, path);
        report_line(s->report, "costs", "%s (for dualpipe simulate --costs)", path);
    }
    if (status == DP_OK && output_path(s, o->trace, "trace.json", path, sizeof(path))) {
        status = trace_write(s->timeline, path);
        report_line(s->report, "trace", "%s (for dualpipe trace, or https://ui.perfetto.dev)", path);
#ifdef HAVE_CONFIG_H /* in the library's own tree; elsewhere `dualpipe trace view` makes the page */
        if (status == DP_OK)
            status = page_write(path, cores_are_shared(&s->trainer, s->timeline), s->report);
#endif
    }
    return status;
}

static dp_status_t conclude(session_t *s)
{
    memory_use_t *all = NULL;
    char path[4096];
    /* the most precious first */
    dp_status_t status = is_first_rank(s) ? write_losses(s) : DP_OK;

    if (status == DP_OK)
        status = gather_memory(s, &all);
    if (status == DP_OK && is_first_rank(s))
        status = report_results(&s->trainer, &s->history, s->timeline, all, s->report);
    free(all);
    if (status == DP_OK && is_first_rank(s))
        status = write_files(s);
    if (status < 0)
        return status;
    show_report(s);
    if (s->options.sample > 0)
        status = sample_write(&s->trainer, s->report);
    show_report(s);
    if (status == DP_OK && is_first_rank(s) && output_path(s, s->options.report, "report.txt", path, sizeof(path)))
        status = report_write(s->report_text, s->report_bytes, path);
    /* last, for libraries below cairo crash where memory is short */
    if (status == DP_OK && is_first_rank(s) && output_path(s, s->options.curve, "curve.svg", path, sizeof(path)))
        status = curve_write(&s->history, path);
    return status;
}

static dp_status_t run_open(session_t *s)
{
    int64_t step = s->resumes ? -1 : 0;
    dp_status_t status;

    status = checkpoint_register(&s->trainer, &s->history);
    if (status == DP_OK)
        status = get_ready(s, DP_OK, &step);
    if (status < 0)
        return status;
    if (s->options.verify) {
        int same;
        status = verify_run(&s->trainer, s->report, &same);
        s->differs = status == DP_OK && !same;
        show_report(s);
        return status;
    }
    if (is_first_rank(s))
        report_layout(&s->trainer, &s->history, s->report);
    show_report(s);
    status = train(s, step);
    tell_unsaved(s);
    return status == DP_OK && !s->stopped ? conclude(s) : status;
}

/* At start, where --respawn promises more than this run can keep. */
static void tell_unrecoverable(const session_t *s)
{
    if (s->environment.respawn == 0 || !is_first_rank(s))
        return;
    if (is_measured(s))
        fprintf(stderr, "train_moe: with --overlap planned or --partition auto a rank that dies ends the run: a new "
                        "one cannot measure alone\n");
    else if (s->options.eplb > 0 && *s->options.checkpoint == '\0')
        fprintf(stderr, "train_moe: with --eplb and without --checkpoint a rank that dies ends the run: where its "
                        "experts were is known to a checkpoint alone\n");
}

static dp_status_t run_session(session_t *s)
{
    dp_status_t status = prepare_history(s);

    s->environment.struct_size = sizeof(s->environment);
    if (status == DP_OK)
        status = dp_group_environment(&s->environment);
    if (status < 0)
        return status;
    /* all ranks may have died at once */
    s->resumes = s->options.resume || (s->environment.again && checkpoint_is_ours(&s->options, s->environment.job));
    s->options.of_checkpoint = s->resumes ? checkpoint_microbatches(&s->options) : 0;
    status = options_fit(&s->options, dp_group_size(s->group));
    if (status < 0) { /* all ranks find the same */
        char why[1024];

        snprintf(why, sizeof(why), "%s", dp_last_error());
        return dp_fail(status, "rank 0: %s", why);
    }
    status = check_outputs(s);
    if (status < 0)
        return status;
    if (s->options.comm_sms == COMM_SMS_AUTO)
        status = tune_comm_sms(&s->options, s->text, s->group, s->report);
    if (status == DP_OK)
        status = partition_layers(&s->options, s->text, s->group, s->report, &s->partition);
    s->options.own_partition = s->partition;
    if (status == DP_OK)
        status = overlap_schedule(&s->options, s->text, s->group, s->report, &s->schedule);
    s->options.own_schedule = s->schedule;
    show_report(s);
    tell_unrecoverable(s);
    if (status < 0)
        return status;
    s->resident_before = resident_bytes();
    status = trainer_open(&s->options, s->text, s->group, &s->trainer);
    if (status < 0)
        return status;
    status = run_open(s);
    if (status < 0)
        dp_group_abort(s->group, status, dp_last_error());
    trainer_close(&s->trainer);
    return status;
}

/* ---- exit codes and signals ---- */

static _Atomic(dp_group_t *) interruptible[MOST_THREADS];
static atomic_int handlers_running;

static void on_signal(int number)
{
    atomic_fetch_add(&handlers_running, 1);
    caught_signal = number;
    for (int i = 0; i < MOST_THREADS && (number != SIGTERM || atomic_load(&stoppable) == 0); i++) {
        dp_group_t *group = atomic_load(&interruptible[i]);
        if (group != NULL)
            dp_group_interrupt(group);
    }
    atomic_fetch_sub(&handlers_running, 1);
}

static void catch_signals(dp_group_t *const *groups, int n)
{
    /* A second signal ends the program at once. */
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

    for (int i = 0; i < n; i++)
        atomic_store(&interruptible[i], groups[i]);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* After this no handler has the group in its hands, and it may go. */
static void hide_from_signals(dp_group_t *group)
{
    for (int i = 0; i < MOST_THREADS; i++)
        if (atomic_load(&interruptible[i]) == group)
            atomic_store(&interruptible[i], NULL);
    while (atomic_load(&handlers_running) > 0)
        sched_yield();
}

enum { STOPPED = 75 }; /* saved for SIGTERM: as sysexits.h has it, try again */

static int exit_code(dp_status_t status)
{
    switch (status) {
    case DP_OK:
        return 0;
    case DP_ERR_INVALID:
        return 2;
    case DP_ERR_MISMATCH:
        return 10;
    case DP_ERR_PLUGIN:
        return 11;
    case DP_ERR_RENDEZVOUS:
        return 12;
    case DP_ERR_PEER:
        return 13;
    case DP_ERR_TIMEOUT:
        return 14;
    case DP_ERR_PROTOCOL:
        return 15;
    case DP_ERR_NUMERIC:
        return 16;
    case DP_ERR_LOST:
        return 17;
    case DP_ERR_NOMEM:
        return 18;
    case DP_ERR_SECURITY:
        return 19;
    case DP_ERR_REJECTED:
        return 20;
    case DP_ERR_CORRUPT:
        return 21;
    case DP_ERR_INTERRUPTED:
        return caught_signal == SIGTERM ? 143 : 130;
    default:
        return 1;
    }
}

/* What a rank came to. */
typedef struct rank_job {
    const options_t *options;
    const text_t *text;
    dp_group_t *group;
    int code;
} rank_job_t;

/* "rank 3: ..." is what rank 3 found: it says so itself. */
static bool is_of_another(int32_t rank, const char *message)
{
    int said;
    char behind;

    return sscanf(message, "rank %d%c", &said, &behind) == 2 && behind == ':' && said != rank;
}

/* Once per process: ranks that are threads all learn the same first cause. */
static void complain(int32_t rank, dp_status_t status, const char *message)
{
    static atomic_int complained;

    if (is_of_another(rank, message) || atomic_exchange(&complained, 1))
        return;
    if (strncmp(message, "rank ", 5) == 0)
        fprintf(stderr, "train_moe: %s (%s)\n", message, dp_status_name(status));
    else
        fprintf(stderr, "train_moe: rank %d: %s (%s)\n", rank, message, dp_status_name(status));
}

static void *run_thread(void *arg)
{
    rank_job_t *job = arg;
    session_t s = {.options = *job->options, .text = job->text, .group = job->group};
    const int32_t rank = dp_group_rank(job->group);
    dp_status_t status = run_session(&s);

    if (status < 0) {
        char message[1024];
        snprintf(message, sizeof(message), "%s", dp_last_error());
        dp_group_abort(job->group, status, message);
        complain(rank, status, message);
    }
    job->code = status < 0 ? exit_code(status) : s.unsaved || s.differs || s.incomplete ? 1 : s.stopped ? STOPPED : 0;
    clear_session(&s);
    hide_from_signals(job->group);
    dp_group_leave(job->group);
    return NULL;
}

/* ---- ranks ---- */

static int fail(dp_status_t status)
{
    fprintf(stderr, "train_moe: %s (%s)\n", dp_last_error(), dp_status_name(status));
    return exit_code(status);
}

static int run_threads(const options_t *options, const text_t *text, const dp_group_options_t *group_options)
{
    const int n = (int)options->threads;
    pthread_t thread[MOST_THREADS];
    rank_job_t job[MOST_THREADS];
    dp_group_t *group[MOST_THREADS];
    int started = 0, code = 0;
    dp_status_t status = dp_group_local(n, group_options, group);

    if (status < 0)
        return fail(status);
    catch_signals(group, n);
    for (; started < n; started++) {
        job[started] = (rank_job_t){options, text, group[started], 1};
        if (pthread_create(&thread[started], NULL, run_thread, &job[started]) != 0)
            break;
    }
    for (int i = started; i < n; i++) {
        dp_group_abort(group[i], DP_ERR_NOMEM, "a thread for a rank could not be started");
        dp_group_leave(group[i]);
    }
    for (int i = 0; i < started; i++) {
        pthread_join(thread[i], NULL);
        code = code == 0 ? job[i].code : code;
    }
    return started < n ? 18 : code;
}

static int run_process(const options_t *options, const text_t *text, const dp_group_options_t *group_options)
{
    rank_job_t job = {options, text, NULL, 1};
    const dp_status_t status = dp_group_join(group_options, &job.group);

    if (status < 0)
        return fail(status);
    catch_signals(&job.group, 1);
    run_thread(&job);
    return job.code;
}

/* Of the ranks of a host, which all find the same before they join, the one that says it. */
static bool is_first_of_host(void)
{
    dp_group_environment_t environment = {.struct_size = sizeof(environment)};

    return dp_group_environment(&environment) < 0 || environment.local_rank == 0;
}

static int read_options(int argc, char **argv, options_t *options_out)
{
    const int console = is_first_of_host() ? -1 : dup(STDERR_FILENO);
    int code;

    if (console >= 0)
        close(STDERR_FILENO);
    code = options_parse(argc, argv, options_out);
    if (console >= 0) {
        dup2(console, STDERR_FILENO);
        close(console);
    }
    return code;
}

static int run_ranks(const options_t *options)
{
    dp_group_options_t group_options = {.struct_size = sizeof(group_options)};
    text_t text;
    char *settings;
    dp_status_t status = text_load(options->files, options->nfiles, (uint32_t)options->seq, &text);
    int code;

    if (status == DP_ERR_IO)
        status = DP_ERR_INVALID;
    if (status < 0)
        return is_first_of_host() ? fail(status) : exit_code(status);
    settings = options_settings(options, text.hash);
    if (settings == NULL) {
        status = dp_fail(DP_ERR_NOMEM, "no memory for a list of settings");
        code = fail(status);
    } else {
        group_options.settings = settings;
        code = (options->threads > 0 ? run_threads : run_process)(options, &text, &group_options);
    }
    free(settings);
    text_free(&text);
    return code;
}

int main(int argc, char **argv)
{
    options_t options;
    int code = read_options(argc, argv, &options);

    signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes costs a save, not the run */

    if (code == OPTIONS_RUN) {
        code = run_ranks(&options);
        options_free(&options);
    }
    return close_output(code);
}
