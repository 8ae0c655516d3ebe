/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_ender.c: a plugin whose init ends the process: whoever looks at plugins has to outlive it. */
#include <dualpipe/plugin.h>

#include <stdlib.h>

static dp_status_t end_it_all(const dp_host_t *host)
{
    (void)host;
    abort();
}

static const void *get_interface(const char *id)
{
    (void)id;
    return NULL;
}

DP_PLUGIN_DEFINE(mock_ender) = {DP_PLUGIN_HEAD, .name = "mock_ender", .version = "1", .init = end_it_all,
                                .get_interface = get_interface};
