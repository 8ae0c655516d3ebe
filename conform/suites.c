/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * suites.c: the suites there are. */
#include "conform.h"

#include <string.h>

const conform_suite_t *const conform_suites[] = {
    &conform_device, &conform_comm, &conform_attention, &conform_moe, &conform_ep, &conform_profiler, NULL,
};

const conform_suite_t *conform_suite_of(const char *interface)
{
    for (size_t i = 0; conform_suites[i] != NULL; i++)
        if (strcmp(conform_suites[i]->interface, interface) == 0)
            return conform_suites[i];
    return NULL;
}

const conform_case_t *conform_case_at(const conform_suite_t *suite, int i)
{
    const conform_case_t *const *table = suite->more;
    const conform_case_t *c = suite->cases;

    for (;; i--, c++) {
        while (c->name == NULL) {
            if (table == NULL || *table == NULL)
                return NULL;
            c = *table++;
        }
        if (i == 0)
            return c;
    }
}
