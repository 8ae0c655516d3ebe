/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_exporting.c: exports a function besides its entry, under a name that belongs to the
 * library. */
#include "mock.h"

DP_PLUGIN_EXPORT int dp_mock_helper(void);
int dp_mock_helper(void)
{
    return mock_answer();
}
