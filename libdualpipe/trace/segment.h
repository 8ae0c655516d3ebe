/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * segment.h: which segment and pass of a layer an annotation stands for. */
#ifndef DP_TRACE_SEGMENT_H
#define DP_TRACE_SEGMENT_H

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>

#include <dualpipe/simulate.h>

/* "attention.F", "attention.I", "attention.W", "dispatch.F", ..., "combine.W", in this order. */
#define DP__TRACE_KEYS (3 * DP_SEGMENT_COSTS)

/* Annotations that are a segment's pass. */
typedef struct dp__trace_rule {
    int key;
    regex_t regex;
} dp__trace_rule_t;

/* The key of a name as above; -1: it is none. */
int dp__trace_key_of(const char *name, size_t length);
/* "attention.F=REGEX"; free the regex with regfree(). DP_ERR_INVALID: not that. */
dp_status_t dp__trace_rule(const char *text, dp__trace_rule_t *rule_out);
/* Which key an annotation's name stands for; -1: none. Rules come before what is known without: a
 * word for the segment (attn, attention, self_attn; dispatch; mlp, moe, ffn, expert, experts;
 * combine), then one for the pass (F, fwd, forward; B, I, bwd, backward, dgrad; W, wgrad, weight),
 * with any signs around the second, in any case. */
int dp__trace_segment_of(const char *name, const dp__trace_rule_t *rules, int nrules);

/* A key's pass: 0 F, 1 I, 2 W. Its segment: 0 attention, 1 dispatch, 2 mlp, 3 combine. */
static inline int dp__trace_key_pass(int key)
{
    return key % 3;
}

static inline int dp__trace_key_segment(int key)
{
    return key / 3;
}

#endif
