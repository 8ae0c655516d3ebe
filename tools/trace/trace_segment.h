/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_segment.h: which segment and pass of a layer an annotation stands for. */
#ifndef DP_TOOLS_TRACE_SEGMENT_H
#define DP_TOOLS_TRACE_SEGMENT_H

#include "trace_args.h"

/* A key of cost_keys.h from COST_KEY_SEGMENTS on, "attention.F" say; -1: none. Rules come before what is known without:
 * a word for the segment (attn, attention, self_attn; dispatch; mlp, moe, ffn, expert, experts; combine), then one for
 * the pass (F, fwd, forward; B, I, bwd, backward, dgrad; W, wgrad, weight), with any signs around the second, in any
 * case. */
int trace_segment_of(const char *name, const trace_rule_t *rules, int nrules);

/* A segment key's pass: 0 F, 1 I, 2 W. Its segment: 0 attention, 1 dispatch, 2 mlp, 3 combine. */
static inline int trace_key_pass(int key)
{
    return (key - COST_KEY_SEGMENTS) % 3;
}

static inline int trace_key_segment(int key)
{
    return (key - COST_KEY_SEGMENTS) / 3;
}

#endif
