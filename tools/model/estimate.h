/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * estimate.h: what a model takes on GPUs: bytes of a rank, times of segments, a step. */
#ifndef DP_TOOLS_ESTIMATE_H
#define DP_TOOLS_ESTIMATE_H

#include "model.h"

#include <dualpipe/block.h>
#include <dualpipe/schedule.h>

/* A kind of GPU, and what is assumed of it. Rates of one GPU in one direction. */
typedef struct gpu {
    char name[32];
    double tflops;    /* dense bf16, of the data sheet */
    double memory;    /* bytes */
    int32_t host;     /* how many a host has */
    double near, far; /* GB/s to others of the host, and to those of other hosts */
    /* shares of those rates that are reached: products, attention's core, transfers */
    double products, core, links;
    double latency; /* us of a transfer */
    double reserve; /* bytes that others take: context, libraries, fragments */
} gpu_t;

/* One of the kinds known, with assumptions that go with it; NULL: there is none of that name. */
const gpu_t *gpu_find(const char *name);
/* "h100 h200 ..." */
const char *gpu_names(void);
/* KEY=VALUE,...: changes numbers of it; what is wrong goes to stderr. */
dp_status_t gpu_assume(gpu_t *gpu, const char *text);

/* What does not change from layout to layout. */
typedef struct job {
    model_t model;
    gpu_t gpu;
    int32_t gpus;
    int64_t sequence, batch; /* tokens of a sequence, sequences of a step */
    int32_t micro_batch;     /* sequences of a micro-batch */
    int32_t zero;            /* 1: ranks with the same parameters share the optimizer's state */
} job_t;

/* Ranks are tp * pp * dp; experts are spread over ep ranks of a dp group. */
typedef struct layout {
    int32_t tp, pp, ep, dp;
    int32_t microbatches;
    const dp_method_t *method;
    int32_t chunks; /* 0: the method's own */
    dp_recompute_t recompute;
} layout_t;

/* Of the rank that holds most. */
typedef struct footprint {
    double weights, gradients, optimizer, activations, head, transport;
    double experts; /* of the weights, those of routed experts */
    double total;   /* reserve included */
    int32_t copies; /* of the weights */
} footprint_t;

typedef struct answer {
    layout_t layout;
    footprint_t bytes;
    bool fits, timed;
    double step;      /* seconds, sums of gradients included */
    double sums;      /* of which they are */
    double useful;    /* share of a step in which a rank computes what it would compute alone */
    double gain;      /* over 1f1b on the same ranks, whether that fits or not; 0: not known */
    double tokens;    /* per second, all GPUs */
    double mfu;       /* share of tflops */
    char reason[160]; /* why its messages cannot be sent; "" otherwise */
} answer_t;

/* Bytes of a layout, or why its schedule cannot be. */
dp_status_t estimate_bytes(const job_t *job, const layout_t *layout, answer_t *answer);
/* Times of one whose bytes are known: its program simulated with segments on lanes. Where two slots
 * a channel are too few, it adds the bytes of more, and takes no times if they do not fit. */
dp_status_t estimate_time(const job_t *job, answer_t *answer);
/* Seconds that no schedule on these ranks is shorter than: what each computes. */
double estimate_bound(const job_t *job, const layout_t *layout);

#endif
