/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * core.h: softmax(q k^T) v and its gradient by cuDNN, as the core of an attention block. */
#ifndef ATTENTION_CUDNN_CORE_H
#define ATTENTION_CUDNN_CORE_H

#include "plugins/attention/cuda/block.h"

extern const attn_core_t cudnn_core;

#endif
