/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_linked.c: carries a part of the library, as one that links libdualpipe.a does: its dp_fail
 * speaks to nobody. */
/* dp_fail is the part of it that a refusal has to name. */
#define dp__environment_read linked_environment_read
#define dp__timeout_scale    linked_timeout_scale
#define dp__log_level        linked_log_level
#include "libdualpipe/base/environment.c"
#include "libdualpipe/base/status.c"

#include "mock.h"
