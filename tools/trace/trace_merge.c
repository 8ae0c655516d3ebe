/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_merge.c: the traces of several ranks as one. */
#include "trace_merge.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "trace/classify.h"
#include "trace/read.h"
#include "trace/table.h"
#include "trace_file.h"

#define PROCESS_BYTES (64 << 20) /* for the names of all processes */

/* A process of a file. */
typedef struct process {
    int64_t rank;                   /* from its name; -1 */
    char label[DP__TRACE_ID_BYTES]; /* "rank 3", or what it is within its rank */
    bool named, has_device;
} process_t;

typedef struct part {
    const char *path;
    dp__trace_head_t head;
    int64_t rank;  /* of the whole file; -1: its processes have their own ranks */
    int64_t first; /* start of the first record of a device, ns */
    int64_t shift; /* to be added to all times, ns */
    bool has_device, ranked;
    dp__trace_table_t pids;
    process_t *processes;
    size_t room;
    uint32_t first_pid; /* number of its first process in the output */
} part_t;

typedef struct merging {
    part_t *parts;
    int nparts;
    dp__trace_budget_t budget;
    part_t *part; /* that is being read */
    uint64_t index;
    output_t *output;
    bool any; /* an event is written */
} merging_t;

/* ---- the first reading ---- */

static int64_t rank_in(const char *label)
{
    int64_t rank = -1;

    if (strncmp(label, "rank ", 5) == 0 && label[5] >= '0' && label[5] <= '9')
        rank = strtol(label + 5, NULL, 10);
    return rank >= 0 && rank < INT32_MAX ? rank : -1;
}

static dp_status_t find_process(merging_t *merging, const char *pid, uint32_t *number_out)
{
    part_t *part = merging->part;
    size_t before = part->pids.count;
    void *processes = part->processes;
    dp_status_t status = dp__trace_table_add(&part->pids, &merging->budget, pid, number_out);

    if (status != DP_OK || part->pids.count == before)
        return status;
    status = dp__trace_grow(&merging->budget, &processes, &part->room, before, sizeof(*part->processes));
    part->processes = processes;
    if (status == DP_OK)
        part->processes[before] = (process_t){.rank = -1};
    return status;
}

static dp_status_t survey(void *user, const dp__trace_event_t *event)
{
    merging_t *merging = user;
    part_t *part = merging->part;
    dp__trace_source_t source = dp__trace_source_of(event->category, NULL);
    process_t *process;
    uint32_t number;
    dp_status_t status = find_process(merging, event->pid, &number);

    if (status != DP_OK)
        return status;
    process = &part->processes[number];
    if (event->phase == 'M' && strcmp(event->name, "process_name") == 0) {
        memcpy(process->label, event->label, sizeof(process->label));
        process->named = true;
        process->rank = rank_in(event->label);
        part->ranked |= process->rank >= 0;
    }
    if (event->phase != 'X' || !event->has_start || (source != DP__TRACE_DEVICE && source != DP__TRACE_LANE))
        return DP_OK;
    process->has_device = true;
    part->first = !part->has_device || event->start_ns < part->first ? event->start_ns : part->first;
    part->has_device = true;
    return DP_OK;
}

static bool rank_is_taken(const merging_t *merging, int upto, int64_t rank)
{
    for (int p = 0; p < upto; p++) {
        const part_t *part = &merging->parts[p];

        if (part->rank == rank)
            return true;
        for (size_t k = 0; part->rank < 0 && k < part->pids.count; k++)
            if (part->processes[k].rank == rank)
                return true;
    }
    return false;
}

/* Of the profiler's own word; else by position. Files of ours, and merged ones, have ranks
 * inside. */
static dp_status_t choose_ranks(merging_t *merging)
{
    for (int p = 0; p < merging->nparts; p++) {
        part_t *part = &merging->parts[p];

        part->rank = part->ranked ? -1 : part->head.rank >= 0 ? part->head.rank : p;
        if (part->rank >= 0 && rank_is_taken(merging, p, part->rank))
            return dp_fail(DP_ERR_INVALID, "%s is of rank %" PRId64 ", and so is a file before it", part->path,
                           part->rank);
        for (size_t k = 0; part->ranked && k < part->pids.count; k++)
            if (part->processes[k].rank >= 0 && rank_is_taken(merging, p, part->processes[k].rank))
                return dp_fail(DP_ERR_INVALID, "%s has a rank %" PRId64 ", and so has a file before it", part->path,
                               part->processes[k].rank);
    }
    return DP_OK;
}

