/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * names.c: names out of numbers, and numbers out of names. */
#include "checkpoint/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BEGUN ".partial"

void dp__step_name(char name[DP__FILE_NAME_BYTES], uint64_t step, bool partial)
{
    snprintf(name, DP__FILE_NAME_BYTES, "%sstep-%08" PRIu64 "%s", partial ? "." : "", step, partial ? BEGUN : "");
}

bool dp__step_of_name(const char *name, bool partial, uint64_t *step_out)
{
    const char *digits = name + (partial ? 6 : 5);
    char again[DP__FILE_NAME_BYTES];

    if (strncmp(name, partial ? ".step-" : "step-", partial ? 6 : 5) != 0)
        return false;
    *step_out = 0;
    for (; *digits >= '0' && *digits <= '9'; digits++)
        *step_out = *step_out * 10 + (uint64_t)(*digits - '0');
    dp__step_name(again, *step_out, partial);
    return strcmp(name, again) == 0;
}

void dp__rank_name(char name[DP__FILE_NAME_BYTES], int32_t rank, int32_t ranks)
{
    snprintf(name, DP__FILE_NAME_BYTES, "model-%05d-of-%05d.safetensors", rank + 1, ranks);
}

bool dp__file_is_ours(const char *name)
{
    int rank = 0, ranks = 0, end = 0;

    if (strncmp(name, DP__INDEX_NAME, strlen(DP__INDEX_NAME)) == 0)
        end = (int)strlen(DP__INDEX_NAME);
    else if (sscanf(name, "model-%d-of-%d.safetensors%n", &rank, &ranks, &end) != 2)
        return false;
    return end > 0 && (name[end] == '\0' || strcmp(name + end, BEGUN) == 0);
}
