/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kv.h: the key-value store of a job, as held by one process: keys with bytes, each written
 * once. */
#ifndef DP_GROUP_KV_H
#define DP_GROUP_KV_H

#include "group/cause.h"

#include <pthread.h>

#define DP__KV_KEY_BYTES   128          /* with the NUL */
#define DP__KV_VALUE_BYTES (64u * 1024) /* most one entry may hold */
#define DP__KV_BUCKETS     256

typedef struct dp__kv_entry {
    struct dp__kv_entry *next;
    char key[DP__KV_KEY_BYTES];
    size_t bytes;
    bool passing; /* goes with dp__kv_settle */
    unsigned char data[];
} dp__kv_entry_t;

typedef struct dp__kv {
    pthread_mutex_t mutex;
    dp_signal_t puts; /* how many there were */
    dp__kv_entry_t *buckets[DP__KV_BUCKETS];
} dp__kv_t;

void dp__kv_init(dp__kv_t *kv);
void dp__kv_fini(dp__kv_t *kv);

/* Checks what callers hand in before it goes anywhere. */
dp_status_t dp__kv_check(const char *key, size_t bytes);
/* DP_ERR_INVALID when the key is taken. passing: it goes with the next dp__kv_settle. [any] */
dp_status_t dp__kv_put(dp__kv_t *kv, const char *key, const void *data, size_t bytes, bool passing);
/* Lets go of what is passing: everybody has read it. [any] */
void dp__kv_settle(dp__kv_t *kv);
/* NULL when it is not there (yet). For the one thread that also settles. */
const dp__kv_entry_t *dp__kv_find(dp__kv_t *kv, const char *key);
/* Waits for the key, for rank `rank`, and copies it. [any] [blocks] */
dp_status_t dp__kv_wait(dp__kv_t *kv, dp__cause_t *cause, int32_t rank, int64_t timeout_ns, const char *key, void *data,
                        size_t bytes);

#endif
