/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_checkpoint_files.c: checkpoints on the disk: what was written is read, and whatever else lies there is refused
 * with the name of the file. */
#include "base/memory.h"
#include "checkpoint/index.h"
#include "checkpoint/xxh64.h"
#include "saved.h"
#include "tests/support/files.h"
#include "tests/support/suite.h"

/* Of the reference implementation (xxhsum -H64). */
START_TEST(digests)
{
    static const struct {
        const char *text;
        uint64_t digest;
    } known[] = {
        {"", 0xef46db3751d8e999u},
        {"a", 0xd24ec4f1a98c6e5bu},
        {"abc", 0x44bc2cf5ad770999u},
        {"Nobody inspects the spammish repetition", 0xfbcea83c8a378bf1u},
    };
    char text[200];

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        ck_assert_uint_eq(dp__xxh64_of(known[i].text, strlen(known[i].text)), known[i].digest);
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * 7);
    for (size_t n = 0; n <= sizeof(text); n++) /* in two pieces */
        for (size_t cut = 0; cut <= n; cut += 1 + n / 7) {
            dp__xxh64_t x;

            dp__xxh64_begin(&x);
            dp__xxh64_add(&x, text, cut);
            dp__xxh64_add(&x, text + cut, n - cut);
            ck_assert_uint_eq(dp__xxh64_end(&x), dp__xxh64_of(text, n));
        }
}
END_TEST

START_TEST(written_and_read)
{
    dp_checkpoint_tensor_t tensor = {.struct_size = sizeof(tensor)};
    char folder[PATH_BYTES];
    dp_checkpoint_t *c;
    double one;
    uint64_t step;
    int parameters = 0;

    files_folder(folder);
    ck_assert_int_eq(dp_checkpoint_newest(folder, UINT64_MAX, &step), DP_PENDING);
    ck_assert_int_eq(saved_write(folder, 7, 0), DP_OK);
    ck_assert(!dp__checkpoint_written(folder, 7, SAVED_RANKS));
    ck_assert_int_eq(dp_checkpoint_newest(folder, UINT64_MAX, &step), DP_PENDING);
    ck_assert_int_eq(saved_write(folder, 7, 1), DP_OK);
    ck_assert(dp__checkpoint_written(folder, 7, SAVED_RANKS));
    ck_assert_int_eq(dp__checkpoint_publish(folder, 7, SAVED_RANKS), DP_OK);
    ck_assert_int_eq(saved_read(folder, 7), DP_OK);

    ck_assert_int_eq(dp_checkpoint_open(folder, 7, &c), DP_OK);
    for (uint32_t i = 0; i < dp_checkpoint_count(c); i++) {
        ck_assert_int_eq(dp_checkpoint_tensor(c, i, &tensor), DP_OK);
        ck_assert_int_eq(tensor.dtype, DP_F64);
        ck_assert_uint_eq(tensor.count, SAVED_COUNT);
        parameters += tensor.parameter;
    }
    ck_assert_int_eq(parameters, 4);
    ck_assert_int_eq(dp_checkpoint_tensor(c, 8, &tensor), DP_ERR_INVALID);
    ck_assert_int_eq(dp_checkpoint_find(c, "layer0"), -1);
    ck_assert_int_eq(dp_checkpoint_read(c, 0, &one, sizeof(one)), DP_ERR_INVALID);
    ck_assert_int_eq(dp_checkpoint_read(c, 8, &one, sizeof(one)), DP_ERR_INVALID);
    dp_checkpoint_close(c);
    ck_assert_int_eq(dp_checkpoint_open(folder, 8, &c), DP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "step-00000008/model.safetensors.index.json"));
    ck_assert_int_eq(dp_checkpoint_open(NULL, 8, &c), DP_ERR_INVALID);

    /* a second one of the same step takes the place of the first; what was begun is tidied up */
    ck_assert_int_eq(saved_all(folder, 7), DP_OK);
    ck_assert_int_eq(saved_read(folder, 7), DP_OK);
    ck_assert_int_eq(saved_write(folder, 9, 0), DP_OK);
    ck_assert_int_eq(dp__checkpoint_clean(folder), DP_OK);
    ck_assert(!dp__checkpoint_written(folder, 9, 1));
    files_remove(folder);
}
END_TEST

