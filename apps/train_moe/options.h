/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * options.h: everything that can be chosen on the command line. */
#ifndef TRAIN_MOE_OPTIONS_H
#define TRAIN_MOE_OPTIONS_H

#include <dualpipe/dualpipe.h>
#include <dualpipe/moe_layers.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>

#include <stdbool.h>

enum { MOST_THREADS = 512 /* ranks in one process */, COMM_SMS_AUTO = -1 };

typedef struct options {
    /* model */
    int64_t layers, hidden, heads, kv_heads, head_dim, experts, top_k, expert_hidden, shared_experts;
    int64_t q_rank, kv_rank, rope_dim; /* all 0 unless latent */
    int64_t route_groups, route_limit;
    const char *gate, *dtype_name, *attention_kind, *recompute_name, *segments;
    double aux_alpha, bias_rate;
    bool tie; /* embedding and head are one matrix */
    /* data */
    char **files; /* into argv */
    int nfiles;
    int64_t seq, batch, microbatches, seed;
    bool varlen, documents;
    /* optimizer */
    int64_t steps, warmup, accumulate;
    double lr, min_lr, beta1, beta2, epsilon, weight_decay, clip;
    /* layout */
    int64_t pp, ep, dp, chunks, microbatch_group, slots, threads, deterministic;
    int64_t eplb, replicas, eplb_search, zero, check_bits, buddy;
    double eplb_threshold, eplb_bound, skew;
    const char *schedule, *overlap, *partition, *comm_sms_text, *comm, *device, *attention, *attention_settings, *moe,
        *ep_plugin;
    /* output */
    int64_t log_every, valid_every, sample, trace_steps;
    double temperature, sample_seconds;
    const char *out, *trace, *curve, *report, *losses, *costs_out;
    int64_t sample_cache;
    bool verify, quiet, graph, check_finite, one_accumulator;
    /* checkpoints */
    const char *checkpoint; /* "": none */
    int64_t every, keep;
    bool resume;

    /* worked out of the above */
    dp_dtype_t dtype;
    dp_gate_t gate_kind;
    dp_recompute_t recompute;
    int latent;                        /* --attention-kind mla */
    const dp_schedule_t *own_schedule; /* of overlap_schedule(); NULL: that of the method */
    const int32_t *own_partition;      /* [stages + 1] of partition_layers(); NULL: even */
    int64_t comm_sms;                  /* COMM_SMS_AUTO until tune_comm_sms() has chosen */
    int64_t of_checkpoint;             /* micro-batches, where none are named; 0: there is none */
} options_t;

/* OPTIONS_RUN: go on. Otherwise the exit code: --help was answered (0), or the reason is on stderr
 * (2). */
enum { OPTIONS_RUN = -1 };
int options_parse(int argc, char **argv, options_t *options_out);
void options_free(options_t *options);

/* Fills what depends on the number of ranks (pp, schedule, microbatches). DP_ERR_INVALID with the
 * reason. */
dp_status_t options_fit(options_t *options, int32_t size);

/* As the library takes it: NULL, which leaves the choice to the library, where none was named. */
const char *options_plugin(const char *name);

/* Experts, or replicas of experts, on each rank of an expert group. */
int32_t options_local_experts(const options_t *options);

/* "name=value" lines of all options on which ranks must agree; the caller frees it. NULL: no
 * memory. */
char *options_settings(const options_t *options, uint64_t text_hash);
/* The same of those that the losses of a run depend on, whatever its layout; options: fitted. */
char *options_run(const options_t *options, uint64_t text_hash);
/* Whether a run with another value in this line is another run. */
bool options_make_run(const char *line);

#endif
