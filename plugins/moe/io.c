/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * io.c: refuses the io of a call that lacks what the call needs. */
#include "moe.h"

#include "plugins/common/check.h"
#include "plugins/common/do.h"

static dp_status_t check_io_structs(const dp_host_t *host, const char *plugin, const dp_moe_io_t *io,
                                    dp_moe_io_t *taken)
{
    dp_status_t status = DP_TAKE(host, plugin, dp_moe_io_t, DP_MOE_IO_MIN, taken, io);

    return status < 0 ? status : DP_TAKE(host, plugin, dp_io_t, DP_IO_MIN, NULL, io->io);
}

dp_status_t moe_check_io(const dp_host_t *host, const char *plugin, const dp_moe_io_t *moe_io, const char *call,
                         unsigned need)
{
    const dp_io_t *io = moe_io->io;
    const char *missing;
    dp_moe_io_t taken;

    DO(check_io_structs(host, plugin, moe_io, &taken));
    missing = io->params == NULL                               ? "params"
              : io->saved == NULL                              ? "saved"
              : io->work == NULL && !(need & MOE_NEED_NO_WORK) ? "work"
              : io->scratch == NULL                            ? "scratch"
              : io->x == NULL && (need & MOE_NEED_X)           ? "x"
              : io->y == NULL && (need & MOE_NEED_Y)           ? "y"
              : io->dy == NULL && (need & MOE_NEED_DY)         ? "dy"
              : io->grads == NULL && (need & MOE_NEED_GRADS)   ? "grads"
                                                               : NULL;
    if (missing != NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: %s needs io.%s, which is NULL", plugin, call, missing);
    if ((need & MOE_NEED_X) == 0 || (need & MOE_TAKES_LOADS) != 0 || taken.loads == NULL)
        return DP_OK;
    return DP_FAIL(host, DP_ERR_UNSUPPORTED, "%s: %s does not count the tokens of experts: leave loads NULL", plugin,
                   call);
}

dp_status_t moe_dims_of(const dp_host_t *host, const char *plugin, const dp_io_t *io, const moe_dims_t *announced,
                        moe_dims_t *n)
{
    const uint32_t most = (uint32_t)announced->tokens, given = io->tokens;
    const uint32_t tokens = given > 0 ? given : most;

    if (tokens > most)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: micro-batch %d: io.tokens is %u, more than batch * sequence = %u",
                       plugin, (int)io->microbatch, tokens, most);
    *n = *announced;
    moe_dims_set_tokens(n, (int32_t)tokens);
    return DP_OK;
}

dp_status_t moe_check_placement(const dp_host_t *host, const char *plugin, const dp_moe_io_t *io, const moe_dims_t *n)
{
    if (!n->replicated || io->placement != NULL)
        return DP_OK;
    return DP_FAIL(host, DP_ERR_INVALID, "%s: route needs a placement, which is NULL: this layer has %d replicas",
                   plugin, n->replicas);
}
