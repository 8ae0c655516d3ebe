/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_wire.c: frames of the control connections: whole, in parts, tampered with, replayed;
 * and settings. */
#include "tests/support/suite.h"

#include "group/secret.h"
#include "group/settings.h"
#include "group/wire.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static dp__wire_t left, right;

static void open_pair(bool sealed)
{
    uint8_t a[DP__SHA256_BYTES], b[DP__SHA256_BYTES];
    int ends[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    dp__wire_init(&left, ends[0]);
    dp__wire_init(&right, ends[1]);
    memset(a, 1, sizeof(a));
    memset(b, 2, sizeof(b));
    if (sealed) {
        dp__wire_seal(&left, a, b);
        dp__wire_seal(&right, b, a);
    }
}

static void close_pair(void)
{
    dp__wire_fini(&left);
    dp__wire_fini(&right);
}

static void fill(unsigned char *data, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = (unsigned char)(seed >> 24);
    }
}

static void expect_same(const dp__frame_t *got, const dp__frame_t *sent)
{
    ck_assert_uint_eq(got->type, sent->type);
    ck_assert_int_eq(got->from, sent->from);
    ck_assert_int_eq(got->to, sent->to);
    ck_assert_uint_eq(got->id, sent->id);
    ck_assert_int_eq(got->value, sent->value);
    ck_assert_uint_eq(got->extra, sent->extra);
    ck_assert_uint_eq(got->bytes, sent->bytes);
    ck_assert_int_eq(got->payload[got->bytes], '\0');
    if (sent->bytes > 0)
        ck_assert_mem_eq(got->payload, sent->payload, sent->bytes);
}

/* Both directions at once, sizes around every limit; the socket takes only a part at a time. */
START_TEST(frames_arrive_as_they_were_sent)
{
    static const uint32_t sizes[] = {0, 1, 31, 32, 33, 4063, 4064, 65536, 262144, 1024 * 1024};
    static unsigned char data[1024 * 1024];
    bool sealed = _i != 0;
    uint32_t limit = sealed ? DP__FRAME_SEALED_BYTES : DP__FRAME_BARE_BYTES;
    dp__frame_t got;

    open_pair(sealed);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && sizes[i] <= limit; i++) {
        dp__frame_t frame = {.type = (uint32_t)i,
                             .from = -1,
                             .to = 4095,
                             .id = 0xffffffff,
                             .value = INT32_MIN,
                             .extra = 7,
                             .bytes = sizes[i],
                             .payload = data};
        dp__wire_t *from = i % 2 == 0 ? &left : &right, *to = i % 2 == 0 ? &right : &left;
        dp_status_t status = DP_PENDING;

        fill(data, sizes[i], (uint32_t)i);
        ck_assert(dp__wire_send2(from, &frame, data, sizes[i] / 3, data + sizes[i] / 3, sizes[i] - sizes[i] / 3));
        ck_assert(dp__wire_send(from, &(dp__frame_t){.type = 99}));
        for (int round = 0; round < 1000 && status == DP_PENDING; round++) {
            ck_assert(dp__wire_flush(from));
            status = dp__wire_receive(to, &got);
        }
        ck_assert_int_eq(status, DP_OK);
        expect_same(&got, &frame);
        ck_assert(dp__wire_flush(from));
        ck_assert(!dp__wire_pending(from));
        ck_assert_int_eq(dp__wire_receive(to, &got), DP_OK);
        ck_assert_uint_eq(got.type, 99);
        ck_assert_int_eq(dp__wire_receive(to, &got), DP_PENDING);
    }
    close_pair();
}
END_TEST

/* Takes what `from` has to send out of its buffer. */
static size_t intercept(dp__wire_t *from, unsigned char *bytes, size_t room)
{
    size_t n = from->out_end - from->out_begin;

    ck_assert_uint_le(n, room);
    memcpy(bytes, from->out + from->out_begin, n);
    from->out_begin = from->out_end = 0;
    return n;
}

