/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * passes.h: what block.c wants of passes.c. */
#ifndef DP_CUDA_ATTENTION_PASSES_H
#define DP_CUDA_ATTENTION_PASSES_H

#include "attention.h"

/** Walks through all passes once without a stream, so that every product they use is prepared. */
dp_status_t dp_attention_rehearse(dp_attention_t *a);

#endif
