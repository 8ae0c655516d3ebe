/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_major.c: built for another major of the ABI. */
#define MOCK_ABI_MAJOR (DP_ABI_MAJOR + 1)
#include "mock.h"
