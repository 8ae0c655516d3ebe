/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_base_memory.c: the allocator table and arithmetic on sizes. */
#include <stdio.h>

#include "base/memory.h"
#include "tests/support/oom.h"
#include "tests/support/suite.h"

START_TEST(zeroed_and_aligned)
{
    static const size_t counts[] = {0, 1, 3, 64, 1000};

    oom_install(); /* its memory is never zero by itself */
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        unsigned char *memory = dp__calloc(counts[i], 7);

        ck_assert_ptr_nonnull(memory);
        ck_assert_uint_eq((uintptr_t)memory % 16, 0);
        for (size_t b = 0; b < counts[i] * 7; b++)
            ck_assert_uint_eq(memory[b], 0);
        dp__free(memory);
    }
    ck_assert_int_eq(oom_live(), 0);
    oom_uninstall();
}
END_TEST

START_TEST(alignments_of_both_allocators)
{
    for (int hooked = 0; hooked < 2; hooked++) {
        if (hooked)
            oom_install();
        for (size_t alignment = 1; alignment <= 1 << 16; alignment *= 2) {
            char *memory = dp__allocate(alignment + 1, alignment);

            ck_assert_ptr_nonnull(memory);
            ck_assert_uint_eq((uintptr_t)memory % alignment, 0);
            ck_assert_uint_eq((uintptr_t)memory % 16, 0);
            memset(memory, 1, alignment + 1);
            dp__free(memory);
        }
    }
    ck_assert_int_eq(oom_live(), 0);
    oom_uninstall();
}
END_TEST

START_TEST(a_product_that_wraps_asks_for_nothing)
{
    oom_install();
    ck_assert_ptr_null(dp__calloc(SIZE_MAX, 2));
    ck_assert_ptr_null(dp__calloc(SIZE_MAX / 2 + 1, 2));
    ck_assert_ptr_null(dp__calloc((size_t)1 << 32, (size_t)1 << 32));
    ck_assert_int_eq(oom_calls(), 0);
    oom_uninstall();
}
END_TEST

START_TEST(more_than_there_is_fails_without_harm)
{
    ck_assert_ptr_null(dp__allocate(SIZE_MAX - 4096, 64));
    ck_assert_ptr_null(dp__calloc(SIZE_MAX / 4, 2));
}
END_TEST

START_TEST(freeing_nothing_asks_nobody)
{
    oom_install();
    dp__free(NULL);
    ck_assert_int_eq(oom_live(), 0);
    oom_uninstall();
}
END_TEST

START_TEST(copies_of_text)
{
    char *copy;

    oom_install();
    copy = dp__strdup("");
    ck_assert_str_eq(copy, "");
    dp__free(copy);
    copy = dp__strdup("stage 3");
    ck_assert_str_eq(copy, "stage 3");
    dp__free(copy);
    oom_arm(0, false);
    ck_assert_ptr_null(dp__strdup("stage 3"));
    ck_assert(oom_struck());
    ck_assert_int_eq(oom_live(), 0);
    oom_uninstall();
}
END_TEST

/* What the other tests rely on: failures strike call k, once or from then on. */
START_TEST(countdown_strikes_where_told)
{
    const bool sticky = _i == 1;

    oom_install();
    for (long k = 0; k < 6; k++) {
        void *memory[6];

        oom_arm(k, sticky);
        for (long call = 0; call < 6; call++) {
            bool fails = sticky ? call >= k : call == k;

            memory[call] = dp__calloc(1, 1);
            ck_assert_msg((memory[call] == NULL) == fails, "k %ld, call %ld", k, call);
        }
        ck_assert(oom_struck());
        oom_disarm();
        for (int call = 0; call < 6; call++)
            dp__free(memory[call]);
        ck_assert_int_eq(oom_live(), 0);
    }
    oom_uninstall();
}
END_TEST

START_TEST(hooks_get_their_user_and_come_off)
{
    void *memory;
    long calls;

    oom_install();
    dp__free(dp__calloc(1, 1));
    calls = oom_calls();
    ck_assert_int_eq(calls, 1);
    dp_set_allocator(NULL);
    memory = dp__calloc(1, 1);
    ck_assert_ptr_nonnull(memory);
    dp__free(memory);
    ck_assert_int_eq(oom_calls(), calls);
}
END_TEST

/* Sums, products and round-ups of every pair of edge values against 128-bit arithmetic. */
static const size_t edges[] = {
    0,
    1,
    2,
    3,
    15,
    16,
    17,
    63,
    64,
    65,
    4095,
    4096,
    65535,
    65536,
    0x7fffffff,
    0x80000000,
    0xffffffff,
    0x100000000,
    0x100000001,
    SIZE_MAX / 3,
    SIZE_MAX / 2 - 1,
    SIZE_MAX / 2,
    SIZE_MAX / 2 + 1,
    SIZE_MAX - 64,
    SIZE_MAX - 63,
    SIZE_MAX - 16,
    SIZE_MAX - 15,
    SIZE_MAX - 2,
    SIZE_MAX - 1,
    SIZE_MAX,
};
#define N_EDGES (sizeof(edges) / sizeof(edges[0]))

static void expect_size(const char *what, size_t a, size_t b, bool ok, size_t got, unsigned __int128 exact)
{
    ck_assert_msg(ok == (exact <= SIZE_MAX), "%zu %s %zu: ok is %d", a, what, b, ok);
    ck_assert_msg(!ok || got == (size_t)exact, "%zu %s %zu: got %zu", a, what, b, got);
}

START_TEST(arithmetic_at_the_limits)
{
    for (size_t i = 0; i < N_EDGES; i++) {
        for (size_t j = 0; j < N_EDGES; j++) {
            unsigned __int128 a = edges[i], b = edges[j];
            size_t out = 0;
            bool ok = dp__add(edges[i], edges[j], &out);

            expect_size("+", edges[i], edges[j], ok, out, a + b);
            ok = dp__mul(edges[i], edges[j], &out);
            expect_size("*", edges[i], edges[j], ok, out, a * b);
        }
        for (size_t to = 1; to != 0; to *= 2) {
            unsigned __int128 exact = ((unsigned __int128)edges[i] + to - 1) / to * to;
            size_t out = 0;
            bool ok = dp__round_up(edges[i], to, &out);

            expect_size("rounded up to", edges[i], to, ok, out, exact);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/memory");
    TCase *countdown = tcase_create("countdown_strikes_where_told");

    SUITE_ADD(suite, zeroed_and_aligned);
    SUITE_ADD(suite, alignments_of_both_allocators);
    SUITE_ADD(suite, a_product_that_wraps_asks_for_nothing);
    SUITE_ADD(suite, more_than_there_is_fails_without_harm);
    SUITE_ADD(suite, freeing_nothing_asks_nobody);
    SUITE_ADD(suite, copies_of_text);
    tcase_add_loop_test(countdown, countdown_strikes_where_told, 0, 2);
    suite_add_tcase(suite, countdown);
    SUITE_ADD(suite, hooks_get_their_user_and_come_off);
    SUITE_ADD(suite, arithmetic_at_the_limits);
    return suite_run(suite);
}
