/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_stage_calls.c: what MoE layers and replicas of experts ask of device, transport and plugins,
 * call by call; each call fails once: its status comes back, nothing is called behind it, nothing
 * is left. */
#include "tests/support/failing_device.h"
#include "tests/support/oom.h"
#include "tests/support/suite.h"

#include "stage/replicas.h"
#include "stage/stage.h"

#include <stdint.h>

enum { EXPERT = 10, EXPERTS = 3, REPLICAS = 4, LOCAL = 2, PEERS_BYTE = 0x5a };

/* ---- an expert group of two: this rank is 0, all bytes that come from rank 1 are PEERS_BYTE
 * ---- */

struct dp_comm {
    int nothing;
};
struct dp_exchange {
    uint32_t next;
    size_t row_bytes, room;
    char *rows;
    int32_t counts[2];
    unsigned char sent; /* first byte of the last row for rank 1 */
};
static dp_comm_t comm;
static dp_exchange_t exchange;

static dp_status_t comm_exchange_open(dp_comm_t *c, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    dp_status_t status = called();

    (void)c;
    ck_assert_uint_eq(config->capacity_rows, LOCAL);
    free(exchange.rows);
    exchange = (dp_exchange_t){.row_bytes = config->row_bytes, .room = LOCAL * config->row_bytes};
    exchange.rows = malloc(2 * exchange.room);
    *exchange_out = &exchange;
    return status;
}
static dp_status_t comm_exchange(dp_exchange_t *e, uint32_t number, const void *send, const int32_t *send_offsets,
                                 const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                                 dp_stream_t *s)
{
    dp_status_t status = called();
    const char *rows = send;

    (void)s;
    if (status < 0)
        return status;
    ck_assert_uint_eq(number, e->next++);
    memcpy(e->rows, rows + (size_t)send_offsets[0] * e->row_bytes, (size_t)send_counts[0] * e->row_bytes);
    if (send_counts[1] > 0)
        e->sent = (unsigned char)rows[(size_t)(send_offsets[1] + send_counts[1] - 1) * e->row_bytes];
    memset(e->rows + e->room, PEERS_BYTE, e->room);
    *rows_out = e->rows;
    *counts_out = e->counts;
    return DP_OK;
}
static dp_status_t comm_release(dp_exchange_t *e, uint32_t number, dp_stream_t *s)
{
    (void)s;
    ck_assert_uint_eq(number + 1, e->next);
    return called();
}
static dp_status_t comm_all_reduce(dp_comm_t *c, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    dp_status_t status = called();

    (void)c, (void)s;
    ck_assert_int_eq(dtype, DP_F64);
    for (size_t i = 0; i < count && status >= 0; i++)
        ((double *)data)[i] += 100;
    return status;
}

static const dp_comm_vt_t comm_vt = {
    .struct_size = sizeof(comm_vt),
    .exchange_open = comm_exchange_open,
    .exchange = comm_exchange,
    .exchange_release = comm_release,
    .all_reduce = comm_all_reduce,
};

/* ---- replicas ---- */

static const dp__replicas_config_t usual = {
    .experts = EXPERTS,
    .replicas = REPLICAS,
    .expert_count = EXPERT,
    .dtype = DP_F64,
    .device_vt = &device_vt,
    .device = &device,
    .comm_vt = &comm_vt,
    .comm = &comm,
    .comm_size = 2,
};

static dp__replicas_t *open_replicas(void)
{
    dp__replicas_t *replicas = NULL;

    ck_assert_int_eq(dp__replicas_open(&usual, &replicas), DP_OK);
    return replicas;
}

static void all_is_given_back(void)
{
    ck_assert_int_eq(device.memories, 0);
    ck_assert_int_eq(device.streams, 0);
}

static dp_status_t open_and_close(void *arg)
{
    dp__replicas_t *replicas = NULL;
    dp_status_t status = dp__replicas_open(arg, &replicas);

    ck_assert((status < 0) == (replicas == NULL));
    dp__replicas_close(replicas);
    all_is_given_back();
    return status;
}

START_TEST(replicas_that_cannot_be_opened_leave_nothing)
{
    dp__replicas_config_t config = usual;
    long k = 0;

    /* three memories, a stream, an exchange */
    ck_assert_int_eq(fail_each(open_and_close, &config, 0), 5);
    oom_install();
    for (dp_status_t status = DP_ERR_NOMEM; status < 0; k++) {
        oom_arm(k, _i);
        status = open_and_close(&config);
        ck_assert_int_eq(status, oom_struck() ? DP_ERR_NOMEM : DP_OK);
        oom_disarm();
        ck_assert_int_eq(oom_live(), 0);
    }
    oom_uninstall();
    ck_assert_int_gt(k, 4);
}
END_TEST

