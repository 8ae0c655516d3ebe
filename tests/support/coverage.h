/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * coverage.h: gcc's counters are written when a process exits. One that is about to end itself in
 * another way writes them before, so that `make coverage` counts what it did; in other builds this
 * is nothing. */
#ifndef DP_TESTS_COVERAGE_H
#define DP_TESTS_COVERAGE_H

#ifdef DP_COVERAGE
void __gcov_dump(void);
#endif

static inline void coverage_keep(void)
{
#ifdef DP_COVERAGE
    __gcov_dump();
#endif
}

#endif
