/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ends.h: what the launcher tells its ranks, and they it. It alone knows of ranks that end before
 * they have joined, and why nobody is started any more: a line for each into a file without a name,
 * which all ranks of a host have inherited (`ends` of DUALPIPE_LAUNCH): "<name of the job>
 * <sentence>". Where it starts ranks again they tell it what it cannot see (`tell`, a socket):
 * "<name of the job> <word> <rank> <process> <text>". */
#ifndef DP_GROUP_ENDS_H
#define DP_GROUP_ENDS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define DP__ENDS_NAP_NS 50000000 /* how often a rank that is joining looks */

typedef struct dp__ends {
    int fd;     /* -1: none; never closed: a group that is joined later reads it anew */
    int tell;   /* the same */
    off_t read; /* so far */
} dp__ends_t;

void dp__ends_open(dp__ends_t *ends);
/* Who has ended next, and how. false: nobody. */
bool dp__ends_next(dp__ends_t *ends, char *text, size_t bytes);
/* What the launcher is to know of the process of a rank. "joined"; "died", with what it was
 * doing; "hung", with a sentence: it is to be killed and replaced. Nothing without a launcher that
 * wants to hear it. */
void dp__ends_tell(const dp__ends_t *ends, const char *word, int rank, int pid, const char *text);

#endif
