/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * posts.h: how transports judge exchanges that are posted and awaited. Behind ends.h; dp_exchange
 * has `awaited` as well, which `exchange` moves with `count`. */
#ifndef PLUGINS_COMM_POSTS_H
#define PLUGINS_COMM_POSTS_H

/* An exchange in one call. */
static inline dp_status_t comm_check_whole(const dp_exchange_t *x, uint32_t number)
{
    dp_status_t status = comm_check_round(x->comm->host, x->label, x->connected, x->count, number);

    if (status < 0 || x->awaited == x->count)
        return status;
    return DP_FAIL(x->comm->host, DP_ERR_INVALID, "exchange %u of \"%s\": that of %u is posted and not awaited", number,
                   x->label, (uint32_t)x->awaited);
}

/* released: exchanges given back before. */
static inline dp_status_t comm_check_post(const dp_exchange_t *x, uint64_t released, uint32_t number)
{
    dp_status_t status = comm_check_round(x->comm->host, x->label, x->connected, x->count, number);

    if (status < 0 || x->count - released < x->config.slots)
        return status;
    return DP_FAIL(x->comm->host, DP_ERR_INVALID,
                   "post of exchange %u of \"%s\": all %u slots are posted and not released: release one before",
                   number, x->label, x->config.slots);
}

static inline dp_status_t comm_check_await(const dp_exchange_t *x, uint32_t number)
{
    dp_status_t status = comm_check_round(x->comm->host, x->label, x->connected, x->awaited, number);

    if (status < 0 || x->awaited < x->count)
        return status;
    return DP_FAIL(x->comm->host, DP_ERR_INVALID, "wait for exchange %u of \"%s\", which was not posted", number,
                   x->label);
}

static inline dp_status_t comm_check_awaited(const dp_exchange_t *x, uint64_t released, uint32_t number)
{
    dp_status_t status = comm_check_rows_release(x, released, number);

    if (status < 0 || released < x->awaited)
        return status;
    return DP_FAIL(x->comm->host, DP_ERR_INVALID, "release of exchange %u of \"%s\", which was not awaited", number,
                   x->label);
}

#endif
