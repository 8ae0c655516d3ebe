/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_moe_cpu_contract.c: what moe_cpu announces, what it refuses and how it says so. Its memory is guarded in the other
 * moe_cpu tests as well. */
#include <dlfcn.h>
#include <limits.h>
#include <math.h>

#include "../support/moe_block.h"
#include "../support/oom.h"
#include "../support/suite.h"

/* ---- what it announces ---- */

START_TEST(parameters_are_those_of_the_header)
{
    static const char *const names[] = {
        "norm",           "router",           "bias",           "shared.w_gate",    "shared.w_up",
        "shared.w_down",  "experts.4.w_gate", "experts.4.w_up", "experts.4.w_down", "experts.5.w_gate",
        "experts.5.w_up", "experts.5.w_down",
    };
    static const size_t counts[] = {5, 5 * 8, 8, 5 * 9, 5 * 9, 9 * 5, 15, 15, 15, 15, 15, 15};
    dp_moe_config_t c = block_config(DP_F32, 4, 5, 8, 2, 3, 3);
    dp_param_t params[12];
    inline_group_t group;
    size_t i, at = 0;
    block_t b;

    inline_group_open(&group, 4);
    block_open(&b, &c, &group, 2);
    ck_assert_uint_eq(b.sizes.nparams, 12);
    ck_assert_int_eq(b.vt->params(b.moe, params), DP_OK);
    for (i = 0; i < 12; i++) {
        const dp_param_t *p = &params[i];

        ck_assert_str_eq(p->name, names[i]);
        ck_assert_uint_eq(p->offset, at);
        ck_assert_uint_eq(p->count, counts[i]);
        ck_assert_int_eq(p->kind, i == 0 ? DP_PARAM_VECTOR : i == 2 ? DP_PARAM_ROUTER_BIAS : DP_PARAM_MATRIX);
        ck_assert_int_eq(p->expert, i < 6 ? -1 : i < 9 ? 4 : 5);
        ck_assert_double_eq((double)p->start, i == 0 ? 1 : 0);
        if (p->kind == DP_PARAM_MATRIX)
            ck_assert_uint_eq(p->fan_in, i == 5 ? 9 : i > 5 && i % 3 == 2 ? 3 : 5);
        at += p->count;
    }
    ck_assert_uint_eq(at, b.sizes.param_count);
    block_close(&b);
    inline_group_close(&group);
}
END_TEST

START_TEST(no_shared_experts_no_shared_parameters)
{
    dp_moe_config_t c = block_config(DP_F64, 4, 5, 8, 2, 3, 0);
    dp_param_t params[27];
    inline_group_t group;
    block_t b;

    inline_group_open(&group, 1);
    block_open(&b, &c, &group, 0);
    ck_assert_uint_eq(b.sizes.nparams, 27);
    ck_assert_int_eq(b.vt->params(b.moe, params), DP_OK);
    ck_assert_str_eq(params[3].name, "experts.0.w_gate");
    ck_assert_str_eq(params[26].name, "experts.7.w_down");
    ck_assert_uint_eq(params[26].offset + params[26].count, b.sizes.param_count);
    ck_assert_uint_eq(b.sizes.saved_bytes % 64, 0);
    ck_assert_uint_eq(b.sizes.work_bytes % 64, 0);
    ck_assert_uint_eq(b.sizes.scratch_bytes % 64, 0);
    ck_assert(b.vt->caps & DP_MOE_CAP_DETERMINISTIC);
    block_close(&b);
    inline_group_close(&group);
}
END_TEST