#define REFUSED(change, expected, words)                                                                               \
    do {                                                                                                               \
        dp__replicas_config_t config = usual;                                                                          \
        dp_comm_vt_t table = comm_vt;                                                                                  \
                                                                                                                       \
        config.comm_vt = &table;                                                                                       \
        change;                                                                                                        \
        ck_assert_int_eq(open_and_close(&config), expected);                                                           \
        ck_assert_msg(strstr(dp_last_error(), words) != NULL, "'%s' lacks '%s'", dp_last_error(), words);              \
    } while (0)

START_TEST(senseless_replicas_are_refused)
{
    REFUSED(config.device_vt = NULL, DP_ERR_INVALID, "a device and the expert group's comm are required");
    REFUSED(config.device = NULL, DP_ERR_INVALID, "a device and the expert group's comm are required");
    REFUSED(config.comm_vt = NULL, DP_ERR_INVALID, "a device and the expert group's comm are required");
    REFUSED(config.comm = NULL, DP_ERR_INVALID, "a device and the expert group's comm are required");
    REFUSED(config.comm_size = 0, DP_ERR_INVALID, "rank 0 of an expert group of 0");
    REFUSED(config.comm_rank = -1, DP_ERR_INVALID, "rank -1 of an expert group of 2");
    REFUSED(config.comm_rank = 2, DP_ERR_INVALID, "rank 2 of an expert group of 2");
    REFUSED(config.experts = 0, DP_ERR_INVALID, "4 replicas of 0 experts on 2 ranks");
    REFUSED(config.replicas = 2, DP_ERR_INVALID, "2 replicas of 3 experts");
    REFUSED(config.replicas = 5, DP_ERR_INVALID, "5 replicas of 3 experts on 2 ranks");
    REFUSED(config.replicas = 1u << 30, DP_ERR_INVALID, "at most");
    REFUSED(config.expert_count = 0, DP_ERR_INVALID, "experts of 0 elements of dtype f64");
    REFUSED(config.dtype = DP_U8, DP_ERR_INVALID, "dtype u8");
    REFUSED(config.dtype = (dp_dtype_t)77, DP_ERR_INVALID, "none of dp_dtype_t");
    REFUSED(config.expert_count = SIZE_MAX / 2, DP_ERR_INVALID, "more than memory can hold");
    REFUSED(config.expert_count = SIZE_MAX / 8 - 1, DP_ERR_NOMEM, "");
    REFUSED((config.replicas = 6, config.expert_count = SIZE_MAX / 8 - 1), DP_ERR_INVALID, "3 experts are more");
    REFUSED(table.exchange_open = NULL, DP_ERR_UNSUPPORTED, "moving experts needs a comm with exchanges");
    REFUSED(table.exchange = NULL, DP_ERR_UNSUPPORTED, "moving experts needs a comm with exchanges");
    REFUSED(table.exchange_release = NULL, DP_ERR_UNSUPPORTED, "moving experts needs a comm with exchanges");
}
END_TEST

typedef struct summing {
    dp__replicas_t *replicas;
    int32_t placement[REPLICAS];
    double grads[LOCAL][EXPERT];
} summing_t;

static dp_status_t sum(void *arg)
{
    summing_t *x = arg;

    for (int i = 0; i < EXPERT; i++)
        x->grads[0][i] = 1, x->grads[1][i] = 2;
    return dp__replicas_sum(x->replicas, x->placement, x->grads, &stream);
}

START_TEST(experts_without_replicas_need_no_sums)
{
    dp__replicas_config_t config = usual;
    summing_t x = {NULL, {0, 1, 2, 3}, {{0}}};

    config.experts = REPLICAS;
    ck_assert_int_eq(fail_each(open_and_close, &config, 0), 4);
    ck_assert_int_eq(dp__replicas_open(&config, &x.replicas), DP_OK);
    ck_assert_int_eq(fail_each(sum, &x, 0), 0);
    ck_assert_double_eq(x.grads[1][0], 2);
    dp__replicas_close(x.replicas);
}
END_TEST

START_TEST(placements_are_looked_at)
{
    int32_t placement[4] = {0, 1, 2, 0}, first[5];

    ck_assert_int_eq(dp__replicas_check(3, 4, placement), DP_OK);
    ck_assert_int_eq(dp__replicas_check(3, 4, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp__replicas_check(0, 4, placement), DP_ERR_INVALID);
    ck_assert_int_eq(dp__replicas_check(5, 4, placement), DP_ERR_INVALID);
    ck_assert_int_eq(dp__replicas_check(3, 1u << 30, placement), DP_ERR_INVALID);
    ck_assert_int_eq(dp__replicas_check(4, 4, placement), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "no replica of expert 3"));
    placement[2] = 3;
    ck_assert_int_eq(dp__replicas_check(3, 4, placement), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "replica 2 is of expert 3, there are experts 0 to 2"));
    placement[2] = -1;
    ck_assert_int_eq(dp__replicas_check(3, 4, placement), DP_ERR_INVALID);
    oom_install();
    oom_arm(0, false);
    ck_assert_int_eq(dp__replicas_check(3, 4, placement), DP_ERR_NOMEM);
    oom_disarm();
    oom_uninstall();
    dp_replicas_first_placement(3, 5, first);
    ck_assert_mem_eq(first, ((int32_t[]){0, 1, 2, 0, 1}), sizeof(first));
}
END_TEST

