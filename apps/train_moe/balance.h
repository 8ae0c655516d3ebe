/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * balance.h: how evenly tokens fall on the ranks of an expert group, and, where experts are
 * replicated, a better placement now and then. Every rank knows all layers and computes the same:
 * there is no time limit in it. */
#ifndef TRAIN_MOE_BALANCE_H
#define TRAIN_MOE_BALANCE_H

#include "options.h"

/* What one change of placement came to, under the loads it was planned for. */
typedef struct rebalance {
    int64_t steps; /* taken before it */
    dp_eplb_balance_t before, after;
    int32_t layers;   /* in which anything moved */
    int64_t replicas; /* moved, over all layers of the model */
    double sent;      /* bytes between ranks, over the whole job */
} rebalance_t;

typedef struct balance {
    const options_t *options;
    dp_eplb_shape_t shape; /* layers 0: one rank has everything, nothing is watched */
    /* [layers][replicas] in use; every expert once where experts are not replicated */
    int32_t *placement;
    int32_t *next;         /* the same, of balance_plan */
    float *latest, *loads; /* [layers][experts] tokens of the latest step; smoothed over steps */
    uint64_t observed;     /* steps in loads */
    /* max/mean tokens of a rank in the latest step, as dp_eplb_balance_t.gpu */
    double imbalance;
    void *workspace;
    size_t workspace_bytes;
    rebalance_t *records; /* [nrecords] */
    int64_t nrecords;
} balance_t;

/* options: fitted. */
dp_status_t balance_open(const options_t *options, balance_t *balance_out);
void balance_close(balance_t *balance);
/* The first placement, and no load seen. */
void balance_forget(balance_t *balance);
/* Loads in one step; 0 where nothing is watched. */
size_t balance_count(const balance_t *balance);
/* tokens [balance_count]: how many went to each expert of each layer in a step. */
dp_status_t balance_observe(balance_t *balance, const double *tokens);
/* Whether --eplb asks for a plan after `steps` steps. */
int balance_is_due(const balance_t *balance, int64_t steps);
/* Plans `next`, from the placement in use and the smoothed loads; *record_out all but `sent`. */
dp_status_t balance_plan(balance_t *balance, int64_t steps, rebalance_t *record_out);
/* `next` is in use now. */
dp_status_t balance_record(balance_t *balance, const rebalance_t *record);

#endif
