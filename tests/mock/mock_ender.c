/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_ender.c: a plugin whose init ends the process, hangs or makes up a status, as MOCK_FAULT
 * says. */
#include <dualpipe/plugin.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static dp_status_t end_it_all(const dp_host_t *host)
{
    const char *fault = getenv("MOCK_FAULT");

    (void)host;
    if (fault != NULL && strcmp(fault, "positive") == 0)
        return (dp_status_t)7;
    if (fault != NULL && strcmp(fault, "exit") == 0)
        exit(0);
    while (fault != NULL && strcmp(fault, "hang") == 0)
        pause();
    abort();
}

static const void *get_interface(const char *id)
{
    (void)id;
    return NULL;
}

DP_PLUGIN_DEFINE(mock_ender) = {DP_PLUGIN_HEAD, .name = "mock_ender", .version = "1", .init = end_it_all,
                                .get_interface = get_interface};
