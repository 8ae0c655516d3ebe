/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * train_moe.h: the parts of the program that are neither model nor training step. */
#ifndef TRAIN_MOE_H
#define TRAIN_MOE_H

#include <stdbool.h>
#include <stdio.h>

#include "trainer.h"

/* What happened so far; the same on every rank. */
typedef struct history {
    char *settings; /* options_run */
    int64_t steps, nvalid;
    int64_t saves, left_out; /* of checkpoints: tried; skipped, as one was still being written */
    int64_t begun;           /* steps of the checkpoint that was read last */
    double *loss, *norm;     /* [steps] */
    double *imbalance;       /* [steps] max/mean tokens of the ranks of an expert group */
    double *step_seconds;    /* [steps] */
    int64_t *valid_step;     /* [nvalid] after how many steps */
    double *valid_loss;
    double seconds;        /* spent in training steps */
    double frequency_loss; /* of guessing bytes by their frequency */
} history_t;

/* Seconds on a clock that only goes forward. */
double now_seconds(void);

/* tune.c: --comm-sms auto: trains a few steps with each of a few splits of the device and leaves
 * the fastest in options->comm_sms, the same on every rank; rank 0 tells of it. The steps are
 * thrown away. Collective. */
dp_status_t tune_comm_sms(options_t *options, const text_t *text, dp_group_t *group, FILE *to);

/* overlap.c: the method's schedule, to be freed; a timeline of a few steps, which are thrown away
 * (on rank 0, NULL elsewhere; collective). */
dp_status_t method_schedule(const options_t *options, dp_schedule_t **schedule_out);
dp_status_t steps_record(const options_t *options, const text_t *text, dp_group_t *group, dp_timeline_t **timeline_out);

/* --overlap: *schedule_out is what to run instead of the method's own schedule, NULL for canonical;
 * free it behind the trainer. Collective. */
dp_status_t overlap_schedule(const options_t *options, const text_t *text, dp_group_t *group, FILE *to,
                             dp_schedule_t **schedule_out);

/* partition.c: --partition: stage s is to hold layers (*first_out)[s] to (*first_out)[s + 1] - 1;
 * NULL: equal numbers. To be freed behind the trainer, after a failure too. Collective. */
dp_status_t partition_layers(const options_t *options, const text_t *text, dp_group_t *group, FILE *to,
                             int32_t **first_out);

/* resume.c. register names all state. load fills it from the newest checkpoint, or as a run begins
 * where there is none; *step_out: the step to go on with. begin: makes ready for saving, before
 * step `step`. save: after `steps` steps, where --every says so or they are the last ones. is_ours:
 * the newest one is of the run that this job of the launcher began. microbatches: those of the run
 * in the folder, 0: there is none. All but register, is_ours and microbatches are collective. */
dp_status_t checkpoint_register(trainer_t *trainer, history_t *history);
dp_status_t checkpoint_load(trainer_t *trainer, history_t *history, int64_t *step_out);
dp_status_t checkpoint_begin(trainer_t *trainer, int64_t step);
dp_status_t checkpoint_save(trainer_t *trainer, history_t *history, int64_t steps, bool last);
bool checkpoint_is_ours(const options_t *options, uint64_t job);
int64_t checkpoint_microbatches(const options_t *options);

/* verify.c: rank 0 tells of one step against a serial run. *same_out: 1 when they agree.
 * Collective. */
dp_status_t verify_run(trainer_t *trainer, FILE *to, int *same_out);

/* sample.c: continues a few held-out beginnings; rank 0 writes them to `to`. Collective. */
dp_status_t sample_write(trainer_t *trainer, FILE *to);

/* curve.c: draws the losses as SVG. */
dp_status_t curve_write(const history_t *history, const char *path);

/* report.c */
typedef struct memory_use {
    double announced;   /* bytes this rank said it would take: pipeline, optimizer, data */
    double grown;       /* by which this process's resident memory grew to its peak */
    char products[104]; /* what multiplies its matrices; "" where that is not known */
} memory_use_t;
size_t resident_bytes(void);
size_t peak_resident_bytes(void);
void report_layout(const trainer_t *trainer, const history_t *history, FILE *to);
/* timeline: of the last training steps. all: [size] */
dp_status_t report_results(const trainer_t *trainer, const history_t *history, const dp_timeline_t *timeline,
                           const memory_use_t *all, FILE *to);
/* hosts.c: nothing where all ranks live on one. DP_ERR_NOMEM. */
dp_status_t report_hosts(const trainer_t *trainer, const dp_timeline_t *timeline, FILE *to);
/* "label       text", formatted and broken into lines of 80 columns. */
void report_line(FILE *to, const char *label, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* files.c */
dp_status_t losses_write(const history_t *history, const char *path);
dp_status_t report_write(const char *text, size_t bytes, const char *path);
dp_status_t trace_write(const dp_timeline_t *timeline, const char *path);
dp_status_t costs_write(const trainer_t *trainer, const dp_timeline_t *timeline, const char *path);

/* page.c: beside X.json a page for a browser, X.html, and a line about it. A trace of another name
 * gets none. shared: ranks waited for cores, which the page says, as idle and exposed time are the
 * machine's then. */
dp_status_t page_write(const char *trace, bool shared, FILE *report);

#endif
