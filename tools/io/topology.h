/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * topology.h: files that say which rank lives on which host and how long messages take within and
 * between hosts.
 *
 *     HOSTS=0,0,1,1             the host of each rank; or RANKS_PER_HOST=2: as many neighbours on
 *                               each
 *     NEAR.HOP=0.004            latency between ranks of a host, in the unit of the costs
 *     NEAR.BANDWIDTH=6.1e6      bytes in a unit of time; 0 or left out: without limit
 *     FAR.HOP=5.1               the same between hosts
 *     FAR.BANDWIDTH=1.2e5
 *
 * Lines NAME=VALUE, # comments. dualpipe bench-links writes one, in milliseconds. */
#ifndef DP_TOOLS_TOPOLOGY_H
#define DP_TOOLS_TOPOLOGY_H

#include <dualpipe/simulate.h>

typedef struct topology {
    int32_t *hosts; /* [nhosts] or NULL: of each rank; free with topology_clear */
    int32_t nhosts;
    int32_t per_host; /* 0: not given */
    double near_hop, near_bandwidth, far_hop, far_bandwidth;
    unsigned given; /* which lines were there */
} topology_t;

/* How ranks are dealt out to hosts. */
typedef enum topology_placing {
    TOPOLOGY_AS_GIVEN, /* HOSTS; neighbours together where only their number is given */
    TOPOLOGY_BLOCKS,   /* 0 0 1 1: neighbours together */
    TOPOLOGY_TURNS,    /* 0 1 0 1: in turn */
    /* 0 1 1 0: ranks r and P-1-r together, which hold the same stages in DualPipe */
    TOPOLOGY_MIRRORS
} topology_placing_t;
const char *topology_placing_name(topology_placing_t placing);

/* DP_ERR_IO, DP_ERR_INVALID with file and line. topology: zeroed. */
dp_status_t topology_read(const char *path, topology_t *topology);
void topology_clear(topology_t *topology);
/* Hosts that a job of `ranks` takes. DP_ERR_INVALID: HOSTS is of another number of ranks. */
dp_status_t topology_hosts(const topology_t *topology, int32_t ranks, int32_t *hosts_out);
/* The topology of a schedule of `ranks` ranks; host_of: [ranks], filled and pointed to. Errors as
 * topology_hosts. */
dp_status_t topology_place(const topology_t *topology, topology_placing_t placing, int32_t ranks, int32_t *host_of,
                           dp_topology_t *topology_out);

#endif
