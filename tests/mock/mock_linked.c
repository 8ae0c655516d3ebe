/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_linked.c: carries a part of the library, as one that links libdualpipe.a does: its dp_fail speaks to nobody. */
#include "libdualpipe/base/environment.c"
#include "libdualpipe/base/status.c"

#include "mock.h"
