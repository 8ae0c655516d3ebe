/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_schedule.c: placements, caps, refusals, verify on broken lists, and memory that runs out
 * anywhere. */
#include "tests/support/oom.h"
#include "tests/support/suite.h"

#include <dualpipe/program.h>
#include <stdio.h>
#include <string.h>

static dp_status_t generate(const char *method, int32_t ranks, int32_t microbatches, dp_schedule_t **s)
{
    dp_schedule_request_t request = {sizeof(request), method, ranks, microbatches, 0, 0, 0};

    return dp_schedule_generate(&request, s);
}

/* ---- placement ---- */

static dp_schedule_t *empty(dp_placement_t placement, int32_t ranks, int32_t chunks)
{
    int64_t nops[16] = {0};
    dp_schedule_t *s = NULL;

    ck_assert_msg(dp_schedule_create("custom", placement, ranks, 2, chunks, nops, &s) == DP_OK, "%s", dp_last_error());
    return s;
}

/* Walking a path by next visits every stage once, in order, and prev leads back. */
START_TEST(paths_are_connected)
{
    static const struct {
        dp_placement_t placement;
        int32_t ranks, chunks, paths, stages;
    } shapes[] = {{DP_PLACE_LINE, 1, 1, 1, 1},
                  {DP_PLACE_LINE, 5, 1, 1, 5},
                  {DP_PLACE_LOOP, 4, 3, 1, 12},
                  {DP_PLACE_LOOP, 1, 4, 1, 4},
                  {DP_PLACE_V, 1, 2, 1, 2},
                  {DP_PLACE_V, 5, 2, 1, 10},
                  {DP_PLACE_BIDIRECTIONAL, 2, 2, 2, 2},
                  {DP_PLACE_BIDIRECTIONAL, 6, 2, 2, 6}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        dp_schedule_t *s = empty(shapes[i].placement, shapes[i].ranks, shapes[i].chunks);
        int starts = 0, visited = 0;

        ck_assert_int_eq(dp_schedule_paths(s), shapes[i].paths);
        ck_assert_int_eq(dp_schedule_stages(s), shapes[i].stages);
        ck_assert_int_eq(dp_schedule_path_microbatches(s, 0), 2 / shapes[i].paths);
        for (int32_t r = 0; r < s->ranks; r++)
            for (int32_t c = 0; c < s->chunks; c++) {
                dp_place_t place, next;
                int32_t rank = r, chunk = c;

                dp_schedule_place(s, r, c, &place);
                ck_assert_int_eq(place.mirror_rank, shapes[i].paths == 2 ? s->ranks - 1 - r : -1);
                if (place.prev_rank >= 0)
                    continue;
                starts++;
                ck_assert_int_eq(place.stage, 0);
                ck_assert_int_eq(place.prev_chunk, -1);
                for (;;) {
                    visited++;
                    if (place.next_rank < 0)
                        break;
                    dp_schedule_place(s, place.next_rank, place.next_chunk, &next);
                    ck_assert_int_eq(next.prev_rank, rank);
                    ck_assert_int_eq(next.prev_chunk, chunk);
                    ck_assert_int_eq(next.stage, place.stage + 1);
                    ck_assert_int_eq(next.path, place.path);
                    rank = place.next_rank;
                    chunk = place.next_chunk;
                    place = next;
                }
                ck_assert_int_eq(place.stage, shapes[i].stages - 1);
            }
        ck_assert_int_eq(starts, shapes[i].paths);
        ck_assert_int_eq(visited, s->ranks * s->chunks);
        dp_schedule_free(s);
    }
}
END_TEST

/* ---- caps and refusals ---- */

