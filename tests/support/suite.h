/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * suite.h: the main function of a Check suite. */
#ifndef DP_TESTS_SUITE_H
#define DP_TESTS_SUITE_H

#include <stdlib.h>

#include <check.h>

/* Runs the suite, which it frees; the exit status for main. */
int suite_run(Suite *suite);

/* Adds a test case that holds one test of the same name. */
#define SUITE_ADD(suite, test)                                                                                         \
    do {                                                                                                               \
        TCase *suite_case = tcase_create(#test);                                                                       \
        tcase_add_test(suite_case, test);                                                                              \
        suite_add_tcase(suite, suite_case);                                                                            \
    } while (0)

#endif
