/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * places.c: which ranks of a job live on the same host. The table has a number for each rank of the
 * job, so it is made when somebody asks for it, and whoever only meets in the group has none. */
#include "base/memory.h"
#include "group/group.h"
#include "group/reform.h"
#include "system/entries.h"

#include <string.h>

/* Entry `rank` of DUALPIPE_DEBUG=hosts=a:a:b:b; ranks beyond its end are where its last one is. */
static size_t find_host(const char *list, int32_t rank, const char **at_out)
{
    const char *at = list;

    for (; rank > 0 && at[strcspn(at, ":,")] == ':'; rank--)
        at += strcspn(at, ":,") + 1;
    *at_out = at;
    return strcspn(at, ":,");
}

/* It takes ranks of one host apart, for a try of several on one; it never puts ranks of two
 * together. */
static bool listed_apart(const char *list, int32_t a, int32_t b)
{
    const char *at, *bt;
    size_t an, bn;

    if (list == NULL)
        return false;
    an = find_host(list, a, &at);
    bn = find_host(list, b, &bt);
    return an != bn || memcmp(at, bt, an) != 0;
}

const char *dp__group_apart(const dp_group_t *group, int32_t a, int32_t b)
{
    const char *how = group->link->apart(group, a, b);

    return how != NULL ? how : "DUALPIPE_DEBUG=hosts says so";
}

static void fill_places(const dp_group_t *group, dp_host_places_t *places)
{
    size_t n;
    const char *list = dp__environment_entry("DUALPIPE_DEBUG", "hosts", &n);
    int32_t *host_of = (int32_t *)(places + 1), hosts = 0;

    for (int32_t r = 0; r < group->size; r++) {
        int32_t q = r - 1; /* neighbours are most often together */

        while (q >= 0 && (group->link->apart(group, q, r) != NULL || listed_apart(list, q, r)))
            q--;
        host_of[r] = q >= 0 ? host_of[q] : hosts++;
    }
    *places = (dp_host_places_t){sizeof(*places), group->size, hosts, host_of};
}

const dp_host_places_t *dp__group_places(dp_group_t *group)
{
    dp_host_places_t *places = __atomic_load_n(&group->places, __ATOMIC_ACQUIRE), *others = NULL;

    if (places != NULL)
        return places;
    places = dp__allocate(sizeof(*places) + (size_t)group->size * sizeof(int32_t), 16);
    if (places == NULL) {
        (void)dp_fail(DP_ERR_NOMEM, "rank %d: no memory for the hosts of %d ranks", group->rank, group->size);
        return NULL;
    }
    fill_places(group, places);
    if (__atomic_compare_exchange_n(&group->places, &others, places, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return places;
    dp__free(places); /* another thread was faster */
    return others;
}

void dp__group_move_places(dp_group_t *group)
{
    if (group->places != NULL)
        fill_places(group, group->places);
}

void dp__group_free_places(dp_group_t *group)
{
    dp__free(group->places);
    group->places = NULL;
}
