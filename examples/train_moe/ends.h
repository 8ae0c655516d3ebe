/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ends.h: the two ends of the model as parts of a stage: embedding (first stage) and head (last stage).
 *
 * embedding   y = table[token]; input: uint8_t [T]
 * head        logits = RMSNorm(x) W; target: uint8_t [T], the byte that follows each token; output: logits,
 *             dtype [T, 256]. Loss: mean over the tokens of the cross-entropy in nats. */
#ifndef TRAIN_MOE_ENDS_H
#define TRAIN_MOE_ENDS_H

#include <dualpipe/dualpipe.h>

#define VOCAB 256 /* a token is a byte */

typedef struct ends {
    const dp_device_vt_t *device_vt; /* launches the kernels; its memory must be the host's */
    dp_dtype_t dtype;
    size_t tokens, hidden; /* T, d */
    double norm_eps;
    dp_param_t embedding_params[1], head_params[2];
} ends_t;

/* Refuses devices that cannot run host functions. Parts point into *ends, which must outlive their stages. */
dp_status_t ends_init(ends_t *ends, const dp_device_vt_t *device_vt, const dp_block_shape_t *shape);
void ends_embedding(ends_t *ends, dp_part_t *part_out);
void ends_head(ends_t *ends, dp_part_t *part_out);

#endif
