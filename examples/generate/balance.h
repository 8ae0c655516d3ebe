/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * balance.h: experts of a model that serves, placed by what its own steps count, and moved beside
 * them. */
#ifndef GENERATE_BALANCE_H
#define GENERATE_BALANCE_H

#include <dualpipe/dualpipe.h>
#include <dualpipe/moe_layers.h>

/* Before layers are built: the model's layers, the stages that divide them, the servers and the
 * hosts that they are on. */
dp_status_t balance_open(const dp_moe_config_t *moe, int32_t layers, int32_t stages, int32_t servers, int32_t hosts);
/* A layer of this rank is built: from now on its tokens are counted. */
void balance_watch(int32_t number, dp_moe_layer_t *layer);
/* Collective, behind each step: ends the move that ran beside it and begins that of the next layer.
 * When all are in place rank 0 says what came of it, and `again` plans anew, by the tokens since
 * the last plan: hierarchical behind steps that read prompts and global behind others. */
dp_status_t balance_step(dp_pipeline_t *pipeline, int again, int prefill, int speaks);
void balance_close(void);

#endif
