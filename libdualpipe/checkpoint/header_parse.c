/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * header_parse.c: reading the head of a safetensors file. Nothing in it is believed before it was
 * checked: sizes are products that fit, tensors lie side by side and fill the file. */
#include "base/do.h"
#include "base/memory.h"
#include "checkpoint/header.h"
#include "checkpoint/json.h"
#include "checkpoint/xxh64.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct reading {
    dp__json_t json;
    dp__header_t *header;
    uint32_t room;
    char *digests;
    uint64_t version, parameters;
    int seen; /* members of __metadata__, as bits */
} reading_t;

static bool read_metadata(reading_t *r)
{
    static const char *const names[] = {"dualpipe", "step", "parameters", "xxh64", "run", "writer"};
    uint64_t *const numbers[] = {&r->version, &r->header->step,       &r->parameters,
                                 NULL,        &r->header->origin.run, &r->header->origin.writer};
    bool first = true;
    char *key, *value;

    while (dp__json_member(&r->json, &first, &key)) {
        if (!dp__json_string(&r->json, &value))
            return false;
        for (int i = 0; i < 6; i++)
            if (strcmp(key, names[i]) == 0) {
                if ((r->seen & 1 << i) != 0 || (i < 3 && !dp__decimal(value, numbers[i])) ||
                    (i > 3 && !dp__digits(value, numbers[i])))
                    return dp__json_fail(&r->json, "metadata that cannot be");
                r->seen |= 1 << i;
                r->digests = i == 3 ? value : r->digests;
            }
    }
    return r->json.why == NULL;
}

static bool read_shape(dp__json_t *json, uint64_t *count_out)
{
    bool first = true;
    int dimensions = 0;

    *count_out = 1;
    if (!dp__json_take(json, '['))
        return false;
    while (dp__json_next(json, ']', &first)) {
        uint64_t size;

        if (++dimensions > DP__SHAPE_MOST)
            return dp__json_fail(json, "a shape has too many dimensions");
        if (!dp__json_number(json, &size))
            return false;
        if (__builtin_mul_overflow(*count_out, size, count_out))
            return dp__json_fail(json, "a shape is too large");
    }
    return json->why == NULL;
}

static bool read_dtype(dp__json_t *json, dp_dtype_t *dtype_out)
{
    char *name;

    if (!dp__json_string(json, &name))
        return false;
    if (dp__dtype_spelled(name, dtype_out))
        return true;
    return dp__json_fail(json, "a dtype other than F32, F64, BF16, I64 and U8");
}

static bool read_offsets(dp__json_t *json, dp__tensor_t *t)
{
    return dp__json_take(json, '[') && dp__json_number(json, &t->begin) && dp__json_take(json, ',') &&
           dp__json_number(json, &t->end) && dp__json_take(json, ']');
}

static bool read_tensor(dp__json_t *json, dp__tensor_t *t)
{
    bool first = true;
    int seen = 0;
    uint64_t bytes;
    char *key;

    while (dp__json_member(json, &first, &key)) {
        int bit;

        bit = strcmp(key, "dtype") == 0 ? 1 : strcmp(key, "shape") == 0 ? 2 : strcmp(key, "data_offsets") == 0 ? 4 : 0;
        if (bit == 0 || (seen & bit) != 0)
            return dp__json_fail(json, "a tensor has dtype, shape and data_offsets, once each");
        seen |= bit;
        if (!(bit == 1 ? read_dtype(json, &t->dtype) : bit == 2 ? read_shape(json, &t->count) : read_offsets(json, t)))
            return false;
    }
    if (json->why != NULL || seen != 7)
        return dp__json_fail(json, "a tensor has dtype, shape and data_offsets");
    if (t->end < t->begin || __builtin_mul_overflow(t->count, dp_dtype_bytes(t->dtype), &bytes) ||
        bytes != t->end - t->begin)
        return dp__json_fail(json, "data_offsets are not as long as dtype and shape say");
    return true;
}

