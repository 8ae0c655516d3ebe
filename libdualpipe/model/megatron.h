/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * megatron.h: models in arguments of Megatron-LM. */
#ifndef DP_MODEL_MEGATRON_H
#define DP_MODEL_MEGATRON_H

#include <dualpipe/model.h>

/* Sizes are not checked. DP_ERR_INVALID: an argument that shapes a model and is not known here. */
dp_status_t dp__model_read_megatron(const char *name, const char *text, size_t bytes, dp_model_t *model_out);

#endif
