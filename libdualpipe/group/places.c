/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * places.c: which ranks of a job live on the same host. */
#include "base/memory.h"
#include "group/group.h"
#include "group/reform.h"

#include <stdlib.h>
#include <string.h>

/* Entry `rank` of DUALPIPE_HOSTS, "a,a,b,b"; ranks beyond its end are where its last one is. */
static size_t entry(const char *list, int32_t rank, const char **at_out)
{
    const char *at = list, *comma;

    for (; rank > 0 && (comma = strchr(at, ',')) != NULL; rank--)
        at = comma + 1;
    *at_out = at;
    return strcspn(at, ",");
}

/* DUALPIPE_HOSTS takes ranks of one host apart, for a try of several on one; it never puts ranks of two together. */
static bool listed_apart(const char *list, int32_t a, int32_t b)
{
    const char *at, *bt;
    size_t an, bn;

    if (list == NULL)
        return false;
    an = entry(list, a, &at);
    bn = entry(list, b, &bt);
    return an != bn || memcmp(at, bt, an) != 0;
}

const char *dp__group_apart(const dp_group_t *group, int32_t a, int32_t b)
{
    const char *how = group->link->apart(group, a, b);

    return how != NULL ? how : "DUALPIPE_HOSTS says so";
}

dp_status_t dp__group_find_places(dp_group_t *group)
{
    const char *list = secure_getenv("DUALPIPE_HOSTS");
    int32_t hosts = 0, *first; /* [hosts] a rank of each */

    if (list != NULL && *list == '\0')
        list = NULL;
    group->host_of = dp__calloc((size_t)group->size, sizeof(*group->host_of));
    first = dp__calloc((size_t)group->size, sizeof(*first));
    if (group->host_of == NULL || first == NULL) {
        dp__free(first);
        dp__group_free_places(group);
        return dp_fail(DP_ERR_NOMEM, "rank %d: no memory for the hosts of %d ranks", group->rank, group->size);
    }
    for (int32_t r = 0; r < group->size; r++) {
        int32_t h = 0;

        while (h < hosts && (group->link->apart(group, first[h], r) != NULL || listed_apart(list, first[h], r)))
            h++;
        if (h == hosts)
            first[hosts++] = r;
        group->host_of[r] = h;
    }
    dp__free(first);
    group->places = (dp_host_places_t){sizeof(dp_host_places_t), group->size, hosts, group->host_of};
    return DP_OK;
}

void dp__group_free_places(dp_group_t *group)
{
    dp__free(group->host_of);
    group->host_of = NULL;
}
