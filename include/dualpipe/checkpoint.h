/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * checkpoint.h: checkpoints as files: finding the newest, reading what is in it. state.h saves and loads them.
 *
 * A checkpoint is a folder DIR/step-<step> (eight digits or more) with a safetensors file of each rank that saved it,
 * "model-00003-of-00008.safetensors", and an index as Hugging Face's, "model.safetensors.index.json". It is complete or
 * it is not there: it gets its name when every byte of it is on the disk. What is being written is called
 * ".step-<step>.partial".
 *
 * Names of tensors do not depend on how many ranks there were: parameters have their names of param_list ("layer3." and
 * so on in front), those of experts the number of the expert, whatever rank or replica had it; state that goes with
 * parameters is called "<state>.<parameter>", state of the job as it is called itself, state of the pipelines
 * "<state>.pipeline<d * ep + e>". Each is there once. Tensors have one dimension: a parameter's description has no
 * other.
 *
 * Every byte is under a digest (XXH64), against accidents: those of the tensors are in the heads of their files, those
 * of the heads in the index, and the index has its own. What was changed, cut off or left out is DP_ERR_INVALID with
 * the names of file and tensor. Format: https://github.com/huggingface/safetensors */
#ifndef DUALPIPE_CHECKPOINT_H
#define DUALPIPE_CHECKPOINT_H

#include <dualpipe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_checkpoint dp_checkpoint_t;

/** The newest complete checkpoint in `folder` of a step below `below` (UINT64_MAX: any). DP_PENDING: there is none, or
 *  no such folder. [any] [blocks] */
DP_API dp_status_t dp_checkpoint_newest(const char *folder, uint64_t below, uint64_t *step_out);

/** Opens the checkpoint of a step in `folder`: reads and checks the index and all heads, no tensors. DP_ERR_INVALID,
 *  DP_ERR_IO, DP_ERR_NOMEM. [any] [blocks] */
DP_API dp_status_t dp_checkpoint_open(const char *folder, uint64_t step, dp_checkpoint_t **checkpoint_out);
/** NULL is allowed. */
DP_API void dp_checkpoint_close(dp_checkpoint_t *checkpoint);

/** A tensor of a checkpoint. Names belong to the checkpoint. */
typedef struct dp_checkpoint_tensor {
    uint32_t struct_size; /* set by the caller */
    dp_dtype_t dtype;
    const char *name, *file;
    uint64_t count;    /* elements */
    int32_t parameter; /* 1: a parameter, 0: registered state */
} dp_checkpoint_tensor_t;
#define DP_CHECKPOINT_TENSOR_MIN DP_SIZE_TO(dp_checkpoint_tensor_t, parameter)

/** How many tensors there are. */
DP_API uint32_t dp_checkpoint_count(const dp_checkpoint_t *checkpoint);
/** The i-th by name. DP_ERR_INVALID: there are not so many, or tensor_out->struct_size is not set. */
DP_API dp_status_t dp_checkpoint_tensor(const dp_checkpoint_t *checkpoint, uint32_t i,
                                        dp_checkpoint_tensor_t *tensor_out);
/** The number of the tensor `name`; -1: there is none. */
DP_API int64_t dp_checkpoint_find(const dp_checkpoint_t *checkpoint, const char *name);
/** Reads tensor i into host memory of exactly `bytes` bytes. After DP_ERR_INVALID (it is not what was written) and
 *  DP_ERR_IO the memory holds anything. One call at a time. [blocks] */
DP_API dp_status_t dp_checkpoint_read(dp_checkpoint_t *checkpoint, uint32_t i, void *memory, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
