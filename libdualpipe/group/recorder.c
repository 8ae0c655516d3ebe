/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * recorder.c: the memory of a flight recorder, and the sentence that is read from it. */
#include "group/recorder.h"

#include <stdio.h>
#include <string.h>

#define NAMES 256

typedef struct header {
    char magic[8];
    uint32_t capacity;
    uint8_t mark[16];
    uint32_t closed; /* atomic */
    uint32_t pad[8];
    char names[NAMES][DP__RECORDER_NAME_BYTES];
} header_t;

static const char magic[8] = {'D', 'P', 'B', 'O', 'X', '1', '\n', 0};

dp_status_t dp__recorder_bytes(uint32_t capacity, size_t *bytes_out)
{
    if (capacity == 0 || capacity > DP__RECORDER_MAX_RECORDS)
        return dp_fail(DP_ERR_INVALID, "a flight recorder of %u records: 1 to %u are possible", capacity,
                       DP__RECORDER_MAX_RECORDS);
    *bytes_out = sizeof(header_t) + capacity * sizeof(dp_span_t);
    return DP_OK;
}

static void fill_recorder(void *memory, size_t bytes, uint32_t capacity, dp__recorder_t *recorder_out)
{
    *recorder_out = (dp__recorder_t){.memory = memory,
                                     .bytes = bytes,
                                     .capacity = capacity,
                                     .records = (dp_span_t *)((char *)memory + sizeof(header_t))};
}

void dp__recorder_format(void *memory, size_t bytes, uint32_t capacity, const uint8_t mark[16],
                         dp__recorder_t *recorder_out)
{
    header_t *header = memory;

    header->capacity = capacity;
    memcpy(header->mark, mark, sizeof(header->mark));
    memcpy(header->magic, magic, sizeof(magic));
    fill_recorder(memory, bytes, capacity, recorder_out);
}

bool dp__recorder_adopt(void *memory, size_t bytes, const uint8_t mark[16], dp__recorder_t *recorder_out)
{
    const header_t *header = memory;
    uint32_t capacity;

    if (bytes < sizeof(header_t) || memcmp(header->magic, magic, sizeof(magic)) != 0 ||
        memcmp(header->mark, mark, sizeof(header->mark)) != 0)
        return false;
    /* once: the owner could change it */
    capacity = __atomic_load_n(&header->capacity, __ATOMIC_RELAXED);
    if (capacity == 0 || capacity > (bytes - sizeof(header_t)) / sizeof(dp_span_t))
        return false;
    fill_recorder(memory, bytes, capacity, recorder_out);
    return true;
}

void dp__recorder_close(dp__recorder_t *recorder)
{
    header_t *header = recorder->memory;

    __atomic_store_n(&header->closed, 1, __ATOMIC_RELEASE);
}

bool dp__recorder_is_closed(const dp__recorder_t *recorder)
{
    const header_t *header = recorder->memory;

    return __atomic_load_n(&header->closed, __ATOMIC_ACQUIRE) != 0;
}

dp__recorder_t *dp__recorder_take(dp__recorder_t **recorders, const dp_span_t *records)
{
    for (dp__recorder_t **at = recorders; *at != NULL; at = &(*at)->next) {
        dp__recorder_t *recorder = *at;

        if (records != NULL ? recorder->records == records : dp__recorder_is_closed(recorder)) {
            *at = recorder->next;
            return recorder;
        }
    }
    return NULL;
}

void dp__recorder_set_name(dp__recorder_t *recorder, uint16_t name, const char *text)
{
    header_t *header = recorder->memory;

    if (name < NAMES)
        snprintf(header->names[name], DP__RECORDER_NAME_BYTES, "%s", text);
}

/* A flight recorder is read while it is written; a torn record gives a wrong word in a sentence and
 * nothing worse. */
__attribute__((no_sanitize("thread"))) static dp_span_t read_span(const dp_span_t *at)
{
    const volatile uint64_t *from = (const volatile uint64_t *)at;
    uint64_t words[sizeof(dp_span_t) / 8];
    dp_span_t span;

    _Static_assert(sizeof(dp_span_t) % 8 == 0, "spans are copied by words");
    for (size_t i = 0; i < sizeof(words) / 8; i++)
        words[i] = from[i];
    memcpy(&span, words, sizeof(span));
    return span;
}

dp_span_t dp__recorder_span(const dp__recorder_t *recorder, uint32_t i)
{
    return read_span(&recorder->records[i]);
}

__attribute__((no_sanitize("thread"))) void dp__recorder_name(const dp__recorder_t *recorder, uint16_t name,
                                                              char text[DP__RECORDER_NAME_BYTES])
{
    const header_t *header = recorder->memory;
    const volatile char *from = header->names[name < NAMES ? name : 0];

    for (int i = 0; i < DP__RECORDER_NAME_BYTES; i++)
        text[i] = from[i];
    text[DP__RECORDER_NAME_BYTES - 1] = '\0';
}

static const char *pass_name(uint8_t pass)
{
    static const char *const names[] = {
        [DP_OP_F] = "F", [DP_OP_B] = "B", [DP_OP_I] = "I", [DP_OP_W] = "W", [DP_OP_R] = "R"};

    return pass < sizeof(names) / sizeof(names[0]) && names[pass] != NULL ? names[pass] : "F&B";
}

