/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * recorder.h: system calls of the library, which the linker brings here (--wrap): they are done,
 * and written down for what changes files below one folder; or the n-th of them fails. */
#ifndef DP_TESTS_RECORDER_H
#define DP_TESTS_RECORDER_H

#include <stdbool.h>
#include <stddef.h>

enum { RECORDS_MOST = 512, NODES_MOST = 256, RECORD_NAME = 80 };

/* Files and folders are nodes; node 0 is the folder that is watched. */
typedef enum record_kind {
    RECORD_CREATE,
    RECORD_MKDIR,
    RECORD_WRITE,
    RECORD_SYNC,
    RECORD_RENAME,
    RECORD_SWAP,
    RECORD_UNLINK,
    RECORD_MARK
} record_kind_t;

typedef struct record {
    record_kind_t kind;
    /* the folder whose names change; the node that is made, written or synced */
    int folder, node;
    char name[RECORD_NAME]; /* in the folder */
    char to[RECORD_NAME];   /* of a rename, in the same folder */
    char *data;
    size_t bytes, at;
    int mark;
} record_t;

extern record_t records[RECORDS_MOST];
extern int nrecords;

void recorder_begin(const char *folder);
void recorder_end(void);
/* Writes down that the caller has got so far. */
void recorder_mark(int mark);

/* The n-th call (from 0) fails with this errno; sticky: and all after it. Nothing is written down
 * meanwhile. */
void recorder_fail(long n, bool sticky, int error);
/* Whether a call has failed; and none will from now on. */
bool recorder_failed(void);

#endif
