/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * join.c: from options and environment to a group. */
#include "base/do.h"
#include "group/group.h"

static dp_status_t who_are_we(dp_group_options_t *options)
{
    dp_group_environment_t environment = {.struct_size = sizeof(environment)};

    if (options->size != 0) {
        if (options->size < 1 || options->size > DP_MAX_RANKS || options->rank < 0 || options->rank >= options->size)
            return dp_fail(DP_ERR_INVALID, "group options: rank %d of %d ranks", options->rank, options->size);
        return DP_OK;
    }
    DO(dp_group_environment(&environment));
    options->rank = environment.rank;
    options->size = environment.size;
    return DP_OK;
}

dp_status_t dp_group_join(const dp_group_options_t *options, dp_group_t **group_out)
{
    dp_group_options_t settled;

    DO(dp__group_options(options, &settled));
    DO(who_are_we(&settled));
    return settled.size == 1 ? dp_group_local(1, &settled, group_out) : dp__process_join(&settled, group_out);
}
