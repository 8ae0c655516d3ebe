/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pack.h: a row of a timeline as bytes, for another process. */
#ifndef DP_TIMELINE_PACK_H
#define DP_TIMELINE_PACK_H

#include <dualpipe/timeline.h>

/* Packs one row (names included) into bytes that another process can unpack into any of its rows
 * timeline, so that one file can be written for all ranks. With buffer NULL, *bytes becomes the
 * size; otherwise it is the room and becomes the size. */
dp_status_t dp__timeline_pack(const dp_timeline_t *timeline, int32_t rank, void *buffer, size_t *bytes);

/* Replaces what the row held; spans beyond its room are counted as lost and DP_ERR_OVERFLOW is
 * returned. Foreign bytes are checked: DP_ERR_PROTOCOL, and the row is as it was. */
dp_status_t dp__timeline_unpack(dp_timeline_t *timeline, int32_t rank, const void *buffer, size_t bytes);

#endif
