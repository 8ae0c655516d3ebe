/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_none.c: takes the place of the drawing files where there is no cairo. */
#include "draw_bars.h"
#include "draw_frontier.h"
#include "draw_lanes.h"
#include "draw_loads.h"
#include "draw_timeline.h"

static dp_status_t no_cairo(void)
{
    return dp_fail(DP_ERR_UNSUPPORTED, "built without cairo, which draws pictures (Debian: libcairo2-dev)");
}

dp_status_t draw_timeline_write(const draw_timeline_t *picture, draw_format_t format, dp_write_fn write, void *user)
{
    (void)picture;
    (void)format;
    (void)write;
    (void)user;
    return no_cairo();
}

dp_status_t draw_timeline_save(const draw_timeline_t *picture, const char *path)
{
    (void)picture;
    (void)path;
    return no_cairo();
}

dp_status_t draw_bars_write(const draw_bars_t *picture, draw_format_t format, dp_write_fn write, void *user)
{
    (void)picture;
    (void)format;
    (void)write;
    (void)user;
    return no_cairo();
}

dp_status_t draw_frontier_write(const draw_frontier_t *picture, draw_format_t format, dp_write_fn write, void *user)
{
    (void)picture;
    (void)format;
    (void)write;
    (void)user;
    return no_cairo();
}

dp_status_t draw_lanes_write(const draw_lanes_t *picture, draw_format_t format, dp_write_fn write, void *user)
{
    (void)picture;
    (void)format;
    (void)write;
    (void)user;
    return no_cairo();
}

dp_status_t draw_loads_write(const draw_loads_t *picture, draw_format_t format, dp_write_fn write, void *user)
{
    (void)picture;
    (void)format;
    (void)write;
    (void)user;
    return no_cairo();
}