/* There are as many connections as ranks. */
START_TEST(a_large_frame_leaves_no_large_buffer_behind)
{
    static unsigned char data[65536];
    dp__frame_t frame = {.type = DP__FRAME_ALL, .bytes = sizeof(data), .payload = data}, got;
    dp_status_t status = DP_PENDING;

    open_pair(true);
    ck_assert(dp__wire_send(&left, &frame));
    while (status == DP_PENDING) {
        ck_assert(dp__wire_flush(&left));
        status = dp__wire_receive(&right, &got);
    }
    expect_same(&got, &frame);
    ck_assert(!dp__wire_pending(&left));
    ck_assert_uint_le(left.out_room, 4096);
    frame.bytes = 8;
    ck_assert(dp__wire_send(&left, &frame) && dp__wire_flush(&left));
    ck_assert_int_eq(dp__wire_receive(&right, &got), DP_OK);
    expect_same(&got, &frame);
    ck_assert_uint_le(right.body_room, 4096);
    close_pair();
}
END_TEST

START_TEST(a_frame_may_come_byte_by_byte)
{
    unsigned char bytes[256], data[100];
    dp__frame_t frame = {.type = 5, .id = 9, .bytes = sizeof(data), .payload = data}, got;
    size_t n;

    open_pair(_i != 0);
    fill(data, sizeof(data), 3);
    ck_assert(dp__wire_send(&left, &frame));
    n = intercept(&left, bytes, sizeof(bytes));
    for (size_t i = 0; i < n; i++) {
        ck_assert_int_eq(dp__wire_receive(&right, &got), DP_PENDING);
        ck_assert_int_eq(write(left.fd, bytes + i, 1), 1);
    }
    ck_assert_int_eq(dp__wire_receive(&right, &got), DP_OK);
    expect_same(&got, &frame);
    close_pair();
}
END_TEST

/* Every bit of a sealed frame matters. (A longer length would wait for more bytes: that is no
 * acceptance either.) */
START_TEST(a_changed_bit_is_noticed)
{
    unsigned char bytes[256], data[20];
    dp__frame_t frame = {.type = 5, .id = 9, .bytes = sizeof(data), .payload = data}, got;
    size_t n = DP__FRAME_HEAD_BYTES + sizeof(data) + DP__SHA256_BYTES;

    fill(data, sizeof(data), 4);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        dp_status_t status;

        open_pair(true);
        ck_assert(dp__wire_send(&left, &frame));
        ck_assert_uint_eq(intercept(&left, bytes, sizeof(bytes)), n);
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        ck_assert_int_eq(write(left.fd, bytes, n), (ssize_t)n);
        status = dp__wire_receive(&right, &got);
        ck_assert_msg(status == DP_ERR_PROTOCOL || (status == DP_PENDING && bit / 8 >= 28 && bit / 8 < 32),
                      "bit %zu: %s", bit, dp_status_name(status));
        close_pair();
    }
}
END_TEST

START_TEST(a_frame_counts_once_and_in_its_place)
{
    unsigned char first[128], second[128];
    dp__frame_t got;
    size_t n;

    open_pair(true); /* twice the same frame */
    ck_assert(dp__wire_send(&left, &(dp__frame_t){.type = 1}));
    n = intercept(&left, first, sizeof(first));
    ck_assert_int_eq(write(left.fd, first, n), (ssize_t)n);
    ck_assert_int_eq(dp__wire_receive(&right, &got), DP_OK);
    ck_assert_int_eq(write(left.fd, first, n), (ssize_t)n);
    ck_assert_int_eq(dp__wire_receive(&right, &got), DP_ERR_PROTOCOL);
    close_pair();

    open_pair(true); /* two frames, the second one first */
    ck_assert(dp__wire_send(&left, &(dp__frame_t){.type = 1}));
    n = intercept(&left, first, sizeof(first));
    ck_assert(dp__wire_send(&left, &(dp__frame_t){.type = 2}));
    ck_assert_uint_eq(intercept(&left, second, sizeof(second)), n);
    ck_assert_int_eq(write(left.fd, second, n), (ssize_t)n);
    ck_assert_int_eq(dp__wire_receive(&right, &got), DP_ERR_PROTOCOL);
    close_pair();

    open_pair(true); /* a frame that is sent back where it came from */
    ck_assert(dp__wire_send(&left, &(dp__frame_t){.type = 1}));
    n = intercept(&left, first, sizeof(first));
    ck_assert_int_eq(write(right.fd, first, n), (ssize_t)n);
    ck_assert_int_eq(dp__wire_receive(&left, &got), DP_ERR_PROTOCOL);
    close_pair();
}
END_TEST