START_TEST(caps)
{
    dp_schedule_t *s = NULL;
    dp_schedule_request_t request = {sizeof(request), "1f1b", 2, 4, 0, 0, 0};
    int64_t nops[1] = {(int64_t)DP_MAX_OPS + 1};
    static const struct {
        dp_placement_t placement;
        int32_t ranks, microbatches, chunks;
    } shapes[] = {{(dp_placement_t)9, 1, 1, 1},
                  {DP_PLACE_LINE, 0, 1, 1},
                  {DP_PLACE_LINE, DP_MAX_RANKS + 1, 1, 1},
                  {DP_PLACE_LINE, 1, 0, 1},
                  {DP_PLACE_LINE, 1, DP_MAX_MICROBATCHES + 1, 1},
                  {DP_PLACE_LINE, 1, 1, 2},
                  {DP_PLACE_LOOP, 1, 1, 0},
                  {DP_PLACE_LOOP, 1, 1, DP_MAX_CHUNKS + 1},
                  {DP_PLACE_V, 1, 1, 3},
                  {DP_PLACE_BIDIRECTIONAL, 2, 2, 1},
                  {DP_PLACE_BIDIRECTIONAL, 2, 3, 2},
                  {DP_PLACE_BIDIRECTIONAL, 1, 2, 2}};

    ck_assert_int_eq(generate("1f1b", DP_MAX_RANKS, 2, &s), DP_OK);
    dp_schedule_free(s);
    ck_assert_int_eq(generate("1f1b", DP_MAX_RANKS + 1, 2, &s), DP_ERR_INVALID);
    ck_assert_int_eq(generate("1f1b", 1, DP_MAX_MICROBATCHES, &s), DP_OK);
    dp_schedule_free(s);
    ck_assert_int_eq(generate("1f1b", 1, DP_MAX_MICROBATCHES + 1, &s), DP_ERR_INVALID);
    ck_assert_int_eq(generate("1f1b", 0, 4, &s), DP_ERR_INVALID);
    ck_assert_int_eq(generate("1f1b", -3, 4, &s), DP_ERR_INVALID);
    ck_assert_int_eq(generate("1f1b", 4, 0, &s), DP_ERR_INVALID);
    ck_assert_int_eq(generate("1f1b", INT32_MAX, INT32_MAX, &s), DP_ERR_INVALID);
    ck_assert_int_eq(generate("dualpipe", DP_MAX_RANKS, DP_MAX_MICROBATCHES, &s), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "operations"));
    ck_assert_ptr_null(s);
    request.chunks = DP_MAX_CHUNKS + 1;
    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_ERR_INVALID);
    request.chunks = 2;
    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_ERR_INVALID);
    ck_assert_int_eq(dp_schedule_create("x", DP_PLACE_LINE, 1, 1, 1, nops, &s), DP_ERR_INVALID);
    nops[0] = -1;
    ck_assert_int_eq(dp_schedule_create("x", DP_PLACE_LINE, 1, 1, 1, nops, &s), DP_ERR_INVALID);
    nops[0] = 0;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        ck_assert_int_eq(dp_schedule_create("x", shapes[i].placement, shapes[i].ranks, shapes[i].microbatches,
                                            shapes[i].chunks, nops, &s),
                         DP_ERR_INVALID);
}
END_TEST

START_TEST(bad_requests)
{
    dp_schedule_t *s = NULL;
    dp_schedule_request_t request = {0, "1f1b", 2, 4, 0, 0, 0};
    size_t count;

    ck_assert_int_eq(dp_schedule_generate(NULL, &s), DP_ERR_INVALID);
    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_ERR_INVALID);
    request.struct_size = sizeof(request);
    request.method = NULL;
    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_ERR_INVALID);
    /* names that others have for them */
    static const char *const names[][2] = {{"ZB-H1", "zb1p"},    {"zbh2", "zb2p"},       {"Schedule1F1B", "1f1b"},
                                           {"V_Half", "v-half"}, {"vpp", "interleaved"}, {"GPipe", "gpipe"}};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        request.method = names[i][0];
        ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
        ck_assert_str_eq(s->method, names[i][1]);
        dp_schedule_free(s);
    }
    s = NULL;
    static const char *const none[] = {"", "-", "schedule", "1f1bb", "1f1", "zb"};

    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        request.method = none[i];
        ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_ERR_INVALID);
    }
    request.method = "2f2b";
    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "'2f2b'; there are "));
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "dualpipev"));
    ck_assert_ptr_null(s);
    for (const dp_method_t *m = dp_schedule_methods(&count), *end = m + count; m < end; m++) {
        request.struct_size = sizeof(request);
        request.ranks = 0;
        ck_assert_int_eq(m->generate(&request, &s), DP_ERR_INVALID);
        ck_assert(strncmp(dp_last_error(), m->name, strlen(m->name)) == 0);
        ck_assert_int_eq(m->generate(NULL, &s), DP_ERR_INVALID);
        request.struct_size = 0;
        ck_assert_int_eq(m->generate(&request, &s), DP_ERR_INVALID);
        ck_assert_ptr_null(s);
    }
    dp_schedule_free(NULL);
    dp_program_free(NULL);
}
END_TEST

