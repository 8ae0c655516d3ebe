/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_layers.h: MoE transformer layers out of plugins (moe_block.h), and where experts that live on
 * several ranks are placed (eplb.h).
 *
 * Since 0.2. */
#ifndef DUALPIPE_MOE_LAYERS_H
#define DUALPIPE_MOE_LAYERS_H

#include <dualpipe/eplb.h>
#include <dualpipe/moe_block.h>

#endif
