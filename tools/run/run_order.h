/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_order.h: what the agent of a host is told before its ranks start. */
#ifndef DP_TOOLS_RUN_ORDER_H
#define DP_TOOLS_RUN_ORDER_H

#include "run_site.h"
#include "run_talk.h"

/* Everything up to "ordered". site: its ranks, and the job's name and secret. false: there is
 * something that it cannot say, which was said here. */
bool run_order(talk_out_t *out, const run_options_t *options, const run_site_t *site);

#endif
