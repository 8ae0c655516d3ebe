/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * wrapper.h: what bindgen reads. */
#include <dualpipe/dualpipe.h>
#include <dualpipe/ffi.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>
