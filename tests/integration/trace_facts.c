/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_facts.c FILE RANKS: is a trace what Perfetto reads without a warning? Every event has what
 * its phase calls for, slices of one thread nest or follow each other, every arrow has both ends,
 * each of them inside a slice, and every process and thread has a name. Exit status 0, or 1 with
 * what is wrong; 77 without jansson. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef HAVE_JANSSON
int main(void)
{
    puts("built without jansson, which reads the JSON");
    return 77;
}
#else
#include <jansson.h>

typedef struct event {
    char phase;
    long long pid, tid;
    double start, end; /* microseconds; equal for arrows */
    long long id;
} event_t;

static void fail(const char *what, size_t i)
{
    printf("event %zu: %s\n", i, what);
    exit(1);
}

static double number(json_t *event, const char *key, size_t i)
{
    json_t *value = json_object_get(event, key);

    if (!json_is_number(value))
        fail(key, i);
    return json_number_value(value);
}

/* Ids are numbers or text. */
static long long arrow_id(json_t *event, size_t i)
{
    json_t *id = json_object_get(event, "id");

    if (json_is_string(id))
        return strtoll(json_string_value(id), NULL, 0);
    return (long long)number(event, "id", i);
}

static event_t read_event(json_t *json, size_t i)
{
    const char *phase = json_string_value(json_object_get(json, "ph"));
    event_t e = {0};

    if (phase == NULL || strlen(phase) != 1 || strchr("MXsf", *phase) == NULL)
        fail("a phase that is not one of M X s f", i);
    if (json_string_value(json_object_get(json, "name")) == NULL)
        fail("no name", i);
    e.phase = *phase;
    e.pid = (long long)number(json, "pid", i);
    if (e.phase != 'M' || json_object_get(json, "tid") != NULL)
        e.tid = (long long)number(json, "tid", i);
    if (e.phase == 'M')
        return e;
    e.start = e.end = number(json, "ts", i);
    if (e.phase == 'X')
        e.end += number(json, "dur", i);
    else
        e.id = arrow_id(json, i);
    if (e.start < 0 || e.end < e.start)
        fail("times that run backwards", i);
    return e;
}

/* By thread; slices before arrows at the same time, longer ones first. */
static int by_thread(const void *a, const void *b)
{
    const event_t *x = a, *y = b;

    if (x->pid != y->pid)
        return x->pid < y->pid ? -1 : 1;
    if (x->tid != y->tid)
        return x->tid < y->tid ? -1 : 1;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    if ((x->phase == 'X') != (y->phase == 'X'))
        return x->phase == 'X' ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end;
}

static int by_id(const void *a, const void *b)
{
    const event_t *x = a, *y = b;

    if ((x->phase == 'X') != (y->phase == 'X'))
        return x->phase == 'X' ? 1 : -1; /* arrows first */
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->phase == 's' ? -1 : y->phase == 's';
}

static void check_threads(const event_t *events, size_t n)
{
    const double blur = 0.0011; /* microseconds: times are written to the nanosecond */
    const event_t *open[64];
    int depth = 0;

    for (size_t i = 0; i < n; i++) {
        const event_t *e = &events[i];
        while (depth > 0 && (open[depth - 1]->pid != e->pid || open[depth - 1]->tid != e->tid ||
                             open[depth - 1]->end + (e->phase == 'X' ? -blur : blur) < e->start))
            depth--;
        if (e->phase != 'X' && depth == 0)
            fail("an arrow that no slice holds (number by thread and time)", i);
        if (e->phase == 'X' && depth > 0 && e->end > open[depth - 1]->end + blur)
            fail("slices that overlap (number by thread and time)", i);
        if (e->phase == 'X') {
            if (depth == 64)
                fail("nested too deep", i);
            open[depth++] = e;
        }
    }
}

static size_t check_arrows(const event_t *events, size_t n)
{
    size_t i = 0;

    for (; i < n && events[i].phase != 'X'; i += 2)
        if (events[i].phase != 's' || i + 1 == n || events[i + 1].phase != 'f' || events[i].id != events[i + 1].id ||
            events[i + 1].start < events[i].start)
            fail("an arrow with one end, or backwards (number by id)", i);
    return i / 2;
}

static void check_names(json_t *list, const event_t *events, size_t n)
{
    json_t *names = json_object(), *json;
    char key[64];
    size_t i;

    json_array_foreach(list, i, json)
    {
        const char *what = json_string_value(json_object_get(json, "name"));
        if (strcmp(json_string_value(json_object_get(json, "ph")), "M") != 0)
            continue;
        if (strcmp(what, "process_name") == 0)
            snprintf(key, sizeof(key), "%lld", (long long)number(json, "pid", i));
        else if (strcmp(what, "thread_name") == 0)
            snprintf(key, sizeof(key), "%lld/%lld", (long long)number(json, "pid", i),
                     (long long)number(json, "tid", i));
        else
            continue;
        if (json_string_value(json_object_get(json_object_get(json, "args"), "name")) == NULL)
            fail("a name without text", i);
        json_object_set_new(names, key, json_true());
    }
    for (i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "%lld", events[i].pid);
        if (json_object_get(names, key) == NULL)
            fail("a process without name (number by thread and time)", i);
        snprintf(key, sizeof(key), "%lld/%lld", events[i].pid, events[i].tid);
        if (json_object_get(names, key) == NULL)
            fail("a thread without name (number by thread and time)", i);
    }
    json_decref(names);
}

static int count_processes(const event_t *events, size_t n)
{
    int count = 0;

    for (size_t i = 0; i < n; i++)
        count += i == 0 || events[i].pid != events[i - 1].pid;
    return count;
}

int main(int argc, char **argv)
{
    json_error_t error;
    json_t *root = argc == 3 ? json_load_file(argv[1], JSON_REJECT_DUPLICATES, &error) : NULL, *list, *json;
    event_t *events;
    size_t i, n = 0, arrows;
    int processes;

    if (root == NULL) {
        printf("usage: trace_facts FILE RANKS; or line %d: %s\n", argc == 3 ? error.line : 0,
               argc == 3 ? error.text : "");
        return 1;
    }
    list = json_object_get(root, "traceEvents");
    events = calloc(json_array_size(list) + 1, sizeof(*events));
    if (!json_is_array(list) || events == NULL)
        return 1;
    json_array_foreach(list, i, json)
    {
        events[n] = read_event(json, i);
        n += events[n].phase != 'M';
    }
    qsort(events, n, sizeof(*events), by_thread);
    check_threads(events, n);
    check_names(list, events, n);
    processes = count_processes(events, n);
    qsort(events, n, sizeof(*events), by_id);
    arrows = check_arrows(events, n);
    printf("%zu events of %d processes, %zu arrows\n", n, processes, arrows);
    free(events);
    json_decref(root);
    return processes == atoi(argv[2]) && arrows > 0 ? 0 : 1;
}
#endif
