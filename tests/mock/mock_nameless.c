/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_nameless.c: no name. */
#define MOCK_NAME NULL
#include "mock.h"