START_TEST(the_newest_are_kept)
{
    static const uint64_t steps[] = {3, 100, 20, 7};
    char folder[PATH_BYTES], path[PATH_BYTES];
    uint64_t step;

    files_folder(folder);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(saved_all(folder, steps[i]), DP_OK);
    mkdir(files_path(path, folder, "step-7"), 0777); /* no name of ours */
    files_write(files_path(path, folder, "step-00000003/notes.txt"), "mine", 4);
    ck_assert_int_eq(dp_checkpoint_newest(folder, UINT64_MAX, &step), DP_OK);
    ck_assert_uint_eq(step, 100);
    ck_assert_int_eq(dp_checkpoint_newest(folder, 100, &step), DP_OK);
    ck_assert_uint_eq(step, 20);
    ck_assert_int_eq(dp__checkpoint_keep(folder, 20, 2), DP_OK);
    ck_assert_int_eq(saved_read(folder, 100), DP_OK);
    ck_assert_int_eq(saved_read(folder, 20), DP_OK);
    ck_assert_int_eq(saved_read(folder, 7), DP_OK);
    ck_assert_int_eq(dp_checkpoint_newest(folder, 7, &step), DP_PENDING);
    /* what somebody else has put there is his, and said */
    ck_assert_int_eq(access(files_path(path, folder, ".step-00000003.partial/notes.txt"), F_OK), 0);
    files_remove(folder);
}
END_TEST

/* ---- damage ---- */

static const char *const parts[] = {"model.safetensors.index.json", "model-00001-of-00002.safetensors",
                                    "model-00002-of-00002.safetensors"};

/* The damaged part alone is named: a path in the message ends with it, or a tensor that it has. */
static void refused(const char *folder, const char *part)
{
    const dp_status_t status = saved_read(folder, 7);

    ck_assert_msg(status == DP_ERR_INVALID || status == DP_ERR_IO, "%s: %s", part, dp_status_name(status));
    ck_assert_msg(strstr(dp_last_error(), "step-00000007") != NULL, "%s: %s", part, dp_last_error());
}

START_TEST(every_damage_is_seen)
{
    char folder[PATH_BYTES], path[PATH_BYTES], name[128];
    const char *part = parts[_i];
    unsigned char *bytes;
    size_t n;

    files_folder(folder);
    ck_assert_int_eq(saved_all(folder, 7), DP_OK);
    snprintf(name, sizeof(name), "step-00000007/%s", part);
    files_path(path, folder, name);
    bytes = files_read(path, &n);
    for (size_t cut = 0; cut < n; cut += cut < 1500 ? 1 : 97) {
        files_write(path, bytes, cut);
        refused(folder, part);
    }
    for (size_t i = 0; i < n; i += i < 1500 ? 1 : 13) {
        bytes[i] ^= (unsigned char)(1u << i % 8);
        files_write(path, bytes, n);
        refused(folder, part);
        bytes[i] ^= (unsigned char)(1u << i % 8);
    }
    files_write(path, bytes, n);
    ck_assert_int_eq(saved_read(folder, 7), DP_OK);
    unlink(path);
    refused(folder, part);
    ck_assert_int_eq(mkfifo(path, 0666), 0); /* nobody waits at a pipe */
    refused(folder, part);
    free(bytes);
    files_remove(folder);
}
END_TEST

START_TEST(a_tensor_is_named)
{
    char folder[PATH_BYTES], path[PATH_BYTES];
    unsigned char *bytes;
    size_t n;

    files_folder(folder);
    ck_assert_int_eq(saved_all(folder, 7), DP_OK);
    bytes = files_read(files_path(path, folder, "step-00000007/model-00002-of-00002.safetensors"), &n);
    bytes[n - 1] ^= 1;
    files_write(path, bytes, n);
    refused(folder, parts[2]);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "model-00002-of-00002.safetensors: tensor data \"quoted"));
    free(bytes);
    files_remove(folder);
}
END_TEST

/* ---- hostile heads ---- */

#define META "\"__metadata__\":{\"dualpipe\":\"1\",\"step\":\"3\",\"parameters\":\"1\",\"xxh64\":\"0123456789abcdef\"}"
#define ONE  "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

