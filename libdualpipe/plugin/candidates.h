/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * candidates.h: the plugins of a kind among which the library may choose by itself. */
#ifndef DP_PLUGIN_CANDIDATES_H
#define DP_PLUGIN_CANDIDATES_H

#include <stdint.h>

enum { DP__CANDIDATES = 16 };

typedef struct dp__candidate {
    char name[64]; /* as dp_plugin_load() takes it */
    uint32_t preference;
} dp__candidate_t;

/* Plugins with a preference whose names begin with `kind` ("comm_"), in the folders of
 * dp_plugin_load(): the best first, then by name. Files are judged and read, not mapped. Returns
 * how many, or DP_ERR_NOMEM. */
int dp__plugin_candidates(const char *kind, dp__candidate_t list[DP__CANDIDATES]);

#endif