void dp__span_describe(const dp_span_t *span, const char *name, char *text, size_t bytes)
{
    text[0] = '\0';
    dp__append(text, bytes, "step %d: ", span->step);
    switch (span->kind) {
    case DP_SPAN_COMPUTE:
        if (name[0] != '\0')
            dp__append(text, bytes, "%s(%s)", name, pass_name(span->pass));
        else if (span->segment >= 0)
            dp__append(text, bytes, "segment %d(%s)", span->segment, pass_name(span->pass));
        else
            dp__append(text, bytes, "%s", pass_name(span->pass));
        break;
    case DP_SPAN_SEND:
        dp__append(text, bytes, "send of %s", pass_name(span->pass));
        break;
    case DP_SPAN_RECV:
        dp__append(text, bytes, "waiting for %s", pass_name(span->pass));
        break;
    case DP_SPAN_REDUCE:
        dp__append(text, bytes, "%s", name[0] != '\0' ? name : "sum of gradients");
        break;
    default:
        dp__append(text, bytes, span->end_ns == 0 ? "between two operations" : "its last operation");
        return;
    }
    if (span->stage >= 0)
        dp__append(text, bytes, " of stage %d", span->stage);
    if (span->chunk >= 0)
        dp__append(text, bytes, ", chunk %d", span->chunk);
    if (span->microbatch >= 0)
        dp__append(text, bytes, ", micro-batch %d", span->microbatch);
}

static void describe_span(const dp__recorder_t *recorder, const dp_span_t *span, char *text, size_t bytes)
{
    char name[DP__RECORDER_NAME_BYTES] = "";

    if (span->name != 0)
        dp__recorder_name(recorder, span->name, name);
    dp__span_describe(span, name, text, bytes);
}

/* A rank computes, or it waits for a message, or for room for one: the first of these that is
 * so. */
static int urgency(const dp_span_t *span)
{
    if (span->start_ns == 0 || span->end_ns != 0)
        return 0;
    if (span->kind == DP_SPAN_COMPUTE && span->lane == DP_LANE_COMPUTE)
        return 5;
    return span->kind == DP_SPAN_RECV ? 4 : span->kind == DP_SPAN_SEND ? 3 : span->kind == DP_SPAN_STEP ? 1 : 2;
}

/* What runs before what has ended, of that the latest. urgent: of what runs, the most urgent. */
static const dp__recorder_t *find_span(const dp__recorder_t *recorders, int32_t rank, bool urgent, dp_span_t *best_out)
{
    const dp__recorder_t *in = NULL;
    int64_t latest = 0;
    int most = 0;

    for (const dp__recorder_t *recorder = recorders; recorder != NULL; recorder = recorder->next)
        for (uint32_t i = 0; i < recorder->capacity && recorder->rank == rank && !dp__recorder_is_closed(recorder);
             i++) {
            const dp_span_t span = read_span(&recorder->records[i]);
            const int64_t time = span.end_ns == 0 ? span.start_ns : span.end_ns;
            const int weight = urgent ? urgency(&span) : span.end_ns == 0;

            if (span.start_ns == 0 || weight < most || (weight == most && in != NULL && time <= latest))
                continue;
            in = recorder;
            *best_out = span;
            latest = time;
            most = weight;
        }
    return in;
}

bool dp__recorder_describe(const dp__recorder_t *recorders, int32_t rank, char *text, size_t bytes)
{
    dp_span_t span;
    const dp__recorder_t *in;

    if (bytes == 0)
        return false;
    text[0] = '\0';
    in = find_span(recorders, rank, false, &span);
    if (in != NULL)
        describe_span(in, &span, text, bytes);
    return in != NULL && span.end_ns == 0;
}

static int32_t other_end(const dp__recorder_t *recorders, int32_t rank, const dp_span_t *span)
{
    uint8_t wanted = span->kind == DP_SPAN_RECV ? DP_SPAN_SEND : DP_SPAN_RECV;

    for (const dp__recorder_t *recorder = recorders; recorder != NULL; recorder = recorder->next)
        for (uint32_t i = 0; i < recorder->capacity && recorder->rank != rank && !dp__recorder_is_closed(recorder);
             i++) {
            dp_span_t other = read_span(&recorder->records[i]);

            /* the upper bits are of the step, which may be another there */
            if (other.kind == wanted && ((other.flow ^ span->flow) & DP__FLOW_MESSAGE) == 0)
                return recorder->rank;
        }
    return -1;
}

bool dp__recorder_look(const dp__recorder_t *recorders, int32_t rank, dp__doing_t *doing_out)
{
    dp_span_t best;
    const dp__recorder_t *in = find_span(recorders, rank, true, &best);
    int most;

    *doing_out = (dp__doing_t){.peer = -1};
    if (in == NULL)
        return false;
    most = urgency(&best);
    describe_span(in, &best, doing_out->text, sizeof(doing_out->text));
    doing_out->open = most > 0;
    doing_out->computes = most == 5;
    doing_out->since_ns = most > 0 ? best.start_ns : best.end_ns;
    if (best.flow != 0 && (most == 3 || most == 4))
        doing_out->peer = other_end(recorders, rank, &best);
    return true;
}

int64_t dp__recorder_latest(const dp__recorder_t *recorders, int32_t rank)
{
    int64_t latest = 0;

    for (const dp__recorder_t *recorder = recorders; recorder != NULL; recorder = recorder->next)
        for (uint32_t i = 0; i < recorder->capacity && (rank < 0 || recorder->rank == rank); i++) {
            dp_span_t span = read_span(&recorder->records[i]);

            latest = span.start_ns > latest ? span.start_ns : latest;
            latest = span.end_ns > latest ? span.end_ns : latest;
        }
    return latest;
}
