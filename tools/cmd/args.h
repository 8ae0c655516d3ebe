/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * args.h: the options of the commands that work on schedules. */
#ifndef DP_TOOLS_ARGS_H
#define DP_TOOLS_ARGS_H

#include "tools/io/cost_keys.h"
#include "tools/io/exit.h"
#include "tools/io/format.h"
#include "tools/io/topology.h"

/* Options by bit: what a command understands besides --help. */
enum {
    ARG_METHOD = 1 << 0,     /* --method NAME and, with it, --chunks V and --forward-only */
    ARG_SIZES = 1 << 1,      /* --ranks P, --microbatches M */
    ARG_FORMAT = 1 << 2,     /* --format F */
    ARG_OUTPUT = 1 << 3,     /* --output FILE */
    ARG_RANK = 1 << 4,       /* --rank R */
    ARG_COMM = 1 << 5,       /* --comm */
    ARG_COST = 1 << 6,       /* --cost F=1,I=1,..., --costs, --stage-scale, --no-barrier */
    ARG_TRANSPORT = 1 << 7,  /* --transport group|credits:K */
    ARG_MEMORY_CAP = 1 << 8, /* --memory-cap N */
    ARG_FILE = 1 << 9,       /* one operand: a schedule file */
    ARG_SECONDS = 1 << 10,   /* --seconds S */
    ARG_TOPOLOGY = 1 << 14,  /* --topology FILE */
    ARG_LANES = 1 << 16,     /* --lanes */
    ARG_LAYERS = 1 << 12,    /* --layers LIST */
    ARG_DEMO = 1 << 13,      /* --methods LIST, and --ranks, --microbatches that need not be given */
    ARG_BYTES = 1 << 11      /* --activation-bytes, --deferred-bytes, --weight-bytes */
};

typedef struct command {
    const char *name; /* "schedule" */
    const char *help; /* all of --help */
    unsigned options; /* ARG_ bits */
    unsigned formats; /* bit per format_t */
} command_t;

typedef struct args {
    const command_t *command;
    const char *method, *file, *output;  /* NULL: not given */
    int32_t ranks, microbatches, chunks; /* 0: not given */
    int32_t rank;                        /* -1: all */
    bool forward_only, comm;
    format_t format;
    cost_keys_t cost_keys; /* as they were given */
    const char *costs_file;
    const char *methods; /* as it was given; NULL: not given */
    const char *layers;  /* as it was given; NULL: not given */
    bool scales_given;   /* by --stage-scale */
    bool no_barrier, lanes;
    dp_costs_t costs;            /* what they come to */
    dp_pair_figures_t pair;      /* struct_size 0: no segments were given */
    dp_segment_costs_t segments; /* that costs point to, with --lanes */
    bool on_hosts;               /* there is a topology */
    topology_t topology;
    dp_transport_t transport;
    int32_t slots;                                         /* 0: not given */
    double memory_cap;                                     /* negative: none */
    double activation_bytes, deferred_bytes, weight_bytes; /* negative: not given */
    double seconds;
} args_t;

/* Reads the command line. CMD_OK: go on. Otherwise *exit_out is what to exit with: help was shown, or an error. */
bool args_parse(const command_t *command, int argc, char **argv, args_t *args, int *exit_out);
void args_clear(args_t *args);

/* "dualpipe COMMAND: ..." on stderr, with a hint at --help; returns CMD_USAGE. */
int args_usage(const args_t *args, const char *fmt, ...) DP_PRINTF(2, 3);
/* dp_last_error() on stderr; returns the exit code that goes with the status. */
int args_failed(const args_t *args, dp_status_t status);

#endif
