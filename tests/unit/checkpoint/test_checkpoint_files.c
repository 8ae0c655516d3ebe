/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_checkpoint_files.c: checkpoints on the disk: what was written is read, and whatever else
 * lies there is refused with the name of the file. */
#include "base/memory.h"
#include "checkpoint/files.h"
#include "checkpoint/index.h"
#include "checkpoint/json.h"
#include "checkpoint/lock.h"
#include "checkpoint/xxh64.h"
#include "saved.h"
#include "tests/support/files.h"
#include "tests/support/oom.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <sys/wait.h>

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
    for (size_t n = 0; n <= sizeof(text); n++) /* in two parts */
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
    ck_assert_int_eq(dp__checkpoint_publish(folder, 7, saved_origin, SAVED_RANKS), DP_OK);
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
    mkdir(files_path(path, folder, "step-00000200"), 0777); /* that has no index */
    ck_assert_int_eq(dp_checkpoint_newest(folder, UINT64_MAX, &step), DP_OK);
    ck_assert_uint_eq(step, 100);
    ck_assert_int_eq(dp_checkpoint_newest(folder, 100, &step), DP_OK);
    ck_assert_uint_eq(step, 20);
    ck_assert_int_eq(dp__checkpoint_keep(folder, 20, saved_origin.run, 2), DP_OK);
    ck_assert_int_eq(saved_read(folder, 100), DP_OK);
    ck_assert_int_eq(saved_read(folder, 20), DP_OK);
    ck_assert_int_eq(saved_read(folder, 7), DP_OK);
    ck_assert_int_eq(dp_checkpoint_newest(folder, 7, &step), DP_PENDING);
    /* what somebody else has put there is his, and said */
    ck_assert_int_eq(access(files_path(path, folder, ".step-00000003.partial/notes.txt"), F_OK), 0);
    files_remove(folder);
}
END_TEST

/* A file of another run, or of another job of the run, may come in between where nobody locks. */
START_TEST(two_runs_never_mix)
{
    static const dp__origin_t ours = {11, 22}, others[] = {{12, 22}, {11, 23}, {0, 0}};
    char folder[PATH_BYTES], path[PATH_BYTES];
    dp_checkpoint_t *c;

    files_folder(folder);
    for (int i = 0; i < 3; i++) {
        saved_origin = ours;
        ck_assert_int_eq(saved_write(folder, 5, 0), DP_OK);
        saved_origin = others[i];
        ck_assert_int_eq(saved_write(folder, 5, 1), DP_OK);
        saved_origin = ours;
        ck_assert_int_eq(dp__checkpoint_publish(folder, 5, ours, SAVED_RANKS), DP_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(dp_last_error(), "model-00002-of-00002.safetensors: another job has written it"));
        ck_assert_int_eq(saved_read(folder, 5), DP_ERR_IO);
    }

    /* each run keeps its own, and none takes the place of another's */
    for (uint64_t step = 1; step <= 6; step++) {
        saved_origin.run = step % 3 == 0 ? 12 : 11;
        ck_assert_int_eq(saved_all(folder, step), DP_OK);
    }
    saved_origin = (dp__origin_t){12, 24};
    ck_assert_int_eq(saved_all(folder, 5), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "step-00000005 is there already, of another run"));
    saved_origin = ours;
    ck_assert_int_eq(dp__checkpoint_keep(folder, 6, 11, 1), DP_OK);
    for (uint64_t step = 1; step <= 6; step++)
        ck_assert_int_eq(saved_read(folder, step), step % 3 == 0 || step == 5 ? DP_OK : DP_ERR_IO);
    ck_assert_int_eq(dp_checkpoint_open(folder, 6, &c), DP_OK);
    ck_assert_uint_eq(dp_checkpoint_run(c), 12);
    dp_checkpoint_close(c);

    /* what is not known to be of the run stays, and may be replaced */
    files_write(files_path(path, folder, "step-00000003/model.safetensors.index.json"), "", 0);
    ck_assert_int_eq(dp__checkpoint_keep(folder, 6, 11, 1), DP_OK);
    ck_assert_int_eq(saved_all(folder, 3), DP_OK);
    ck_assert_int_eq(saved_read(folder, 3), DP_OK);
    files_remove(folder);
}
END_TEST

