/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * header.h: the head of a safetensors file: 8 bytes of length, little-endian, then JSON that says
 * which tensor lies where. Format: https://github.com/huggingface/safetensors#format
 *
 * Our files have in their __metadata__, all of it strings:
 *   "dualpipe"    "1", the version of what this list says
 *   "step"        the step that they were saved after
 *   "parameters"  how many of the tensors, the first of the file, are parameters
 *   "run"         16 hexadecimal digits: the run that saved them, see dp_checkpoint_run
 *   "writer"      the same form: drawn by the job each time that it makes ready for saving
 *   "xxh64"       16 hexadecimal digits for each tensor, in their order in the file: the digest of
 *                 its bytes */
#ifndef DP_CHECKPOINT_HEADER_H
#define DP_CHECKPOINT_HEADER_H

#include "checkpoint/spelling.h"

enum {
    DP__SHAPE_MOST = 8,        /* dimensions of a tensor */
    DP__HEAD_MOST = 100000000, /* bytes, as the reference implementation has it */
    DP__LENGTH_BYTES = 8,      /* of the length before it */
    /* our tensors begin at a multiple of it, in the file and so in a mapping of it */
    DP__DATA_ALIGNMENT = 64
};

typedef struct dp__tensor {
    const char *name;
    dp_dtype_t dtype;
    uint64_t count;      /* elements */
    uint64_t begin, end; /* bytes, from the start of the data */
    uint64_t digest;
} dp__tensor_t;

/* Whose a file is; 0: it was saved before files said so. */
typedef struct dp__origin {
    uint64_t run, writer;
} dp__origin_t;

typedef struct dp__header {
    char *text;            /* the JSON, chopped up: names point into it */
    uint32_t length;       /* of the JSON, bytes */
    dp__tensor_t *tensors; /* [n] by `begin`: no hole between them, and none before the first */
    uint32_t n, parameters;
    uint64_t step, data_bytes;
    dp__origin_t origin;
    uint64_t digest; /* of length and JSON */
} dp__header_t;

/* Makes the bytes of a head: length, JSON, spaces up to the alignment. names, dtypes and counts of
 * tensors [n] are looked at; begin and end are filled in. The digests are zeros until
 * dp__header_sign. The caller frees *bytes_out. */
dp_status_t dp__header_make(uint64_t step, dp__origin_t origin, dp__tensor_t *tensors, uint32_t n, uint32_t parameters,
                            char **bytes_out, size_t *size_out);
/* Puts the tensors' digests into the bytes. */
void dp__header_sign(char *bytes, const dp__tensor_t *tensors, uint32_t n);

/* Takes text [length + 1], the JSON behind the length, whatever comes of it. file_bytes: of the
 * whole file. Errors do not name the file. dp__header_free in any case. */
dp_status_t dp__header_parse(char *text, uint32_t length, uint64_t file_bytes, dp__header_t *header_out);
void dp__header_free(dp__header_t *header);

#endif
