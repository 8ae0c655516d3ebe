/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * accepted.h: what must hold for any schedule that a reader hands out, and for any program that
 * verify accepts. */
#ifndef TESTS_FUZZ_ACCEPTED_H
#define TESTS_FUZZ_ACCEPTED_H

#include "fuzz.h"
#include "tests/support/executor.h"

static inline void fuzz_check_program(const dp_program_t *p)
{
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    dp_status_t status = dp_program_verify(p, &report);

    FUZZ_REQUIRE(status == DP_OK || status == DP_ERR_REJECTED);
    if (status < 0)
        return;
    if (p->transport == DP_TRANSPORT_CREDITS) {
        FUZZ_REQUIRE(ex_run(p, EX_CREDITS, 1));
    } else {
        FUZZ_REQUIRE(ex_run(p, EX_STRICT, 1));
        FUZZ_REQUIRE(ex_run(p, EX_BUNDLES, 1));
    }
}

static inline void fuzz_check_schedule(const dp_schedule_t *s)
{
    dp_status_t status = dp_schedule_verify(s);
    dp_program_t *p = NULL;

    FUZZ_REQUIRE(status == DP_OK || status == DP_ERR_REJECTED);
    if (status < 0 || s->first[s->ranks] > 400)
        return;
    for (int32_t k = 0; k < 4; k++) {
        dp_lower_options_t options = {.struct_size = sizeof(options),
                                      .transport = k < 2 ? DP_TRANSPORT_CREDITS : DP_TRANSPORT_BUNDLES,
                                      .slots = 1 + k % 2};

        status = dp_program_lower(s, &options, &p);
        /* messages of a channel in different orders */
        FUZZ_REQUIRE(status == DP_OK || status == DP_ERR_REJECTED);
        if (status == DP_OK)
            fuzz_check_program(p);
        dp_program_free(p);
    }
}

/* Text that grows. */
typedef struct fuzz_text {
    char *bytes;
    size_t used;
} fuzz_text_t;

static inline dp_status_t fuzz_append(void *user, const char *text, size_t bytes)
{
    fuzz_text_t *t = user;

    t->bytes = realloc(t->bytes, t->used + bytes);
    memcpy(t->bytes + t->used, text, bytes);
    t->used += bytes;
    return DP_OK;
}

typedef dp_status_t (*fuzz_read_fn)(const char *name, const char *text, size_t bytes, dp_schedule_t **schedule_out);
typedef dp_status_t (*fuzz_write_fn)(const dp_schedule_t *s, int32_t rank, dp_write_fn write, void *user);

/* What was read, written and read again gives the same text. */
static inline void fuzz_check_reader(fuzz_read_fn read, fuzz_write_fn write, const uint8_t *data, size_t bytes,
                                     int always)
{
    dp_schedule_t *s = NULL, *back = NULL;
    fuzz_text_t a = {0}, b = {0};
    dp_status_t status = read("fuzz", (const char *)data, bytes, &s);

    FUZZ_REQUIRE(status == DP_OK || (status == DP_ERR_INVALID && s == NULL));
    if (status < 0)
        return;
    FUZZ_REQUIRE(write(s, -1, fuzz_append, &a) == DP_OK);
    status = read("again", a.bytes, a.used, &back);
    FUZZ_REQUIRE(status == DP_OK || !always);
    if (status == DP_OK) {
        FUZZ_REQUIRE(write(back, -1, fuzz_append, &b) == DP_OK);
        FUZZ_REQUIRE(a.used == b.used && memcmp(a.bytes, b.bytes, a.used) == 0);
    }
    fuzz_check_schedule(s);
    free(a.bytes);
    free(b.bytes);
    dp_schedule_free(back);
    dp_schedule_free(s);
}

#endif
