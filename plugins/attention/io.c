/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * io.c: refuses the io of a pass that lacks what the pass needs. */
#include "attention.h"

#include "plugins/common/check.h"

dp_status_t attn_check_io(const dp_host_t *host, const char *plugin, const char *pass, const dp_io_t *io,
                          unsigned needs)
{
    dp_status_t status = check_size(host, plugin, "io", "dp_io_t", io->struct_size, DP_IO_MIN);

    if (status < 0)
        return status;
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
    return DP_OK;
}
