/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ends.h: ranks of which the launcher alone knows that they have ended, because they had not joined
 * yet. It writes a line for each into a file without a name, which all ranks of a host have
 * inherited (`ends` of DUALPIPE_LAUNCH): "<name of the job> <sentence>". */
#ifndef DP_GROUP_ENDS_H
#define DP_GROUP_ENDS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define DP__ENDS_NAP_NS 50000000 /* how often a rank that is joining looks */

typedef struct dp__ends {
    int fd;     /* -1: none; never closed: a group that is joined later reads it anew */
    off_t read; /* so far */
} dp__ends_t;

void dp__ends_open(dp__ends_t *ends);
/* Who has ended next, and how. false: nobody. */
bool dp__ends_next(dp__ends_t *ends, char *text, size_t bytes);

#endif
