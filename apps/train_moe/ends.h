/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ends.h: the two ends of the model as parts of a stage: embedding (first stage) and head (last
 * stage). */
#ifndef TRAIN_MOE_ENDS_H
#define TRAIN_MOE_ENDS_H

#include <dualpipe/dualpipe.h>
#include <dualpipe/moe_layers.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>

#include "compute.h"

typedef struct ends {
    const compute_vt_t *vt;
    compute_t *compute;
    dp_segment_t embedding, head;
    dp_block_sizes_t embedding_sizes, head_sizes;
    dp_param_t embedding_params[1], head_params[2];
} ends_t;

/* device: the device plugin's name, which says who computes where host functions cannot. Parts
 * point into *ends. With config->tied embedding and head share the parameter "embedding.table". */
dp_status_t ends_open(ends_t *ends, const dp_host_t *host, const char *device, const compute_config_t *config);
void ends_close(ends_t *ends);
void ends_embedding(ends_t *ends, dp_part_t *part_out);
void ends_head(ends_t *ends, dp_part_t *part_out);

#endif
