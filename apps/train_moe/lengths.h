/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lengths.h: how many tokens a micro-batch has (--varlen) and where its documents end
 * (--documents), drawn from the numbers of step, replica and micro-batch alone: any rank can say it
 * of any other. */
#ifndef TRAIN_MOE_LENGTHS_H
#define TRAIN_MOE_LENGTHS_H

#include "options.h"

/* Most sequences in a micro-batch; with --documents, most documents. */
uint32_t lengths_most(const options_t *options);

/* Tokens of micro-batch `index` of a training step of a data replica; ends_out [lengths_most] NULL,
 * or where its sequences (documents) end, *count_out of them. */
uint32_t lengths_draw(const options_t *options, int64_t step, int32_t replica, int32_t index, uint32_t *ends_out,
                      uint32_t *count_out);

#endif
