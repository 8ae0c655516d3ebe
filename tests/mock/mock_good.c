/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_good.c: nothing wrong. */
#include "mock.h"