START_TEST(methods_are_described)
{
    size_t count;
    const dp_method_t *m = dp_schedule_methods(&count);

    ck_assert_uint_ge(count, 3);
    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_gt(strlen(m[i].name), 2);
        ck_assert_uint_lt(strlen(m[i].name), sizeof(((dp_schedule_t *)NULL)->method));
        ck_assert_uint_gt(strlen(m[i].summary), 10);
        ck_assert_uint_gt(strlen(m[i].source), 10);
        ck_assert_uint_gt(strlen(m[i].limits), 3);
        ck_assert_str_ne(dp_placement_name(m[i].placement), "?");
    }
    ck_assert_str_eq(dp_placement_name((dp_placement_t)7), "?");
    ck_assert_str_eq(dp_op_kind_name(-1), "?");
    ck_assert_str_eq(dp_op_kind_name(5), "BRAID");
}
END_TEST

/* ---- verify ---- */

/* Two ranks, one micro-batch, as text: "F0 B0 | F0 B0". Digits are micro-batches, chunk 0. */
static dp_schedule_t *of_text(const char *text, int32_t ranks, int32_t microbatches)
{
    int64_t nops[4] = {0};
    int32_t r = 0;
    dp_schedule_t *s;
    dp_op_t *op;

    for (const char *c = text; *c != '\0'; c++) {
        r += *c == '|';
        nops[r] += *c >= 'A' && *c <= 'Z';
    }
    ck_assert_int_eq(dp_schedule_create("custom", DP_PLACE_LINE, ranks, microbatches, 1, nops, &s), DP_OK);
    op = s->ops;
    for (const char *c = text; *c != '\0'; c++)
        if (*c >= 'A' && *c <= 'Z') {
            int kind = *c == 'F' ? DP_OP_F : *c == 'B' ? DP_OP_B : *c == 'I' ? DP_OP_I : DP_OP_W;

            *op++ = (dp_op_t){(uint8_t)kind, 0, -1, c[1] - '0', -1};
        }
    return s;
}

static const struct {
    const char *text;
    int32_t ranks, microbatches;
    const char *message; /* NULL: accepted */
} lists[] = {
    {"F0 B0 | F0 B0", 2, 1, NULL},
    {"F0 I0 W0 | F0 I0 W0", 2, 1, NULL},
    {"F0 F1 B1 B0 | F0 F1 B1 B0", 2, 2, NULL},
    {"F0 F1 B0 B1 | F1 F0 B1 B0", 2, 2, NULL}, /* odd, but it ends */
    {"F0 B0 | F0", 2, 1, "verify: rank 1 has no B or I of chunk 0 mb 0"},
    {"F0 I0 | F0 I0 W0", 2, 1, "verify: rank 0 has no W of chunk 0 mb 0"},
    {"F0 B0 |", 2, 1, "verify: rank 1 has no F of chunk 0 mb 0"},
    {"|", 2, 1, "verify: 0 operations, but 2 ranks x 1 chunks x 1 micro-batches need 2 forwards"},
    {"F0 F0 B0 | F0 B0", 2, 1, "verify: rank 0 F chunk 0 mb 0 (op 1): this forward was listed before"},
    {"F0 B0 B0 | F0 B0", 2, 1, "verify: rank 0 B chunk 0 mb 0 (op 2): its backward was listed before"},
    {"F0 B0 I0 | F0 B0", 2, 1, "verify: rank 0 I chunk 0 mb 0 (op 2): its backward was listed before"},
    {"F0 I0 B0 | F0 B0", 2, 1, "verify: rank 0 B chunk 0 mb 0 (op 2): its backward was listed before"},
    {"F0 B0 W0 | F0 B0", 2, 1, "verify: rank 0 W chunk 0 mb 0 (op 2): its weight gradient was listed before"},
    {"F0 I0 W0 W0 | F0 B0", 2, 1, "verify: rank 0 W chunk 0 mb 0 (op 3): its weight gradient was listed before"},
    {"B0 F0 | F0 B0", 2, 1, "verify: rank 0 B chunk 0 mb 0 (op 0): no forward of this micro-batch comes before"},
    {"F0 W0 I0 | F0 B0", 2, 1, "verify: rank 0 W chunk 0 mb 0 (op 1): no I of this micro-batch comes before it"},
    {"F0 B0 | F1 B0", 2, 1, "verify: rank 1 F chunk 0 mb 1 (op 0): chunk or micro-batch out of range"},
    {"F0 B0 F1 B1 | F0 F1 B1 B0", 2, 2,
     "verify: deadlock, a cycle of 2 waits: rank 0 B chunk 0 mb 0 (op 1) waits for rank 1 B chunk 0 mb 0 (op "
     "3), which "
     "comes after rank 1 F chunk 0 mb 1 (op 1), which waits for rank 0 F chunk 0 mb 1 (op 2), which comes "
     "after the "
     "first"},
};

