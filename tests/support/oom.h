/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * oom.h: an allocator for tests that counts what is alive and fails when told to: call k once, or
 * every call from k on.
 *
 *     oom_install();
 *     for (k = 0; ; k++) {
 *         oom_arm(k, sticky);
 *         status = operation();
 *         failed = oom_struck();
 *         oom_disarm();
 *         if (!failed)
 *             break;                            the operation went through untouched
 *         ck_assert_int_eq(status, DP_ERR_NOMEM);
 *         ck_assert_int_eq(oom_live(), 0);      nothing was left behind
 *     }
 *     oom_uninstall();
 *
 * Blocks carry a head that release() checks, so that a foreign or doubly released pointer ends the
 * test. */
#ifndef DP_TESTS_OOM_H
#define DP_TESTS_OOM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>
#include <dualpipe/status.h>

/* Call k (from 0) fails, once or with all that follow. */
void oom_arm(long k, bool sticky);

void oom_disarm(void);

bool oom_struck(void);

/* Blocks alive now; calls to allocate so far. */
long oom_live(void);

long oom_calls(void);

void oom_install(void);

void oom_uninstall(void);

#endif