/* The exchanges have ids of ours and hold the worst case and no more: a token chooses an expert once. */
START_TEST(exchanges_hold_the_worst_case)
{
    static const uint32_t top_k[] = {1, 2, 3, 8};
    dp_moe_config_t c = block_config(DP_F64, 7, 5, 8, top_k[_i], 3, 0);
    inline_group_t group;
    block_t b;
    int32_t i;

    inline_group_open(&group, 4);
    block_open(&b, &c, &group, 1);
    ck_assert_int_gt(group.comms[1].opened, 0);
    for (i = 0; i < group.comms[1].opened; i++) {
        const dp_exchange_config_t *e = &group.comms[1].exchanges[i]->config;

        ck_assert(e->id >= 40 && e->id < 44);
        ck_assert_uint_eq(e->capacity_rows, top_k[_i] == 1 ? 7 : 14);
        ck_assert_uint_eq(e->row_bytes, 16 + 48);
        ck_assert_ptr_nonnull(e->label);
    }
    block_close(&b);
    inline_group_close(&group);
}
END_TEST

/* ---- what it refuses ---- */

static void expect_open(const dp_moe_config_t *c, const dp_host_t *host, const dp_moe_vt_t *vt,
                        dp_status_t status, const char *word)
{
    dp_moe_t *moe = NULL;
    dp_status_t got = vt->open(host, c, &moe);

    ck_assert_msg(got == status, "%s instead of %s: %s", dp_status_name(got), dp_status_name(status),
                  dp_last_error());
    ck_assert_ptr_null(moe);
    ck_assert_msg(strstr(dp_last_error(), word) != NULL && strstr(dp_last_error(), "moe_cpu") != NULL,
                  "\"%s\" does not speak of \"%s\"", dp_last_error(), word);
}

START_TEST(configurations_that_cannot_be_are_refused)
{
    dp_moe_config_t good = block_config(DP_F64, 7, 5, 8, 2, 3, 1), c;
    dp_device_vt_t device;
    dp_comm_vt_t comm;
    inline_group_t group;
    const dp_host_t *host;
    block_t b;

    inline_group_open(&group, 2);
    block_prepare(&b, &good, &group, 0);
    good = b.config;
    host = dp_group_host(b.job);
#define REFUSED(change, status, word)                                                                        \
    do {                                                                                                     \
        c = good;                                                                                            \
        change;                                                                                              \
        expect_open(&c, host, b.vt, status, word);                                                           \
    } while (0)
    REFUSED(c.struct_size -= 8, DP_ERR_INVALID, "bytes");
    REFUSED(c.shape.dtype = DP_BF16, DP_ERR_UNSUPPORTED, "DP_F32");
    REFUSED(c.shape.batch = 0, DP_ERR_INVALID, "batch 0");
    REFUSED(c.shape.sequence = 0, DP_ERR_INVALID, "sequence 0");
    REFUSED(c.shape.hidden = 0, DP_ERR_INVALID, "hidden 0");
    REFUSED(c.experts = 0, DP_ERR_INVALID, "0 experts");
    REFUSED(c.experts = 2000000, DP_ERR_INVALID, "2000000 experts");
    REFUSED(c.expert_hidden = 0, DP_ERR_INVALID, "width 0");
    REFUSED(c.top_k = 0, DP_ERR_INVALID, "top_k 0");
    REFUSED(c.top_k = 9, DP_ERR_INVALID, "top_k 9");
    REFUSED(c.gate = (dp_gate_t)2, DP_ERR_INVALID, "gate 2");
    REFUSED(c.normalize = 2, DP_ERR_INVALID, "normalize 2");
    REFUSED(c.scale = -1, DP_ERR_INVALID, "scale -1");
    REFUSED(c.scale = (float)NAN, DP_ERR_INVALID, "scale");
    REFUSED(c.aux_alpha = -1, DP_ERR_INVALID, "aux_alpha -1");
    REFUSED(c.aux_alpha = (float)INFINITY, DP_ERR_INVALID, "aux_alpha inf");
    REFUSED(c.shape.norm_eps = -1, DP_ERR_INVALID, "norm_eps -1");
    REFUSED(c.comm_size = 0, DP_ERR_INVALID, "group of 0");
    REFUSED(c.comm_rank = 2, DP_ERR_INVALID, "rank 2");
    REFUSED(c.comm_rank = -1, DP_ERR_INVALID, "rank -1");
    REFUSED(c.experts = 7, DP_ERR_INVALID, "7 experts cannot be spread evenly over an expert group of 2");
    REFUSED(c.replicas = 7, DP_ERR_INVALID, "7 replicas of 8 experts");
    REFUSED(c.replicas = 9, DP_ERR_INVALID, "9 replicas of 8 experts on an expert group of 2 ranks");
    REFUSED(c.replicas = 2000000, DP_ERR_INVALID, "2000000 replicas");
    REFUSED(c.shape.batch = 70000; c.shape.sequence = 70000, DP_ERR_OVERFLOW, "70000");
    REFUSED(c.shape.hidden = UINT_MAX, DP_ERR_OVERFLOW, "hidden 4294967295");
    REFUSED(c.expert_hidden = UINT_MAX, DP_ERR_OVERFLOW, "width 4294967295");
    REFUSED(c.shared_experts = UINT_MAX, DP_ERR_OVERFLOW, "more rows or elements");
    REFUSED(c.device = NULL, DP_ERR_UNSUPPORTED, "device");
    REFUSED(c.device_vt = NULL, DP_ERR_UNSUPPORTED, "device");
    device = inline_device_vt;
    device.launch = NULL;
    REFUSED(c.device_vt = &device, DP_ERR_UNSUPPORTED, "device_cpu");
    device = inline_device_vt;
    device.caps = DP_DEVICE_CAP_LAUNCH;
    REFUSED(c.device_vt = &device, DP_ERR_UNSUPPORTED, "device_cpu");
    REFUSED(c.comm = NULL, DP_ERR_UNSUPPORTED, "comm");
    REFUSED(c.comm_vt = NULL, DP_ERR_UNSUPPORTED, "comm");
    comm = inline_comm_vt;
    comm.exchange = NULL;
    REFUSED(c.comm_vt = &comm, DP_ERR_UNSUPPORTED, "exchanges");
#undef REFUSED
    block_close(&b);
    inline_group_close(&group);
}
END_TEST