START_TEST(lists_are_judged)
{
    dp_schedule_t *s = of_text(lists[_i].text, lists[_i].ranks, lists[_i].microbatches);
    dp_program_t *p = NULL;

    if (lists[_i].message == NULL) {
        ck_assert_msg(dp_schedule_verify(s) == DP_OK, "%s", dp_last_error());
    } else {
        ck_assert_int_eq(dp_schedule_verify(s), DP_ERR_REJECTED);
        ck_assert_msg(strstr(dp_last_error(), lists[_i].message) == dp_last_error(), "%s", dp_last_error());
        ck_assert_int_eq(dp_program_lower(s, NULL, &p), DP_ERR_REJECTED);
        ck_assert_ptr_null(p);
    }
    dp_schedule_free(s);
}
END_TEST

/* Random lists on 4 ranks with 2 micro-batches, each in a legal local order: verdict and length of
 * the cycle by brute force. On a V: forwards and backwards of 2 chunks; on a loop: forwards of 4
 * chunks. */
#define NODES 32 /* rank * 8 + (V: 0 F, 4 B) + chunk * 2 + micro-batch */

static bool is_back(const dp_schedule_t *s, int k)
{
    return s->placement == DP_PLACE_V && k >= 4;
}

static int chunk_of(const dp_schedule_t *s, int k)
{
    return (s->placement == DP_PLACE_V ? k % 4 : k) / 2;
}

/* Distances: 1 when a waits for b's result, 0 when b merely stands earlier on the same rank. */
static int shortest_cycle(const dp_schedule_t *s, const int order[4][8])
{
    int d[NODES][NODES], at[NODES], shortest = 99;

    for (int r = 0; r < 4; r++)
        for (int k = 0; k < 8; k++)
            at[r * 8 + order[r][k]] = k;
    for (int a = 0; a < NODES; a++) {
        dp_place_t place;
        bool back = is_back(s, a % 8);
        int rank, chunk;

        dp_schedule_place(s, a / 8, chunk_of(s, a % 8), &place);
        rank = back ? place.next_rank : place.prev_rank;
        chunk = back ? place.next_chunk : place.prev_chunk;
        for (int b = 0; b < NODES; b++)
            d[a][b] = a / 8 == b / 8 && at[b] < at[a] ? 0 : 99;
        if (rank >= 0) {
            int input = rank * 8 + (back ? 4 : 0) + chunk * 2 + a % 2;

            d[a][input] = d[a][input] < 1 ? 0 : 1;
        }
    }
    for (int k = 0; k < NODES; k++)
        for (int a = 0; a < NODES; a++)
            for (int b = 0; b < NODES; b++)
                if (d[a][k] + d[k][b] < d[a][b])
                    d[a][b] = d[a][k] + d[k][b];
    for (int a = 0; a < NODES; a++)
        shortest = d[a][a] < shortest ? d[a][a] : shortest;
    return shortest;
}

/* Sorted by stage with noise, so that some lists work; every backward behind its forward. */
static void random_order(const dp_schedule_t *s, int rank, unsigned *seed, int noise, int order[8])
{
    int key[8];

    for (int k = 0; k < 8; k++) {
        int chunk = chunk_of(s, k);
        int stage = s->placement == DP_PLACE_LOOP ? 4 * chunk + rank : chunk == 0 ? rank : 7 - rank;

        *seed = *seed * 1103515245u + 12345u;
        key[k] = 4 * (is_back(s, k) ? 15 - stage : stage) + 8 * (k % 2) + (int)((*seed >> 16) % (unsigned)noise);
        if (is_back(s, k) && key[k] <= key[k - 4])
            key[k] = key[k - 4] + 1;
        order[k] = k;
    }
    for (int i = 1; i < 8; i++)
        for (int j = i; j > 0 && key[order[j]] < key[order[j - 1]]; j--) {
            int t = order[j];

            order[j] = order[j - 1];
            order[j - 1] = t;
        }
}

