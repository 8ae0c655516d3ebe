/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trainer.h: one rank's pipeline, data buffers and optimizer state; a training step, a validation,
 * nothing about printing. */
#ifndef TRAIN_MOE_TRAINER_H
#define TRAIN_MOE_TRAINER_H

#include "adamw.h"
#include "balance.h"
#include "device_memory.h"
#include "model.h"
#include "text.h"

#include <signal.h>
#include <stdbool.h>

/* A chunk of this rank with what the optimizer keeps for it. */
typedef struct held_chunk {
    dp_chunk_view_t view;
    int32_t *numbers;     /* [nparams] the model's numbers, under the placement of experts in use */
    uint8_t *counted;     /* [nparams] 1: this rank adds the parameter to sums over the job */
    void *mean, *squares; /* [view.shard_count] device memory, the accumulator's dtype */
    void *master;         /* the same; bf16 alone, else NULL */
    adamw_ranges_t ranges;
} held_chunk_t;

typedef struct trainer {
    const options_t *options; /* its ep, dp, schedule and so on are this trainer's layout */
    const text_t *text;
    dp_group_t *group;
    model_t model;
    balance_t balance;
    dp_pipeline_t *pipeline;

    /* data replica d * ep + e of ep * dp; each has its own M micro-batches */
    int32_t replica, replicas;
    int32_t microbatches; /* M */
    /* of a replica in a training step: M for each of --accumulate rounds */
    int32_t nlosses;
    size_t tokens; /* in a micro-batch, at most */
    device_memory_t memory;
    uint8_t *token_memory, *target_memory; /* [M][T], for host and device, as are squares */
    /* [nblocks] of this rank's shards, one after the other */
    double *squares;
    size_t nblocks;
    /* [M] into those; NULL where the micro-batch does not enter or end here */
    const void **inputs, **targets;
    double *losses;    /* [nlosses] of the latest step */
    uint32_t *lengths; /* [nlosses] tokens of its micro-batches */
    /* [M] of the latest round: parts of text, whether documents or sequences */
    dp_documents_t *documents;
    uint32_t *ends;     /* [M][lengths_most] of those */
    double step_tokens; /* of all replicas, in the latest training step */

    held_chunk_t *chunks; /* [nchunks] */
    int32_t nchunks, nparams;
    /* [replicas * nlosses losses, nparams sums of squares, balance_count loads, ranks that are to
     * stop] summed over all ranks */
    double *sums;
    double *owners; /* [nparams] world rank that contributes this parameter to the norm */
    /* SIGTERM: this rank is to stop; NULL: never */
    const volatile sig_atomic_t *stop;
} trainer_t;

typedef struct step_result {
    double loss; /* mean over all tokens of all replicas, nats per byte */
    double norm; /* of the whole model's gradient, each parameter once, before clipping */
    double rate;
    bool stop;   /* a rank is to stop: all save, and end */
    bool counts; /* it was committed, and what came behind that may have failed */
} step_result_t;

/* Collective. options: fitted, borrowed. The parameters get their first values. Then the caller
 * registers what it keeps itself, if anything, and calls trainer_recover. */
dp_status_t trainer_open(const options_t *options, const text_t *text, dp_group_t *group, trainer_t *trainer_out);
void trainer_close(trainer_t *trainer);

/* dp_pipeline_recover, and what is to be done after it: with DP_OK before the first step, else with
 * what a step or a validation has returned. Collective. */
dp_status_t trainer_recover(trainer_t *trainer, dp_status_t status, int64_t *step);
/* Parameters, optimizer and loads of experts as after trainer_open. */
dp_status_t trainer_begin_again(trainer_t *trainer);

/* Forward and backward over a training step's micro-batches as data replica `replica` of `replicas`
 * sees them. Collective. */
dp_status_t trainer_gradients(trainer_t *trainer, int64_t step, int32_t replica, int32_t replicas);

/* The rest of a training step: norm, clipping, update, loads of experts. *result_out is left alone
 * unless the step counts. DP_ERR_NUMERIC: something is not finite. */
dp_status_t trainer_apply(trainer_t *trainer, int64_t step, step_result_t *result_out);

/* One training step: fill, gradients, apply. */
dp_status_t trainer_step(trainer_t *trainer, int64_t step, step_result_t *result_out);
/* Mean loss on the held-out text, forward only. */
dp_status_t trainer_validate(trainer_t *trainer, double *loss_out);

/* Whether stages keep keys and values of the texts that are written at the end. */
bool trainer_caches(const options_t *options);

/* rebalance.c: places experts by their loads so far, with all that belongs to them. steps: taken so
 * far. Collective, between steps. */
dp_status_t trainer_rebalance(trainer_t *trainer, int64_t steps, rebalance_t *record_out);
/* Makes balance.next the placement in use. */
dp_status_t trainer_place(trainer_t *trainer);
/* What follows a layer's experts, in device memory: parameters, optimizer state, masters. Returns
 * how many there are. */
enum { TRAINER_KEPT = 4 };
int trainer_kept(const trainer_t *trainer, const model_layer_t *layer, dp_replica_memory_t kept[TRAINER_KEPT]);
/* This rank's part of the tokens that went to each expert of each layer in the latest step:
 * [balance_count]. */
dp_status_t trainer_count_tokens(trainer_t *trainer, double *tokens);
/* Numbers the parameters anew, after the placement has changed. Collective. */
dp_status_t trainer_number(trainer_t *trainer);

/* Tokens of all replicas in the first so many training steps. */
double trainer_tokens(const trainer_t *trainer, int64_t steps);

/* Bytes of mean, squares and masters of this rank's shards. */
size_t trainer_optimizer_bytes(const trainer_t *trainer);
/* Bytes this file allocated: optimizer state, gradients' sums, data, staging of replicated
 * experts. */
size_t trainer_bytes(const trainer_t *trainer);

#endif
