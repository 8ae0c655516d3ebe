/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * braids.c: the braids of a schedule. */
#include "base/memory.h"
#include "schedule/passes.h"

static dp_status_t check_order(const dp_braid_t *braid, const char *order)
{
    for (const char *c = order; *c != '\0' && !dp__order_is_named(order); c++) {
        bool shared = *c == '+', weight = c[shared] >= 'A' && c[shared] <= 'Z';
        int pass = c[shared] - (weight ? 'A' : 'a');

        c += shared;
        if (shared && (pass < 0 || pass >= braid->npasses || weight || braid->passes[pass].kind == DP_OP_W))
            return dp_fail(DP_ERR_INVALID, "braid: a '+' in its order without the letter of an F or I behind it");
        if (pass < 0 || pass >= braid->npasses)
            return dp_fail(DP_ERR_INVALID,
                           "braid: '%c' in its order is none of its %d passes; names are canonical, turns, prefill and "
                           "decode",
                           *c, braid->npasses);
        if (weight && braid->passes[pass].kind != DP_OP_B)
            return dp_fail(DP_ERR_INVALID, "braid: '%c' in its order, but pass %c is no B, whose W it would be", *c,
                           'a' + pass);
    }
    return DP_OK;
}

static dp_status_t check_braid(const dp_braid_t *braid)
{
    if (braid == NULL || braid->npasses < 1 || braid->npasses > DP_BRAID_PASSES || braid->passes == NULL)
        return dp_fail(DP_ERR_INVALID, "braid: %d passes; 1 to %d are possible", braid != NULL ? braid->npasses : 0,
                       DP_BRAID_PASSES);
    for (int32_t i = 0; i < braid->npasses; i++)
        if (braid->passes[i].kind > DP_OP_W)
            return dp_fail(DP_ERR_INVALID, "braid: pass %c is %s; there are F, B, I and W", 'a' + i,
                           dp_op_kind_name(braid->passes[i].kind));
    return braid->order != NULL ? check_order(braid, braid->order) : DP_OK;
}

/* Room doubles at powers of two. */
static dp_status_t grow_braids(dp_schedule_t *schedule)
{
    int32_t n = schedule->nbraids;
    dp_braid_t *grown;

    if ((n & (n - 1)) != 0)
        return DP_OK;
    grown = n < 1 << 29 ? dp__calloc(n > 0 ? 2 * (size_t)n : 1, sizeof(*grown)) : NULL;
    if (grown == NULL)
        return dp_fail(DP_ERR_NOMEM, "schedule: no memory for %d braids", n + 1);
    if (n > 0)
        memcpy(grown, schedule->braids, (size_t)n * sizeof(*grown));
    dp__free(schedule->braids);
    schedule->braids = grown;
    return DP_OK;
}

dp_status_t dp_schedule_add_braid(dp_schedule_t *schedule, const dp_braid_t *braid, int32_t *number_out)
{
    dp_status_t status = check_braid(braid);
    const char *order;
    dp_pass_t *passes;
    char *text;
    size_t bytes;

    if (status >= 0)
        status = grow_braids(schedule);
    if (status < 0)
        return status;
    order = braid->order != NULL ? braid->order : "canonical";
    bytes = (size_t)braid->npasses * sizeof(*passes);
    passes = dp__calloc(1, bytes + strlen(order) + 1);
    if (passes == NULL)
        return dp_fail(DP_ERR_NOMEM, "schedule: no memory for a braid of %d passes", braid->npasses);
    memcpy(passes, braid->passes, bytes);
    text = memcpy((char *)passes + bytes, order, strlen(order) + 1);
    schedule->braids[schedule->nbraids] = (dp_braid_t){braid->npasses, passes, text};
    *number_out = schedule->nbraids++;
    return DP_OK;
}