START_TEST(one_job_saves_into_a_folder)
{
    char folder[PATH_BYTES], path[PATH_BYTES], moved[PATH_BYTES + 8];
    int first = -1, other = -1, late = -1;

    files_folder(folder);
    ck_assert(!dp__lock_is_there(folder, -1));
    ck_assert_int_eq(dp__lock_take(folder, "process 1 on one\n", false, &first), DP_OK);
    ck_assert(dp__lock_is_there(folder, first));
    ck_assert_int_eq(dp__lock_take(folder, "process 2 on two\n", false, &late), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "another job saves into"));
    ck_assert_ptr_nonnull(strstr(dp_last_error(), ": process 1 on one"));

    /* another rank of the job keeps it where the first one is gone, for the one in its place */
    ck_assert_int_eq(dp__lock_share(folder, &other), DP_OK);
    close(first);
    ck_assert_int_eq(dp__lock_take(folder, "process 2 on two\n", false, &late), DP_ERR_INVALID);
    ck_assert_int_eq(dp__lock_take(folder, "process 3 on one\n", true, &first), DP_OK);
    close(other);
    ck_assert_int_eq(dp__lock_take(folder, "process 2 on two\n", false, &late), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), ": process 3 on one"));
    close(first);
    ck_assert_int_eq(dp__lock_take(folder, "process 2 on two\n", false, &late), DP_OK);

    /* the last one removes the file */
    ck_assert_int_eq(dp__lock_share(folder, &other), DP_OK);
    dp__lock_release(folder, late);
    ck_assert(dp__lock_is_there(folder, other));
    dp__lock_release(folder, other);
    dp__lock_release(folder, -1);
    ck_assert_int_ne(access(files_path(path, folder, ".lock"), F_OK), 0);
    ck_assert_int_eq(dp__lock_take(folder, "process 2 on two\n", false, &late), DP_OK);

    /* who takes the folder away takes its lock along */
    snprintf(moved, sizeof(moved), "%s.moved", folder);
    ck_assert_int_eq(rename(folder, moved), 0);
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    ck_assert(!dp__lock_is_there(folder, late));
    ck_assert_int_eq(dp__lock_share(folder, &other), DP_ERR_IO);
    close(late);
    files_remove(moved);

    ck_assert_int_eq(mkdir(files_path(path, folder, ".lock"), 0777), 0);
    ck_assert_int_eq(dp__lock_take(folder, "process 1 on one\n", false, &first), DP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "nothing can be written to"));
    rmdir(path);
    files_remove(folder);
}
END_TEST

