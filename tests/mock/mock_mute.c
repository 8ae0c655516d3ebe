/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_mute.c: no get_interface. */
#define MOCK_GET_INTERFACE NULL
#include "mock.h"
