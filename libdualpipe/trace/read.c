/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dp__trace_read.c: the events of a Chrome trace. */
#include "trace/read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

typedef struct reading {
    dp__trace_json_reader_t *json;
    bool keep;
    dp__trace_event_fn on_event;
    void *user;
    dp__trace_head_t *head;
    dp__trace_event_t event;
} reading_t;

/* As much as fits, without half a character at the end. */
static void copy_text(char *to, size_t room, const char *from)
{
    size_t n = strnlen(from, room - 1);

    if (from[n] != 0)
        while (n > 0 && ((unsigned char)from[n] & 0xc0) == 0x80)
            n--;
    memcpy(to, from, n);
    to[n] = 0;
}

static bool is_scalar(const dp__trace_json_token_t *token)
{
    return token->kind == DP__JSON_STRING || token->kind == DP__JSON_NUMBER;
}

/* ---- an event's args ---- */

static dp_status_t read_grid(reading_t *reading, const dp__trace_json_token_t *array)
{
    dp__trace_json_token_t token = *array;
    uint64_t blocks = 1;
    int64_t side;
    dp_status_t status;

    if (array->kind != DP__JSON_ARRAY)
        return dp__trace_json_skip(reading->json, array);
    while ((status = dp__trace_json_next(reading->json, &token)) == DP_OK && token.kind != DP__JSON_ARRAY_END) {
        if (token.kind == DP__JSON_NUMBER && dp__trace_json_integer(token.text, &side) && side > 0 &&
            side <= INT32_MAX && blocks <= UINT32_MAX)
            blocks *= (uint64_t)side;
        else
            blocks = 0;
        status = dp__trace_json_skip(reading->json, &token);
        if (status != DP_OK)
            break;
    }
    reading->event.blocks = blocks;
    return status;
}

static void take_number(const dp__trace_json_token_t *token, int64_t *out)
{
    int64_t value;

    if (is_scalar(token) && dp__trace_json_integer(token->text, &value) && value >= 0)
        *out = value;
}

static void take_detail(dp__trace_event_t *event, const char *key, const dp__trace_json_token_t *token)
{
    static const char *const keys[DP__TRACE_DETAILS] = {"step", "mb", "chunk", "stage", "segment", "pair", "busy_ns"};
    int64_t value;

    for (int d = 0; d < DP__TRACE_DETAILS; d++)
        if (strcmp(key, keys[d]) == 0 && token->kind == DP__JSON_NUMBER &&
            dp__trace_json_integer(token->text, &value) && value >= 0 && value < INT32_MAX)
            event->details[d] = (int32_t)value;
}

static dp_status_t read_args(reading_t *reading, const dp__trace_json_token_t *object)
{
    dp__trace_event_t *event = &reading->event;
    dp__trace_json_token_t token;
    dp_status_t status;

    if (object->kind != DP__JSON_OBJECT)
        return dp__trace_json_skip(reading->json, object);
    while ((status = dp__trace_json_next(reading->json, &token)) == DP_OK && token.kind != DP__JSON_OBJECT_END) {
        char key[16];

        copy_text(key, sizeof(key), token.text);
        status = dp__trace_json_next(reading->json, &token);
        if (status != DP_OK)
            break;
        if (strcmp(key, "stream") == 0)
            take_number(&token, &event->stream);
        else if (strcmp(key, "correlation") == 0)
            take_number(&token, &event->correlation);
        else if (strcmp(key, "name") == 0 && token.kind == DP__JSON_STRING)
            copy_text(event->label, sizeof(event->label), token.text);
        else if (strcmp(key, "Task Type") == 0 && token.kind == DP__JSON_STRING)
            copy_text(event->task, sizeof(event->task), token.text);
        else
            take_detail(event, key, &token);
        status = strcmp(key, "grid") == 0 ? read_grid(reading, &token) : dp__trace_json_skip(reading->json, &token);
        if (status != DP_OK)
            break;
    }
    return status;
}

/* ---- events ---- */

/* Its bytes, once it has been read. */
static dp__trace_place_t place_of(const reading_t *reading, const dp__trace_json_token_t *token)
{
    return (dp__trace_place_t){(size_t)(token->offset - reading->event.offset),
                               (size_t)(dp__trace_json_offset(reading->json) - token->offset)};
}

