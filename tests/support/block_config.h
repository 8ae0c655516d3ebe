/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * block_config.h: a block's configuration and the shape that it points to as one value, to be
 * copied and changed. */
#ifndef DP_TESTS_BLOCK_CONFIG_H
#define DP_TESTS_BLOCK_CONFIG_H

#include <dualpipe/attention.h>
#include <dualpipe/moe.h>

#include <string.h>

typedef struct attention_config {
    dp_block_shape_t shape;
    dp_attention_config_t attention;
} attention_config_t;

typedef struct moe_config {
    dp_block_shape_t shape;
    dp_moe_config_t moe;
} moe_config_t;

/* What the plugin was lent is gone when it returns. */
static inline dp_status_t attention_open(const dp_attention_vt_t *vt, const dp_host_t *host,
                                         const attention_config_t *config, dp_attention_t **attention_out)
{
    attention_config_t lent = *config;
    dp_status_t status;

    lent.attention.shape = &lent.shape;
    status = vt->open(host, &lent.attention, attention_out);
    memset(&lent, 0xff, sizeof(lent));
    return status;
}

static inline dp_status_t moe_open(const dp_moe_vt_t *vt, const dp_host_t *host, const moe_config_t *config,
                                   dp_moe_t **moe_out)
{
    moe_config_t lent = *config;
    dp_status_t status;

    lent.moe.shape = &lent.shape;
    status = vt->open(host, &lent.moe, moe_out);
    memset(&lent, 0xff, sizeof(lent));
    return status;
}

/* A MoE call's io as one value. */
typedef struct moe_io {
    dp_io_t io;
    dp_moe_io_t moe;
} moe_io_t;

static inline dp_status_t moe_call(dp_status_t (*call)(dp_moe_t *, const dp_moe_io_t *, dp_stream_t *), dp_moe_t *moe,
                                   const moe_io_t *io, dp_stream_t *s)
{
    moe_io_t lent = *io;
    dp_status_t status;

    lent.moe.io = &lent.io;
    status = call(moe, &lent.moe, s);
    memset(&lent, 0xff, sizeof(lent)); /* the work on the stream may not look at it */
    return status;
}

#endif