START_TEST(a_comm_that_refuses_is_passed_on)
{
    dp_moe_config_t c = block_config(DP_F32, 7, 5, 8, 2, 3, 1);
    inline_group_t group;
    dp_moe_t *moe = NULL;
    block_t b;

    inline_group_open(&group, 1);
    block_prepare(&b, &c, &group, 0);
    group.comms[0].refuse = DP_ERR_PEER;
    ck_assert_int_eq(b.vt->open(dp_group_host(b.job), &b.config, &moe), DP_ERR_PEER);
    ck_assert_ptr_null(moe);
    b.vt->close(NULL);
    block_close(&b);
    inline_group_close(&group);
}
END_TEST

START_TEST(memory_that_runs_out_leaves_nothing_behind)
{
    dp_moe_config_t c = block_config(DP_F32, 7, 5, 8, 2, 3, 1);
    inline_group_t group;
    dp_moe_t *moe = NULL;
    block_t b;
    long k, before;

    oom_install();
    inline_group_open(&group, 1);
    block_prepare(&b, &c, &group, 0);
    before = oom_live();
    for (k = 0;; k++) {
        dp_status_t status;
        bool struck;

        oom_arm(k, false);
        status = b.vt->open(dp_group_host(b.job), &b.config, &moe);
        struck = oom_struck();
        oom_disarm();
        if (!struck) {
            ck_assert_int_eq(status, DP_OK);
            break;
        }
        ck_assert_int_eq(status, DP_ERR_NOMEM);
        ck_assert_int_eq(oom_live(), before);
    }
    ck_assert_int_gt(k, 0);
    b.vt->close(moe);
    b.moe = NULL;
    ck_assert_int_eq(oom_live(), before);
    block_close(&b);
    inline_group_close(&group);
    oom_uninstall();
}
END_TEST

/* ---- calls ---- */

typedef struct rig {
    inline_group_t group;
    block_t block;
    guarded_t params, grads;
    pass_t pass;
} rig_t;

