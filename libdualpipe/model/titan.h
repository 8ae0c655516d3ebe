/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * titan.h: models that a TOML file of torchtitan names. */
#ifndef DP_MODEL_TITAN_H
#define DP_MODEL_TITAN_H

#include <dualpipe/model.h>
#include <stdbool.h>

/* It has a line [model]. */
bool dp__model_is_titan(const char *text, size_t bytes);
/* DP_ERR_INVALID: no name or flavor, or one that is not known here. */
dp_status_t dp__model_read_titan(const char *name, const char *text, size_t bytes, dp_model_t *model_out);

#endif
