/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe.h: what the MoE plugins share on the host: which configurations they take, where parameters
 * lie and how they are called, the exchanges, and the check that every call begins with. Letters as
 * in dims.h. */
#ifndef PLUGINS_MOE_MOE_H
#define PLUGINS_MOE_MOE_H

#include <dualpipe/moe.h>

#include <stdbool.h>

#include "dims.h"

/* What a plugin takes. */
typedef struct moe_rules {
    const char *plugin;    /* its name, for messages */
    bool bf16;             /* as well as DP_F32 and DP_F64 */
    bool apart, posted;    /* takes config.apart, .posted */
    bool capacity;         /* makes room by config.capacity; otherwise for the worst case always */
    int32_t row_alignment; /* of sent rows, in bytes: a multiple of 16 */
    int32_t most_experts, most_ranks, most_tokens;
    int64_t most_elements; /* of [T, d] */
} moe_rules_t;

/* Parameters, in elements. An expert is gate, up and down, one behind the other. */
typedef struct moe_params {
    size_t norm, router, bias, shared_gate, shared_up, shared_down;
    size_t expert, expert_count; /* the first of ours; elements of each */
    size_t count;
    uint32_t nparams;
} moe_params_t;

/* Refuses what cannot be, with the reason; else the sizes. What is counted in 32 bits fits. */
dp_status_t moe_dims_init(const dp_host_t *host, const moe_rules_t *rules, const dp_moe_config_t *config,
                          moe_dims_t *dims_out);
/* For micro-batches of so many tokens. */
void moe_dims_set_tokens(moe_dims_t *n, int32_t tokens);

/* params.c: names take moe_names_bytes() at `names`, written once. */
moe_params_t moe_params_of(const moe_dims_t *n);
size_t moe_names_bytes(const moe_dims_t *n);
void moe_write_names(const moe_dims_t *n, char *names);
void moe_list_params(const moe_dims_t *n, const char *names, dp_param_t *params_out);

/* link.c: the exchanges of an instance. */
enum { MOE_LINK_SLOTS = 2 };
typedef struct moe_link {
    dp_exchange_t *exchange;
    uint32_t number; /* of the next one */
    int32_t room;    /* rows from rank p begin at p times this */
} moe_link_t;
dp_status_t moe_check_comm(const dp_host_t *host, const char *plugin, const dp_moe_config_t *config);
dp_status_t moe_open_links(const moe_dims_t *n, const dp_moe_config_t *config, moe_link_t *out, moe_link_t *back);

/* io.c: pointers of dp_io_t that a call needs besides params, saved, work and scratch. */
enum {
    MOE_NEED_X = 1,
    MOE_NEED_Y = 2,
    MOE_NEED_DY = 4,
    MOE_NEED_GRADS = 8,
    MOE_NEED_NO_WORK = 16,
    MOE_TAKES_LOADS = 32
};
dp_status_t moe_check_io(const dp_host_t *host, const char *plugin, const dp_moe_io_t *io, const char *call,
                         unsigned need);
/* Sizes of this micro-batch, which may be shorter than what was announced. */
dp_status_t moe_dims_of(const dp_host_t *host, const char *plugin, const dp_io_t *io, const moe_dims_t *announced,
                        moe_dims_t *dims_out);
dp_status_t moe_check_placement(const dp_host_t *host, const char *plugin, const dp_moe_io_t *io, const moe_dims_t *n);

#endif
