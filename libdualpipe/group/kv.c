/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kv.c: the key-value store: a small hash table under a mutex. */
#include "group/kv.h"
#include "base/hash.h"
#include "base/memory.h"

#include <string.h>

void dp__kv_init(dp__kv_t *kv)
{
    memset(kv, 0, sizeof(*kv));
    pthread_mutex_init(&kv->mutex, NULL);
}

void dp__kv_fini(dp__kv_t *kv)
{
    for (int i = 0; i < DP__KV_BUCKETS; i++)
        while (kv->buckets[i] != NULL) {
            dp__kv_entry_t *entry = kv->buckets[i];

            kv->buckets[i] = entry->next;
            dp__free(entry);
        }
    pthread_mutex_destroy(&kv->mutex);
}

static uint32_t bucket_of(const char *key)
{
    return (uint32_t)(dp__hash_text(DP__HASH_BEGIN, key) % DP__KV_BUCKETS);
}

dp_status_t dp__kv_check(const char *key, size_t bytes)
{
    if (key == NULL || key[0] == '\0' || strnlen(key, DP__KV_KEY_BYTES) == DP__KV_KEY_BYTES)
        return dp_fail(DP_ERR_INVALID, "a key of the boot service has 1 to %d characters", DP__KV_KEY_BYTES - 1);
    if (bytes > DP__KV_VALUE_BYTES)
        return dp_fail(DP_ERR_INVALID, "key \"%s\": %zu bytes, but the boot service takes at most %u", key, bytes,
                       DP__KV_VALUE_BYTES);
    return DP_OK;
}

static const dp__kv_entry_t *find_entry(const dp__kv_t *kv, const char *key)
{
    const dp__kv_entry_t *entry = kv->buckets[bucket_of(key)];

    while (entry != NULL && strcmp(entry->key, key) != 0)
        entry = entry->next;
    return entry;
}

const dp__kv_entry_t *dp__kv_find(dp__kv_t *kv, const char *key)
{
    const dp__kv_entry_t *entry;

    pthread_mutex_lock(&kv->mutex);
    entry = find_entry(kv, key);
    pthread_mutex_unlock(&kv->mutex);
    return entry;
}

/* DP_ERR_PROTOCOL when the entry does not hold exactly `bytes` bytes. */
static dp_status_t copy_value(const dp__kv_entry_t *entry, void *data, size_t bytes)
{
    if (entry->bytes != bytes)
        return dp_fail(DP_ERR_PROTOCOL, "key \"%s\" holds %zu bytes, %zu were asked for", entry->key, entry->bytes,
                       bytes);
    if (bytes > 0)
        memcpy(data, entry->data, bytes);
    return DP_OK;
}

/* false when the key is not there. */
static bool read_entry(dp__kv_t *kv, const char *key, void *data, size_t bytes, dp_status_t *status_out)
{
    const dp__kv_entry_t *entry;

    pthread_mutex_lock(&kv->mutex);
    entry = find_entry(kv, key);
    if (entry != NULL)
        *status_out = copy_value(entry, data, bytes);
    pthread_mutex_unlock(&kv->mutex);
    return entry != NULL;
}

void dp__kv_settle(dp__kv_t *kv)
{
    pthread_mutex_lock(&kv->mutex);
    for (int i = 0; i < DP__KV_BUCKETS; i++)
        for (dp__kv_entry_t **at = &kv->buckets[i]; *at != NULL;) {
            dp__kv_entry_t *entry = *at;

            if (!entry->passing) {
                at = &entry->next;
                continue;
            }
            *at = entry->next;
            dp__free(entry);
        }
    pthread_mutex_unlock(&kv->mutex);
}

dp_status_t dp__kv_put(dp__kv_t *kv, const char *key, const void *data, size_t bytes, bool passing)
{
    uint32_t bucket = bucket_of(key);
    dp__kv_entry_t *entry = dp__allocate(sizeof(*entry) + bytes, 16);

    if (entry == NULL)
        return dp_fail(DP_ERR_NOMEM, "key \"%s\": no memory for its %zu bytes", key, bytes);
    memset(entry, 0, sizeof(*entry));
    memcpy(entry->key, key, strlen(key));
    entry->bytes = bytes;
    entry->passing = passing;
    if (bytes > 0)
        memcpy(entry->data, data, bytes);

    pthread_mutex_lock(&kv->mutex);
    if (find_entry(kv, key) != NULL) {
        pthread_mutex_unlock(&kv->mutex);
        dp__free(entry);
        return dp_fail(DP_ERR_INVALID, "key \"%s\" was published before: keys are unique in a job", key);
    }
    entry->next = kv->buckets[bucket];
    kv->buckets[bucket] = entry;
    dp__signal_post(&kv->puts, dp__signal_value(&kv->puts) + 1);
    pthread_mutex_unlock(&kv->mutex);
    return DP_OK;
}

dp_status_t dp__kv_wait(dp__kv_t *kv, dp__cause_t *cause, int32_t rank, int64_t timeout_ns, const char *key, void *data,
                        size_t bytes)
{
    int64_t deadline = dp__now_ns() + timeout_ns;

    for (;;) {
        uint32_t puts = dp__signal_value(&kv->puts);
        dp_status_t status;

        if (read_entry(kv, key, data, bytes, &status))
            return status;
        status = dp__cause_wait(cause, &kv->puts, puts + 1, deadline - dp__now_ns(), "key-value store");
        if (status == DP_ERR_TIMEOUT)
            return dp_fail(status, "rank %d waited %.3g s for \"%s\", which no rank has published", rank,
                           (double)timeout_ns * 1e-9, key);
        if (status != DP_OK)
            return status;
    }
}
