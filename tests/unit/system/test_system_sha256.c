/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_system_sha256.c: digests against the published vectors of FIPS 180-4 and RFC 4231. */
#include <string.h>

#include "system/sha256.h"
#include "tests/support/suite.h"

static void hex(const uint8_t *digest, char text[2 * DP__SHA256_BYTES + 1])
{
    for (int i = 0; i < DP__SHA256_BYTES; i++) {
        text[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    text[2 * DP__SHA256_BYTES] = '\0';
}

static void sha256(const void *data, size_t bytes, uint8_t digest[DP__SHA256_BYTES])
{
    dp__sha256_t h;

    dp__sha256_init(&h);
    dp__sha256_update(&h, data, bytes);
    dp__sha256_final(&h, digest);
}

static void expect_sha256(const void *data, size_t bytes, const char *expected)
{
    uint8_t digest[DP__SHA256_BYTES];
    char text[2 * DP__SHA256_BYTES + 1];

    sha256(data, bytes, digest);
    hex(digest, text);
    ck_assert_str_eq(text, expected);
}

START_TEST(published_digests)
{
    static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    static const char three_blocks[] = "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                                       "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";

    expect_sha256("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect_sha256("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect_sha256(two_blocks, sizeof(two_blocks) - 1,
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    expect_sha256(three_blocks, sizeof(three_blocks) - 1,
                  "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
}
END_TEST

START_TEST(a_million_letters_in_uneven_blocks)
{
    static const char expected[] = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
    uint8_t digest[DP__SHA256_BYTES];
    char block[997], text[2 * DP__SHA256_BYTES + 1];
    size_t left = 1000000, n = 1;
    dp__sha256_t h;

    memset(block, 'a', sizeof(block));
    dp__sha256_init(&h);
    while (left > 0) {
        n = n < left ? n : left;
        dp__sha256_update(&h, block, n);
        left -= n;
        n = n % sizeof(block) + 1;
    }
    dp__sha256_final(&h, digest);
    hex(digest, text);
    ck_assert_str_eq(text, expected);
}
END_TEST

/* Every position of the padding within a block: the digests of byte strings of length 0 to 300,
 * byte i being 7 i + length, hashed together. The expected value was computed with another
 * implementation. */
START_TEST(every_length_up_to_300)
{
    uint8_t data[300], digest[DP__SHA256_BYTES];
    char text[2 * DP__SHA256_BYTES + 1];
    dp__sha256_t all;

    dp__sha256_init(&all);
    for (size_t n = 0; n <= sizeof(data); n++) {
        for (size_t i = 0; i < n; i++)
            data[i] = (uint8_t)(7 * i + n);
        sha256(data, n, digest);
        dp__sha256_update(&all, digest, sizeof(digest));
    }
    dp__sha256_final(&all, digest);
    hex(digest, text);
    ck_assert_str_eq(text, "60d63ff40b5558727a9b786ac0be9300f7ca58fd9ddd3b2f3681b369018a87dc");
}
END_TEST

START_TEST(blocks_do_not_matter)
{
    uint8_t data[200], whole[DP__SHA256_BYTES], parts[DP__SHA256_BYTES];
    dp__sha256_t h;

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * i);
    sha256(data, sizeof(data), whole);
    for (size_t cut = 0; cut <= sizeof(data); cut++) {
        dp__sha256_init(&h);
        dp__sha256_update(&h, data, cut);
        dp__sha256_update(&h, NULL, 0);
        dp__sha256_update(&h, data + cut, sizeof(data) - cut);
        dp__sha256_final(&h, parts);
        ck_assert_msg(dp__digest_equal(whole, parts), "cut at %zu", cut);
    }
}
END_TEST

static void fill(uint8_t *to, size_t bytes, uint8_t value)
{
    memset(to, value, bytes);
}

static void expect_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes, const char *expected)
{
    uint8_t digest[DP__SHA256_BYTES];
    char text[2 * DP__SHA256_BYTES + 1];
    dp__hmac_t m;

    dp__hmac_init(&m, key, key_bytes);
    dp__hmac_update(&m, data, bytes / 2);
    dp__hmac_update(&m, (const char *)data + bytes / 2, bytes - bytes / 2);
    dp__hmac_final(&m, digest);
    hex(digest, text);
    text[strlen(expected)] = '\0'; /* case 5 of the RFC gives the first 128 bits only */
    ck_assert_str_eq(text, expected);
}

START_TEST(rfc_4231_cases)
{
    static const char long_key[] = "Test Using Larger Than Block-Size Key - Hash Key First";
    static const char long_both[] =
        "This is a test using a larger than block-size key and a larger than block-size data. "
        "The key needs to be hashed before being used by the HMAC algorithm.";
    uint8_t key[131], data[50];

    fill(key, 20, 0x0b);
    expect_hmac(key, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    expect_hmac("Jefe", 4, "what do ya want for nothing?", 28,
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    fill(key, 20, 0xaa);
    fill(data, 50, 0xdd);
    expect_hmac(key, 20, data, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    for (uint8_t i = 0; i < 25; i++)
        key[i] = (uint8_t)(i + 1);
    fill(data, 50, 0xcd);
    expect_hmac(key, 25, data, 50, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    fill(key, 20, 0x0c);
    expect_hmac(key, 20, "Test With Truncation", 20, "a3b6167473100ee06e0c796c2955552b");
    fill(key, 131, 0xaa);
    expect_hmac(key, 131, long_key, sizeof(long_key) - 1,
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    expect_hmac(key, 131, long_both, sizeof(long_both) - 1,
                "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}
END_TEST

START_TEST(equality_sees_every_bit)
{
    uint8_t a[DP__SHA256_BYTES] = {0}, b[DP__SHA256_BYTES] = {0};

    ck_assert_int_eq(dp__digest_equal(a, b), 1);
    for (int bit = 0; bit < 8 * DP__SHA256_BYTES; bit++) {
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert_msg(dp__digest_equal(a, b) == 0, "bit %d", bit);
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("system/sha256");

    SUITE_ADD(suite, published_digests);
    SUITE_ADD(suite, a_million_letters_in_uneven_blocks);
    SUITE_ADD(suite, every_length_up_to_300);
    SUITE_ADD(suite, blocks_do_not_matter);
    SUITE_ADD(suite, rfc_4231_cases);
    SUITE_ADD(suite, equality_sees_every_bit);
    return suite_run(suite);
}
