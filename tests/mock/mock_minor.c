/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_minor.c: built for a later minor, with members that this host does not know. */
#define MOCK_ABI_MINOR   (DP_ABI_MINOR + 7)
#define MOCK_STRUCT_SIZE (sizeof(dp_plugin_t) + 64)
#include "mock.h"
