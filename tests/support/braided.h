/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * braided.h: schedules with operations regrouped into braids at random: some legal, some not. */
#ifndef TESTS_BRAIDED_H
#define TESTS_BRAIDED_H

#include <dualpipe/schedule.h>

#include <stdbool.h>
#include <string.h>

static inline unsigned braided_random(unsigned *seed, unsigned below)
{
    *seed = *seed * 1103515245u + 12345u;
    return (*seed >> 16) % below;
}

/* F, I or W: what the next letter of a pass is. */
static inline int braided_row(const dp_pass_t *p, int weight)
{
    return weight || p->kind == DP_OP_W ? DP_OP_W : p->kind == DP_OP_F ? DP_OP_F : DP_OP_I;
}

/* May the pass go on with F, I, W (0) or the W of a B (1)? */
static inline bool braided_may(const dp_pass_t *p, int pass, int weight, int (*done)[2], int segments)
{
    if (done[pass][weight] == segments || (weight && (p[pass].kind != DP_OP_B || done[pass][1] == done[pass][0])))
        return false;
    for (int i = 0; i < pass; i++)
        for (int w = 0; w < 2; w++)
            if (p[i].chunk == p[pass].chunk && (w == 0 || p[i].kind == DP_OP_B) &&
                braided_row(&p[i], w) == braided_row(&p[pass], weight) && done[i][w] <= done[pass][weight])
                return false;
    return true;
}

/* Letters for n passes of `segments` each; the larger `loose`, the further do late passes run
 * ahead. */
static inline void braided_letters(const dp_pass_t *p, int n, int segments, unsigned loose, unsigned *seed, char *out)
{
    int done[DP_BRAID_PASSES][2] = {{0}};

    for (;;) {
        int pass = -1, weight = 0;

        for (int k = 0; k < 2 * n; k++)
            if (braided_may(p, k / 2, k % 2, done, segments)) {
                pass = k / 2, weight = k % 2;
                if (braided_random(seed, 4) >= loose)
                    break;
            }
        if (pass < 0)
            break;
        done[pass][weight]++;
        *out++ = (char)((weight ? 'A' : 'a') + pass);
    }
    *out = '\0';
}

/* A copy of a schedule in which runs of up to `most` operations are braids; every stage has
 * `segments`. */
static inline dp_schedule_t *braided(const dp_schedule_t *from, int most, int segments, unsigned loose, unsigned seed)
{
    int64_t counts[64];
    dp_schedule_t *s = NULL;

    for (int build = 0; build < 2; build++) {
        unsigned state = seed;

        for (int r = 0; r < from->ranks; r++) {
            int64_t n = 0;

            for (int64_t i = from->first[r]; i < from->first[r + 1];) {
                int take = 1 + (int)braided_random(&state, (unsigned)most), npasses = 0;
                dp_pass_t passes[DP_BRAID_PASSES];
                char order[2 * DP_BRAID_PASSES * 64 + 1];
                int32_t number = 0;
                bool named = braided_random(&state, 4) == 0;

                for (int k = 0; k < take && i < from->first[r + 1] && npasses + 2 <= DP_BRAID_PASSES; k++, i++) {
                    const dp_op_t *op = &from->ops[i];

                    passes[npasses++] =
                        (dp_pass_t){op->kind == DP_OP_FB ? DP_OP_F : op->kind, 0, op->chunk, op->microbatch};
                    if (op->kind == DP_OP_FB)
                        passes[npasses++] = (dp_pass_t){DP_OP_B, 0, op->chunk2, op->microbatch2};
                }
                braided_letters(passes, npasses, segments, loose, &state, order);
                if (named && npasses <= 2)
                    strcpy(order, braided_random(&state, 2) ? "turns" : "canonical");
                if (build == 1) {
                    if (dp_schedule_add_braid(s, &(dp_braid_t){npasses, passes, order}, &number) < 0)
                        return NULL;
                    s->ops[s->first[r] + n] = (dp_op_t){DP_OP_BRAID, -1, -1, number, -1};
                }
                n++;
            }
            counts[r] = n;
        }
        if (build == 0 && dp_schedule_create(from->method, from->placement, from->ranks, from->microbatches,
                                             from->chunks, counts, &s) < 0)
            return NULL;
        s->forward_only = from->forward_only;
    }
    return s;
}

#endif
