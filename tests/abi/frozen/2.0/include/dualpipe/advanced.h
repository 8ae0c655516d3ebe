/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * advanced.h: for a trainer that opens plugins itself. It has how they are found (plugin.h), the
 * tables of each kind, and elements of any dtype on the host (number.h).
 *
 * Since 0.2. */
#ifndef DUALPIPE_ADVANCED_H
#define DUALPIPE_ADVANCED_H

#include <dualpipe/attention.h>
#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/moe.h>
#include <dualpipe/number.h>
#include <dualpipe/plugin.h>
#include <dualpipe/profiler.h>

#endif
