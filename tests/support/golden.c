/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * golden.c: the recorded schedules in tests/data/schedules, read without any code of the
 * library. */
#include "golden.h"

static const char *golden_dir(void)
{
    static char dir[1024];
    const char *data = getenv("DP_TEST_DATA");

    snprintf(dir, sizeof(dir), "%s/schedules", data != NULL ? data : "tests/data");
    return dir;
}

FILE *golden_open(const char *file)
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

static void golden_name(const golden_case_t *g, char *name, size_t bytes)
{
    snprintf(name, bytes, "%s_r%d_c%d%s.tsv", g->method, g->ranks, g->microbatches, g->forward_only ? "_infer" : "");
}

golden_row_t *golden_rows(const golden_case_t *g, int computing, int *count_out)
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
        if (sscanf(line, "%d %d %7s %d %d %d %d %d %d", &r.rank, &r.seq, r.op, &r.dir, &r.microbatch, &r.dir2,
                   &r.microbatch2, &r.peer, &r.n) != 9) {
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

char *golden_text(const golden_case_t *g, char *name, size_t name_bytes, size_t *bytes_out)
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
