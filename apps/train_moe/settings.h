/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * settings.h: the settings of a run (options_run) in its checkpoints. */
#ifndef TRAIN_MOE_SETTINGS_H
#define TRAIN_MOE_SETTINGS_H

#include "options.h"

#define SETTINGS_NAME "run.settings"

/* DP_ERR_INVALID with both values where `here` would make another run than `there`, which are those
 * of the run in `folder`. tell: what else differs goes to standard error. */
dp_status_t settings_compare(const char *here, const char *there, const char *folder, bool tell);

/* Those of a checkpoint, to be freed; NULL: it does not say, or cannot be read. */
char *settings_read(dp_checkpoint_t *checkpoint);
/* 0: there is no such setting. */
int64_t settings_number(const char *settings, const char *name);

#endif