START_TEST(replicas_of_one_expert_get_one_sum)
{
    summing_t x = {open_replicas(), {0, 1, 2, 0}, {{0}}};

    ck_assert_int_eq(fail_each(sum, &x, 0), 4); /* zero, add, sum over ranks, copy */
    ck_assert_double_eq(x.grads[0][EXPERT - 1], 101);
    ck_assert_double_eq(x.grads[1][0], 2); /* the only one of its expert */
    memcpy(x.placement, (int32_t[]){0, 0, 1, 2}, sizeof(x.placement));
    ck_assert_int_eq(fail_each(sum, &x, 0), 6);
    ck_assert_double_eq(x.grads[0][0], 103);
    ck_assert_double_eq(x.grads[1][0], 103);
    dp__replicas_close(x.replicas);
    all_is_given_back();
}
END_TEST

typedef struct moving {
    dp__replicas_t *replicas;
    int32_t from[REPLICAS], to[REPLICAS];
    /* large: more than a row of the exchange, so two blocks */
    unsigned char large[LOCAL][100], small[LOCAL][40];
    uint64_t sent;
} moving_t;

static dp_status_t move(void *arg)
{
    moving_t *x = arg;
    const dp_replica_memory_t memories[2] = {{.memory = x->large, .bytes = sizeof(x->large[0])},
                                             {.memory = x->small, .bytes = sizeof(x->small[0])}};

    for (int i = 0; i < LOCAL; i++) {
        memset(x->large[i], 7 + i, sizeof(x->large[i]));
        memset(x->small[i], 7 + i, sizeof(x->small[i]));
    }
    return dp__replicas_move(x->replicas, x->from, x->to, memories, 2, &x->sent);
}

START_TEST(replicas_move_to_other_ranks)
{
    moving_t x = {.replicas = open_replicas(), .from = {0, 1, 2, 2}, .to = {2, 1, 0, 2}};

    /* counts; three blocks, each: a row out, exchange, a row in, release; at the end all is
     * there */
    ck_assert_int_eq(fail_each(move, &x, 0), 1 + 3 * 4 + 1);
    ck_assert_uint_eq(x.sent, 2 * (100 + 40)); /* both ranks take one */
    ck_assert_uint_eq(exchange.sent, 7);
    ck_assert_uint_eq(x.large[0][0], PEERS_BYTE);
    ck_assert_uint_eq(x.large[0][99], PEERS_BYTE);
    ck_assert_uint_eq(x.small[0][39], PEERS_BYTE);
    ck_assert_uint_eq(x.small[1][0], 8); /* its second replica, which stays where it is */
    ck_assert_uint_eq(x.large[1][0], 8);
    dp__replicas_close(x.replicas);
    all_is_given_back();
}
END_TEST

START_TEST(a_copy_on_the_same_rank_sends_nothing)
{
    moving_t x = {.replicas = open_replicas(), .from = {0, 1, 2, 0}, .to = {1, 1, 2, 0}};

    ck_assert_int_eq(move(&x), DP_OK);
    ck_assert_uint_eq(x.sent, 0);
    ck_assert_uint_eq(x.large[0][99], 8);
    memcpy(x.to, x.from, sizeof(x.to));
    ncalls = 0;
    ck_assert_int_eq(move(&x), DP_OK); /* where nothing moves nobody is asked */
    ck_assert_int_eq(ncalls, 0);
    ck_assert_int_eq(dp__replicas_move(x.replicas, x.from, x.to, NULL, 0, NULL), DP_OK);
    dp__replicas_close(x.replicas);
}
END_TEST

/* Begins and, where that went well, ends. Replicas are opened anew each time, since a call that
 * failed leaves the rest to close. What is there is old until the last copies begin. */
static dp_status_t move_beside(void *arg)
{
    moving_t *x = arg;
    const int before = due;
    const dp_replica_memory_t memories[2] = {{.memory = x->large, .bytes = sizeof(x->large[0])},
                                             {.memory = x->small, .bytes = sizeof(x->small[0])}};
    dp_status_t status;

    due = -1;
    x->replicas = open_replicas();
    memset(x->large, 7, sizeof(x->large));
    memset(x->small, 7, sizeof(x->small));
    due = before;
    ncalls = 0;
    status = dp__replicas_begin(x->replicas, x->from, x->to, memories, 2, &x->sent);
    ck_assert_uint_eq(x->large[0][99], 7);
    ck_assert_uint_eq(x->small[0][39], 7);
    if (status >= 0) {
        ck_assert_int_eq(dp__replicas_begin(x->replicas, x->from, x->to, memories, 2, NULL), DP_ERR_INVALID);
        ck_assert_int_eq(dp__replicas_move(x->replicas, x->from, x->to, memories, 2, NULL), DP_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(dp_last_error(), "end that first, by dp_moe_layer_place_end"));
        status = dp__replicas_end(x->replicas);
    }
    dp__replicas_close(x->replicas);
    all_is_given_back();
    return status;
}

