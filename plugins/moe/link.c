/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * link.c: the two exchanges of a MoE instance: from the tokens' owners to the experts, and back. */
#include "moe.h"

dp_status_t moe_check_comm(const dp_host_t *host, const char *plugin, const dp_moe_config_t *c)
{
    if (c->comm != NULL && DP_HAS(c->comm_vt, dp_comm_vt_t, exchange_open) &&
        DP_HAS(c->comm_vt, dp_comm_vt_t, exchange) && DP_HAS(c->comm_vt, dp_comm_vt_t, exchange_release))
        return DP_OK;
    return DP_FAIL(host, DP_ERR_UNSUPPORTED, "%s needs a comm with exchanges for its expert group, of one rank as well",
                   plugin);
}

static dp_status_t open_link(const moe_dims_t *n, const dp_moe_config_t *c, uint32_t id, int32_t room,
                             const char *label, moe_link_t *link)
{
    const dp_exchange_config_t config = {
        .struct_size = sizeof(config),
        .id = id,
        .row_bytes = (size_t)n->row_bytes,
        .capacity_rows = (uint32_t)room,
        .slots = MOE_LINK_SLOTS,
        .label = label,
    };

    link->room = room;
    return c->comm_vt->exchange_open(c->comm, &config, &link->exchange);
}

dp_status_t moe_open_links(const moe_dims_t *n, const dp_moe_config_t *c, moe_link_t *out, moe_link_t *back)
{
    dp_status_t status = open_link(n, c, c->exchange_id, n->out_room, "moe out", out);

    return status < 0 ? status : open_link(n, c, c->exchange_id + 1, n->back_room, "moe back", back);
}
