/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * replicas.h: what a MoE layer needs of its rank's replicas beyond the public calls. */
#ifndef DP_STAGE_REPLICAS_H
#define DP_STAGE_REPLICAS_H

#include <dualpipe/replicas.h>

const dp_replicas_config_t *dp__replicas_config(const dp_replicas_t *replicas);

/* Device memory for a placement, which goes with the replicas: a layer is freed when the device is gone. */
dp_status_t dp__replicas_allocate(dp_replicas_t *replicas, int32_t **device_placement_out);
/* Waits until it is there. */
dp_status_t dp__replicas_write(dp_replicas_t *replicas, int32_t *device_placement, const int32_t *placement);

#endif