START_TEST(replicas_move_beside_steps)
{
    moving_t x = {.from = {0, 1, 2, 2}, .to = {2, 1, 0, 2}};

    /* spare memory; counts; three blocks of four calls; at the end: all is there, a copy into place
     * for each memory, all is there. Close may wait for what is under way */
    ck_assert_int_eq(fail_each(move_beside, &x, 1), 1 + 1 + 3 * 4 + 1 + 2 + 1);
    ck_assert_uint_eq(x.sent, 2 * (100 + 40));
    ck_assert_uint_eq(x.large[0][99], PEERS_BYTE);
    ck_assert_uint_eq(x.small[0][39], PEERS_BYTE);
    ck_assert_uint_eq(x.large[1][0], 7);
    due = 1 + 1 + 3 * 4; /* a transfer that failed is known when end waits for it */
    ck_assert_int_eq(move_beside(&x), DP_ERR_PEER);
    ck_assert_uint_eq(x.large[0][99], 7);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "the old placement holds: close the pipeline: call 15 fails"));
    memcpy(x.to, x.from, sizeof(x.to)); /* where nothing moves nobody is asked */
    ck_assert_int_eq(fail_each(move_beside, &x, 1), 2);
    for (long k = 0; k < 3; k++) { /* two checks; the record */
        x.replicas = open_replicas();
        oom_install();
        oom_arm(k, false);
        ck_assert_int_eq(dp__replicas_begin(x.replicas, x.from, x.to, NULL, 0, NULL), DP_ERR_NOMEM);
        oom_disarm();
        ck_assert_int_eq(oom_live(), 0);
        oom_uninstall();
        ck_assert_int_eq(dp__replicas_begin(x.replicas, x.from, x.to, NULL, 0, NULL), DP_OK);
        ncalls = 0;
        dp__replicas_close(x.replicas); /* nobody ends it: close waits for what is under way */
        ck_assert_int_eq(ncalls, 1);
    }
    all_is_given_back();
}
END_TEST

