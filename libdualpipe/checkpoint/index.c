/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * index.c: making and reading the index of a checkpoint. */
#include "checkpoint/index.h"

#include "base/do.h"
#include "base/memory.h"
#include "checkpoint/json.h"
#include "checkpoint/names.h"
#include "checkpoint/spelling.h"
#include "checkpoint/text.h"
#include "checkpoint/xxh64.h"

#include <inttypes.h>
#include <string.h>

#define DIGEST "\"xxh64\": \""
#define ZEROS  "0000000000000000"

dp_status_t dp__index_make(const dp__index_t *index, char **text_out, size_t *bytes_out)
{
    dp__text_t text = {0};

    dp__text_add(&text,
                 "{\n\"metadata\": {\"total_size\": %" PRIu64 ", \"dualpipe\": \"1\", \"step\": \"%" PRIu64
                 "\", \"run\": \"%016" PRIx64 "\", " DIGEST ZEROS "\",\n\"heads\": {",
                 index->total_size, index->step, index->run);
    for (uint32_t i = 0; i < index->nheads; i++) {
        char digits[DP__DIGEST_DIGITS];

        dp__digest_put(digits, index->heads[i].digest);
        dp__text_add(&text, "%s\n\"%s\": \"%.*s\"", i > 0 ? "," : "", index->heads[i].file, DP__DIGEST_DIGITS, digits);
    }
    dp__text_add(&text, "}},\n\"weight_map\": {");
    for (uint32_t i = 0; i < index->nentries; i++) {
        dp__text_add(&text, "%s\n", i > 0 ? "," : "");
        dp__text_add_string(&text, index->entries[i].name);
        dp__text_add(&text, ": \"%s\"", index->entries[i].file);
    }
    dp__text_add(&text, "}\n}\n");
    if (text.failed) {
        dp__text_free(&text);
        return dp_fail(DP_ERR_NOMEM, "no memory for an index of %u tensors", index->nentries);
    }
    dp__digest_put(strstr(text.at, DIGEST) + strlen(DIGEST), dp__xxh64_of(text.at, text.bytes));
    *text_out = text.at;
    *bytes_out = text.bytes;
    return DP_OK;
}

/* ---- reading ---- */

/* Beside the bits of the metadata's members. */
enum { METADATA = 64, MAP = 128, NEEDED = 31 | METADATA | MAP };

typedef struct reading {
    dp__json_t json;
    dp__index_t *index;
    uint32_t head_room, entry_room;
    uint64_t version;
    int seen;
} reading_t;

static bool read_heads(reading_t *r)
{
    dp__index_t *index = r->index;
    bool first = true;
    char *file, *digits;

    while (dp__json_member(&r->json, &first, &file)) {
        dp__index_head_t head, *grown;

        if (!dp__json_string(&r->json, &digits))
            return false;
        head.file = file;
        if (strlen(digits) != DP__DIGEST_DIGITS || !dp__digest_get(digits, &head.digest) || !dp__file_is_ours(file))
            return dp__json_fail(&r->json, "a head that is no file of ours with its digest");
        grown = dp__grow(index->heads, sizeof(*grown), index->nheads, &r->head_room);
        if (grown == NULL)
            return dp__json_no_memory(&r->json, "no memory for so many files");
        index->heads = grown;
        grown[index->nheads++] = head;
    }
    return r->json.why == NULL;
}

static bool read_map(reading_t *r)
{
    dp__index_t *index = r->index;
    bool first = true;
    char *name, *file;

    while (dp__json_member(&r->json, &first, &name)) {
        dp__index_entry_t *grown;

        if (!dp__json_string(&r->json, &file))
            return false;
        grown = dp__grow(index->entries, sizeof(*grown), index->nentries, &r->entry_room);
        if (grown == NULL)
            return dp__json_no_memory(&r->json, "no memory for so many tensors");
        index->entries = grown;
        grown[index->nentries++] = (dp__index_entry_t){name, file};
    }
    return r->json.why == NULL;
}

