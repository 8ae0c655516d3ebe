/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pin.h: what the engine tells a group, and asks it. */
#ifndef DP_GROUP_PIN_H
#define DP_GROUP_PIN_H

#include <dualpipe/group.h>

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
