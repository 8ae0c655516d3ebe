/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_curve.h: curves over two axes, the loss over the steps say.
 *
 *     draw_series_t loss = {"training loss", steps, losses, count};
 *     draw_curve_t curve = {"Loss", "step", "nats per byte", &loss, 1};
 *     status = draw_curve_save(&curve, "loss.png");
 */
#ifndef DP_TOOLS_DRAW_CURVE_H
#define DP_TOOLS_DRAW_CURVE_H

#include "draw_format.h"

typedef struct draw_series {
    const char *name;    /* in the legend; NULL: not there */
    const double *x, *y; /* [count]; the line is cut where a value is not finite */
    int64_t count;
} draw_series_t;

typedef struct draw_curve {
    const char *title, *x_label, *y_label;
    const draw_series_t *series;
    int32_t nseries;
} draw_curve_t;

/* DP_ERR_INVALID: no point to draw. DP_ERR_UNSUPPORTED: built without cairo. DP_ERR_IO: the
 * file. */
dp_status_t draw_curve_write(const draw_curve_t *curve, draw_format_t format, dp_write_fn write, void *user);
/* Format by the name's ending: .png .svg .pdf. */
dp_status_t draw_curve_save(const draw_curve_t *curve, const char *path);

#endif
