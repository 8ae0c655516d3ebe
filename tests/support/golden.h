/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * golden.h: the recorded schedules in tests/data/schedules, read without any code of the
 * library. */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <dualpipe/schedule.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct golden_case {
    const char *method;
    int32_t ranks, microbatches, forward_only;
} golden_case_t;

static const golden_case_t golden_cases[] = {
    {"1f1b", 4, 8, 0},       {"1f1b", 8, 16, 0},       {"dualpipe", 2, 4, 0},  {"dualpipe", 4, 8, 0},
    {"dualpipe", 4, 8, 1},   {"dualpipe", 4, 20, 0},   {"dualpipe", 6, 14, 0}, {"dualpipe", 8, 16, 0},
    {"dualpipe", 8, 20, 0},  {"dualpipe", 16, 40, 0},  {"dualpipev", 1, 2, 0}, {"dualpipev", 2, 4, 0},
    {"dualpipev", 3, 7, 0},  {"dualpipev", 4, 8, 0},   {"dualpipev", 4, 8, 1}, {"dualpipev", 4, 10, 0},
    {"dualpipev", 8, 20, 0}, {"dualpipev", 16, 40, 0}, {"zb1p", 4, 8, 0},      {"zb1p", 8, 16, 0},
};
#define GOLDEN_CASES ((int)(sizeof(golden_cases) / sizeof(golden_cases[0])))

typedef struct golden_row {
    int rank, seq;
    char op[8];
    int dir, microbatch, dir2, microbatch2, peer, n;
} golden_row_t;

FILE *golden_open(const char *file);

/* All rows, *count_out of them; computing != 0: only F, B, I, W and FB. The caller frees them. */
golden_row_t *golden_rows(const golden_case_t *g, int computing, int *count_out);

/* The text of a recorded file, NUL-terminated. The caller frees it. */
char *golden_text(const golden_case_t *g, char *name, size_t name_bytes, size_t *bytes_out);

#endif
