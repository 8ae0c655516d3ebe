/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * map.h: where the members of a group live, and the ways that a sum takes among them.
 *
 * A sum is ((r0 + r1) + r2) + ... in the order of ranks, whatever lives where. So members are cut
 * into runs: neighbours in rank order on one host. The running sum walks from run to run, the total
 * walks back along a tree. */
#ifndef DP_MIXED_MAP_H
#define DP_MIXED_MAP_H

#include <dualpipe/plugin.h>

enum { DP__MIXED_CHILDREN = 3 }; /* the next host, and two on our own */

typedef struct dp__mixed_map {
    int32_t n, rank; /* of the group */
    int32_t *host;   /* [n] */
    int32_t hosts;   /* that have members */
    int32_t *near;   /* [n]: a member's number among those of its host */
    int32_t near_n;  /* members on our host */

    int32_t runs, run;        /* how many; ours */
    int32_t run_first, run_n; /* members of ours: rank run_first and those behind it */
    /* first rank of the run before and behind ours, if we are the first of ours; else -1 */
    int32_t prev, next;
    /* who gives us the total; -1: we have it as soon as our run is through */
    int32_t parent;
    int32_t children[DP__MIXED_CHILDREN], nchildren;
    int32_t far_hops, near_hops; /* from the last run to us, down the tree */
    /* The first rank of a run carries the running sum on, that of a host the total: it begins a run
     * as well */
    /* [n] the run that a member is the first rank of; -1: it only has neighbours */
    int32_t *carries;
} dp__mixed_map_t;

/* host_of: [n] the host of each member. `memory` has room for dp__mixed_map_ints(n) numbers and
 * lives as long as the map. */
static inline size_t dp__mixed_map_ints(int32_t n)
{
    return 5 * (size_t)n;
}
void dp__mixed_map(dp__mixed_map_t *map, int32_t *memory, int32_t rank, int32_t n, const int32_t *host_of);

#endif
