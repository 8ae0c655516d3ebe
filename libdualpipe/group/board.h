/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * board.h: the blackboard of a job, as held by one process: keys with bytes, each written once. */
#ifndef DP_GROUP_BOARD_H
#define DP_GROUP_BOARD_H

#include "group/cause.h"

#include <pthread.h>

#define DP__BOARD_KEY_BYTES   128          /* with the NUL */
#define DP__BOARD_VALUE_BYTES (64u * 1024) /* most one entry may hold */
#define DP__BOARD_BUCKETS     256

typedef struct dp__board_entry {
    struct dp__board_entry *next;
    char key[DP__BOARD_KEY_BYTES];
    size_t bytes;
    bool passing; /* goes with dp__board_settle */
    unsigned char data[];
} dp__board_entry_t;

typedef struct dp__board {
    pthread_mutex_t mutex;
    dp_signal_t puts; /* how many there were */
    dp__board_entry_t *buckets[DP__BOARD_BUCKETS];
} dp__board_t;

void dp__board_init(dp__board_t *board);
void dp__board_fini(dp__board_t *board);

/* Checks what callers hand in before it goes anywhere. */
dp_status_t dp__board_check(const char *key, size_t bytes);
/* DP_ERR_INVALID when the key is taken. passing: it goes with the next dp__board_settle. [any] */
dp_status_t dp__board_put(dp__board_t *board, const char *key, const void *data, size_t bytes, bool passing);
/* Lets go of what is passing: everybody has read it. [any] */
void dp__board_settle(dp__board_t *board);
/* NULL when it is not there (yet). For the one thread that also settles. */
const dp__board_entry_t *dp__board_find(dp__board_t *board, const char *key);
/* Waits for the key, for rank `rank`, and copies it. [any] [blocks] */
dp_status_t dp__board_wait(dp__board_t *board, dp__cause_t *cause, int32_t rank, int64_t timeout_ns, const char *key,
                           void *data, size_t bytes);

#endif
