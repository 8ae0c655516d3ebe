/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_profiler.c: profiler plugins against the contract of dp.profiler/1; without
 * --plugin, a mock. */
#include <dualpipe/conform.h>

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    const char *mocks = getenv("DP_TEST_MOCKS");
    char mock[4096];

    snprintf(mock, sizeof(mock), "%s/mock_profiler_ranges.so", mocks != NULL ? mocks : "");
    return dp_conform_main(DP_IFACE_PROFILER, mock, argc, argv);
}
