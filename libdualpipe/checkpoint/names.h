/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * names.h: what the files and folders of checkpoints are called. */
#ifndef DP_CHECKPOINT_NAMES_H
#define DP_CHECKPOINT_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#define DP__INDEX_NAME "model.safetensors.index.json"

enum { DP__FILE_NAME_BYTES = 64 };

/* "step-00000100"; partial: ".step-00000100.partial", its name until it is complete. */
void dp__step_name(char name[DP__FILE_NAME_BYTES], uint64_t step, bool partial);
/* Whether a folder is called like one; partial: like one that is not complete. */
bool dp__step_of_name(const char *name, bool partial, uint64_t *step_out);
/* "model-00003-of-00008.safetensors" of rank 2, as Hugging Face counts. */
void dp__rank_name(char name[DP__FILE_NAME_BYTES], int32_t rank, int32_t ranks);
/* A file that a checkpoint's folder has in it: of a rank, or the index; whole or begun. */
bool dp__file_is_ours(const char *name);

#endif