static bool append_tensor(reading_t *r, const dp__tensor_t *t)
{
    dp__header_t *h = r->header;
    dp__tensor_t *grown = dp__grow(h->tensors, sizeof(*grown), h->n, &r->room);

    if (grown == NULL)
        return dp__json_no_memory(&r->json, "no memory for so many tensors");
    h->tensors = grown;
    grown[h->n++] = *t;
    return true;
}

static bool read_header(reading_t *r)
{
    bool first = true, metadata = false;
    char *key;

    while (dp__json_member(&r->json, &first, &key)) {
        dp__tensor_t t = {0};

        if (strcmp(key, "__metadata__") == 0) {
            if (metadata)
                return dp__json_fail(&r->json, "__metadata__ is there twice");
            metadata = true;
            if (!read_metadata(r))
                return false;
            continue;
        }
        t.name = key;
        if (!dp__name_is_good(key))
            return dp__json_fail(&r->json, "a tensor's name is empty, too long or not in plain letters");
        if (!read_tensor(&r->json, &t) || !append_tensor(r, &t))
            return false;
    }
    return dp__json_end(&r->json);
}

static int by_place(const void *a, const void *b)
{
    const dp__tensor_t *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static dp_status_t check_places(dp__header_t *h, uint64_t file_bytes)
{
    uint64_t at = 0;

    if (h->n > 0)
        qsort(h->tensors, h->n, sizeof(*h->tensors), by_place);
    for (uint32_t i = 0; i < h->n; i++) {
        if (h->tensors[i].begin != at)
            return dp_fail(DP_ERR_INVALID, "tensor %s: begins at byte %" PRIu64 " of the data, not at %" PRIu64,
                           h->tensors[i].name, h->tensors[i].begin, at);
        at = h->tensors[i].end;
    }
    h->data_bytes = at;
    if (file_bytes - DP__LENGTH_BYTES - h->length != at)
        return dp_fail(DP_ERR_INVALID, "%" PRIu64 " bytes are behind its head, its tensors take %" PRIu64,
                       file_bytes - DP__LENGTH_BYTES - h->length, at);
    return DP_OK;
}

static dp_status_t check_metadata(const reading_t *r)
{
    dp__header_t *h = r->header;

    if ((r->seen & 15) != 15 || r->version != 1)
        return dp_fail(DP_ERR_INVALID, (r->seen & 15) != 15
                                           ? "no checkpoint of ours: its __metadata__ lacks dualpipe, step, "
                                             "parameters or xxh64"
                                           : "a checkpoint of a later version");
    h->parameters = (uint32_t)r->parameters;
    if (r->parameters > h->n || strlen(r->digests) != (size_t)h->n * DP__DIGEST_DIGITS)
        return dp_fail(DP_ERR_INVALID, "its __metadata__ is of another number of tensors");
    for (uint32_t i = 0; i < h->n; i++)
        if (!dp__digest_get(r->digests + (size_t)i * DP__DIGEST_DIGITS, &h->tensors[i].digest))
            return dp_fail(DP_ERR_INVALID, "tensor %s: its digest is not in hexadecimal", h->tensors[i].name);
    return DP_OK;
}

dp_status_t dp__header_parse(char *text, uint32_t length, uint64_t file_bytes, dp__header_t *header_out)
{
    reading_t r = {.json = dp__json_begin(text, length), .header = header_out};
    unsigned char head[DP__LENGTH_BYTES];
    dp__xxh64_t digest;

    *header_out = (dp__header_t){.text = text, .length = length};
    for (int i = 0; i < DP__LENGTH_BYTES; i++)
        head[i] = (unsigned char)((uint64_t)length >> 8 * i);
    dp__xxh64_begin(&digest);
    dp__xxh64_add(&digest, head, sizeof(head));
    dp__xxh64_add(&digest, text, length);
    header_out->digest = dp__xxh64_end(&digest);
    text[length] = '\0';
    if (!read_header(&r))
        return dp__json_status(&r.json, "its head");
    DO(check_places(header_out, file_bytes));
    return check_metadata(&r);
}
