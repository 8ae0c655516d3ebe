/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_args.h: the command line of dualpipe trace. */
#ifndef DP_TOOLS_TRACE_ARGS_H
#define DP_TOOLS_TRACE_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#include <dualpipe/trace.h>

#include "tools/io/format.h"

typedef enum trace_action { TRACE_OVERLAP, TRACE_COSTS, TRACE_MERGE, TRACE_VIEW, TRACE_WHAT_IF } trace_action_t;

/* --link 1:2:0.5 */
typedef struct trace_link {
    int32_t ranks[2];
    double ms; /* of a message */
} trace_link_t;
enum { TRACE_LINKS = 16 };

/* Regular expressions, joined; NULL: none was given. */
typedef struct trace_pattern {
    char *text;
} trace_pattern_t;

typedef struct trace_args {
    trace_action_t action;
    char **files;
    int nfiles;
    const char *output; /* NULL: standard output */
    char page[4096];    /* view: output where none was given, beside the trace; else "" */
    format_t format;
    int32_t align;                                 /* 0: by clocks, 1: by first records */
    trace_pattern_t comm, devices;                 /* --comm, --device */
    int32_t gaps, layers;                          /* layers 0: not given */
    int64_t memory_mib;                            /* 0: not given */
    const char *annotations[DP_TRACE_ANNOTATIONS]; /* --annotation */
    int nannotations;
    double *rank_scale; /* [DP_MAX_RANKS]; NULL: not given */
    int32_t scaled;     /* rank_scale says nothing of ranks from this one on */
    trace_link_t links[TRACE_LINKS];
    int32_t nlinks;
    const char *partition; /* "4,4,3,5"; NULL: not given */
} trace_args_t;

extern const command_t command_trace;

/* As args_parse(). Free with trace_args_clear(), after a failure too. */
bool trace_args_parse(int argc, char **argv, trace_args_t *args, int *exit_out);
void trace_args_clear(trace_args_t *args);
/* "dualpipe trace: ..." of dp_last_error() on stderr; the exit code. */
int trace_failed(dp_status_t status);

#endif