static dp_status_t choose_shifts(merging_t *merging, bool align_starts)
{
    const part_t *lead = &merging->parts[0];

    for (int p = 0; p < merging->nparts; p++) {
        part_t *part = &merging->parts[p];
        int64_t base;

        if (align_starts && !part->has_device)
            return dp_fail(DP_ERR_REJECTED, "%s: no record of a device to align", part->path);
        part->shift = align_starts ? lead->first - part->first : 0;
        if (align_starts)
            continue;
        if (__builtin_sub_overflow(part->head.base_ns, lead->head.base_ns, &base) || llabs(base) > DP__JSON_MOST_NS)
            return dp_fail(DP_ERR_REJECTED, "%s: baseTimeNanoseconds is out of bounds", part->path);
        part->shift = base;
    }
    return DP_OK;
}

static dp_status_t survey_all(merging_t *merging, const trace_args_t *args)
{
    uint64_t pid = 1;
    dp_status_t status = DP_OK;

    for (int p = 0; p < merging->nparts && status == DP_OK; p++) {
        merging->part = &merging->parts[p];
        merging->part->path = args->files[p];
        status = trace_read_file(args->files[p], false, survey, merging, &merging->part->head);
        merging->part->first_pid = (uint32_t)pid;
        pid += merging->part->pids.count;
    }
    if (status == DP_OK)
        status = choose_ranks(merging);
    if (status == DP_OK)
        status = choose_shifts(merging, args->align == 1);
    return status;
}

/* ---- the second ---- */

/* A value to be written in another one's place. */
typedef struct edit {
    dp__trace_place_t place;
    char text[DP__TRACE_ID_BYTES + 32];
} edit_t;

static void edit_start(const part_t *part, const dp__trace_event_t *event, edit_t *edit)
{
    int64_t ns = event->start_ns + part->shift, whole;

    if (part->shift == 0 || !event->has_start)
        return;
    whole = ns / 1000;
    edit->place = event->start_place;
    snprintf(edit->text, sizeof(edit->text), "%s%" PRId64 ".%03d", ns < 0 && whole == 0 ? "-" : "", whole,
             abs((int)(ns % 1000)));
}

/* Arrows of one file must not end in another: numbers get the file's number in front, in bits that
 * doubles keep. */
static void edit_id(const merging_t *merging, const dp__trace_event_t *event, edit_t *edit)
{
    char *end;
    unsigned long long id = strtoull(event->id, &end, 0);
    bool is_number = event->id[0] != 0 && event->id[0] != '-' && *end == 0;

    if (merging->index == 0 || event->id_place.bytes == 0)
        return;
    edit->place = event->id_place;
    if (is_number && !event->id_is_text && id <= UINT32_MAX && merging->index < (1u << 20))
        snprintf(edit->text, sizeof(edit->text), "%llu", (unsigned long long)(merging->index << 32 | id));
    else if (is_number && id < 1ull << 48)
        snprintf(edit->text, sizeof(edit->text), "\"0x%llx\"", (unsigned long long)(merging->index << 48 | id));
    else if (is_number)
        snprintf(edit->text, sizeof(edit->text), "\"0x%llx\"",
                 (unsigned long long)(id ^ merging->index * 0x9e3779b97f4a7c15ull));
    else
        edit->place.bytes = 0; /* a name: told apart by its process */
}

static int by_place(const void *a, const void *b)
{
    const edit_t *x = a, *y = b;

    return (x->place.at > y->place.at) - (x->place.at < y->place.at);
}

static dp_status_t put_edited(merging_t *merging, const dp__trace_event_t *event, edit_t *edits, size_t count)
{
    FILE *to = merging->output->file;
    size_t at = 0;

    fputs(merging->any ? ",\n" : "\n", to);
    merging->any = true;
    qsort(edits, count, sizeof(*edits), by_place);
    for (size_t e = 0; e < count; e++) {
        if (edits[e].place.bytes == 0)
            continue;
        fwrite(event->kept + at, 1, edits[e].place.at - at, to);
        fputs(edits[e].text, to);
        at = edits[e].place.at + edits[e].place.bytes;
    }
    fwrite(event->kept + at, 1, event->kept_bytes - at, to);
    return ferror(to) ? dp_fail(DP_ERR_IO, "the output cannot be written") : DP_OK;
}

static dp_status_t copy_event(void *user, const dp__trace_event_t *event)
{
    merging_t *merging = user;
    edit_t edits[3] = {{.place = {0, 0}}};
    uint32_t number;
    size_t known = merging->part->pids.count;
    dp_status_t status = find_process(merging, event->pid, &number);

    if (status != DP_OK)
        return status;
    if (number >= known)
        return dp_fail(DP_ERR_IO, "the file changed while it was read");
    if (event->phase == 'M' &&
        (strcmp(event->name, "process_name") == 0 || strcmp(event->name, "process_sort_index") == 0))
        return DP_OK; /* written for all processes at the end */
    if (event->pid_place.bytes > 0) {
        edits[0].place = event->pid_place;
        snprintf(edits[0].text, sizeof(edits[0].text), "%" PRIu32, merging->part->first_pid + number);
    }
    edit_id(merging, event, &edits[1]);
    edit_start(merging->part, event, &edits[2]);
    return put_edited(merging, event, edits, 3);
}