static dp_status_t take_field(reading_t *reading, const char *key, const dp__trace_json_token_t *token)
{
    dp__trace_event_t *event = &reading->event;

    if (strcmp(key, "args") == 0)
        return read_args(reading, token);
    if (!is_scalar(token))
        return dp__trace_json_skip(reading->json, token);
    if (strcmp(key, "ph") == 0) {
        event->phase = token->text[0];
    } else if (strcmp(key, "name") == 0) {
        copy_text(event->name, sizeof(event->name), token->text);
    } else if (strcmp(key, "cat") == 0) {
        copy_text(event->category, sizeof(event->category), token->text);
    } else if (strcmp(key, "pid") == 0) {
        copy_text(event->pid, sizeof(event->pid), token->text);
        event->pid_is_text = token->kind == DP__JSON_STRING;
        event->pid_place = place_of(reading, token);
    } else if (strcmp(key, "tid") == 0) {
        copy_text(event->tid, sizeof(event->tid), token->text);
    } else if (strcmp(key, "id") == 0) {
        copy_text(event->id, sizeof(event->id), token->text);
        event->id_is_text = token->kind == DP__JSON_STRING;
        event->id_place = place_of(reading, token);
    } else if (strcmp(key, "ts") == 0) {
        event->start_place = place_of(reading, token);
        event->has_start = dp__trace_json_nanoseconds(token->text, &event->start_ns);
        event->broken = event->has_start ? event->broken : "\"ts\" is no number of microseconds";
    } else if (strcmp(key, "dur") == 0) {
        event->has_length = dp__trace_json_nanoseconds(token->text, &event->length_ns);
        event->broken = event->has_length ? event->broken : "\"dur\" is no number of microseconds";
    }
    return DP_OK;
}

static void clear_event(dp__trace_event_t *event, uint64_t offset)
{
    memset(event, 0, offsetof(dp__trace_event_t, name));
    event->name[0] = event->category[0] = event->pid[0] = event->tid[0] = event->id[0] = event->label[0] = 0;
    event->task[0] = 0;
    event->offset = offset;
    event->stream = event->correlation = -1;
    memset(event->details, 0xff, sizeof(event->details));
}

static dp_status_t give_event(reading_t *reading)
{
    dp__trace_event_t *event = &reading->event;
    dp_status_t status = DP_OK;

    if (event->has_length && (event->length_ns < 0 || event->start_ns > DP__JSON_MOST_NS - event->length_ns))
        event->broken = "it ends before it begins, or never";
    if (reading->keep)
        status = dp__trace_json_kept(reading->json, &event->kept, &event->kept_bytes);
    reading->head->events++;
    return status == DP_OK ? reading->on_event(reading->user, event) : status;
}

static dp_status_t read_event(reading_t *reading, const dp__trace_json_token_t *object)
{
    dp__trace_json_token_t token;
    dp_status_t status;

    if (object->kind != DP__JSON_OBJECT)
        return dp_fail(DP_ERR_REJECTED, "byte %" PRIu64 ": an event is required, {...}", object->offset);
    clear_event(&reading->event, object->offset);
    if (reading->keep)
        dp__trace_json_keep(reading->json, object);
    while ((status = dp__trace_json_next(reading->json, &token)) == DP_OK && token.kind != DP__JSON_OBJECT_END) {
        char key[16];

        copy_text(key, sizeof(key), token.text);
        status = dp__trace_json_next(reading->json, &token);
        if (status == DP_OK)
            status = take_field(reading, key, &token);
        if (status != DP_OK)
            break;
    }
    return status == DP_OK ? give_event(reading) : status;
}

static dp_status_t read_events(reading_t *reading, const dp__trace_json_token_t *array)
{
    dp__trace_json_token_t token;
    dp_status_t status;

    if (array->kind != DP__JSON_ARRAY)
        return dp_fail(DP_ERR_REJECTED, "byte %" PRIu64 ": traceEvents is not an array", array->offset);
    while ((status = dp__trace_json_next(reading->json, &token)) == DP_OK && token.kind != DP__JSON_ARRAY_END) {
        status = read_event(reading, &token);
        if (status != DP_OK)
            break;
    }
    return status;
}

void dp__trace_note_broken(dp__trace_head_t *head, const dp__trace_event_t *event, bool kept)
{
    if (head->broken == 0 || (kept && head->broken_kept == 0)) {
        head->broken_at = event->offset;
        head->broken_why = event->broken;
    }
    head->broken++;
    head->broken_kept += kept;
}

/* ---- around them ---- */

