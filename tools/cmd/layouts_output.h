/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layouts_output.h: what `dualpipe plan` says. */
#ifndef DP_TOOLS_LAYOUTS_OUTPUT_H
#define DP_TOOLS_LAYOUTS_OUTPUT_H

#include <dualpipe/model.h>

#include "tools/io/output.h"

typedef struct layouts_report {
    const dp_layouts_t *layouts;
    const dp_layout_request_t *request;
    const char *gpu, *costs; /* names; costs NULL: nothing was measured */
    int32_t show;            /* most rows */
} layouts_report_t;

void layouts_put_text(FILE *to, const layouts_report_t *report);
/* DP_ERR_NOMEM. */
dp_status_t layouts_put_json(FILE *to, const layouts_report_t *report);
/* A page. DP_ERR_NOMEM. */
dp_status_t layouts_put_html(FILE *to, const layouts_report_t *report);

/* Of which both are made: what is asked and assumed, and rows. */
void layouts_put_head(FILE *to, const layouts_report_t *report);
void layouts_put_schedule(char *text, size_t room, const dp_layout_t *layout);
dp_layouts_about_t layouts_about(const layouts_report_t *report);
dp_layout_t layouts_row(const layouts_report_t *report, int32_t row);
extern const char *const layouts_levels[];

#endif
