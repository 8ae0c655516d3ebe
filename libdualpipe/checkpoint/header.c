/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * header.c: making the head of a safetensors file. */
#include "checkpoint/header.h"

#include "base/memory.h"
#include "checkpoint/text.h"

#include <inttypes.h>
#include <string.h>

#define DIGESTS "\"xxh64\":\""

static void write_json(dp__text_t *text, uint64_t step, dp__origin_t origin, dp__tensor_t *tensors, uint32_t n,
                       uint32_t parameters)
{
    uint64_t at = 0;

    dp__text_add(text,
                 "{\"__metadata__\":{\"dualpipe\":\"1\",\"step\":\"%" PRIu64
                 "\",\"parameters\":\"%u\",\"run\":\"%016" PRIx64 "\",\"writer\":\"%016" PRIx64 "\"," DIGESTS,
                 step, parameters, origin.run, origin.writer);
    for (uint32_t i = 0; i < n; i++)
        dp__text_add(text, "%0*d", DP__DIGEST_DIGITS, 0);
    dp__text_add(text, "\"}");
    for (uint32_t i = 0; i < n; i++) {
        dp__tensor_t *t = &tensors[i];

        t->begin = at;
        t->end = at += t->count * dp_dtype_bytes(t->dtype);
        dp__text_add(text, ",");
        dp__text_add_string(text, t->name);
        dp__text_add(text, ":{\"dtype\":\"%s\",\"shape\":[%" PRIu64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                     dp__dtype_spelling(t->dtype), t->count, t->begin, t->end);
    }
    dp__text_add(text, "}");
}

dp_status_t dp__header_make(uint64_t step, dp__origin_t origin, dp__tensor_t *tensors, uint32_t n, uint32_t parameters,
                            char **bytes_out, size_t *size_out)
{
    dp__text_t text = {0};
    uint64_t length;

    dp__text_add(&text, "%*s", DP__LENGTH_BYTES, "");
    write_json(&text, step, origin, tensors, n, parameters);
    dp__text_add(&text, "%*s", (int)(-text.bytes % DP__DATA_ALIGNMENT), "");
    if (text.failed || text.bytes > DP__HEAD_MOST) {
        const size_t bytes = text.bytes;

        dp__text_free(&text);
        return bytes > DP__HEAD_MOST
                   ? dp_fail(DP_ERR_OVERFLOW, "a list of %u tensors is longer than a safetensors file may have", n)
                   : dp_fail(DP_ERR_NOMEM, "no memory for a list of %u tensors", n);
    }
    length = text.bytes - DP__LENGTH_BYTES;
    for (int i = 0; i < DP__LENGTH_BYTES; i++)
        text.at[i] = (char)(length >> 8 * i & 0xff);
    *bytes_out = text.at;
    *size_out = text.bytes;
    return DP_OK;
}

void dp__header_sign(char *bytes, const dp__tensor_t *tensors, uint32_t n)
{
    char *digits = strstr(bytes + DP__LENGTH_BYTES, DIGESTS) + strlen(DIGESTS);

    for (uint32_t i = 0; i < n; i++)
        dp__digest_put(digits + (size_t)i * DP__DIGEST_DIGITS, tensors[i].digest);
}

void dp__header_free(dp__header_t *header)
{
    dp__free(header->text);
    dp__free(header->tensors);
    *header = (dp__header_t){0};
}
