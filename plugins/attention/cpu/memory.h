/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.h: where the arrays of a call are, and the rows of requests that are kept from step to
 * step.
 *
 * Plain heads keep k, rotated, and v. Latent attention keeps what all heads have in common, the
 * latent behind its norm and the rotated part, kv_rank + rope_dim elements a token. */
#ifndef PLUGINS_ATTENTION_CPU_MEMORY_H
#define PLUGINS_ATTENTION_CPU_MEMORY_H

#include "block.h"
#include "plugins/common/layout.h"
#include "plugins/cpu/real.h"

static inline real_t *in_region(void *region, size_t offset_bytes)
{
    return (real_t *)((char *)region + offset_bytes);
}

/* An array of a micro-batch. */
static inline real_t *saved_array(const dp_io_t *io, size_t at)
{
    return layout_find(io->saved, io->backward_buffer, at);
}

static inline bool has_slot(const dp_io_t *io, size_t document)
{
    return io->slots != NULL && io->slots[document] != DP_NO_SLOT;
}

/* Tokens of the request before the document's. */
static inline size_t past_of(const dp_io_t *io, size_t document)
{
    return has_slot(io, document) ? io->past[document] : 0;
}

/* Position `token` of a document's request in an array of the cache with rows of `width`. */
static inline real_t *cache_row(const dp_attention_t *a, const dp_io_t *io, size_t array, size_t document, size_t token,
                                size_t width)
{
    return in_region(io->cache, array) + (io->slots[document] * a->n.cache_tokens + token) * width;
}

#endif
