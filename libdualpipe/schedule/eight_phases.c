/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * eight_phases.c: warm-up, steady state of overlapped pairs, cool-down.
 *
 * Source: DeepSeek-V3 report (arXiv 2412.19437), figure 5, and the README of
 * deepseek-ai/DualPipe. */
#include "schedule/eight_phases.h"

void dp__emit_eight_phases(dp__emit_t *e, int32_t depth, int32_t place, int32_t microbatches, int near, int far)
{
    int32_t to_turn = depth - 1 - place; /* ranks between us and the turning point */
    int32_t from_entry = place + 1;
    int32_t steady = microbatches - 2 * depth + from_entry;

    /* 1. fill the path to its last stage */
    for (int32_t i = 0; i < 2 * to_turn; i++)
        dp__emit_f(e, near);
    /* 2. both streams pass */
    for (int32_t i = 0; i < from_entry; i++) {
        dp__emit_f(e, near);
        dp__emit_f(e, far);
    }
    /* 3. the far stream's first gradients come back; nothing could replace their W: not deferred */
    for (int32_t i = 0; i < to_turn; i++) {
        dp__emit_i(e, far);
        dp__emit_w(e);
        dp__emit_f(e, far);
    }
    /* 4. steady state: every forward beside a backward of the other stream */
    for (int32_t i = 0; i < steady; i++) {
        if (i == 0 && to_turn == 0) {
            /* next to the last stage a pair would hand this forward to the neighbour too late */
            dp__emit_f(e, near);
            dp__emit_b(e, far);
        } else {
            dp__emit_fb(e, near, far);
        }
        dp__emit_fb(e, far, near);
    }
    /* 5. no near forwards are left */
    for (int32_t i = 0; i < to_turn; i++) {
        dp__emit_b(e, far);
        dp__emit_fb(e, far, near);
    }
    /* 6. backwards of both; the second half of them leaves W for the gaps to come */
    for (int32_t i = 0; i < 2 * from_entry; i++) {
        int chunk = i % 2 == 0 ? far : near;

        if (i < from_entry)
            dp__emit_b(e, chunk);
        else
            dp__emit_i(e, chunk);
    }
    /* 7. while the last near gradients arrive, deferred W's fill the gaps */
    for (int32_t i = 0; i < to_turn; i++) {
        dp__emit_w(e);
        dp__emit_i(e, near);
    }
    /* 8. the W's that are left */
    for (int32_t i = 0; i < from_entry; i++)
        dp__emit_w(e);
}