START_TEST(senseless_moves_are_refused)
{
    moving_t x = {.replicas = open_replicas(), .from = {0, 1, 2, 0}, .to = {1, 1, 2, 0}};

    ck_assert_int_eq(dp__replicas_move(NULL, x.from, x.to, NULL, 0, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp__replicas_begin(NULL, x.from, x.to, NULL, 0, NULL), DP_ERR_INVALID);
    ck_assert_int_eq(dp__replicas_move(x.replicas, x.from, x.to, NULL, 1, NULL), DP_ERR_INVALID);
    x.from[0] = 3;
    ck_assert_int_eq(move(&x), DP_ERR_INVALID);
    x.from[0] = 0;
    x.to[3] = -1;
    ck_assert_int_eq(move(&x), DP_ERR_INVALID);
    dp__replicas_close(x.replicas);
    dp__replicas_close(NULL);
    all_is_given_back();
}
END_TEST

/* ---- a MoE layer of blocks that only remember what they were called with ---- */

struct dp_attention {
    dp_block_sizes_t sizes;
    dp_param_t param;
};
struct dp_moe {
    dp_block_sizes_t sizes;
    dp_param_t params[3];
};

/* The last call of each function of a block. */
static dp_io_t attention_seen, moe_seen;
static dp_moe_io_t whole_seen;
static const char *last;

static dp_status_t attention_called(const char *name, const dp_io_t *io)
{
    last = name;
    attention_seen = *io;
    return called();
}
static dp_status_t moe_called(const char *name, const dp_moe_io_t *io)
{
    last = name;
    moe_seen = *io->io;
    whole_seen = *io;
    return called();
}

#define ATTENTION(function)                                                                                            \
    static dp_status_t attention_##function(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)                      \
    {                                                                                                                  \
        (void)a, (void)s;                                                                                              \
        return attention_called(#function, io);                                                                        \
    }
#define MOE(function)                                                                                                  \
    static dp_status_t moe_##function(dp_moe_t *m, const dp_moe_io_t *io, dp_stream_t *s)                              \
    {                                                                                                                  \
        (void)m, (void)s;                                                                                              \
        return moe_called(#function, io);                                                                              \
    }
ATTENTION(forward)
ATTENTION(backward_input)
ATTENTION(backward_weight)
ATTENTION(recompute)
MOE(route)
MOE(dispatch)
MOE(experts)
MOE(combine)
MOE(combine_backward)
MOE(experts_backward_input)
MOE(experts_backward_weight)
MOE(dispatch_backward)
MOE(route_backward_input)
MOE(route_backward_weight)
MOE(experts_recompute)

static dp_status_t attention_sizes(const dp_attention_t *a, dp_block_sizes_t *sizes_out)
{
    dp_sized_put(sizes_out, &a->sizes);
    return called();
}
static dp_status_t attention_params(const dp_attention_t *a, dp_param_t *params_out)
{
    params_out[0] = a->param;
    return called();
}
static dp_status_t moe_sizes(const dp_moe_t *m, dp_block_sizes_t *sizes_out)
{
    dp_sized_put(sizes_out, &m->sizes);
    return called();
}
static dp_status_t moe_params(const dp_moe_t *m, dp_param_t *params_out)
{
    memcpy(params_out, m->params, m->sizes.nparams * sizeof(*params_out));
    return called();
}

/* What a layer is made of; tests change it. */
typedef struct rig {
    dp_attention_vt_t attention_vt;
    dp_moe_vt_t moe_vt;
    dp_attention_t attention;
    dp_moe_t moe;
    dp_dtype_t dtype;
    size_t boundary;
    dp_part_t part;
    dp_moe_layer_t *layer;
} rig_t;

static rig_t rig(void)
{
    return (rig_t){
        .attention_vt = {.struct_size = sizeof(dp_attention_vt_t),
                         .sizes = attention_sizes,
                         .params = attention_params,
                         .forward = attention_forward,
                         .backward_input = attention_backward_input,
                         .backward_weight = attention_backward_weight,
                         .recompute = attention_recompute},
        .moe_vt = {.struct_size = sizeof(dp_moe_vt_t),
                   .sizes = moe_sizes,
                   .params = moe_params,
                   .route = moe_route,
                   .dispatch = moe_dispatch,
                   .experts = moe_experts,
                   .combine = moe_combine,
                   .combine_backward = moe_combine_backward,
                   .experts_backward_input = moe_experts_backward_input,
                   .experts_backward_weight = moe_experts_backward_weight,
                   .dispatch_backward = moe_dispatch_backward,
                   .route_backward_input = moe_route_backward_input,
                   .route_backward_weight = moe_route_backward_weight,
                   .experts_recompute = moe_experts_recompute},
        .attention = {.sizes = {.struct_size = sizeof(dp_block_sizes_t),
                                .saved_bytes = 100,
                                .work_bytes = 30,
                                .scratch_bytes = 7,
                                .param_count = 10,
                                .nparams = 1,
                                .backward_buffer_bytes = 20,
                                .recomputes = 1},
                      .param = {.name = "norm", .count = 10}},
        .moe = {.sizes = {.struct_size = sizeof(dp_block_sizes_t),
                          .saved_bytes = 200,
                          .work_bytes = 1,
                          .scratch_bytes = 5,
                          .param_count = 24,
                          .nparams = 3,
                          .backward_buffer_bytes = 65,
                          .recomputes = 1},
                .params = {{.name = "norm", .count = 4},
                           {.name = "experts.0", .offset = 4, .count = EXPERT, .sharded = 1, .expert = 0},
                           {.name = "experts.1", .offset = 14, .count = EXPERT, .sharded = 1, .expert = 1}}},
        .dtype = DP_F64,
        .boundary = 100,
        .part = {.struct_size = sizeof(dp_part_t)},
    };
}

static dp_status_t make(rig_t *r)
{
    return dp_moe_layer_part(&r->attention_vt, &r->attention, &r->moe_vt, &r->moe, r->dtype, r->boundary, &r->layer,
                             &r->part);
}

static dp_status_t make_and_free(void *arg)
{
    rig_t *r = arg;
    dp_status_t status;

    r->layer = NULL;
    status = make(r);
    ck_assert((status < 0) == (r->layer == NULL));
    dp_moe_layer_free(r->layer);
    return status;
}

START_TEST(a_layer_that_cannot_be_made_leaves_nothing)
{
    rig_t r = rig();
    long k = 0;

    ck_assert_int_eq(fail_each(make_and_free, &r, 0), 4); /* sizes and parameters of both */
    oom_install();
    for (dp_status_t status = DP_ERR_NOMEM; status < 0; k++) {
        oom_arm(k, _i);
        status = make_and_free(&r);
        ck_assert_int_eq(status, oom_struck() ? DP_ERR_NOMEM : DP_OK);
        oom_disarm();
        ck_assert_int_eq(oom_live(), 0);
    }
    oom_uninstall();
    ck_assert_int_eq(k, 4); /* the layer, its list, the names; then it is there */
    dp_moe_layer_free(NULL);
}
END_TEST

#define NO_LAYER(change, expected, words)                                                                              \
    do {                                                                                                               \
        rig_t r = rig();                                                                                               \
                                                                                                                       \
        change;                                                                                                        \
        ck_assert_int_eq(make_and_free(&r), expected);                                                                 \
        ck_assert_msg(strstr(dp_last_error(), words) != NULL, "'%s' lacks '%s'", dp_last_error(), words);              \
    } while (0)

START_TEST(senseless_layers_are_refused)
{
    rig_t whole = rig();
    const void *of[4] = {&whole.attention_vt, &whole.attention, &whole.moe_vt, &whole.moe};

    for (int missing = 0; missing < 6; missing++)
        ck_assert_int_eq(dp_moe_layer_part(missing == 0 ? NULL : of[0], missing == 1 ? NULL : &whole.attention,
                                           missing == 2 ? NULL : of[2], missing == 3 ? NULL : &whole.moe, DP_F64, 8,
                                           missing == 4 ? NULL : &whole.layer, missing == 5 ? NULL : &whole.part),
                         DP_ERR_INVALID);
    NO_LAYER(r.part.struct_size = 8, DP_ERR_INVALID, "part_out: struct_size is 8");
    NO_LAYER(r.dtype = DP_I64, DP_ERR_INVALID, "dtype is i64");
    NO_LAYER(r.attention.param.name = NULL, DP_ERR_PLUGIN, "the attention plugin gave its parameter 0 no name");
    NO_LAYER(r.moe.params[2].name = NULL, DP_ERR_PLUGIN, "the MoE plugin gave its parameter 2 no name");
    NO_LAYER(r.attention_vt.recompute = NULL, DP_ERR_PLUGIN, "the attention plugin asks to be");
    NO_LAYER(r.moe_vt.experts_recompute = NULL, DP_ERR_PLUGIN, "the MoE plugin asks to be recomputed");
    NO_LAYER(r.boundary = SIZE_MAX, DP_ERR_INVALID, "more than memory can hold");
    NO_LAYER(r.attention.sizes.saved_bytes = SIZE_MAX, DP_ERR_INVALID, "more than memory can hold");
    NO_LAYER(r.attention.sizes.backward_buffer_bytes = SIZE_MAX, DP_ERR_INVALID, "more than memory can hold");
    NO_LAYER(r.moe.sizes.work_bytes = SIZE_MAX, DP_ERR_INVALID, "more than memory can hold");
    NO_LAYER(r.moe.sizes.param_count = SIZE_MAX, DP_ERR_INVALID, "more than memory can hold");
    NO_LAYER(r.moe.sizes.saved_bytes = SIZE_MAX - 64, DP_ERR_INVALID, "more than memory can hold");
    NO_LAYER(r.moe.sizes.backward_buffer_bytes = SIZE_MAX - 63, DP_ERR_INVALID, "more than memory can hold");
    NO_LAYER(r.moe.sizes.work_bytes = SIZE_MAX - 63, DP_ERR_INVALID, "more than memory can hold");
    NO_LAYER(r.moe.sizes.work_bytes = SIZE_MAX - 127, DP_ERR_INVALID, "more than memory can hold");
    NO_LAYER(r.moe.sizes.param_count = SIZE_MAX - 63, DP_ERR_INVALID, "more than memory can hold");
}
END_TEST

/* A segment's function with a call that has all memory. */
typedef struct running {
    dp_segment_fn run;
    void *self;
    dp_segment_call_t call;
} running_t;

static dp_status_t run(void *arg)
{
    running_t *r = arg;

    return r->run(r->self, &r->call, &stream);
}

static char params[8192], grads[8192], saved[8192], work[8192], backward_buffer[8192], tensor[4];

static void runs(const rig_t *r, dp_segment_fn function, int calls, const char *last_call)
{
    running_t x = {function,
                   r->part.segments[0].self,
                   {.params = params,
                    .grads = grads,
                    .saved = saved,
                    .work = work,
                    .backward_buffer = backward_buffer,
                    .x = &tensor[0],
                    .y = &tensor[1],
                    .dy = &tensor[2],
                    .dx = &tensor[3],
                    .loss_scale = 0.5}};

    ck_assert_int_eq(fail_each(run, &x, 0), calls);
    ck_assert_str_eq(last, last_call);
}

START_TEST(each_block_gets_its_own_memory)
{
    rig_t r = rig();
    const dp_segment_t *s;

    r.dtype = DP_BF16; /* gradients are wider than parameters */
    ck_assert_int_eq(make(&r), DP_OK);
    s = r.part.segments;
    ck_assert_int_eq(r.part.nsegments, 4);
    ck_assert_uint_eq(r.part.sizes->saved_bytes, 128 + 256);
    ck_assert_uint_eq(r.part.sizes->backward_buffer_bytes, 64 + 128);
    ck_assert_uint_eq(r.part.sizes->work_bytes, 128 + 64 + 64); /* h, then both */
    ck_assert_uint_eq(r.part.sizes->scratch_bytes, 7);
    ck_assert_uint_eq(r.part.sizes->param_count, 64 + 64);
    ck_assert_str_eq(r.part.param_list[0].name, "attention.norm");
    ck_assert_str_eq(r.part.param_list[1].name, "moe.norm");
    ck_assert_uint_eq(r.part.param_list[3].offset, 64 + 14);

    runs(&r, s[0].forward, 2, "route");
    ck_assert_ptr_eq(attention_seen.x, &tensor[0]);
    ck_assert_ptr_eq(attention_seen.y, work);
    ck_assert_ptr_eq(attention_seen.work, work + 128);
    ck_assert_ptr_eq(moe_seen.x, work);
    ck_assert_ptr_eq(moe_seen.work, work + 128 + 64);
    ck_assert_ptr_eq(moe_seen.params, params + 64 * 2);
    ck_assert_ptr_eq(moe_seen.saved, saved + 128);
    ck_assert_ptr_eq(moe_seen.backward_buffer, backward_buffer + 64);
    runs(&r, s[1].forward, 1, "dispatch");
    runs(&r, s[2].forward, 1, "experts");
    runs(&r, s[3].forward, 1, "combine");
    ck_assert_ptr_eq(moe_seen.y, &tensor[1]);

    runs(&r, s[3].backward_input, 1, "combine_backward");
    ck_assert_ptr_eq(moe_seen.dy, &tensor[2]);
    runs(&r, s[2].recompute, 1, "experts_recompute");
    runs(&r, s[2].backward_input, 1, "experts_backward_input");
    runs(&r, s[2].backward_weight, 1, "experts_backward_weight");
    ck_assert_ptr_eq(moe_seen.grads, grads + 64 * 4);
    runs(&r, s[1].backward_input, 1, "dispatch_backward");
    runs(&r, s[0].recompute, 1, "recompute");
    runs(&r, s[0].backward_input, 2, "backward_input");
    ck_assert_ptr_eq(moe_seen.dx, work);
    ck_assert_float_eq(whole_seen.aux_scale, 0.5F);
    ck_assert_ptr_eq(attention_seen.dy, work);
    ck_assert_ptr_eq(attention_seen.dx, &tensor[3]);
    runs(&r, s[0].backward_weight, 2, "backward_weight");
    ck_assert_ptr_eq(attention_seen.grads, grads);
    dp_moe_layer_free(r.layer);
}
END_TEST

/* A layer whose blocks keep all has no recompute, of either. */
START_TEST(only_what_a_block_asks_for_is_recomputed)
{
    rig_t r = rig();

    r.attention.sizes.recomputes = r.moe.sizes.recomputes = 0;
    r.attention_vt.recompute = NULL;
    r.moe_vt.experts_recompute = NULL;
    ck_assert_int_eq(make(&r), DP_OK);
    for (int s = 0; s < 4; s++)
        ck_assert_ptr_null((void *)(uintptr_t)r.part.segments[s].recompute);
    dp_moe_layer_free(r.layer);
}
END_TEST

/* ---- a layer with replicas ---- */

typedef struct replicating {
    rig_t rig;
    dp__replicas_t *replicas;
    int32_t placement[REPLICAS];
} replicating_t;

static dp_status_t replicate(void *arg)
{
    replicating_t *x = arg;
    int before = due;
    dp_status_t status;

    due = -1;
    ck_assert_int_eq(make(&x->rig), DP_OK);
    due = before;
    ncalls = 0;
    status = dp__moe_layer_replicate(x->rig.layer, x->replicas, x->placement, &x->rig.part);
    dp_moe_layer_free(x->rig.layer);
    return status;
}

#define NOT_REPLICATED(change, expected, words)                                                                        \
    do {                                                                                                               \
        replicating_t x = {rig(), replicas, {0, 1, 2, 0}};                                                             \
                                                                                                                       \
        change;                                                                                                        \
        ck_assert_int_eq(replicate(&x), expected);                                                                     \
        ck_assert_msg(strstr(dp_last_error(), words) != NULL, "'%s' lacks '%s'", dp_last_error(), words);              \
    } while (0)

START_TEST(a_layer_is_replicated_once_and_as_its_plugin_has_it)
{
    dp__replicas_t *replicas = open_replicas();
    replicating_t whole = {rig(), replicas, {0, 1, 2, 0}};

    /* memory for the placement, a copy, until it is there */
    ck_assert_int_eq(fail_each(replicate, &whole, 0), 3);
    NOT_REPLICATED(x.placement[0] = 3, DP_ERR_INVALID, "replica 0 is of expert 3");
    NOT_REPLICATED(x.rig.moe.params[2].expert = 2, DP_ERR_MISMATCH, "does not have replicas 0 to 1 of 10 elements");
    NOT_REPLICATED(x.rig.moe.params[2].offset = 15, DP_ERR_MISMATCH, "one after the other");
    NOT_REPLICATED(x.rig.moe.params[2].sharded = 0, DP_ERR_MISMATCH, "open it with config.replicas 4");
    NOT_REPLICATED(x.replicas = NULL, DP_ERR_INVALID, "layer, replicas and part are required");
    /* its check; the placement; the record of its memory on the device */
    for (long k = 0; k < 3; k++) {
        oom_install();
        ck_assert_int_eq(make(&whole.rig), DP_OK);
        oom_arm(k, false);
        ck_assert_int_eq(dp__moe_layer_replicate(whole.rig.layer, replicas, whole.placement, &whole.rig.part),
                         DP_ERR_NOMEM);
        oom_disarm();
        dp_moe_layer_free(whole.rig.layer);
        ck_assert_int_eq(oom_live(), 0);
        oom_uninstall();
    }
    ck_assert_int_eq(dp__moe_layer_replicate(NULL, replicas, whole.placement, &whole.rig.part), DP_ERR_INVALID);
    dp__replicas_close(replicas);
    all_is_given_back();
}
END_TEST

START_TEST(a_placement_moves_with_its_experts)
{
    static double accumulator[256];
    rig_t r = rig();
    moving_t x = {.replicas = open_replicas(), .from = {0, 1, 2, 0}, .to = {2, 1, 2, 0}};
    dp_replica_memory_t memory = {.memory = x.large, .bytes = sizeof(x.large[0])};
    uint64_t revision, sent;

    ck_assert_int_eq(make(&r), DP_OK);
    ck_assert_int_eq(dp_moe_layer_place(r.layer, x.to, &memory, 1, &sent), DP_ERR_INVALID);
    ck_assert_int_eq(dp_moe_layer_place(NULL, x.to, &memory, 1, &sent), DP_ERR_INVALID);
    ck_assert_int_eq(dp__moe_layer_replicate(r.layer, x.replicas, x.from, &r.part), DP_OK);
    ck_assert_int_eq(dp__moe_layer_replicate(r.layer, x.replicas, x.from, &r.part), DP_ERR_INVALID);
    ck_assert_mem_eq(r.part.placement, x.from, sizeof(x.from));
    revision = *r.part.revision;
    /* behind attention's parameters and the layer's norm: the first replica */
    accumulator[64 + 4] = 5;
    ck_assert_int_eq(r.part.reduce(r.part.reduce_self, accumulator, &stream), DP_OK);
    ck_assert_double_eq(accumulator[64 + 4], 105);
    ck_assert_double_eq(accumulator[64 + 4 + EXPERT], 0);

    due = 0;
    ck_assert_int_eq(dp_moe_layer_place(r.layer, x.to, &memory, 1, &sent), DP_ERR_PEER);
    /* what did not move is not said to have */
    ck_assert_mem_eq(r.part.placement, x.from, sizeof(x.from));
    ck_assert_uint_eq(*r.part.revision, revision);
    ck_assert_int_eq(dp_moe_layer_place(r.layer, x.to, &memory, 1, &sent), DP_OK);
    ck_assert_uint_eq(sent, 100);
    ck_assert_mem_eq(r.part.placement, x.to, sizeof(x.to));
    ck_assert_uint_gt(*r.part.revision, revision);
    ck_assert_uint_gt(dp__replicas_bytes(x.replicas), 0);
    dp_moe_layer_free(r.layer);
    dp__replicas_close(x.replicas);
    all_is_given_back();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("calls of stages");
    TCase *oom_case = tcase_create("oom");

    tcase_add_loop_test(oom_case, replicas_that_cannot_be_opened_leave_nothing, 0, 2);
    tcase_add_loop_test(oom_case, a_layer_that_cannot_be_made_leaves_nothing, 0, 2);
    suite_add_tcase(suite, oom_case);
    SUITE_ADD(suite, senseless_replicas_are_refused);
    SUITE_ADD(suite, experts_without_replicas_need_no_sums);
    SUITE_ADD(suite, placements_are_looked_at);
    SUITE_ADD(suite, replicas_of_one_expert_get_one_sum);
    SUITE_ADD(suite, replicas_move_to_other_ranks);
    SUITE_ADD(suite, a_copy_on_the_same_rank_sends_nothing);
    SUITE_ADD(suite, replicas_move_beside_steps);
    SUITE_ADD(suite, senseless_moves_are_refused);
    SUITE_ADD(suite, senseless_layers_are_refused);
    SUITE_ADD(suite, each_block_gets_its_own_memory);
    SUITE_ADD(suite, only_what_a_block_asks_for_is_recomputed);
    SUITE_ADD(suite, a_layer_is_replicated_once_and_as_its_plugin_has_it);
    SUITE_ADD(suite, a_placement_moves_with_its_experts);
    return suite_run(suite);
}
