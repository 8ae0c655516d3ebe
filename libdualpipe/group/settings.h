/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * settings.h: "name=value\n" lines that must be the same on all ranks. */
#ifndef DP_GROUP_SETTINGS_H
#define DP_GROUP_SETTINGS_H

#include <dualpipe/status.h>
#include <stdbool.h>

#define DP__SETTINGS_BYTES (64u * 1024)

/* true when they are the same but for the order of lines. Otherwise text has every difference that
 * fits, as "microbatches is 16 on rank 0 and 8 on rank 2; ...". The texts are foreign: anything may
 * be in them. */
bool dp__settings_equal(const char *ours, int32_t our_rank, const char *theirs, int32_t their_rank, char *text,
                        size_t bytes);

#endif
