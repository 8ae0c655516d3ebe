/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * oom.c: an allocator for tests that counts what is alive and fails when told to: call k once, or
 * every call from k on.
 *
 *     oom_install();
 *     for (k = 0; ; k++) {
 *         oom_arm(k, sticky);
 *         status = operation();
 *         failed = oom_struck();
 *         oom_disarm();
 *         if (!failed)
 *             break;                            the operation went through untouched
 *         ck_assert_int_eq(status, DP_ERR_NOMEM);
 *         ck_assert_int_eq(oom_live(), 0);      nothing was left behind
 *     }
 *     oom_uninstall();
 *
 * Blocks carry a head that release() checks, so that a foreign or doubly released pointer ends the
 * test. */
#include "oom.h"

#define OOM_MAGIC UINT64_C(0x6475616c70697065)

typedef struct oom_head {
    uint64_t magic;
    void *start;
    size_t bytes, alignment;
} oom_head_t;

static struct {
    atomic_long live, calls, left; /* left: calls until the first failure; negative: never */
    atomic_bool sticky, struck;
} oom;

static void *oom_allocate(void *user, size_t bytes, size_t alignment)
{
    oom_head_t *head;
    char *start, *memory;
    long left = atomic_load(&oom.left);

    (void)user;
    atomic_fetch_add(&oom.calls, 1);
    ck_assert_msg(alignment >= 16 && (alignment & (alignment - 1)) == 0, "alignment of %zu asked for", alignment);
    if (left >= 0) {
        left = atomic_fetch_sub(&oom.left, 1);
        if (left == 0 || (left < 0 && atomic_load(&oom.sticky))) {
            atomic_store(&oom.struck, true);
            if (atomic_load(&oom.sticky))
                atomic_store(&oom.left, 0);
            return NULL;
        }
    }
    if (bytes > SIZE_MAX / 2)
        return NULL;
    start = malloc(bytes + alignment + sizeof(*head));
    if (start == NULL)
        return NULL;
    memory = start + sizeof(*head);
    memory += (alignment - (uintptr_t)memory % alignment) % alignment;
    head = (oom_head_t *)(void *)(memory - sizeof(*head));
    *head = (oom_head_t){OOM_MAGIC, start, bytes, alignment};
    memset(memory, 0xa5, bytes); /* what was not written is not zero by luck */
    atomic_fetch_add(&oom.live, 1);
    return memory;
}

static void oom_release(void *user, void *memory)
{
    oom_head_t *head;

    (void)user;
    if (memory == NULL)
        return;
    head = (oom_head_t *)(void *)((char *)memory - sizeof(*head));
    ck_assert_msg(head->magic == OOM_MAGIC, "released memory that was not allocated here, or twice");
    head->magic = 0;
    atomic_fetch_sub(&oom.live, 1);
    free(head->start);
}

void oom_arm(long k, bool sticky)
{
    atomic_store(&oom.struck, false);
    atomic_store(&oom.sticky, sticky);
    atomic_store(&oom.left, k);
}

void oom_disarm(void)
{
    atomic_store(&oom.left, -1);
}

bool oom_struck(void)
{
    return atomic_load(&oom.struck);
}

long oom_live(void)
{
    return atomic_load(&oom.live);
}

long oom_calls(void)
{
    return atomic_load(&oom.calls);
}

void oom_install(void)
{
    static const dp_allocator_t table = {NULL, oom_allocate, oom_release};

    oom_disarm();
    dp_set_allocator(&table);
}

void oom_uninstall(void)
{
    dp_set_allocator(NULL);
}