/* "rank 3: python3", "rank 3: GPU 0"; processes with a rank in their name keep it. */
static void put_processes(const merging_t *merging)
{
    const part_t *part = merging->part;
    FILE *to = merging->output->file;

    for (uint32_t k = 0; k < part->pids.count; k++) {
        const process_t *process = &part->processes[k];
        const char *pid = dp__trace_table_text(&part->pids, k);
        int64_t rank = process->rank >= 0 ? process->rank : part->rank;
        char label[2 * DP__TRACE_ID_BYTES + 64];

        if (process->rank >= 0 || (part->rank < 0 && process->named))
            snprintf(label, sizeof(label), "%s", process->label);
        else if (part->rank < 0)
            snprintf(label, sizeof(label), "%s", pid);
        else if (process->has_device)
            snprintf(label, sizeof(label), "rank %" PRId64 ": device %s", rank, pid);
        else
            snprintf(label, sizeof(label), "rank %" PRId64 ": %s %s", rank, process->label, pid);
        fprintf(to, ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%" PRIu32 ",\"tid\":0,\"args\":{\"name\":",
                part->first_pid + k);
        output_json_string(to, label);
        fprintf(to,
                "}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%" PRIu32
                ",\"tid\":0,\"args\":{\"sort_index\":%" PRId64 "}}",
                part->first_pid + k, rank >= 0 ? 2 * rank + !process->has_device : INT32_MAX - 1);
    }
}

static void put_top(const merging_t *merging)
{
    const dp__trace_head_t *head = &merging->parts[0].head;
    FILE *to = merging->output->file;

    fputs("{\"displayTimeUnit\":\"ms\",", to);
    if (head->base_ns > 0)
        fprintf(to, "\"baseTimeNanoseconds\":%" PRId64 ",", head->base_ns);
    if (head->sms > 0)
        fprintf(to, "\"deviceProperties\":[{\"id\":0,\"numSms\":%" PRId64 "}],", head->sms);
    fputs("\"traceEvents\":[", to);
}

dp_status_t trace_merge_check(const trace_args_t *args)
{
    struct stat output, file;
    bool has_output = args->output != NULL && stat(args->output, &output) == 0 && S_ISREG(output.st_mode);

    for (int p = 0; p < args->nfiles; p++) {
        if (strcmp(args->files[p], "-") == 0)
            return dp_fail(DP_ERR_INVALID, "merge reads its files twice: standard input does not do");
        if (stat(args->files[p], &file) == 0 && !S_ISREG(file.st_mode) && !S_ISDIR(file.st_mode))
            return dp_fail(DP_ERR_INVALID, "%s: merge reads its files twice, so it needs regular files",
                           args->files[p]);
        if (has_output && stat(args->files[p], &file) == 0 && file.st_dev == output.st_dev &&
            file.st_ino == output.st_ino)
            return dp_fail(DP_ERR_INVALID, "%s would be overwritten", args->files[p]);
    }
    return DP_OK;
}

static dp_status_t copy_all(merging_t *merging)
{
    dp_status_t status = DP_OK;

    put_top(merging);
    for (int p = 0; p < merging->nparts && status == DP_OK; p++) {
        dp__trace_head_t head;

        merging->part = &merging->parts[p];
        merging->index = (uint64_t)p;
        status = trace_read_file(merging->part->path, true, copy_event, merging, &head);
        if (status == DP_OK && head.events != merging->part->head.events)
            status = dp_fail(DP_ERR_IO, "%s changed while it was read", merging->part->path);
        if (status == DP_OK && merging->any)
            put_processes(merging);
    }
    fputs("\n]}\n", merging->output->file);
    return status;
}

dp_status_t trace_merge_put(const trace_args_t *args, output_t *output)
{
    merging_t merging = {.nparts = args->nfiles, .budget = {0, PROCESS_BYTES}, .output = output};
    dp_status_t status;

    merging.parts = calloc((size_t)args->nfiles, sizeof(*merging.parts));
    if (merging.parts == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d files", args->nfiles);
    status = survey_all(&merging, args);
    for (int p = 0; p < merging.nparts && status == DP_OK; p++)
        if (merging.parts[p].head.unclosed)
            fprintf(stderr, "dualpipe trace: %s: the array of events is not closed: the trace may be cut off\n",
                    merging.parts[p].path);
    if (status == DP_OK)
        status = copy_all(&merging);
    for (int p = 0; p < merging.nparts; p++) {
        dp__trace_table_free(&merging.parts[p].pids);
        dp__trace_release(merging.parts[p].processes);
    }
    free(merging.parts);
    return status;
}