static bool read_step_number(dp__json_t *json, uint64_t *number)
{
    char *value;

    return dp__json_string(json, &value) &&
           (dp__decimal(value, number) || dp__json_fail(json, "metadata that cannot be"));
}

static bool read_run(dp__json_t *json, uint64_t *run)
{
    char *value;

    return dp__json_string(json, &value) && (dp__digits(value, run) || dp__json_fail(json, "metadata that cannot be"));
}

static bool read_metadata(reading_t *r)
{
    bool first = true;
    char *key, *value;

    while (dp__json_member(&r->json, &first, &key)) {
        static const char *const names[] = {"total_size", "dualpipe", "step", "xxh64", "heads", "run"};
        int which = 0;

        while (which < 6 && strcmp(key, names[which]) != 0)
            which++;
        if (which == 6 || (r->seen & 1 << which) != 0)
            return dp__json_fail(&r->json, "no checkpoint of ours: its metadata has other members");
        r->seen |= 1 << which;
        if (!(which == 0   ? dp__json_number(&r->json, &r->index->total_size)
              : which == 1 ? read_step_number(&r->json, &r->version)
              : which == 2 ? read_step_number(&r->json, &r->index->step)
              : which == 3 ? dp__json_string(&r->json, &value)
              : which == 5 ? read_run(&r->json, &r->index->run)
                           : read_heads(r)))
            return false;
    }
    return r->json.why == NULL;
}

static bool read_index(reading_t *r)
{
    bool first = true;
    char *key;

    while (dp__json_member(&r->json, &first, &key)) {
        int bit;

        bit = strcmp(key, "metadata") == 0 ? METADATA : strcmp(key, "weight_map") == 0 ? MAP : 0;
        if (bit == 0 || (r->seen & bit) != 0)
            return dp__json_fail(&r->json, "an index has metadata and weight_map, once each");
        r->seen |= bit;
        if (!(bit == METADATA ? read_metadata(r) : read_map(r)))
            return false;
    }
    return dp__json_end(&r->json);
}

/* Before anything else is believed. */
static dp_status_t check_digest(char *text, size_t bytes)
{
    char *digits = strstr(text, DIGEST), kept[DP__DIGEST_DIGITS];
    uint64_t told, is;

    if (digits == NULL || text + bytes - digits < (ptrdiff_t)strlen(DIGEST) + DP__DIGEST_DIGITS)
        return dp_fail(DP_ERR_INVALID, "it has no digest: cut off, or no checkpoint of ours");
    digits += strlen(DIGEST);
    memcpy(kept, digits, sizeof(kept));
    memcpy(digits, ZEROS, DP__DIGEST_DIGITS);
    is = dp__xxh64_of(text, bytes);
    memcpy(digits, kept, sizeof(kept));
    if (!dp__digest_get(kept, &told) || told != is)
        return dp_fail(DP_ERR_INVALID, "it is not what was written: its digest is %016" PRIx64, is);
    return DP_OK;
}

dp_status_t dp__index_parse(char *text, size_t bytes, dp__index_t *index_out)
{
    reading_t r = {.json = dp__json_begin(text, bytes), .index = index_out};

    *index_out = (dp__index_t){.text = text};
    text[bytes] = '\0';
    DO(check_digest(text, bytes));
    if (!read_index(&r))
        return dp__json_status(&r.json, "it");
    if ((r.seen & NEEDED) != NEEDED)
        return dp_fail(DP_ERR_INVALID, "no checkpoint of ours: metadata or weight_map is not there, or not all of it");
    return r.version == 1 ? DP_OK : dp_fail(DP_ERR_INVALID, "a checkpoint of a later version");
}

void dp__index_free(dp__index_t *index)
{
    dp__free(index->text);
    dp__free(index->heads);
    dp__free(index->entries);
    *index = (dp__index_t){0};
}
