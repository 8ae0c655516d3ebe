/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_draw.c: a trace as lanes of boxes. */
#include "trace_draw.h"

#include <stdlib.h>
#include <string.h>

#include "tools/draw/draw_lanes.h"
#include "trace/segment.h"
#include "trace/table.h"
#include "trace_print.h"

#define MOST_LANES 600
#define NOTE_BYTES 160

/* Lanes, and the texts that belong to them. */
typedef struct sheet {
    const dp_trace_t *trace;
    draw_lane_t *lanes;
    char (*notes)[NOTE_BYTES];
    size_t count;
    int8_t *paints; /* [names] by annotation; -1: not asked yet, -2: none */
} sheet_t;

static double milliseconds(int64_t ns)
{
    return (double)ns / 1e6;
}

/* The colour of a record: its pass, when its annotation says so, else what it is. */
static uint8_t paint_of(sheet_t *sheet, const dp__trace_record_t *record)
{
    uint32_t group = dp__trace_group(sheet->trace, record);
    const char *name = group != DP__TRACE_NONE ? dp__trace_name(sheet->trace, group) : "";

    if (group != DP__TRACE_NONE && sheet->paints[group] == -1) {
        int key = dp__trace_segment_of(name, NULL, 0);

        sheet->paints[group] = (int8_t)(key >= 0 ? dp__trace_key_pass(key) : -2);
        if (key < 0 && record->detail != DP__TRACE_NONE && record->class != DP__TRACE_WAIT)
            sheet->paints[group] = (int8_t)(sheet->trace->details[record->detail].pass == DP_OP_F   ? DRAW_FORWARD
                                            : sheet->trace->details[record->detail].pass == DP_OP_W ? DRAW_WEIGHTS
                                                                                                    : DRAW_BACKWARD);
    }
    if (group != DP__TRACE_NONE && sheet->paints[group] >= 0 && record->class != DP__TRACE_WAIT)
        return (uint8_t)sheet->paints[group];
    return record->class == DP__TRACE_COMM ? DRAW_COMM : record->class == DP__TRACE_WAIT ? DRAW_WAIT : DRAW_COMPUTE;
}

