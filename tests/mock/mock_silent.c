/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_silent.c: refuses to start and does not say why. */
#include <dualpipe/plugin.h>

static dp_status_t init(const dp_host_t *host)
{
    (void)host;
    return DP_ERR_UNSUPPORTED;
}

static const void *get_interface(const char *id)
{
    (void)id;
    return NULL;
}

DP_PLUGIN_DEFINE(mock_silent) = {
    DP_PLUGIN_HEAD, .name = "mock_silent",          .version = "1", .summary = "says nothing",
    .init = init,   .get_interface = get_interface,
};