START_TEST(shortest_cycle_is_shown)
{
    int64_t nops[4] = {8, 8, 8, 8};
    int lengths[12] = {0}, accepted = 0;
    unsigned seed = 11;

    for (int round = 0; round < 5000; round++) {
        int order[4][8], want, got;
        dp_schedule_t *s;

        ck_assert_int_eq(dp_schedule_create("x", round % 2 == 0 ? DP_PLACE_V : DP_PLACE_LOOP, 4, 2,
                                            round % 2 == 0 ? 2 : 4, nops, &s),
                         DP_OK);
        s->forward_only = round % 2;
        for (int r = 0; r < 4; r++)
            random_order(s, r, &seed, 8 + round % 24, order[r]);
        for (int i = 0; i < 32; i++) {
            int what = order[i / 8][i % 8];

            s->ops[i] = (dp_op_t){is_back(s, what) ? DP_OP_B : DP_OP_F, (int16_t)chunk_of(s, what), -1, what % 2, -1};
        }
        want = shortest_cycle(s, order);
        if (dp_schedule_verify(s) == DP_OK) {
            ck_assert_int_eq(want, 99);
            accepted++;
        } else {
            ck_assert_int_eq(sscanf(dp_last_error(), "verify: deadlock, a cycle of %d waits", &got), 1);
            ck_assert_int_eq(got, want);
            lengths[got < 12 ? got : 11]++;
        }
        dp_schedule_free(s);
    }
    ck_assert_int_gt(accepted, 20);
    ck_assert_int_gt(lengths[1], 20);
    ck_assert_int_gt(lengths[2], 20);
    ck_assert_int_gt(lengths[4], 20);
}
END_TEST

/* A message has room for a few steps of a long cycle. */
START_TEST(long_cycles_are_cut)
{
    int64_t nops[64];
    dp_schedule_t *s;

    for (int r = 0; r < 64; r++)
        nops[r] = 2;
    ck_assert_int_eq(dp_schedule_create("x", DP_PLACE_LOOP, 64, 1, 2, nops, &s), DP_OK);
    s->forward_only = 1;
    for (int r = 0; r < 64; r++)
        for (int k = 0; k < 2; k++) /* rank 5 starts with its second chunk */
            s->ops[2 * r + k] = (dp_op_t){DP_OP_F, (int16_t)(r == 5 ? 1 - k : k), -1, 0, -1};
    ck_assert_int_eq(dp_schedule_verify(s), DP_ERR_REJECTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(),
                                 "a cycle of 64 waits: rank 0 F chunk 1 mb 0 (op 1) waits for rank 63 F "
                                 "chunk 0 mb 0 (op 0), which waits for rank 62 F"));
    ck_assert_ptr_nonnull(strstr(dp_last_error(), " more"));
    dp_schedule_free(s);
}
END_TEST

START_TEST(pairs_are_judged)
{
    /* rank 0: F0 F1 then an overlapped pair of F2 and B0, and so on */
    int64_t nops[1] = {4};
    dp_op_t good[] = {{DP_OP_F, 0, -1, 0, -1}, {DP_OP_FB, 0, 0, 1, 0}, {DP_OP_FB, 0, 0, 2, 1}, {DP_OP_B, 0, -1, 2, -1}};
    dp_schedule_t *s;

    ck_assert_int_eq(dp_schedule_create(NULL, DP_PLACE_LINE, 1, 3, 1, nops, &s), DP_OK);
    ck_assert_str_eq(s->method, "custom");
    memcpy(s->ops, good, sizeof(good));
    ck_assert_msg(dp_schedule_verify(s) == DP_OK, "%s", dp_last_error());
    s->ops[1].microbatch2 = 1; /* its own forward */
    ck_assert_int_eq(dp_schedule_verify(s), DP_ERR_REJECTED);
    memcpy(s->ops, good, sizeof(good));
    s->ops[1].chunk2 = 1;
    ck_assert_int_eq(dp_schedule_verify(s), DP_ERR_REJECTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "rank 0 FB (F chunk 0 mb 1, B chunk 1 mb 0) (op 1)"));
    memcpy(s->ops, good, sizeof(good));
    s->ops[1].kind = 9;
    ck_assert_int_eq(dp_schedule_verify(s), DP_ERR_REJECTED);
    memcpy(s->ops, good, sizeof(good));
    s->forward_only = 1;
    ck_assert_int_eq(dp_schedule_verify(s), DP_ERR_REJECTED);
    dp_schedule_free(s);
}
END_TEST

