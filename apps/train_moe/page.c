/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * page.c: the trace of a run as a page, by what `dualpipe trace view` is made of. */
#include <string.h>

#include "tools/trace/trace_file.h"
#include "tools/trace/trace_view.h"
#include "train_moe.h"

#define PAGE_GAPS 5 /* longest exposed stretches that a page lists */

static dp_status_t write_page(const char *path, bool shared, const char *page)
{
    char title[4200];
    dp_trace_t *trace;
    trace_detail_t overlap = {.nranks = 0};
    output_t output;
    dp_status_t status = trace_load(path, NULL, &trace);

    snprintf(title, sizeof(title), "%s%s", path,
             shared ? ": more ranks than cores, waits for a core are idle or exposed here" : "");
    if (status == DP_OK)
        status = trace_detail_measure(trace, PAGE_GAPS, &overlap);
    if (status == DP_OK)
        status = output_open(&output, page);
    if (status == DP_OK)
        status = output_close(&output, trace_view_put(&overlap, title, &output));
    trace_detail_clear(&overlap);
    dp_trace_free(trace);
    return status;
}

dp_status_t page_write(const char *trace, bool shared, FILE *report)
{
    const size_t length = strlen(trace), end = strlen(".json");
    dp_status_t status;
    char page[4096];

    if (length < end || strcmp(trace + length - end, ".json") != 0 ||
        snprintf(page, sizeof(page), "%.*s.html", (int)(length - end), trace) >= (int)sizeof(page))
        return DP_OK;
    status = write_page(trace, shared, page);
    report_line(report, "page", "%s (the trace, for any browser)", page);
    return status;
}