static dp_status_t fill_lane(sheet_t *sheet, const trace_detail_rank_t *rank, const trace_detail_stream_t *stream,
                             draw_lane_t *lane)
{
    uint32_t last = DP__TRACE_NONE;

    lane->boxes = malloc((stream->records + 1) * sizeof(*lane->boxes));
    lane->bands = malloc((stream->records + 1) * sizeof(*lane->bands));
    if (lane->boxes == NULL || lane->bands == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu boxes", stream->records);
    for (size_t i = rank->rank->first; i < rank->rank->end; i++) {
        const dp__trace_record_t *record = &sheet->trace->records[i];
        draw_box_t box;

        if (record->stream != stream->stream)
            continue;
        box = (draw_box_t){milliseconds(record->start), milliseconds(record->end), NULL, paint_of(sheet, record)};
        lane->boxes[lane->nboxes++] = box;
        if (record->range != DP__TRACE_NONE && record->range == last) {
            lane->bands[lane->nbands - 1].end =
                box.end > lane->bands[lane->nbands - 1].end ? box.end : lane->bands[lane->nbands - 1].end;
        } else if (record->range != DP__TRACE_NONE) {
            box.label = dp__trace_name(sheet->trace, sheet->trace->ranges[record->range].name);
            lane->bands[lane->nbands++] = box;
        }
        last = record->range;
    }
    return DP_OK;
}

static dp_status_t fill_exposed(sheet_t *sheet, const trace_detail_rank_t *rank, draw_lane_t *lane)
{
    dp__trace_overlap_interval_t *compute = NULL, *comm = NULL, *exposed = NULL;
    size_t ncompute, ncomm, count = 0;
    dp_status_t status =
        dp__trace_overlap_union(sheet->trace, rank->rank, 1u << DP__TRACE_COMPUTE, &compute, &ncompute);

    if (status == DP_OK)
        status = dp__trace_overlap_union(sheet->trace, rank->rank, 1u << DP__TRACE_COMM, &comm, &ncomm);
    if (status == DP_OK)
        status = dp__trace_overlap_minus(comm, ncomm, compute, ncompute, &exposed, &count);
    if (status == DP_OK && (lane->boxes = malloc((count + 1) * sizeof(*lane->boxes))) == NULL)
        status = dp_fail(DP_ERR_NOMEM, "no memory for %zu boxes", count);
    for (size_t k = 0; status == DP_OK && k < count; k++)
        lane->boxes[lane->nboxes++] =
            (draw_box_t){milliseconds(exposed[k].start), milliseconds(exposed[k].end), NULL, DRAW_EXPOSED};
    dp__trace_release(compute);
    dp__trace_release(comm);
    dp__trace_release(exposed);
    return status;
}

static draw_lane_t *add_lane(sheet_t *sheet, draw_lane_kind_t kind, const char *label, char **note_out)
{
    draw_lane_t *lane = &sheet->lanes[sheet->count];

    *note_out = sheet->notes[sheet->count++];
    *lane = (draw_lane_t){.kind = kind, .label = label, .note = *note_out};
    return lane;
}

static dp_status_t add_rank(sheet_t *sheet, const trace_detail_rank_t *rank)
{
    char span[32], exposed[32], *note;
    dp_status_t status = DP_OK;

    (void)add_lane(sheet, DRAW_LANE_HEAD, rank->rank->label, &note);
    snprintf(note, NOTE_BYTES, "span %s us, computation %.2f %% of it; communication %.2f %% hidden, %s us exposed",
             trace_microseconds(rank->figures.end - rank->figures.start, span),
             trace_percent(rank->figures.compute, rank->figures.end - rank->figures.start),
             trace_percent(rank->figures.hidden, rank->figures.comm),
             trace_microseconds(rank->figures.comm - rank->figures.hidden, exposed));
    for (size_t s = 0; s < rank->nstreams && status == DP_OK; s++) {
        draw_lane_t *lane =
            add_lane(sheet, DRAW_LANE_BOXES, sheet->trace->streams[rank->streams[s].stream].label, &note);

        snprintf(note, NOTE_BYTES, "%.1f %% busy",
                 trace_percent(rank->streams[s].busy, rank->figures.end - rank->figures.start));
        status = fill_lane(sheet, rank, &rank->streams[s], lane);
        if (lane->nbands == 0)
            lane->note = NULL;
    }
    if (status == DP_OK) {
        draw_lane_t *lane = add_lane(sheet, DRAW_LANE_STRIP, "exposed", &note);

        lane->note = NULL;
        status = fill_exposed(sheet, rank, lane);
    }
    return status;
}

static dp_status_t open_sheet(const trace_detail_t *overlap, sheet_t *sheet)
{
    size_t lanes = 0, names = dp__trace_names(overlap->trace);

    for (size_t r = 0; r < overlap->nranks; r++)
        lanes += overlap->ranks[r].nstreams + 2;
    if (lanes > MOST_LANES)
        return dp_fail(DP_ERR_REJECTED, "%zu streams: more than a picture holds; dualpipe trace view shows them",
                       lanes);
    sheet->lanes = calloc(lanes, sizeof(*sheet->lanes));
    sheet->notes = calloc(lanes, sizeof(*sheet->notes));
    sheet->paints = malloc(names + 1);
    if (sheet->lanes == NULL || sheet->notes == NULL || sheet->paints == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu lanes", lanes);
    memset(sheet->paints, -1, names + 1);
    return DP_OK;
}

static void close_sheet(sheet_t *sheet)
{
    for (size_t l = 0; l < sheet->count; l++) {
        free(sheet->lanes[l].boxes);
        free(sheet->lanes[l].bands);
    }
    free(sheet->lanes);
    free(sheet->notes);
    free(sheet->paints);
}

dp_status_t trace_draw_put(const trace_detail_t *overlap, const char *title, draw_format_t format, output_t *output)
{
    sheet_t sheet = {.trace = overlap->trace};
    draw_lanes_t picture = {.title = title, .unit = "ms"};
    char subtitle[128];
    dp_status_t status = open_sheet(overlap, &sheet);

    for (size_t r = 0; r < overlap->nranks && status == DP_OK; r++) {
        double end = milliseconds(overlap->ranks[r].figures.end);

        picture.end = end > picture.end ? end : picture.end;
        status = add_rank(&sheet, &overlap->ranks[r]);
    }
    if (status == DP_OK) {
        snprintf(subtitle, sizeof(subtitle), "%zu records on %zu device%s", overlap->trace->nrecords,
                 overlap->trace->nranks, overlap->trace->nranks == 1 ? "" : "s");
        picture.subtitle = subtitle;
        picture.lanes = sheet.lanes;
        picture.count = sheet.count;
        status = draw_lanes_write(&picture, format, output_write, output);
    }
    close_sheet(&sheet);
    return status;
}
