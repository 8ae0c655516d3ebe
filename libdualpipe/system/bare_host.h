/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * bare_host.h: a host without a job, for a plugin's init; the hosts of ranks begin as it. */
#ifndef DP_SYSTEM_BARE_HOST_H
#define DP_SYSTEM_BARE_HOST_H

#include <dualpipe/plugin.h>

extern const dp_host_t dp__bare_host;

#endif