/* {KEY: NUMBER, ...}: the number of one key, or of two. */
static dp_status_t read_numbers(reading_t *reading, const dp__trace_json_token_t *object, const char *first,
                                int64_t *first_out, const char *second, int64_t *second_out)
{
    dp__trace_json_token_t token;
    dp_status_t status;

    if (object->kind != DP__JSON_OBJECT)
        return dp__trace_json_skip(reading->json, object);
    while ((status = dp__trace_json_next(reading->json, &token)) == DP_OK && token.kind != DP__JSON_OBJECT_END) {
        bool is_first = strcmp(token.text, first) == 0, is_second = strcmp(token.text, second) == 0;

        status = dp__trace_json_next(reading->json, &token);
        if (status == DP_OK && (is_first || is_second))
            take_number(&token, is_first ? first_out : second_out);
        if (status == DP_OK)
            status = dp__trace_json_skip(reading->json, &token);
        if (status != DP_OK)
            break;
    }
    return status;
}

static dp_status_t read_devices(reading_t *reading, const dp__trace_json_token_t *array)
{
    dp__trace_json_token_t token;
    dp_status_t status;
    int64_t sms, id;

    if (array->kind != DP__JSON_ARRAY)
        return dp__trace_json_skip(reading->json, array);
    while ((status = dp__trace_json_next(reading->json, &token)) == DP_OK && token.kind != DP__JSON_ARRAY_END) {
        sms = -1;
        status = read_numbers(reading, &token, "numSms", &sms, "id", &id);
        if (reading->head->sms < 0)
            reading->head->sms = sms;
        if (status != DP_OK)
            break;
    }
    return status;
}

static dp_status_t read_object(reading_t *reading)
{
    dp__trace_json_token_t token;
    bool any = false;
    dp_status_t status;

    while ((status = dp__trace_json_next(reading->json, &token)) == DP_OK && token.kind != DP__JSON_OBJECT_END) {
        char key[32];

        copy_text(key, sizeof(key), token.text);
        status = dp__trace_json_next(reading->json, &token);
        if (status != DP_OK)
            break;
        if (strcmp(key, "traceEvents") == 0) {
            any = true;
            status = read_events(reading, &token);
        } else if (strcmp(key, "distributedInfo") == 0) {
            status = read_numbers(reading, &token, "rank", &reading->head->rank, "world_size", &reading->head->world);
        } else if (strcmp(key, "deviceProperties") == 0) {
            status = read_devices(reading, &token);
        } else {
            if (strcmp(key, "baseTimeNanoseconds") == 0)
                take_number(&token, &reading->head->base_ns);
            status = dp__trace_json_skip(reading->json, &token);
        }
        if (status != DP_OK)
            break;
    }
    if (status == DP_OK && !any)
        return dp_fail(DP_ERR_REJECTED, "byte %" PRIu64 ": the object has no \"traceEvents\": not a Chrome trace",
                       token.offset);
    return status;
}

static dp_status_t read_document(reading_t *reading)
{
    dp__trace_json_token_t token;
    dp_status_t status = dp__trace_json_next(reading->json, &token);

    if (status == DP_OK && token.kind == DP__JSON_OBJECT)
        status = read_object(reading);
    else if (status == DP_OK && token.kind == DP__JSON_ARRAY)
        status = read_events(reading, &token);
    else if (status == DP_OK)
        return dp_fail(DP_ERR_REJECTED, "byte %" PRIu64 ": not a Chrome trace, which is an object or an array",
                       token.offset);
    if (status == DP_OK)
        status = dp__trace_json_next(reading->json, &token); /* nothing may follow */
    return status;
}

dp_status_t dp__trace_read(dp_read_fn read, void *source, bool keep, dp__trace_event_fn on_event, void *user,
                           dp__trace_head_t *head_out)
{
    reading_t *reading = dp__calloc(1, sizeof(*reading));
    dp_status_t status;

    *head_out = (dp__trace_head_t){.rank = -1, .world = -1, .sms = -1};
    if (reading == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to read a trace");
    reading->keep = keep;
    reading->on_event = on_event;
    reading->user = user;
    reading->head = head_out;
    status = dp__trace_json_open(read, source, &reading->json);
    if (status == DP_OK)
        status = read_document(reading);
    if (reading->json != NULL) {
        head_out->bytes = dp__trace_json_offset(reading->json);
        head_out->unclosed = dp__trace_json_unclosed(reading->json);
    }
    dp__trace_json_close(reading->json);
    dp__free(reading);
    return status;
}