START_TEST(a_killed_job_saves_no_more)
{
    char folder[PATH_BYTES];
    int fd = -1, ready[2];
    pid_t child;
    char byte;

    files_folder(folder);
    ck_assert_int_eq(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        byte = dp__lock_take(folder, "process 1 on one\n", false, &fd) == DP_OK;
        _exit(write(ready[1], &byte, 1) == 1 && pause());
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_int_eq(byte, 1);
    ck_assert_int_eq(dp__lock_take(folder, "process 2 on one\n", false, &fd), DP_ERR_INVALID);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert_int_eq(dp__lock_take(folder, "process 2 on one\n", false, &fd), DP_OK);
    close(fd), close(ready[0]), close(ready[1]);
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
    {"{\"__metadata__\":{\"dualpipe\":\"1\",\"step\":\"3\",\"parameters\":\"1\",\"run\":\"12\",\"xxh64\":\"\"}," ONE
     "}",
     "metadata that cannot be"},
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

/* Every way to write a character. */
START_TEST(strings_may_be_escaped)
{
    static const struct {
        const char *json, *text;
    } strings[] = {
        {"\"\\u00e9\\u20ac\\uD83D\\uDE00\"", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {" \"\\\"\\\\\\/\"", "\"\\/"},
    };

    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++) {
        char text[64], *string;
        dp__json_t json = dp__json_begin(text, strlen(strings[i].json));

        strcpy(text, strings[i].json);
        ck_assert(dp__json_string(&json, &string));
        ck_assert_str_eq(string, strings[i].text);
        ck_assert(dp__json_end(&json));
    }
}
END_TEST

/* ---- hostile indexes ---- */

#define ZEROS "\"xxh64\": \"0000000000000000\""
#define HEAD  "\"model-00001-of-00001.safetensors\":\"0123456789abcdef\""
#define TOLD  "\"metadata\":{\"total_size\":8,\"dualpipe\":\"1\",\"step\":\"3\"," ZEROS ",\"heads\":{" HEAD "}}"
#define MAP   "\"weight_map\":{\"w\":\"model-00001-of-00001.safetensors\"}"

static const struct {
    const char *json, *words; /* NULL: it is right */
} indexes[] = {
    {"{" TOLD "," MAP "}", NULL},
    {"{" MAP "," TOLD "}", NULL},
    {"{" TOLD "," MAP "} x", "behind the end"},
    {"[" ZEROS, "an object is missing"},
    {"{" TOLD "," TOLD "}", "metadata and weight_map, once each"},
    {"{" TOLD "," MAP "," MAP "}", "metadata and weight_map, once each"},
    {"{" TOLD "," MAP ",\"more\":{}}", "metadata and weight_map, once each"},
    {"{" TOLD "}", "not all of it"},
    {"{\"metadata\":{" ZEROS "}," MAP "}", "not all of it"},
    {"{\"metadata\":{" ZEROS "," ZEROS "}," MAP "}", "other members"},
    {"{\"metadata\":{" ZEROS ",\"format\":\"pt\"}," MAP "}", "other members"},
    {"{\"metadata\":{" ZEROS ",\"step\":\"x\"}," MAP "}", "metadata that cannot be"},
    {"{\"metadata\":{" ZEROS ",\"step\":3}," MAP "}", "a string is missing"},
    {"{\"metadata\":{" ZEROS ",\"total_size\":\"8\"}," MAP "}", "a whole number is missing"},
    {"{\"metadata\":{" ZEROS ",\"heads\":[]}," MAP "}", "an object is missing"},
    {"{\"metadata\":{" ZEROS ",\"heads\":{\"../x\":\"0123456789abcdef\"}}," MAP "}", "no file of ours"},
    {"{\"metadata\":{" ZEROS ",\"heads\":{\"model-00001-of-00001.safetensors\":\"0123\"}}," MAP "}", "its digest"},
    {"{\"metadata\":{" ZEROS ",\"heads\":{" HEAD ",}}," MAP "}", "a string is missing"},
    {"{\"metadata\":[" ZEROS "]," MAP "}", "an object is missing"},
    {"{" TOLD ",\"weight_map\":[]}", "an object is missing"},
    {"{" TOLD ",\"weight_map\":{\"w\":1}}", "a string is missing"},
    {"{" TOLD ",\"weight_map\":{\"w\"}}", "a colon is missing"},
    {"{\"metadata\":{\"total_size\":8,\"dualpipe\":\"2\",\"step\":\"3\"," ZEROS ",\"heads\":{" HEAD "}}," MAP "}",
     "of a later version"},
    {"{\"metadata\":{\"xxh64\": \"0000", "no digest"},
};

START_TEST(indexes_are_not_believed)
{
    static const char hex[] = "0123456789abcdef";
    const size_t length = strlen(indexes[_i].json);
    char *text = dp__allocate(length + 1, 16), *digits;
    dp__index_t index;
    uint64_t digest;
    dp_status_t status;

    strcpy(text, indexes[_i].json);
    digest = dp__xxh64_of(text, length);
    digits = strstr(text, "\"xxh64\": \"") + strlen("\"xxh64\": \"");
    for (int i = 0; i < 16 && digits[i] != '\0'; i++)
        digits[i] = hex[digest >> (60 - 4 * i) & 15];
    status = dp__index_parse(text, length, &index);
    if (indexes[_i].words == NULL) {
        ck_assert_msg(status == DP_OK, "%s: %s", indexes[_i].json, dp_last_error());
        ck_assert_str_eq(index.entries[0].name, "w");
    } else {
        ck_assert_int_eq(status, DP_ERR_INVALID);
        ck_assert_msg(strstr(dp_last_error(), indexes[_i].words) != NULL, "\"%s\" is not in \"%s\", for %s",
                      indexes[_i].words, dp_last_error(), indexes[_i].json);
    }
    dp__index_free(&index);
}
END_TEST

/* An index that is well, but not of the files beside it. */
typedef enum misfit { OTHER_STEP, ONE_LESS, OTHER_NAME, OTHER_FILE, NOTHING, TWICE, OTHER_HEAD, MISFITS } misfit_t;

static void spoil(dp__index_t *index, misfit_t how, const char *folder)
{
    dp__header_t header;
    char path[PATH_BYTES];

    switch (how) {
    case OTHER_STEP:
        index->step = 8;
        break;
    case ONE_LESS:
        index->nentries--;
        break;
    case OTHER_NAME:
        index->entries[1].name = "layer9";
        break;
    case OTHER_FILE:
        index->entries[0].file = index->heads[index->entries[0].file == index->heads[0].file ? 1 : 0].file;
        for (uint32_t i = 0; i < 2; i++)
            if (strcmp(index->heads[i].file, index->entries[1].file) != 0)
                index->entries[1].file = index->heads[i].file;
        break;
    case NOTHING:
        index->nheads = index->nentries = 0;
        break;
    case TWICE:
        index->heads[1] = index->heads[0];
        break;
    default: /* a file of another step, with its digest */
        files_path(path, folder, "step-00000009/model-00001-of-00002.safetensors");
        ck_assert_int_eq(dp__head_read(path, &header), DP_OK);
        for (uint32_t i = 0; i < 2; i++)
            if (strcmp(index->heads[i].file, parts[1]) == 0)
                index->heads[i].digest = header.digest;
        dp__header_free(&header);
    }
}

START_TEST(an_index_of_other_files_is_refused)
{
    static const char *const words[MISFITS] = {[OTHER_STEP] = "the index is of step 8",
                                               [ONE_LESS] = "8 tensors are in the files, 7 in the index",
                                               [OTHER_NAME] = ", the index has ",
                                               [OTHER_FILE] = ", the index has ",
                                               [NOTHING] = "no tensors are in it",
                                               [TWICE] = "is there twice, in model-0000",
                                               [OTHER_HEAD] = "of step 9, the index of step 7"};
    char folder[PATH_BYTES], path[PATH_BYTES], from[PATH_BYTES], *text;
    unsigned char *bytes;
    size_t n;
    dp__index_t index;

    files_folder(folder);
    ck_assert_int_eq(saved_all(folder, 7), DP_OK);
    ck_assert_int_eq(saved_all(folder, 9), DP_OK);
    files_path(path, folder, "step-00000007/model.safetensors.index.json");
    bytes = files_read(path, &n);
    text = dp__allocate(n + 1, 16);
    memcpy(text, bytes, n);
    free(bytes);
    ck_assert_int_eq(dp__index_parse(text, n, &index), DP_OK);
    spoil(&index, (misfit_t)_i, folder);
    ck_assert_int_eq(dp__index_make(&index, &text, &n), DP_OK);
    files_write(path, text, n);
    dp__free(text);
    dp__index_free(&index);
    if (_i == OTHER_HEAD) {
        files_path(from, folder, "step-00000009/model-00001-of-00002.safetensors");
        files_path(path, folder, "step-00000007/model-00001-of-00002.safetensors");
        ck_assert_int_eq(rename(from, path), 0);
    }
    refused(folder, parts[0]);
    ck_assert_msg(strstr(dp_last_error(), words[_i]) != NULL, "\"%s\" is not in \"%s\"", words[_i], dp_last_error());
    files_remove(folder);
}
END_TEST

/* Whichever allocation fails, that is what is said, nothing is held, and what was written before is
 * there. */
START_TEST(memory_runs_out)
{
    const bool sticky = _i != 0;
    char folder[PATH_BYTES];
    bool struck = true;

    files_folder(folder);
    ck_assert_int_eq(saved_all(folder, 1), DP_OK);
    oom_install();
    for (long k = 0; struck; k++) {
        const long live = oom_live();
        dp_status_t status;

        oom_arm(k, sticky);
        status = saved_all(folder, 2);
        if (status >= 0)
            status = saved_read(folder, 2);
        struck = oom_struck();
        oom_disarm();
        ck_assert_msg(status == (struck ? DP_ERR_NOMEM : DP_OK), "allocation %ld: %s: %s", k, dp_status_name(status),
                      dp_last_error());
        ck_assert_int_eq(oom_live(), live);
        ck_assert_int_eq(saved_read(folder, 1), DP_OK);
    }
    oom_uninstall();
    files_remove(folder);
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

START_TEST(senseless_calls_are_refused)
{
    char folder[PATH_BYTES], below[PATH_BYTES];
    dp_checkpoint_tensor_t tensor = {.struct_size = 4};
    dp_checkpoint_t *c;
    uint64_t step;

    files_folder(folder);
    ck_assert_int_eq(dp_checkpoint_newest(NULL, 1, &step), DP_ERR_INVALID);
    ck_assert_int_eq(dp_checkpoint_newest(folder, 1, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp_checkpoint_open(NULL, 1, &c), DP_ERR_INVALID);
    ck_assert_int_eq(dp_checkpoint_open(folder, 1, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(saved_all(folder, 3), DP_OK);
    ck_assert_int_eq(dp_checkpoint_open(folder, 3, &c), DP_OK);
    ck_assert_int_eq(dp_checkpoint_tensor(c, 0, &tensor), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "struct_size is 4"));
    dp_checkpoint_close(c);
    dp_checkpoint_close(NULL);
    /* A file where a folder was expected: the system's word for it, with the path. */
    files_path(below, folder, "file");
    files_write(below, "", 0);
    ck_assert_int_eq(dp_checkpoint_newest(below, UINT64_MAX, &step), DP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), below));
    ck_assert_int_eq(saved_write(below, 4, 0), DP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), below));
    files_remove(folder);
}
END_TEST

START_TEST(paths_that_are_too_long_are_refused_before_anything_is_done)
{
    char folder[DP__PATH_BYTES + 8];
    dp_checkpoint_t *c;
    const size_t lengths[] = {DP__PATH_BYTES + 4, DP__PATH_BYTES - 1, DP__PATH_BYTES - 15, DP__PATH_BYTES - 30};

    for (int i = 0; i < 4; i++) { /* the folder itself; with a step; with a rank's file in it */
        memset(folder, 'a', sizeof(folder));
        folder[lengths[i]] = '\0';
        ck_assert_int_eq(saved_write(folder, 1, 0), DP_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(dp_last_error(), "the path is too long"));
        ck_assert(!dp__checkpoint_written(folder, 1, SAVED_RANKS));
        ck_assert_int_lt(dp__checkpoint_publish(folder, 1, saved_origin, SAVED_RANKS), 0);
        ck_assert_int_lt(dp_checkpoint_open(folder, 1, &c), 0);
        ck_assert_ptr_null(c);
    }
    /* it fits, and the system has another limit */
    ck_assert_int_eq(dp__checkpoint_discard(folder, 1), DP_ERR_IO);
    folder[lengths[1]] = '\0', memset(folder, 'a', lengths[1]);
    ck_assert_int_eq(dp__checkpoint_discard(folder, 1), DP_ERR_INVALID);
}
END_TEST

/* A run that ends in the middle of a save: half of a file has no name. */
START_TEST(a_save_that_is_given_up_leaves_no_file)
{
    static const uint32_t stop = 1;
    static const double values[4];
    char folder[PATH_BYTES];
    dp__tensor_t tensor = {.name = "w", .dtype = DP_F64, .count = 4};
    dp__write_t write = {.folder = folder,
                         .step = 2,
                         .ranks = 1,
                         .tensors = &tensor,
                         .n = 1,
                         .parameters = 1,
                         .data = (const char *)values,
                         .stop = &stop};

    files_folder(folder);
    ck_assert_int_eq(dp__checkpoint_write(&write), DP_ERR_ABORTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "given up"));
    ck_assert(!dp__checkpoint_written(folder, 2, 1));
    /* nothing is in it: the folder goes */
    ck_assert_int_eq(dp__checkpoint_discard(folder, 2), DP_OK);
    ck_assert_int_eq(dp__checkpoint_discard(folder, 2), DP_OK);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

/* Between its head and its tensors: another rank's disk, or somebody who saves over it. */
START_TEST(a_file_that_changes_while_it_is_open_is_not_believed)
{
    char folder[PATH_BYTES], step[PATH_BYTES], file[PATH_BYTES];
    double got[SAVED_COUNT];
    dp_checkpoint_t *c;

    files_folder(folder);
    ck_assert_int_eq(saved_all(folder, 5), DP_OK);
    ck_assert_int_eq(dp_checkpoint_open(folder, 5, &c), DP_OK);
    files_path(step, folder, "step-00000005");
    files_path(file, step, "model-00001-of-00002.safetensors");
    ck_assert_int_eq(truncate(file, 2000), 0);
    ck_assert_int_eq(dp_checkpoint_read(c, (uint32_t)dp_checkpoint_find(c, "layer0.w"), got, sizeof(got)),
                     DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "it has changed since it was opened"));
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(dp_checkpoint_read(c, (uint32_t)dp_checkpoint_find(c, "layer1.w"), got, sizeof(got)), DP_OK);
    ck_assert_int_eq(dp_checkpoint_read(c, (uint32_t)dp_checkpoint_find(c, "step"), got, sizeof(got)), DP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "model-00001-of-00002.safetensors"));
    dp_checkpoint_close(c);
    files_remove(folder);
}
END_TEST

