/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * index.h: the index of a checkpoint: JSON as Hugging Face's, which says in which file each tensor
 * is.
 *
 *     {"metadata": {"total_size": 123, "dualpipe": "1", "step": "100",
 *                   "run": "<16 hexadecimal digits>", "xxh64": "<digest of this file>",
 *                   "heads": {"model-00001-of-00002.safetensors": "<digest of its head>", ...}},
 *      "weight_map": {"<tensor>": "model-00001-of-00002.safetensors", ...}}
 *
 * Its own digest is taken with zeros in the place of its digits. */
#ifndef DP_CHECKPOINT_INDEX_H
#define DP_CHECKPOINT_INDEX_H

#include <dualpipe/status.h>

enum { DP__INDEX_MOST = 1 << 28 }; /* bytes */

typedef struct dp__index_entry {
    const char *name, *file; /* of a tensor */
} dp__index_entry_t;

typedef struct dp__index_head {
    const char *file;
    uint64_t digest;
} dp__index_head_t;

typedef struct dp__index {
    char *text; /* chopped up: names point into it */
    uint64_t step, total_size;
    uint64_t run; /* 0: it was saved before indexes said so */
    uint32_t nheads, nentries;
    dp__index_head_t *heads;
    dp__index_entry_t *entries;
} dp__index_t;

/* The text of an index; the caller frees it with dp__free. */
dp_status_t dp__index_make(const dp__index_t *index, char **text_out, size_t *bytes_out);
/* Takes any text [bytes + 1]. Errors do not name the file. Call dp__index_free in any case. */
dp_status_t dp__index_parse(char *text, size_t bytes, dp__index_t *index_out);
void dp__index_free(dp__index_t *index);

#endif
