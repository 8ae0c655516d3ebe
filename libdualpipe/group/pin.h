/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pin.h: a group that outlives its leaving. */
#ifndef DP_GROUP_PIN_H
#define DP_GROUP_PIN_H

#include <dualpipe/group.h>

/* Something that does not come back may be using the group: dp_group_leave() then frees nothing. [main] */
void dp__group_pin(dp_group_t *group);

#endif