static void rig_open(rig_t *r, const dp_moe_config_t *config)
{
    memset(r, 0, sizeof(*r));
    inline_group_open(&r->group, 1);
    block_open(&r->block, config, &r->group, 0);
    r->params = guarded_allocate(r->block.sizes.param_count * block_element(&r->block));
    r->grads = guarded_zeros(r->params.bytes);
    fill(config->shape.dtype, &r->params, 1, 1);
    r->pass = pass_open(&r->block, guarded_memory(&r->params), guarded_memory(&r->grads), 0);
    fill(config->shape.dtype, &r->pass.x, 2, 1);
    fill(config->shape.dtype, &r->pass.dy, 3, 1);
}

static void rig_close(rig_t *r)
{
    pass_close(&r->pass);
    guarded_free(&r->params, "params");
    guarded_free(&r->grads, "grads");
    block_close(&r->block);
    inline_group_close(&r->group);
}

/* Each call names the pointer it misses and puts nothing on the stream. */
START_TEST(calls_without_their_memory_are_refused)
{
    dp_moe_config_t c = block_config(DP_F32, 7, 5, 8, 2, 3, 1);
    const dp_moe_vt_t *vt;
    rig_t r;

    rig_open(&r, &c);
    vt = r.block.vt;
#define MISSES(call, step, member)                                                                           \
    do {                                                                                                     \
        dp_moe_io_t io = pass_io(&r.block, &r.pass, step);                                                   \
        size_t before = r.block.compute.launches;                                                            \
        io.io.member = NULL;                                                                                 \
        ck_assert_int_eq(vt->call(r.block.moe, &io, &r.block.compute), DP_ERR_INVALID);                      \
        ck_assert_msg(strstr(dp_last_error(), #call " needs io." #member) != NULL, "%s", dp_last_error());   \
        ck_assert_uint_eq(r.block.compute.launches, before);                                                 \
    } while (0)
    MISSES(route, ROUTE, x);
    MISSES(route, ROUTE, params);
    MISSES(route, ROUTE, saved);
    MISSES(route, ROUTE, work);
    MISSES(route, ROUTE, scratch);
    MISSES(dispatch, DISPATCH, work);
    MISSES(experts, EXPERTS, scratch);
    MISSES(combine, COMBINE, y);
    MISSES(combine_backward, COMBINE_B, dy);
    MISSES(experts_backward_input, EXPERTS_I, work);
    MISSES(experts_backward_weight, EXPERTS_W, grads);
    MISSES(dispatch_backward, DISPATCH_B, saved);
    MISSES(route_backward_input, ROUTE_I, params);
    MISSES(route_backward_weight, ROUTE_W, grads);
#undef MISSES
    rig_close(&r);
}
END_TEST

/* An exchange that cannot be started is the call's failure, and does not count: the next one has the same number. */
START_TEST(exchanges_that_fail_do_not_count)
{
    dp_moe_config_t c = block_config(DP_F32, 7, 5, 8, 2, 3, 0);
    rig_t r;

    rig_open(&r, &c);
    pass_step(&r.block, &r.pass, ROUTE);
    r.group.comms[0].refuse = DP_ERR_PEER;
    ck_assert_int_eq(pass_call(&r.block, &r.pass, DISPATCH), DP_ERR_PEER);
    r.group.comms[0].refuse = DP_OK;
    pass_step(&r.block, &r.pass, DISPATCH);
    pass_step(&r.block, &r.pass, EXPERTS);
    pass_step(&r.block, &r.pass, COMBINE);
    rig_close(&r);
}
END_TEST

/* What a peer that is out of step could send. round: the number of the exchange; rows start with (expert, call). */
static void too_many(dp_exchange_t *e, int32_t round)
{
    char *last = e->rows + inline_pair_bytes(e) - e->config.row_bytes;

    (void)round;
    ck_assert_uint_eq(e->counts[0], e->config.capacity_rows);
    memcpy(last + e->config.row_bytes, last, e->config.row_bytes);
    e->counts[0]++;
}

static void negative(dp_exchange_t *e, int32_t round)
{
    (void)round;
    e->counts[0] = -1;
}

static void foreign_expert(dp_exchange_t *e, int32_t round)
{
    ((int32_t *)(void *)e->rows)[0] = round == 0 ? 8 : 0;
}

static void negative_expert(dp_exchange_t *e, int32_t round)
{
    ((int32_t *)(void *)e->rows)[0] = round == 0 ? -1 : 0;
}

static void unsorted(dp_exchange_t *e, int32_t round)
{
    ((int32_t *)(void *)e->rows)[0] = round == 0 ? 7 : 0;
}

static void one_less_at(dp_exchange_t *e, int32_t round, int32_t wanted)
{
    if (round == wanted)
        e->counts[0]--;
}

static void one_less_in_combine(dp_exchange_t *e, int32_t round)
{
    one_less_at(e, round, 1);
}

static void one_less_in_combine_backward(dp_exchange_t *e, int32_t round)
{
    one_less_at(e, round, 2);
}

static void one_less_in_dispatch_backward(dp_exchange_t *e, int32_t round)
{
    one_less_at(e, round, 3);
}

static void other_call_at(dp_exchange_t *e, int32_t round, int32_t wanted)
{
    if (round == wanted)
        ((uint32_t *)(void *)(e->rows + 3 * e->config.row_bytes))[1] ^= 1;
}

static void other_call_in_dispatch(dp_exchange_t *e, int32_t round)
{
    other_call_at(e, round, 0);
}

static void other_call_in_combine(dp_exchange_t *e, int32_t round)
{
    other_call_at(e, round, 1);
}

static void other_call_in_combine_backward(dp_exchange_t *e, int32_t round)
{
    other_call_at(e, round, 2);
}

static void other_call_in_dispatch_backward(dp_exchange_t *e, int32_t round)
{
    other_call_at(e, round, 3);
}

static const struct {
    void (*tamper)(dp_exchange_t *e, int32_t round);
    step_t step;
    const char *word;
} wrongs[] = {
    {too_many, DISPATCH, "dispatch"},
    {negative, DISPATCH, "dispatch"},
    {foreign_expert, DISPATCH, "dispatch"},
    {negative_expert, DISPATCH, "dispatch"},
    {unsorted, DISPATCH, "dispatch"},
    {other_call_in_dispatch, DISPATCH, "dispatch"},
    {one_less_in_combine, COMBINE, "combine"},
    {other_call_in_combine, COMBINE, "combine"},
    {one_less_in_combine_backward, COMBINE_B, "combine_backward"},
    {other_call_in_combine_backward, COMBINE_B, "combine_backward"},
    {one_less_in_dispatch_backward, DISPATCH_B, "dispatch_backward"},
    {other_call_in_dispatch_backward, DISPATCH_B, "dispatch_backward"},
};

START_TEST(rows_of_another_call_are_an_error)
{
    dp_moe_config_t c = block_config(DP_F64, 7, 5, 8, 2, 3, 1);
    step_t s;
    rig_t r;

    rig_open(&r, &c);
    r.group.comms[0].tamper = wrongs[_i].tamper;
    for (s = ROUTE; s < wrongs[_i].step; s++)
        pass_step(&r.block, &r.pass, s);
    ck_assert_int_eq(pass_call(&r.block, &r.pass, s), DP_OK); /* it is the stream that fails */
    ck_assert_int_eq(r.block.all_to_all.status, DP_ERR_PROTOCOL);
    ck_assert_msg(strstr(dp_last_error(), wrongs[_i].word) != NULL &&
                      strstr(dp_last_error(), "rank 0") != NULL,
                  "%s", dp_last_error());
    rig_close(&r);
}
END_TEST

/* Calls do nothing but put work on the stream: a stream that has failed does none of it, and nobody's memory changes. */
START_TEST(calls_only_enqueue)
{
    dp_moe_config_t c = block_config(DP_F64, 7, 5, 8, 2, 3, 1);
    guarded_t before;
    rig_t r;

    rig_open(&r, &c);
    guarded_poison(&r.pass.saved);
    before = guarded_allocate(r.pass.saved.bytes);
    r.block.compute.status = DP_ERR_DEVICE;
    ck_assert_int_eq(pass_call(&r.block, &r.pass, ROUTE), DP_OK);
    ck_assert_int_eq(pass_call(&r.block, &r.pass, EXPERTS), DP_OK);
    ck_assert_int_eq(pass_call(&r.block, &r.pass, EXPERTS_I), DP_OK);
    ck_assert_int_eq(pass_call(&r.block, &r.pass, EXPERTS_W), DP_OK);
    ck_assert_int_eq(pass_call(&r.block, &r.pass, ROUTE_I), DP_OK);
    ck_assert_int_eq(pass_call(&r.block, &r.pass, ROUTE_W), DP_OK);
    ck_assert_mem_eq(guarded_memory(&before), guarded_memory(&r.pass.saved), before.bytes);
    ck_assert_uint_eq(r.block.compute.launches, 6);
    guarded_free(&before, "copy of saved");
    rig_close(&r);
}
END_TEST

/* ---- BLAS ---- */

static void open_once(void)
{
    dp_moe_config_t c = block_config(DP_F32, 7, 5, 8, 2, 3, 1);
    inline_group_t group;
    block_t b;

    inline_group_open(&group, 1);
    block_open(&b, &c, &group, 0);
    block_close(&b);
    inline_group_close(&group);
}

START_TEST(blas_uses_one_thread_unless_told_otherwise)
{
    void *handle, *get, *set;
    int (*get_threads)(void);
    void (*set_threads)(int);

    open_once();
    handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
    if (handle == NULL)
        return; /* another BLAS: nothing to set */
    get = dlsym(handle, "openblas_get_num_threads");
    set = dlsym(handle, "openblas_set_num_threads");
    ck_assert(get != NULL && set != NULL);
    memcpy(&get_threads, &get, sizeof(get));
    memcpy(&set_threads, &set, sizeof(set));
    set_threads(2);
    if (get_threads() == 2) { /* else it was built for one thread */
        setenv("OPENBLAS_NUM_THREADS", "1", 1);
        open_once();
        ck_assert_int_eq(get_threads(), 2);
        unsetenv("OPENBLAS_NUM_THREADS");
        open_once();
        ck_assert_int_eq(get_threads(), 1);
    }
    dlclose(handle);
}
END_TEST

START_TEST(other_interfaces_are_not_there)
{
    const dp_plugin_t *plugin = NULL;

    ck_assert_int_eq(dp_plugin_load("moe_cpu", &plugin), DP_OK);
    ck_assert_str_eq(plugin->name, "moe_cpu");
    ck_assert_ptr_null(plugin->get_interface("dp.moe/2"));
    ck_assert_ptr_null(plugin->get_interface(DP_IFACE_ATTENTION));
    ck_assert_ptr_nonnull(plugin->get_interface(DP_IFACE_MOE));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moe_cpu contract");
    TCase *tc = tcase_create("contract");

    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, parameters_are_those_of_the_header);
    tcase_add_test(tc, no_shared_experts_no_shared_parameters);
    tcase_add_loop_test(tc, exchanges_hold_the_worst_case, 0, 4);
    tcase_add_test(tc, configurations_that_cannot_be_are_refused);
    tcase_add_test(tc, a_comm_that_refuses_is_passed_on);
    tcase_add_test(tc, memory_that_runs_out_leaves_nothing_behind);
    tcase_add_test(tc, calls_without_their_memory_are_refused);
    tcase_add_test(tc, exchanges_that_fail_do_not_count);
    tcase_add_loop_test(tc, rows_of_another_call_are_an_error, 0, (int)(sizeof(wrongs) / sizeof(wrongs[0])));
    tcase_add_test(tc, calls_only_enqueue);
    tcase_add_test(tc, blas_uses_one_thread_unless_told_otherwise);
    tcase_add_test(tc, other_interfaces_are_not_there);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