START_TEST(the_end_of_a_connection_is_seen)
{
    unsigned char bytes[64] = {0};
    dp__frame_t got;

    open_pair(false);
    dp__wire_fini(&left);
    ck_assert_int_eq(dp__wire_receive(&right, &got), DP_ERR_PEER);
    ck_assert(dp__wire_send(&right, &(dp__frame_t){.type = 1}));
    ck_assert(!dp__wire_flush(&right)); /* and no SIGPIPE */
    dp__wire_fini(&right);

    open_pair(false); /* in the middle of a frame */
    ck_assert(dp__wire_send(&left, &(dp__frame_t){.type = 1, .bytes = sizeof(bytes), .payload = bytes}));
    left.out_end -= 10;
    ck_assert(dp__wire_flush(&left));
    ck_assert_int_eq(dp__wire_receive(&right, &got), DP_PENDING);
    dp__wire_fini(&left);
    ck_assert_int_eq(dp__wire_receive(&right, &got), DP_ERR_PEER);
    dp__wire_fini(&right);
}
END_TEST

START_TEST(what_is_too_long_is_refused_before_it_is_read)
{
    uint32_t limit = _i != 0 ? DP__FRAME_SEALED_BYTES : DP__FRAME_BARE_BYTES;
    uint32_t head[8] = {0x31677044u, 1, 0, 0, 0, 0, 0, limit + 1};
    dp__frame_t got;

    open_pair(_i != 0);
    ck_assert_int_eq(write(left.fd, head, sizeof(head)), sizeof(head));
    ck_assert_int_eq(dp__wire_receive(&right, &got), DP_ERR_PROTOCOL);
    ck_assert_ptr_null(right.body);
    close_pair();
}
END_TEST

/* ---- proofs ---- */

/* A change of anything that is proved changes the proof. */
START_TEST(a_proof_covers_everything)
{
    dp__transcript_t base = {.version = 1, .rank = 2, .size = 3}, changed;
    dp__secret_t secret = {.bytes = 20}, other;
    uint8_t proofs[9][DP__SHA256_BYTES];
    int n = 0;

    memset(secret.data, 's', 20);
    dp__secret_prove(&secret, DP__LABEL_RANK_PROOF, &base, proofs[n++]);
    dp__secret_prove(&secret, DP__LABEL_HUB_PROOF, &base, proofs[n++]);
    other = secret;
    other.bytes = 19;
    dp__secret_prove(&other, DP__LABEL_RANK_PROOF, &base, proofs[n++]);
    changed = base;
    changed.version = 2;
    dp__secret_prove(&secret, DP__LABEL_RANK_PROOF, &changed, proofs[n++]);
    changed = base;
    changed.rank = 1;
    dp__secret_prove(&secret, DP__LABEL_RANK_PROOF, &changed, proofs[n++]);
    changed = base;
    changed.size = 4;
    dp__secret_prove(&secret, DP__LABEL_RANK_PROOF, &changed, proofs[n++]);
    changed = base;
    changed.rank_nonce[31] = 1;
    dp__secret_prove(&secret, DP__LABEL_RANK_PROOF, &changed, proofs[n++]);
    changed = base;
    changed.hub_nonce[0] = 1;
    dp__secret_prove(&secret, DP__LABEL_RANK_PROOF, &changed, proofs[n++]);
    changed = base;
    changed.digest[15] = 1;
    dp__secret_prove(&secret, DP__LABEL_RANK_PROOF, &changed, proofs[n++]);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            ck_assert_msg(memcmp(proofs[i], proofs[k], DP__SHA256_BYTES) != 0, "proofs %d and %d are equal", i, k);
}
END_TEST