/* ---- memory ---- */

static dp_status_t discard(void *user, const char *text, size_t bytes)
{
    (void)user;
    (void)text;
    (void)bytes;
    return DP_OK;
}

static char golden[] = "0\t0\tF\t0\t0\t-1\t-1\t-1\t-1\n0\t1\tF\t1\t0\t-1\t-1\t-1\t-1\n"
                       "0\t2\tB\t1\t0\t-1\t-1\t-1\t-1\n0\t3\tB\t0\t0\t-1\t-1\t-1\t-1\n";

/* Everything these two rooms do, from request to verdict. */
static dp_status_t everything(void)
{
    dp_schedule_t *s = NULL, *t = NULL, *v = NULL;
    dp_program_t *p = NULL;
    dp_status_t status = generate("dualpipe", 4, 8, &s);

    if (status >= 0)
        status = dp_schedule_verify(s);
    if (status >= 0)
        status = dp_schedule_write_tsv(s, -1, discard, NULL);
    for (int transport = DP_TRANSPORT_CREDITS; transport <= DP_TRANSPORT_BUNDLES && status >= 0; transport++) {
        dp_lower_options_t options = {.struct_size = sizeof(options), .transport = (dp_transport_t)transport};

        status = dp_program_lower(s, &options, &p);
        if (status >= 0)
            status = dp_program_verify(p, NULL);
        dp_program_free(p);
    }
    if (status >= 0)
        status = dp_schedule_read_tsv("golden", golden, sizeof(golden) - 1, &t);
    if (status >= 0)
        status = generate("v-half", 3, 4, &v);
    dp_schedule_free(s);
    dp_schedule_free(t);
    dp_schedule_free(v);
    return status;
}

/* A deadlock that has to be explained: a list made for puts, on ranks that have to meet. */
static dp_status_t rejection(void)
{
    dp_schedule_t *s = NULL;
    dp_program_t *p = NULL;
    dp_status_t status = generate("dualpipe", 4, 8, &s);

    if (status >= 0)
        status = dp_program_lower(s, NULL, &p);
    if (status >= 0) {
        p->transport = DP_TRANSPORT_BUNDLES;
        for (int32_t r = 0; r < p->ranks; r++)
            for (int64_t i = p->first[r], bundle = 0; i < p->first[r + 1]; i++)
                if (p->instrs[i].kind == DP_INSTR_SEND || p->instrs[i].kind == DP_INSTR_RECV)
                    p->instrs[i].bundle = (int32_t)bundle++;
        status = dp_program_verify(p, NULL);
    }
    dp_program_free(p);
    dp_schedule_free(s);
    return status;
}

START_TEST(out_of_memory)
{
    dp_status_t (*operation)(void) = _i / 2 == 0 ? everything : rejection;
    dp_status_t status;
    bool struck = true;
    long k;

    oom_install();
    for (k = 0; struck; k++) {
        oom_arm(k, _i % 2);
        status = operation();
        struck = oom_struck();
        oom_disarm();
        if (struck)
            ck_assert_int_eq(status, DP_ERR_NOMEM);
        else
            ck_assert_int_eq(status, _i / 2 == 0 ? DP_OK : DP_ERR_REJECTED);
        ck_assert_int_eq(oom_live(), 0);
    }
    ck_assert_int_gt(k, 20);
    oom_uninstall();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule");
    TCase *tc = tcase_create("schedule");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, paths_are_connected);
    tcase_add_test(tc, caps);
    tcase_add_test(tc, bad_requests);
    tcase_add_test(tc, methods_are_described);
    tcase_add_loop_test(tc, lists_are_judged, 0, (int)(sizeof(lists) / sizeof(lists[0])));
    tcase_add_test(tc, shortest_cycle_is_shown);
    tcase_add_test(tc, long_cycles_are_cut);
    tcase_add_test(tc, pairs_are_judged);
    tcase_add_loop_test(tc, out_of_memory, 0, 4);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
