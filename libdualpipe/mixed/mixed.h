/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mixed.h: one dp.comm/1 out of two: what ranks of one host tell each other goes over `near`, the
 * rest over `far`.
 *
 * Any two transports do, as long as the far one reaches other hosts (DP_COMM_CAP_HOSTS). A group
 * whose ranks all live on one host is an instance of near and nothing else, one with a host for
 * each rank an instance of far. Any other has
 *
 *   far       all of the group: channels and rows between hosts, small reductions
 *   near      the ranks of our host: channels and rows among them
 *   near_sum  the same ranks: the total on its way down (reductions.c)
 *   run       the ranks of our run (map.h), where that is not all of our host
 *   far_sum   the first ranks of all runs: the running sum, and the total
 *
 * Reductions have separate instances because they run beside the channels, and a transport that
 * matches transfers has one order between two ranks for all their channels.
 *
 * One-sided and matched. The pair is one-sided if both are. If only one is, the engine runs the
 * program for matched bundles, and what goes over the one-sided transport completes as well:
 * program.h has the reason. So the pair has brackets, and hands each on to the side that its
 * transfers are on. */
#ifndef DP_MIXED_MIXED_H
#define DP_MIXED_MIXED_H

#include <dualpipe/comm.h>

#include <stdbool.h>

/** The table that joins two. It lives as long as the process; the same for the same two.
 *  DP_ERR_UNSUPPORTED: far does not say that it reaches other hosts. [any] */
dp_status_t dp__mixed_table(const dp_comm_vt_t *near, const dp_comm_vt_t *far, const dp_comm_vt_t **table_out);
/* Whether a table is one of those. */
bool dp__mixed_is(const dp_comm_vt_t *table);
/* The capabilities of the transport that an end of such a table is on. */
uint32_t dp__mixed_end_caps(const dp_channel_end_t *end);

#endif
