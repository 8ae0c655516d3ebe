/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * io.c: refuses the io of a pass that lacks what the pass needs. */
#include "attention.h"

#include "plugins/common/check.h"
#include "plugins/common/do.h"

static dp_status_t check_documents(const dp_host_t *host, const char *plugin, const attn_dims_t *n, const dp_io_t *io)
{
    uint32_t before = 0;

    if (io->document_ends == NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: micro-batch %d: io.document_ends is NULL with %u documents", plugin,
                       (int)io->microbatch, io->documents);
    for (uint32_t i = 0; i < io->documents; before = io->document_ends[i++]) {
        const uint32_t end = io->document_ends[i];

        if (end <= before || end > io->tokens || end - before > n->sequence)
            return DP_FAIL(host, DP_ERR_INVALID,
                           "%s: micro-batch %d: document %u is tokens %u to %u of %u: ends must rise, and a document "
                           "has at most shape.sequence = %u tokens",
                           plugin, (int)io->microbatch, i, before, end, io->tokens, n->sequence);
    }
    if (before != io->tokens)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: micro-batch %d: its documents end with token %u of %u", plugin,
                       (int)io->microbatch, before, io->tokens);
    return DP_OK;
}

/* Slots of the cache, and room in them. Documents are as they should be. */
static dp_status_t check_slots(const dp_host_t *host, const char *plugin, const attn_dims_t *n, const dp_io_t *io)
{
    uint32_t before = 0;

    if (io->slots == NULL)
        return DP_OK;
    if (n->cache_slots == 0 || io->cache == NULL || io->past == NULL || io->documents == 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: micro-batch %d has slots, and %s", plugin, (int)io->microbatch,
                       n->cache_slots == 0 ? "cache_slots is 0"
                       : io->cache == NULL ? "io.cache is NULL"
                       : io->past == NULL  ? "io.past is NULL"
                                           : "no documents");
    for (uint32_t i = 0; i < io->documents; before = io->document_ends[i++]) {
        const uint32_t slot = io->slots[i], past = io->past[i], count = io->document_ends[i] - before;

        if (slot != DP_NO_SLOT && (slot >= n->cache_slots || past > n->cache_tokens || count > n->cache_tokens - past))
            return DP_FAIL(host, DP_ERR_INVALID,
                           "%s: micro-batch %d: document %u is tokens %u to %u of slot %u; the cache has %u slots of "
                           "%u tokens",
                           plugin, (int)io->microbatch, i, past, past + count, slot, n->cache_slots, n->cache_tokens);
    }
    return DP_OK;
}

/* Lengths and documents that the plugin, or this instance of it, does not take. */
static dp_status_t check_lengths(const dp_host_t *host, const char *plugin, const attn_dims_t *n, unsigned takes,
                                 const dp_io_t *io)
{
    if (io->tokens > n->tokens)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: micro-batch %d: io.tokens is %u, more than batch * sequence = %u",
                       plugin, (int)io->microbatch, io->tokens, n->tokens);
    if (io->documents == 0)
        return check_slots(host, plugin, n, io);
    if ((takes & ATTN_TAKES_DOCUMENTS) == 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "%s: micro-batch %d: io.documents is %u, and it does not keep documents apart", plugin,
                       (int)io->microbatch, io->documents);
    DO(check_documents(host, plugin, n, io));
    return check_slots(host, plugin, n, io);
}

dp_status_t attn_check_io(const dp_host_t *host, const char *plugin, const attn_dims_t *n, unsigned takes,
                          const char *pass, const dp_io_t *io, unsigned needs, dp_io_t *taken)
{
    DO(DP_TAKE(host, plugin, dp_io_t, DP_IO_MIN, taken, io));
    const struct {
        const char *name;
        const void *pointer;
        unsigned need;
    } all[] = {
        {"params", io->params, ATTN_NEED_PARAMS},
        {"grads", io->grads, ATTN_NEED_GRADS},
        {"saved", io->saved, ATTN_NEED_SAVED},
        {"scratch", io->scratch, ATTN_NEED_SCRATCH},
        {"x", io->x, ATTN_NEED_X},
        {"y", io->y, ATTN_NEED_Y},
        {"dy", io->dy, ATTN_NEED_DY},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].pointer == NULL && (needs & all[i].need) != 0)
            return DP_FAIL(host, DP_ERR_INVALID, "%s: %s of micro-batch %d: io.%s is NULL", plugin, pass,
                           (int)io->microbatch, all[i].name);
    if (taken->tokens == 0)
        taken->tokens = n->tokens;
    return check_lengths(host, plugin, n, takes, taken);
}