/* ---- settings ---- */

START_TEST(settings_are_compared_field_by_field)
{
    static const struct {
        const char *ours, *theirs, *difference;
    } cases[] = {
        {"", "", ""},
        {"a=1\n", "a=1", ""},
        {"a=1\nb=2\n", "b=2\na=1\n", ""},
        {"\n\na=1\n\n", "a=1\n", ""},
        {"a=1", "a=2", "a is 1 on rank 0 and 2 on rank 5"},
        {"libdualpipe=0.2.0\njob=\n", "libdualpipe=0.1.0\njob=\n",
         "libdualpipe is 0.2.0 on rank 0 and 0.1.0 on rank 5"},
        {"a=1", "", "a is 1 on rank 0 and not set on rank 5"},
        {"", "a=1", "a is not set on rank 0 and 1 on rank 5"},
        {"a=", "a", ""}, /* a name without a value */
        {"a=1\nb=1", "a=2\nb=2", "a is 1 on rank 0 and 2 on rank 5; b is 1 on rank 0 and 2 on rank 5"},
        {"ab=1", "a=1", "ab is 1 on rank 0 and not set on rank 5; a is not set on rank 0 and 1 on rank 5"},
        {"=1", "=2", " is 1 on rank 0 and 2 on rank 5"},
    };
    char text[512];
    bool equal = dp__settings_equal(cases[_i].ours, 0, cases[_i].theirs, 5, text, sizeof(text));

    ck_assert_str_eq(text, cases[_i].difference);
    ck_assert_int_eq(equal, text[0] == '\0');
}
END_TEST

START_TEST(long_settings_are_cut_in_the_message)
{
    static char ours[4000], theirs[4000];
    char text[100];

    memset(ours, 'x', sizeof(ours) - 1);
    memset(theirs, 'y', sizeof(theirs) - 1);
    ours[3] = theirs[3] = '=';
    ours[0] = theirs[0] = ours[1] = theirs[1] = ours[2] = theirs[2] = 'n';
    for (size_t bytes = 1; bytes <= sizeof(text); bytes++) {
        memset(text, '#', sizeof(text));
        ck_assert(!dp__settings_equal(ours, 0, theirs, 1, text, bytes));
        ck_assert_uint_lt(strnlen(text, sizeof(text)), bytes);
        ck_assert(bytes == sizeof(text) || text[bytes] == '#');
    }
    ck_assert_int_eq(strncmp(text, "nnn is xxxxx", 12), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group_wire");
    TCase *tc = tcase_create("wire");

    tcase_add_loop_test(tc, frames_arrive_as_they_were_sent, 0, 2);
    tcase_add_test(tc, a_large_frame_leaves_no_large_buffer_behind);
    tcase_add_loop_test(tc, a_frame_may_come_byte_by_byte, 0, 2);
    tcase_add_test(tc, a_changed_bit_is_noticed);
    tcase_add_test(tc, a_frame_counts_once_and_in_its_place);
    tcase_add_test(tc, the_end_of_a_connection_is_seen);
    tcase_add_loop_test(tc, what_is_too_long_is_refused_before_it_is_read, 0, 2);
    tcase_add_test(tc, a_proof_covers_everything);
    tcase_add_loop_test(tc, settings_are_compared_field_by_field, 0, 11);
    tcase_add_test(tc, long_settings_are_cut_in_the_message);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