static const struct {
    const char *json, *words; /* NULL: it is right */
} heads[] = {
    {"{" META "," ONE "}", NULL},
    {"  { " META " , \"\\u0077\" : {\"data_offsets\":[0,8],\"shape\":[1,2],\"dtype\":\"F32\"}}   ", NULL},
    {"", "an object is missing"},
    {"[]", "an object is missing"},
    {"{" META "," ONE "} x", "behind the end"},
    {"{" META "," ONE, "a comma is missing"},
    {"{" META "," ONE ",}", "a string is missing"},
    {"{" META " " ONE "}", "a comma is missing"},
    {"{" ONE "}", "__metadata__ lacks"},
    {"{" META "," META "," ONE "}", "__metadata__ is there twice"},
    {"{\"__metadata__\":{\"dualpipe\":\"2\",\"step\":\"3\",\"parameters\":\"1\",\"xxh64\":\"0123456789abcdef\"}," ONE
     "}",
     "of a later version"},
    {"{\"__metadata__\":{\"dualpipe\":\"1\",\"step\":\"-3\",\"parameters\":\"1\",\"xxh64\":\"\"}," ONE "}",
     "metadata that cannot be"},
    {"{\"__metadata__\":{\"dualpipe\":\"1\",\"step\":\"3\",\"parameters\":\"2\",\"xxh64\":\"0123456789abcdef\"}," ONE
     "}",
     "another number of tensors"},
    {"{\"__metadata__\":{\"dualpipe\":\"1\",\"step\":\"3\",\"parameters\":\"1\",\"xxh64\":\"0123456789ABCDEF\"}," ONE
     "}",
     "digest is not in hexadecimal"},
    {"{\"__metadata__\":{\"dualpipe\":1}," ONE "}", "a string is missing"},
    {"{" META ",\"w\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]}}", "dtype other than"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "not as long as"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "not as long as"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", "something else"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", "dtype, shape and data_offsets"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "once each"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", "once each"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "a whole number is missing"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]}}", "begins with 0"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", "a comma is missing"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}", "too large"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", "too large"},
    {"{" META ",\"w\":{\"dtype\":\"F64\",\"shape\":[2305843009213693953],\"data_offsets\":[0,8]}}", "not as long as"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", "dimensions"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]}}", "tensor w: begins at byte 1"},
    {"{" META ",\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "8 bytes are behind its head"},
    {"{" META "," ONE ",\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "begins at byte 0"},
    {"{" META "," ONE ",\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", "its tensors take 16"},
    {"{" META ",\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "name is empty"},
    {"{" META ",\"w\\n\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "an escape"},
    {"{" META ",\"w\\u0000\":1}", "an escape that is no character"},
    {"{" META ",\"w\\ud800\":1}", "half of a surrogate pair"},
    {"{" META ",\"w\\ud800\\u0041\":1}", "half of a surrogate pair"},
    {"{" META ",\"w\\u00zz\":1}", "an escape that is no character"},
    {"{" META ",\"\xff\":1}", "a byte that no string may have"},
    {"{" META ",\"\xc0\x80\":1}", "a byte that no string may have"},
    {"{" META ",\"\xed\xa0\x80\":1}", "a byte that no string may have"},
    {"{" META ",\"w", "does not end"},
    {"{" META ",\"w\\", "an escape"},
    {"{" META ",\"w\":null}", "an object is missing"},
    {"{\"__metadata__\":[]}", "an object is missing"},
};

START_TEST(heads_are_not_believed)
{
    const size_t length = strlen(heads[_i].json);
    dp__header_t header;
    char *text = dp__allocate(length + 1, 16);
    dp_status_t status;

    memcpy(text, heads[_i].json, length);
    status = dp__header_parse(text, (uint32_t)length, DP__LENGTH_BYTES + length + 8, &header);
    if (heads[_i].words == NULL) {
        ck_assert_msg(status == DP_OK, "%s: %s", heads[_i].json, dp_last_error());
        ck_assert_str_eq(header.tensors[0].name, "w");
        ck_assert_uint_eq(header.tensors[0].digest, 0x0123456789abcdefu);
    } else {
        ck_assert_int_eq(status, DP_ERR_INVALID);
        ck_assert_msg(strstr(dp_last_error(), heads[_i].words) != NULL, "\"%s\" is not in \"%s\", for %s",
                      heads[_i].words, dp_last_error(), heads[_i].json);
    }
    dp__header_free(&header);
}
END_TEST

START_TEST(a_length_that_cannot_be)
{
    static const uint64_t lengths[] = {UINT64_MAX, 1u << 31, 100000001, 9, 8};
    char folder[PATH_BYTES], path[PATH_BYTES];
    dp__header_t header;

    files_folder(folder);
    files_path(path, folder, "model");
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        unsigned char bytes[16] = {0};

        for (int k = 0; k < 8; k++)
            bytes[k] = (unsigned char)(lengths[i] >> 8 * k);
        files_write(path, bytes, sizeof(bytes));
        ck_assert_int_eq(dp__head_read(path, &header), DP_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(dp_last_error(), path));
        dp__header_free(&header);
    }
    ck_assert_int_eq(dp__head_read("/dev/zero", &header), DP_ERR_INVALID);
    files_remove(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint_files");
    TCase *tc = tcase_create("loops");

    SUITE_ADD(suite, digests);
    SUITE_ADD(suite, written_and_read);
    SUITE_ADD(suite, the_newest_are_kept);
    SUITE_ADD(suite, a_tensor_is_named);
    SUITE_ADD(suite, a_length_that_cannot_be);
    tcase_add_loop_test(tc, every_damage_is_seen, 0, 3);
    tcase_add_loop_test(tc, heads_are_not_believed, 0, sizeof(heads) / sizeof(heads[0]));
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
