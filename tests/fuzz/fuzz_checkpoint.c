/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fuzz_checkpoint.c: any bytes as the head of a safetensors file, or (behind an 'i') as an index,
 * which gets the digest that it needs to be looked at: what is taken for one has tensors side by
 * side, and comes out as it went in. */
#include <string.h>

#include "base/memory.h"
#include "checkpoint/header.h"
#include "checkpoint/index.h"
#include "checkpoint/xxh64.h"
#include "fuzz.h"

#define DIGEST "\"xxh64\": \""

static void check_head(const uint8_t *data, size_t bytes)
{
    /* the first two bytes say how long the data behind the head are */
    const uint64_t rest = bytes < 2 ? 0 : data[0] | (uint64_t)data[1] << 8;
    const size_t length = bytes < 2 ? 0 : bytes - 2;
    char *text = dp__allocate(length + 1, 16);
    dp__header_t header;
    uint64_t at = 0;

    FUZZ_REQUIRE(text != NULL);
    memcpy(text, data + bytes - length, length);
    if (dp__header_parse(text, (uint32_t)length, DP__LENGTH_BYTES + length + rest, &header) == DP_OK) {
        for (uint32_t i = 0; i < header.n; i++) {
            const dp__tensor_t *t = &header.tensors[i];

            FUZZ_REQUIRE(dp__name_is_good(t->name) && t->begin == at);
            FUZZ_REQUIRE(t->end - t->begin == t->count * dp_dtype_bytes(t->dtype));
            at = t->end;
        }
        FUZZ_REQUIRE(at == rest && header.parameters <= header.n);
    }
    dp__header_free(&header);
}

static void check_index(const uint8_t *data, size_t bytes)
{
    char *text = dp__allocate(bytes + 1, 16), *digits, *again;
    dp__index_t index, second;
    size_t size;

    FUZZ_REQUIRE(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    digits = strstr(text, DIGEST);
    if (digits != NULL && text + bytes - digits >= (ptrdiff_t)strlen(DIGEST) + DP__DIGEST_DIGITS) {
        memset(digits + strlen(DIGEST), '0', DP__DIGEST_DIGITS);
        dp__digest_put(digits + strlen(DIGEST), dp__xxh64_of(text, bytes));
    }
    if (dp__index_parse(text, bytes, &index) == DP_OK) {
        FUZZ_REQUIRE(dp__index_make(&index, &again, &size) == DP_OK);
        second = (dp__index_t){0};
        if (dp__index_parse(again, size, &second) == DP_OK) {
            FUZZ_REQUIRE(second.nentries == index.nentries && second.nheads == index.nheads);
            FUZZ_REQUIRE(second.step == index.step && second.total_size == index.total_size);
        }
        dp__index_free(&second);
    }
    dp__index_free(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes > 0 && data[0] == 'i')
        check_index(data + 1, bytes - 1);
    else
        check_head(data, bytes);
    return 0;
}
