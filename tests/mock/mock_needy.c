/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_needy.c: calls into the host by name instead of through the table it is given. */
#include <dualpipe/plugin.h>

static const void *get_interface(const char *id)
{
    dp_log(DP_LOG_INFO, "mock_needy", "%s", id);
    return NULL;
}

DP_PLUGIN_DEFINE(mock_needy) = {
    DP_PLUGIN_HEAD,
    .name = "mock_needy",
    .version = "1",
    .summary = "needs a symbol of the host",
    .get_interface = get_interface,
};
