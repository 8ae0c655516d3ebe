/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_timeline.h: a timeline as a picture: a row per rank, a box per operation. Simulated,
 * measured and imported runs alike.
 *
 * Forward orange, backward green, backward for input light green, backward for weights blue;
 * overlapped pairs framed in one box; micro-batch numbers; the second direction, leg or chunk in
 * darker shades; idle white. Where there are all-to-all spans, a row has lanes: above, what
 * computes, below, what is dispatched and combined meanwhile; a frame goes around what runs beside
 * each other, pairs and braids, in both lanes, and is named by its passes. Forwards alone that run
 * beside each other are named segments there, of even micro-batches orange, of odd ones blue. */
#ifndef DP_TOOLS_DRAW_TIMELINE_H
#define DP_TOOLS_DRAW_TIMELINE_H

#include <dualpipe/timeline.h>

#include "draw_format.h"

typedef struct draw_timeline {
    const dp_timeline_t *timeline;
    const char *title, *subtitle; /* NULL: none */
    const char *unit;             /* what the time axis counts, "ms" say */
    double ns_per_unit;
    int32_t step;               /* -1: all steps */
    int32_t first_rank, nranks; /* rows to show */
    int32_t chunks;             /* shades, 1 or more */
    dp_placement_t placement;   /* says what the shades mean */
    /* added to the micro-batch numbers of chunk 1: M/2 when bidirectional, else 0 */
    int32_t second_direction;
    double longest; /* time axis, in points; 0: as long as numbers in the boxes take */
} draw_timeline_t;

/* DP_ERR_INVALID: no span to draw. DP_ERR_UNSUPPORTED: there is no cairo, and it is not
 * SVG. */
dp_status_t draw_timeline_write(const draw_timeline_t *picture, draw_format_t format, dp_write_fn write, void *user);
dp_status_t draw_timeline_save(const draw_timeline_t *picture, const char *path);

#endif
