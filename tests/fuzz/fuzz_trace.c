/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fuzz_trace.c: any bytes as a Chrome trace: what is read has figures that add up, and costs that
 * can be read back. */
#include "fuzz.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/trace_text.h"
#include "tools/io/cost_keys.h"
#include "tools/trace/trace_detail.h"
#include "tools/trace/trace_notes.h"

static dp_status_t load(const uint8_t *data, size_t bytes, size_t block, const char *devices, dp_trace_t **trace)
{
    const dp_trace_options_t options = {
        .struct_size = sizeof(options), .most_bytes = 64 << 20, .devices = devices, .communication = devices};
    trace_text_t from = {.text = (const char *)data, .bytes = bytes, .block = block};

    return dp_trace_read(trace_text_read, &from, &options, trace);
}

static void check_figures(const dp_trace_t *trace)
{
    trace_detail_t overlap;

    FUZZ_REQUIRE(trace_detail_measure(trace, 3, &overlap) == DP_OK);
    FUZZ_REQUIRE(overlap.nranks == trace->nranks && trace->nranks > 0);
    for (size_t r = 0; r < overlap.nranks; r++) {
        const trace_detail_rank_t *rank = &overlap.ranks[r];
        int64_t span = rank->figures.end - rank->figures.start;
        size_t records = 0;

        FUZZ_REQUIRE(rank->figures.hidden >= 0 && rank->figures.hidden <= rank->figures.comm &&
                     rank->figures.hidden <= rank->figures.compute);
        FUZZ_REQUIRE(rank->figures.idle >= 0 &&
                     rank->figures.idle + rank->figures.compute + (rank->figures.comm - rank->figures.hidden) == span);
        for (size_t s = 0; s < rank->nstreams; s++) {
            FUZZ_REQUIRE(rank->streams[s].busy <= span);
            records += rank->streams[s].records;
        }
        FUZZ_REQUIRE(records == rank->rank->end - rank->rank->first);
        for (size_t g = 1; g < rank->ngaps; g++)
            FUZZ_REQUIRE(rank->gaps[g].end - rank->gaps[g].start <= rank->gaps[g - 1].end - rank->gaps[g - 1].start);
    }
    trace_detail_clear(&overlap);
}

/* What is doubtful is among what is counted. */
static void check_doubts(const dp_trace_t *trace)
{
    dp_trace_about_t about = {.struct_size = sizeof(about)};
    trace_notes_t notes;

    FUZZ_REQUIRE(dp_trace_about(trace, &about) == DP_OK && about.devices == (int32_t)trace->nranks);
    FUZZ_REQUIRE(about.broken_records <= about.broken && about.records + about.broken <= (int64_t)about.events);
    for (int32_t row = 0; row < about.devices; row++) {
        int64_t records = (int64_t)(trace->ranks[row].end - trace->ranks[row].first);
        dp_trace_overlap_t overlap = {.struct_size = sizeof(overlap)};

        FUZZ_REQUIRE(dp_trace_overlap(trace, row, &overlap) == DP_OK);
        FUZZ_REQUIRE(overlap.likely >= 0 && overlap.likely <= records && overlap.likely_time >= 0);
        FUZZ_REQUIRE(overlap.strays >= 0 && overlap.strays < records);
        FUZZ_REQUIRE((overlap.likely > 0) == (overlap.likely_name != NULL));
        FUZZ_REQUIRE((overlap.strays > 0) == (overlap.stray_name != NULL));
    }
    FUZZ_REQUIRE(trace_notes_of(trace, true, &notes) == DP_OK);
    FUZZ_REQUIRE(notes.count <= sizeof(notes.lines) / sizeof(notes.lines[0]));
}

static dp_status_t write_text(void *to, const char *text, size_t bytes)
{
    FUZZ_REQUIRE(fwrite(text, 1, bytes, to) == bytes);
    return DP_OK;
}

/* Every line is a comment or NAME=VALUE with a number that is not negative. */
static void check_costs(const dp_trace_t *trace)
{
    char *text = NULL, *line, *next;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    dp_status_t status;

    FUZZ_REQUIRE(to != NULL);
    status = dp_trace_costs_write(trace, NULL, write_text, to);
    fclose(to);
    for (line = text; status == DP_OK && *line != 0; line = next) {
        const char *equals;
        double value;

        next = strchr(line, '\n');
        FUZZ_REQUIRE(next != NULL);
        *next++ = 0;
        if (*line == 0 || *line == '#')
            continue;
        equals = strchr(line, '=');
        FUZZ_REQUIRE(equals != NULL && cost_keys_find(line, (size_t)(equals - line)) >= 0);
        FUZZ_REQUIRE(cost_keys_number(equals + 1, &value) != NULL);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dp_trace_t *whole, *parts, *all;
    dp_status_t status = load(data, bytes, 0, NULL, &whole);

    FUZZ_REQUIRE(load(data, bytes, 7, NULL, &parts) == status);
    /* All categories are a device's, and all names communication. */
    if (load(data, bytes, 0, ".", &all) == DP_OK) {
        check_figures(all);
        check_doubts(all);
    }
    if (status == DP_OK) {
        FUZZ_REQUIRE(parts->nrecords == whole->nrecords && parts->nranges == whole->nranges);
        check_figures(whole);
        check_doubts(whole);
        check_costs(whole);
    } else {
        FUZZ_REQUIRE(dp_last_error()[0] != 0);
    }
    dp_trace_free(all);
    dp_trace_free(parts);
    dp_trace_free(whole);
    return 0;
}
