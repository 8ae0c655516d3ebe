/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * args.h: the options of the commands that work on schedules. */
#ifndef DP_TOOLS_ARGS_H
#define DP_TOOLS_ARGS_H

#include <dualpipe/block.h>

#include "tools/io/cost_keys.h"
#include "tools/io/format.h"
#include "tools/io/options.h"
#include "tools/io/topology.h"

/* What the command line has to have: command_t.needs. */
enum {
    ARG_METHOD = 1 << 0, /* --method NAME with its sizes, or */
    ARG_FILE = 1 << 1,   /* one operand: a schedule file */
    ARG_SIZES = 1 << 2,  /* --ranks P, --microbatches M */
    ARG_PLAN = 1 << 3    /* --memory-cap and --seconds are for a plan alone */
};

/* --overlap */
enum { OVERLAP_CANONICAL, OVERLAP_NONE, OVERLAP_PLANNED };

enum { ARGS_CHUNKS = 8 }; /* numbers of chunks that are compared, most */

typedef struct args {
    const command_t *command;
    const char *method, *file, *output;                    /* NULL: not given */
    int32_t ranks, microbatches, chunks, microbatch_group; /* 0: not given */
    int32_t each_chunks[ARGS_CHUNKS];                      /* of compare, until a 0 */
    int32_t rank;                                          /* -1: all */
    bool forward_only, comm;
    int32_t inference; /* 0: no; else of dp_forwards_t, one less */
    format_t format;
    cost_keys_t cost_keys; /* as they were given */
    const char *costs_file;
    const char *methods; /* as it was given; NULL: not given */
    double *layers;      /* [nlayers] what each takes; NULL: not given */
    int32_t nlayers;
    bool scales_given;  /* by --stage-scale */
    double *rank_scale; /* [DP_MAX_RANKS]; NULL: not given */
    int32_t scaled;     /* rank_scale says nothing of ranks from this one on */
    bool no_barrier;
    bool lanes, operations;      /* by segments: lanes also where it follows from the costs */
    dp_costs_t costs;            /* what they come to */
    dp_pair_figures_t pair;      /* struct_size 0: no segments were given */
    dp_segment_costs_t segments; /* that costs point to where the run is by segments */
    bool on_hosts;               /* there is a topology */
    topology_t topology;
    dp_transport_t transport;
    int32_t slots;                                         /* 0: not given */
    double memory_cap;                                     /* negative: none */
    double activation_bytes, deferred_bytes, weight_bytes; /* negative: not given */
    double memory;                                         /* of a device; negative: not given */
    /* [DP_MAX_RANKS] of each, 0: as all; NULL: not given */
    double *rank_memory;
    int32_t capped; /* rank_memory names no rank from this one on */
    double *parts;  /* [nparts] layers of each stage beside the mean; NULL: not given */
    int32_t nparts;
    double seconds; /* 0: not given */
    int32_t overlap;
    int32_t recompute; /* dp_recompute_t; -1: not given, costs of R count as they are */
    int64_t seed;
    int32_t placement; /* 0: any, else 1 more than its number */
    int32_t weights;   /* most copies on a rank */
    bool frontier;
    const char *picture; /* NULL: not given */
} args_t;

/* Options that several commands share; their members are those of args_t. */
extern const option_row_t args_method[], args_inference[], args_sizes[], args_cost[], args_scales[], args_layers[],
    args_ranks[], args_recompute[], args_lanes[], args_topology[], args_transport[], args_overlap[], args_memory[],
    args_bytes[], args_parts[], args_deferred[], args_seed[], args_chunk_list[], args_output[];

/* Whether memory is counted in bytes. */
bool args_in_bytes(const args_t *args);
/* --memory of a rank; negative: without limit. */
double args_memory_of(const args_t *args, int32_t rank);

/* Reads the command line. CMD_OK: go on. Otherwise *exit_out is what to exit with: help was shown,
 * or an error. */
bool args_parse(const command_t *command, int argc, char **argv, args_t *args, int *exit_out);
void args_clear(args_t *args);
/* CMD_OK, or it was said that --rank-scale or --memory names a rank that so many ranks do not
 * have. */
int args_check_ranks(const args_t *args, int32_t ranks);

/* As command_usage() and command_failed(). */
int args_usage(const args_t *args, const char *fmt, ...) DP_PRINTF(2, 3);
int args_failed(const args_t *args, dp_status_t status);

#endif
