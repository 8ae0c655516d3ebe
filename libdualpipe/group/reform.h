/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reform.h: what the engine tells a group and asks it, whose ranks come together again after a
 * death. The time from one coming together to the death that ends it is an epoch. Connections,
 * keys, the key-value store, flight recorders and all that plugins open belong to one epoch:
 * nothing of it is seen in the next. */
#ifndef DP_GROUP_REFORM_H
#define DP_GROUP_REFORM_H

#include <dualpipe/group.h>
#include <stdbool.h>

/* The job has ended because a rank has died, or has lost its state, and somebody puts another in
 * the place of those that die: not where a host is out of reach. [any] */
bool dp__group_survives(dp_group_t *group);
/* Waits for all ranks, among them a new one for each that has died; the group is healthy then, in
 * its next epoch. No thread may be waiting in it, nothing that its plugins have opened may be open.
 * holds: a number that all ranks hear from us: 0 means nothing, as new ones say. Errors:
 * DP_ERR_PEER when nobody comes. [main] [blocks] */
dp_status_t dp__group_reform(dp_group_t *group, uint32_t holds);
/* Whether ranks that die are replaced at all. [any] */
bool dp__group_respawns(const dp_group_t *group);
/* From 1; 0 where ranks are threads, which nobody can replace. [any] */
uint32_t dp__group_epoch(const dp_group_t *group);
/* The number that a rank has come with. Only where ranks can be replaced. [any] */
uint32_t dp__group_held(const dp_group_t *group, int32_t rank);
/* Until it is opened again, what trainers call by themselves fails with DP_ERR_PEER: the others are
 * in other control collectives. [main] */
void dp__group_close(dp_group_t *group, bool closed);
/* How the hosts of two ranks are told apart, for a message; where dp_host_places_t has them on
 * different ones. [any] */
const char *dp__group_apart(const dp_group_t *group, int32_t a, int32_t b);
/* All have come so far. [collective] [blocks] */
dp_status_t dp__group_commit(dp_group_t *group);

/* ---- a pipeline opens and closes ---- */

/* Something that does not come back may be using the group: dp_group_leave() then frees nothing.
 * [main] */
void dp__group_pin(dp_group_t *group);
/* A pipeline of this group opens, or has closed: dp_group_leave waits for the last one. [main] */
void dp__group_hold(dp_group_t *group);
void dp__group_release(dp_group_t *group);
/* Between the two, what this rank's plugins put in the key-value store is for the opening alone.
 * End: all have come so far, and these entries go. [main]; end: [collective] [blocks] */
void dp__group_start_opening(dp_group_t *group);
dp_status_t dp__group_settle(dp_group_t *group);
/* The share of the device that plugins of this rank are told of. [main], before plugins that ask
 * are opened. */
void dp__group_set_sms(dp_group_t *group, uint32_t compute_sms, uint32_t comm_sms);
/* Our number among the ranks of this host, from 0. [any] */
int32_t dp__group_local_rank(const dp_group_t *group);

#endif
