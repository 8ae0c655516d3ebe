/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * checkpoint.h: checkpoints as files: finding the newest, reading its tensors. state.h saves and
 * loads them.
 *
 * A checkpoint is a folder DIR/step-<step> (eight digits or more). It holds a safetensors file of
 * each rank that saved it, "model-00003-of-00008.safetensors", and an index as Hugging Face's,
 * "model.safetensors.index.json". A checkpoint is complete or absent: it gets its name when every
 * byte of it is on the disk. While it is written it is called ".step-<step>.partial".
 *
 * Names of tensors do not depend on the number of ranks. Parameters have their names of param_list,
 * with "layer3." and so on in front. Those of experts have the number of the expert, whatever rank
 * or replica held it. State of a parameter is called "<state>.<parameter>". State of the job has
 * its plain name, state of the pipelines is "<state>.pipeline<d * ep + e>". Each is there once.
 * Tensors have one dimension, because the description of a parameter has no other.
 *
 * Every byte is under a digest (XXH64), against accidents. The head of a file has the digests of
 * its tensors, the index those of the heads and one of itself. A file that was changed, cut off or
 * left out is DP_ERR_INVALID; the message names file and tensor. Format:
 * https://github.com/huggingface/safetensors
 *
 * Since 0.2: dp_checkpoint_run. */
#ifndef DUALPIPE_CHECKPOINT_H
#define DUALPIPE_CHECKPOINT_H

#include <dualpipe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_checkpoint dp_checkpoint_t;

/** The newest complete checkpoint in `folder` of a step below `below` (UINT64_MAX: any).
 * DP_PENDING: there is none, or no such folder. [any] [blocks] */
DP_API DP_CHECKED dp_status_t dp_checkpoint_newest(const char *folder, uint64_t below, uint64_t *step_out);

/** Opens the checkpoint of a step in `folder`. It reads and checks the index and all heads, but no
 * tensors. DP_ERR_INVALID, DP_ERR_IO, DP_ERR_NOMEM. [any] [blocks] */
DP_API DP_CHECKED dp_status_t dp_checkpoint_open(const char *folder, uint64_t step, dp_checkpoint_t **checkpoint_out);
/** Closes a checkpoint. NULL is allowed. [any] */
DP_API void dp_checkpoint_close(dp_checkpoint_t *checkpoint);

/** The run that saved it: a number that is random for each run and stays its own over all jobs that
 *  go on from its checkpoints. Where `dualpipe run` began it: dp_group_environment_t.job of that
 *  job. 0: it was saved by a version before 0.2. [any] */
DP_API uint64_t dp_checkpoint_run(const dp_checkpoint_t *checkpoint);

/** A tensor of a checkpoint. Names belong to the checkpoint. */
typedef struct dp_checkpoint_tensor_t {
    uint32_t struct_size; /* set by the caller */
    dp_dtype_t dtype;
    const char *name, *file;
    uint64_t count;    /* elements */
    int32_t parameter; /* 1: a parameter, 0: registered state */
} dp_checkpoint_tensor_t;
enum { DP_CHECKPOINT_TENSOR_MIN = DP_SIZE_TO(dp_checkpoint_tensor_t, parameter) };

/** Number of tensors. [any] */
DP_API uint32_t dp_checkpoint_count(const dp_checkpoint_t *checkpoint);
/** The i-th tensor by name. DP_ERR_INVALID: i is too large, or tensor_out->struct_size is not set.
 * [any] */
DP_API DP_CHECKED dp_status_t dp_checkpoint_tensor(const dp_checkpoint_t *checkpoint, uint32_t i,
                                                   dp_checkpoint_tensor_t *tensor_out);
/** The number of the tensor `name`; -1: there is none. [any] */
DP_API int64_t dp_checkpoint_find(const dp_checkpoint_t *checkpoint, const char *name);
/** Reads tensor i into host memory of exactly `bytes` bytes. After DP_ERR_INVALID (it is not what
 * was written) and DP_ERR_IO the memory is undefined. [any], one call at a time for a checkpoint.
 * [blocks] */
DP_API DP_CHECKED dp_status_t dp_checkpoint_read(dp_checkpoint_t *checkpoint, uint32_t i, void *memory, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