/* Ranks that were not in the same save. */
START_TEST(files_of_another_step_are_not_published)
{
    char folder[PATH_BYTES], from[PATH_BYTES], to[PATH_BYTES];

    files_folder(folder);
    ck_assert_int_eq(saved_write(folder, 1, 0), DP_OK);
    ck_assert_int_eq(saved_write(folder, 1, 1), DP_OK);
    files_path(from, folder, ".step-00000001.partial");
    files_path(to, folder, ".step-00000002.partial");
    ck_assert_int_eq(rename(from, to), 0);
    ck_assert_int_eq(dp__checkpoint_publish(folder, 2, saved_origin, SAVED_RANKS), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "of another step"));
    ck_assert_int_eq(dp__checkpoint_clean(folder), DP_OK);
    ck_assert_int_eq(rmdir(folder), 0); /* of what was half there nothing is left */
    ck_assert_int_eq(dp__checkpoint_clean(folder), DP_PENDING);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint_files");
    TCase *tc = tcase_create("loops"), *memory = tcase_create("memory");

    SUITE_ADD(suite, digests);
    SUITE_ADD(suite, written_and_read);
    SUITE_ADD(suite, the_newest_are_kept);
    SUITE_ADD(suite, two_runs_never_mix);
    SUITE_ADD(suite, one_job_saves_into_a_folder);
    SUITE_ADD(suite, a_killed_job_saves_no_more);
    SUITE_ADD(suite, senseless_calls_are_refused);
    SUITE_ADD(suite, paths_that_are_too_long_are_refused_before_anything_is_done);
    SUITE_ADD(suite, a_save_that_is_given_up_leaves_no_file);
    SUITE_ADD(suite, a_file_that_changes_while_it_is_open_is_not_believed);
    SUITE_ADD(suite, files_of_another_step_are_not_published);
    SUITE_ADD(suite, a_tensor_is_named);
    SUITE_ADD(suite, a_length_that_cannot_be);
    SUITE_ADD(suite, strings_may_be_escaped);
    tcase_add_loop_test(tc, every_damage_is_seen, 0, 3);
    tcase_add_loop_test(tc, heads_are_not_believed, 0, sizeof(heads) / sizeof(heads[0]));
    tcase_add_loop_test(tc, indexes_are_not_believed, 0, sizeof(indexes) / sizeof(indexes[0]));
    tcase_add_loop_test(tc, an_index_of_other_files_is_refused, 0, MISFITS);
    tcase_add_loop_test(memory, memory_runs_out, 0, 2);
    tcase_set_timeout(memory, 60); /* of a disk that writes for others as well */
    suite_add_tcase(suite, memory);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
