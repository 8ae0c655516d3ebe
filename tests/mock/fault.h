/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fault.h: MOCK_FAULT names the one fault that a plugin out of examples/plugin_template is to have;
 * the faults are written into copies of the templates by *_faults.sed. */
#ifndef MOCK_FAULT_H
#define MOCK_FAULT_H

#include <stdlib.h>
#include <string.h>

/* Faults share a line with what they spoil. */
#pragma GCC diagnostic ignored "-Wmisleading-indentation"

static inline int fault(const char *name)
{
    const char *wanted = getenv("MOCK_FAULT");

    return wanted != NULL && strcmp(wanted, name) == 0;
}

#endif
