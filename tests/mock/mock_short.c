/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_short.c: a descriptor that ends before get_interface. */
#define MOCK_STRUCT_SIZE offsetof(dp_plugin_t, get_interface)
#include "mock.h"
