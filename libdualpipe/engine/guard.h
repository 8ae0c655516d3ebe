/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * guard.h: calls of segments that are looked at. */
#ifndef DP_ENGINE_GUARD_H
#define DP_ENGINE_GUARD_H

#include "engine/engine.h"

/* Whether there is something to guard is in p->guard.on; before any device memory is taken. */
dp_status_t dp__guard_open(dp_pipeline_t *p);
void dp__guard_close(dp_pipeline_t *p);
/* Puts a call on its stream, waits for it and looks at what it did. span: its record. */
dp_status_t dp__guard_put(dp_pipeline_t *p, const dp_stage_t *stage, const dp__command_t *call, int32_t span,
                          const dp_segment_call_t *own, dp_stream_t *s);

#endif
