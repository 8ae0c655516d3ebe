/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * classify.h: what a record of a trace is, by its category and name. */
#ifndef DP_TRACE_CLASSIFY_H
#define DP_TRACE_CLASSIFY_H

#include <dualpipe/timeline.h>
#include <regex.h>
#include <stdbool.h>

typedef enum dp__trace_class {
    DP__TRACE_COMPUTE, /* all that a device does and that is not one of the others */
    DP__TRACE_COMM,    /* collectives, all-to-all, sends */
    DP__TRACE_WAIT     /* waiting for a message, which keeps nothing busy */
} dp__trace_class_t;

typedef enum dp__trace_source {
    DP__TRACE_OTHER,     /* of the host, or unknown: no figure counts it */
    DP__TRACE_DEVICE,    /* a kernel, a copy, a memset */
    DP__TRACE_LANE,      /* a span of a timeline of ours */
    DP__TRACE_RANGE,     /* an annotation on a thread of the host */
    DP__TRACE_LANE_RANGE /* an annotation on a stream */
} dp__trace_source_t;

/* By the event's "cat": those of PyTorch's profiler, old and new, of MTIA, and of
 * dp_timeline_write_chrome(). devices: more categories of records of a device; NULL: no more. */
dp__trace_source_t dp__trace_source_of(const char *category, const regex_t *devices);

/* What a process is, whose events have no category. */
typedef enum dp__trace_machine {
    DP__TRACE_UNNAMED,     /* not known yet */
    DP__TRACE_HOST,        /* no device */
    DP__TRACE_ASCEND,      /* streams of an NPU */
    DP__TRACE_ASCEND_COMM, /* its collectives, by communicator, and their parts */
    DP__TRACE_XLA_GPU      /* streams of a GPU, and lines derived from them */
} dp__trace_machine_t;
/* By the process's name: torch_npu's and msprof's, XLA's. */
dp__trace_machine_t dp__trace_machine_of(const char *process);
/* Are the events of this thread records of a device? */
bool dp__trace_machine_counts(dp__trace_machine_t machine, const char *thread);

/* By name: comm_names in classify.c, and waits for events. comm: more communication; NULL: no
 * more. */
dp__trace_class_t dp__trace_class_of(const char *name, const regex_t *comm);
/* By an NPU's "Task Type", where it says what a record is. */
dp__trace_class_t dp__trace_class_of_task(const char *task, dp__trace_class_t by_name);
/* A kernel of no known library, but named as libraries name communication. */
bool dp__trace_resembles_comm(const char *name);
/* By category, of a span of ours: its class, lane and kind. */
dp__trace_class_t dp__trace_lane_class(const char *category, uint8_t *lane_out, uint8_t *kind_out);
/* "attention F 3": dp_op_kind_t of the last word but one. */
uint8_t dp__trace_pass_of(const char *name);

/* DP_ERR_INVALID: not an extended regular expression. Free with regfree(). */
dp_status_t dp__trace_regex(const char *text, regex_t *regex_out);

#endif
