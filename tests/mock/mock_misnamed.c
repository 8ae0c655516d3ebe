/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_misnamed.c: a name that no file could have. */
#define MOCK_NAME "Mock-1"
#include "mock.h"
