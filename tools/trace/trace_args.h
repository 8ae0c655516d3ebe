/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_args.h: the command line of dualpipe trace. */
#ifndef DP_TOOLS_TRACE_ARGS_H
#define DP_TOOLS_TRACE_ARGS_H

#include <regex.h>
#include <stdbool.h>
#include <stdint.h>

#include "tools/io/cost_keys.h"
#include "tools/io/format.h"

#define TRACE_RULES 16

/* --annotation KEY=REGEX: annotations that are a segment's pass. */
typedef struct trace_rule {
    int key; /* of cost_keys_find() */
    regex_t regex;
} trace_rule_t;

typedef enum trace_action { TRACE_OVERLAP, TRACE_COSTS, TRACE_MERGE, TRACE_VIEW } trace_action_t;

typedef struct trace_args {
    trace_action_t action;
    char **files;
    int nfiles;
    const char *output; /* NULL: standard output */
    format_t format;
    bool has_comm;
    int32_t align; /* 0: by clocks, 1: by first records */
    regex_t comm;
    int32_t gaps, layers; /* layers 0: not given */
    int64_t memory_mib;   /* 0: not given */
    trace_rule_t rules[TRACE_RULES];
    int nrules;
} trace_args_t;

extern const command_t command_trace;

/* As args_parse(). Free with trace_args_clear(), after a failure too. */
bool trace_args_parse(int argc, char **argv, trace_args_t *args, int *exit_out);
void trace_args_clear(trace_args_t *args);
/* "dualpipe trace: ..." of dp_last_error() on stderr; the exit code. */
int trace_failed(dp_status_t status);

#endif
