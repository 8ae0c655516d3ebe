/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cost_keys.h: costs by name, as --cost and cost files give them. */
#ifndef DP_TOOLS_COST_KEYS_H
#define DP_TOOLS_COST_KEYS_H

#include <dualpipe/simulate.h>
#include <stdbool.h>

enum {
    /* F to LAYERS come before attention.F, ... */
    COST_KEY_SEGMENTS = 10,
    COST_KEY_FINE = COST_KEY_SEGMENTS + 3 * DP_SEGMENT_COSTS, /* project.F, ... */
    COST_KEY_R = COST_KEY_FINE + 3 * DP_SEGMENT_FINE,         /* R, attention.R, mlp.R */
    COST_KEYS = COST_KEY_R + 3
};

typedef struct cost_keys {
    double value[COST_KEYS];
    bool given[COST_KEYS];
    double *stage_scale; /* [nscales] or NULL; free with cost_keys_clear */
    int32_t nscales;
} cost_keys_t;

/* "F", "HOP", "attention.F"; -1: no such key. */
int cost_keys_find(const char *name, size_t length);
/* A number of 0 or more; the text behind it, NULL when there is none. */
const char *cost_keys_number(const char *text, double *value_out);
/* Numbers with commas between them, into stage_scale. */
dp_status_t cost_keys_scales(cost_keys_t *keys, const char *text);
/* A factor for each rank, 1 for those that "3:1.2,5:1.1" does not name: [DP_MAX_RANKS], the caller
 * frees it, also after an error. *named_out: from this one on none is named. */
dp_status_t cost_keys_ranks(const char *text, double **scale_out, int32_t *named_out);
/* Lines KEY=VALUE, # comments, of a file ("-": standard input) into keys that are all free. Errors
 * name file and line. */
dp_status_t cost_keys_read(const char *path, cost_keys_t *keys);
/* The same of a text (input_split). */
dp_status_t cost_keys_parse(const char *name, char *text, size_t bytes, cost_keys_t *keys);
/* What `from` gives and `keys` does not. */
void cost_keys_merge(cost_keys_t *keys, cost_keys_t *from);
/* The costs they make, over those in *costs. pair_out->struct_size is 0 afterwards when no segment
 * was given. */
dp_status_t cost_keys_resolve(const cost_keys_t *keys, dp_costs_t *costs, dp_pair_figures_t *pair_out);
/* The segments of a layer, those that were not given 0. */
dp_status_t cost_keys_segments(const cost_keys_t *keys, dp_segment_costs_t *segments_out);
void cost_keys_clear(cost_keys_t *keys);

/* "F=1,I=1,W=1,B=2,FB=3,HOP=0", and BYTES and BANDWIDTH where links are limited. */
void costs_text(const dp_costs_t *costs, char *text, size_t bytes);

#endif
