/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * golden.h: the recorded schedules in tests/data/schedules, read without any code of the library. */
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
    int dir, mb, dir2, mb2, peer, n;
} golden_row_t;

static inline const char *golden_dir(void)
{
    static char dir[1024];
    const char *data = getenv("DP_TEST_DATA");

    snprintf(dir, sizeof(dir), "%s/schedules", data != NULL ? data : "tests/data");
    return dir;
}

static inline FILE *golden_open(const char *file)
{
    char path[1200];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", golden_dir(), file);
    f = fopen(path, "r");
    if (f == NULL) {
        fprintf(stderr, "cannot open %s: set DP_TEST_DATA\n", path);
        exit(1);
    }
    return f;
}

static inline void golden_name(const golden_case_t *g, char *name, size_t bytes)
{
    snprintf(name, bytes, "%s_r%d_c%d%s.tsv", g->method, g->ranks, g->microbatches,
             g->forward_only ? "_infer" : "");
}

/* All rows, *count_out of them; computing != 0: only F, B, I, W and FB. The caller frees them. */
static inline golden_row_t *golden_rows(const golden_case_t *g, int computing, int *count_out)
{
    char line[256], name[96];
    golden_row_t *rows = NULL;
    int count = 0, room = 0;
    FILE *f;

    golden_name(g, name, sizeof(name));
    f = golden_open(name);
    while (fgets(line, sizeof(line), f) != NULL) {
        golden_row_t r;

        if (line[0] == '#')
            continue;
        if (sscanf(line, "%d %d %7s %d %d %d %d %d %d", &r.rank, &r.seq, r.op, &r.dir, &r.mb, &r.dir2, &r.mb2,
                   &r.peer, &r.n) != 9) {
            fprintf(stderr, "%s: unreadable line %s", name, line);
            exit(1);
        }
        if (computing && (r.op[0] == 'R' || r.op[0] == 'S' || r.op[0] == 'C'))
            continue;
        if (count == room) {
            room = room > 0 ? 2 * room : 256;
            rows = realloc(rows, (size_t)room * sizeof(*rows));
        }
        rows[count++] = r;
    }
    fclose(f);
    *count_out = count;
    return rows;
}

/* The text of a recorded file, NUL-terminated. The caller frees it. */
static inline char *golden_text(const golden_case_t *g, char *name, size_t name_bytes, size_t *bytes_out)
{
    char *text = malloc(1 << 20);
    FILE *f;

    golden_name(g, name, name_bytes);
    f = golden_open(name);
    *bytes_out = fread(text, 1, (1 << 20) - 1, f);
    text[*bytes_out] = '\0';
    fclose(f);
    return text;
}

#endif
