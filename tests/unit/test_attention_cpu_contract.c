/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_attention_cpu_contract.c: what attention_cpu refuses, announces and leaves alone. */
#include "attention_problem.h"

#include <dlfcn.h>
#include <limits.h>

static problem_t problem;

static void load(void)
{
    ck_assert_msg(rig_open(&problem.rig, "attention_cpu") == DP_OK, "%s", dp_last_error());
}

static dp_attention_config_t valid(void)
{
    return rig_config(&problem.rig, DP_F32, 2, 16, 12, 4, 2, 6);
}

/* Refused with `status` and a message that holds each of the two texts; nothing stays allocated. */
static void check_refused(const dp_attention_config_t *c, dp_status_t status, const char *field,
                          const char *value)
{
    dp_attention_t *attention = NULL;

    problem.rig.message[0] = '\0';
    ck_assert_int_eq(problem.rig.vt->open(&problem.rig.host, c, &attention), status);
    ck_assert_ptr_null(attention);
    ck_assert_msg(strstr(problem.rig.message, field) != NULL, "'%s' does not name %s", problem.rig.message,
                  field);
    ck_assert_msg(strstr(problem.rig.message, value) != NULL, "'%s' does not say %s", problem.rig.message,
                  value);
    ck_assert_int_eq(problem.rig.allocations, 0);
}

START_TEST(descriptor_and_table)
{
    const dp_plugin_t *plugin;

    ck_assert_int_eq(dp_plugin_load("attention_cpu", &plugin), DP_OK);
    ck_assert_str_eq(plugin->name, "attention_cpu");
    ck_assert_ptr_null(plugin->get_interface("dp.moe/1"));
    ck_assert_ptr_null(plugin->get_interface("dp.attention/2"));
    ck_assert_uint_ge(problem.rig.vt->struct_size, sizeof(dp_attention_vt_t));
    ck_assert_uint_ne(problem.rig.vt->caps & DP_ATTENTION_CAP_DETERMINISTIC, 0);
}
END_TEST

START_TEST(refuses_zero_sizes)
{
    struct {
        const char *field;
        size_t offset;
    } const fields[] = {
        {"shape.batch", offsetof(dp_attention_config_t, shape.batch)},
        {"shape.sequence", offsetof(dp_attention_config_t, shape.sequence)},
        {"shape.hidden", offsetof(dp_attention_config_t, shape.hidden)},
        {"heads", offsetof(dp_attention_config_t, heads)},
        {"kv_heads", offsetof(dp_attention_config_t, kv_heads)},
        {"head_dim", offsetof(dp_attention_config_t, head_dim)},
    };
    static const uint32_t huge = 0x80000000u;

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        dp_attention_config_t c = valid();

        memset((char *)&c + fields[i].offset, 0, sizeof(uint32_t));
        check_refused(&c, DP_ERR_INVALID, fields[i].field, "is 0");
        memcpy((char *)&c + fields[i].offset, &huge, sizeof(huge));
        check_refused(&c, DP_ERR_INVALID, fields[i].field, "2147483648");
    }
}
END_TEST

START_TEST(refuses_wrong_values)
{
    dp_attention_config_t c = valid();

    c.head_dim = 7;
    check_refused(&c, DP_ERR_INVALID, "head_dim", "7");
    c = valid();
    c.kv_heads = 3;
    check_refused(&c, DP_ERR_INVALID, "heads", "3");
    c = valid();
    c.kv_heads = 8;
    check_refused(&c, DP_ERR_INVALID, "kv_heads", "8");
    c = valid();
    c.value_dim = 0x80000000u;
    check_refused(&c, DP_ERR_INVALID, "value_dim", "2147483648");
    c = valid();
    c.shape.norm_eps = -1;
    check_refused(&c, DP_ERR_INVALID, "norm_eps", "-1");
    c.shape.norm_eps = NAN;
    check_refused(&c, DP_ERR_INVALID, "norm_eps", "nan");
    c = valid();
    c.rope_theta = -5;
    check_refused(&c, DP_ERR_INVALID, "rope_theta", "-5");
    c.rope_theta = INFINITY;
    check_refused(&c, DP_ERR_INVALID, "rope_theta", "inf");
}
END_TEST

START_TEST(refuses_other_types)
{
    dp_attention_config_t c = valid();

    c.shape.dtype = DP_BF16;
    check_refused(&c, DP_ERR_UNSUPPORTED, "shape.dtype", "DP_BF16");
    c.shape.dtype = DP_I64;
    check_refused(&c, DP_ERR_UNSUPPORTED, "shape.dtype", "3");
    c.shape.dtype = (dp_dtype_t)99;
    check_refused(&c, DP_ERR_UNSUPPORTED, "shape.dtype", "99");
}
END_TEST

START_TEST(refuses_what_does_not_fit)
{
    dp_attention_config_t c = valid();

    c.shape.batch = 1u << 16;
    c.shape.sequence = 1u << 15;
    check_refused(&c, DP_ERR_INVALID, "shape.batch * shape.sequence", "65536 * 32768");
    c = valid();
    c.heads = 1u << 20;
    c.head_dim = 1u << 12;
    check_refused(&c, DP_ERR_INVALID, "heads * head_dim", "1048576 * 4096");
    c = valid();
    c.value_dim = INT_MAX;
    check_refused(&c, DP_ERR_INVALID, "value_dim", "2147483647");
    c = valid(); /* each product fits an int, the whole no address space */
    c.shape.batch = 1;
    c.shape.sequence = c.shape.hidden = INT_MAX;
    c.heads = c.kv_heads = 1;
    c.head_dim = INT_MAX - 1;
    check_refused(&c, DP_ERR_INVALID, "sequence 2147483647", "address space");
}
END_TEST

START_TEST(refuses_short_tables)
{
    dp_attention_config_t c = valid();

    c.struct_size = sizeof(c) - 8;
    check_refused(&c, DP_ERR_INVALID, "config.struct_size", "needs");
    c = valid();
    c.shape.struct_size = 0;
    check_refused(&c, DP_ERR_INVALID, "shape.struct_size", "0");
}
END_TEST

START_TEST(refuses_unfit_devices)
{
    dp_device_vt_t without_launch = problem.rig.device_vt, without_memory = problem.rig.device_vt;
    dp_attention_config_t c = valid();

    c.device_vt = NULL;
    check_refused(&c, DP_ERR_INVALID, "device_vt", "NULL");
    c = valid();
    c.device = NULL;
    check_refused(&c, DP_ERR_INVALID, "device ", "NULL");
    without_launch.launch = NULL;
    c = valid();
    c.device_vt = &without_launch;
    check_refused(&c, DP_ERR_UNSUPPORTED, "device_vt", "launch");
    without_memory.caps &= ~(uint32_t)DP_DEVICE_CAP_HOST_MEMORY;
    c.device_vt = &without_memory;
    check_refused(&c, DP_ERR_UNSUPPORTED, "device_vt", "DP_DEVICE_CAP_HOST_MEMORY");
}
END_TEST

START_TEST(no_memory_is_an_error)
{
    const dp_attention_config_t c = valid();

    for (int n = 1; n <= 2; n++) {
        problem.rig.fail_allocation = n;
        check_refused(&c, DP_ERR_NOMEM, "no memory", "attention_cpu");
        ck_assert_int_eq(problem.rig.fail_allocation, 0);
    }
}
END_TEST

START_TEST(close_takes_null)
{
    problem.rig.vt->close(NULL);
}
END_TEST

START_TEST(params_as_the_header_says)
{
    const size_t d = 12, q = 4 * 6, k = 2 * 6, v = 2 * 5, o = 4 * 5;
    static const char *const names[] = {"norm", "wq", "wk", "wv", "wo"};
    const size_t counts[] = {d, d * q, d * k, d * v, o * d}, fan_in[] = {d, d, d, d, o};
    dp_attention_config_t c = valid();
    dp_param_t params[5];
    size_t offset = 0;

    c.value_dim = 5;
    problem_open(&problem, &c, 1);
    ck_assert_uint_eq(problem.sizes.nparams, 5);
    ck_assert_int_eq(problem.rig.vt->params(problem.attention, params), DP_OK);
    for (size_t i = 0; i < 5; i++) {
        ck_assert_str_eq(params[i].name, names[i]);
        ck_assert_int_eq(params[i].kind, i == 0 ? DP_PARAM_VECTOR : DP_PARAM_MATRIX);
        ck_assert_uint_eq(params[i].offset, offset);
        ck_assert_uint_eq(params[i].count, counts[i]);
        ck_assert_uint_eq(params[i].fan_in, fan_in[i]);
        ck_assert_int_eq(params[i].expert, -1);
        offset += counts[i];
    }
    ck_assert_double_eq((double)params[0].start, 1);
    ck_assert_uint_eq(problem.sizes.param_count, offset);
    problem_close(&problem);
}
END_TEST

/* What README.md says is kept, and no more than the rounding of ten arrays above it. */
START_TEST(saved_is_as_small_as_documented)
{
    static const dp_dtype_t dtypes[] = {DP_F32, DP_F64};

    for (size_t i = 0; i < 2; i++) {
        dp_attention_config_t c = rig_config(&problem.rig, dtypes[i], 3, 100, 20, 4, 2, 6);
        const size_t d = 20, per_token = 2 * d + 4 * (6 + 10) + 2 * (6 + 10) + 2 * 4 + 1;

        c.value_dim = 10;
        problem_open(&problem, &c, 1);
        ck_assert_uint_eq(problem.sizes.saved_bytes % 64, 0);
        ck_assert_uint_eq(problem.sizes.scratch_bytes % 64, 0);
        ck_assert_uint_eq(problem.sizes.work_bytes, 0);
        ck_assert_uint_ge(problem.sizes.saved_bytes, (300 * per_token + d) * element_bytes(dtypes[i]));
        ck_assert_uint_lt(problem.sizes.saved_bytes,
                          (300 * per_token + d) * element_bytes(dtypes[i]) + 10 * 64);
        problem_close(&problem);
    }
}
END_TEST

/* No array grows with the square of the sequence. */
START_TEST(memory_is_linear_in_the_sequence)
{
    size_t saved[2], scratch[2];

    for (size_t i = 0; i < 2; i++) {
        const dp_attention_config_t c =
            rig_config(&problem.rig, DP_F32, 1, i == 0 ? 8192 : 16384, 16, 2, 1, 4);

        problem_open(&problem, &c, 1);
        saved[i] = problem.sizes.saved_bytes;
        scratch[i] = problem.sizes.scratch_bytes;
        problem_close(&problem);
    }
    ck_assert_uint_le(saved[1], 2 * saved[0]);
    ck_assert_uint_le(scratch[1], 2 * scratch[0]);
}
END_TEST

START_TEST(sizes_refuses_short_struct)
{
    const dp_attention_config_t c = valid();
    dp_block_sizes_t sizes = {.struct_size = sizeof(sizes) - 4};

    problem_open(&problem, &c, 1);
    ck_assert_int_eq(problem.rig.vt->sizes(problem.attention, &sizes), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(problem.rig.message, "struct_size"));
    problem_close(&problem);
}
END_TEST

typedef dp_status_t (*pass_fn)(dp_attention_t *, const dp_io_t *, dp_stream_t *);

/* Each pointer that a pass needs, taken away: refused by its name, and nothing is launched. */
START_TEST(passes_name_the_missing_pointer)
{
    const struct {
        pass_fn pass;
        const char *needs[6];
    } passes[] = {
        {problem.rig.vt->forward, {"params", "saved", "scratch", "x", "y"}},
        {problem.rig.vt->backward_input, {"params", "saved", "scratch", "dy"}},
        {problem.rig.vt->backward_weight, {"params", "grads", "saved", "scratch"}},
    };
    const struct {
        const char *name;
        size_t offset;
    } members[] = {{"params", offsetof(dp_io_t, params)}, {"grads", offsetof(dp_io_t, grads)},
                   {"saved", offsetof(dp_io_t, saved)},   {"scratch", offsetof(dp_io_t, scratch)},
                   {"x", offsetof(dp_io_t, x)},           {"y", offsetof(dp_io_t, y)},
                   {"dy", offsetof(dp_io_t, dy)}};
    const dp_attention_config_t c = valid();
    int refused = 0;

    problem_open(&problem, &c, 1);
    for (size_t p = 0; p < 3; p++)
        for (size_t n = 0; passes[p].needs[n] != NULL; n++)
            for (size_t m = 0; m < 7; m++) {
                char field[32];
                dp_io_t io = problem_io(&problem);

                if (strcmp(members[m].name, passes[p].needs[n]) != 0)
                    continue;
                io.grads = buffer_data(&problem.grads);
                io.x = buffer_data(&problem.x);
                io.y = buffer_data(&problem.y);
                io.dy = buffer_data(&problem.dy);
                io.microbatch = 7;
                memset((char *)&io + members[m].offset, 0, sizeof(void *));
                ck_assert_int_eq(passes[p].pass(problem.attention, &io, rig_stream(&problem.rig)),
                                 DP_ERR_INVALID);
                snprintf(field, sizeof(field), "io.%s is NULL", members[m].name);
                ck_assert_ptr_nonnull(strstr(problem.rig.message, field));
                ck_assert_ptr_nonnull(strstr(problem.rig.message, "micro-batch 7"));
                refused++;
            }
    ck_assert_int_eq(refused, 5 + 4 + 4);
    ck_assert_int_eq(problem.rig.launches, 0);
    problem_close(&problem);
}
END_TEST

START_TEST(passes_refuse_short_io)
{
    const dp_attention_config_t c = valid();
    dp_io_t io;

    problem_open(&problem, &c, 1);
    io = problem_io(&problem);
    io.struct_size = sizeof(io) - 8;
    ck_assert_int_eq(problem.rig.vt->forward(problem.attention, &io, rig_stream(&problem.rig)),
                     DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(problem.rig.message, "io.struct_size"));
    ck_assert_int_eq(problem.rig.launches, 0);
    problem_close(&problem);
}
END_TEST

/* A pass is one launch, and it allocates nothing: neither here nor on the stream. */
START_TEST(passes_only_launch)
{
    const dp_attention_config_t c = valid();
    int before;

    problem_open(&problem, &c, 1);
    before = problem.rig.allocations;
    problem.rig.fail_allocation = 1;
    run_all(&problem, POISON_NAN);
    ck_assert_int_eq(problem.rig.launches, 3);
    ck_assert_int_eq(problem.rig.allocations, before);
    ck_assert_int_eq(problem.rig.fail_allocation, 1);
    problem_close(&problem);
}
END_TEST

START_TEST(an_aborted_job_ends_the_pass)
{
    const dp_attention_config_t c = valid();
    dp_io_t io;

    problem_open(&problem, &c, 1);
    run_forward(&problem);
    problem.rig.abort_with = DP_ERR_PEER;
    io = problem_io(&problem);
    io.x = buffer_data(&problem.x);
    io.y = buffer_data(&problem.y);
    ck_assert_int_eq(problem.rig.vt->forward(problem.attention, &io, rig_stream(&problem.rig)), DP_ERR_PEER);
    io = problem_io(&problem);
    io.dy = buffer_data(&problem.dy);
    ck_assert_int_eq(problem.rig.vt->backward_input(problem.attention, &io, rig_stream(&problem.rig)),
                     DP_ERR_PEER);
    problem_close(&problem);
}
END_TEST

/* Two instances of different shapes and types at once: all state is theirs. */
START_TEST(instances_do_not_meet)
{
    static problem_t other;
    dp_attention_config_t c = valid();

    problem_open(&problem, &c, 1);
    ck_assert_int_eq(rig_open(&other.rig, "attention_cpu"), DP_OK);
    c = rig_config(&other.rig, DP_F64, 1, 70, 8, 2, 1, 4);
    problem_open(&other, &c, 2);
    run_forward(&problem);
    run_forward(&other);
    ck_assert_double_lt(forward_error(&problem, 0), 2e-5);
    ck_assert_double_lt(forward_error(&other, 0), 1e-12);
    problem_close(&other);
    run_forward(&problem);
    ck_assert_double_lt(forward_error(&problem, 0), 2e-5);
    problem_close(&problem);
}
END_TEST

/* Threads per call of the BLAS library that the plugin brought along. */
static int threads_after_open(void)
{
    const dp_attention_config_t c = valid();
    void *blas = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
    int (*get_threads)(void) = NULL;
    int threads;

    if (blas == NULL)
        return -1;
    *(void **)&get_threads = dlsym(blas, "openblas_get_num_threads");
    ck_assert_ptr_nonnull((void *)get_threads);
    problem_open(&problem, &c, 1);
    threads = get_threads();
    problem_close(&problem);
    dlclose(blas);
    return threads;
}

START_TEST(blas_threads)
{
    const char *set = getenv("OPENBLAS_NUM_THREADS");
    char *kept = set != NULL ? strdup(set) : NULL;

    unsetenv("OPENBLAS_NUM_THREADS");
    if (threads_after_open() >= 0) {
        problem.rig.share.compute_sms = 2;
        ck_assert_int_eq(threads_after_open(), 2);
        setenv("OPENBLAS_NUM_THREADS", "3", 1);
        problem.rig.share.compute_sms = 1;
        ck_assert_int_eq(threads_after_open(),
                         2); /* the plugin leaves it to the library, which reads it when loaded */
        unsetenv("OPENBLAS_NUM_THREADS");
        problem.rig.share.compute_sms = 0;
        ck_assert_int_eq(threads_after_open(), 1);
    }
    if (kept != NULL)
        setenv("OPENBLAS_NUM_THREADS", kept, 1);
    free(kept);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("attention_cpu_contract");
    TCase *tc = tcase_create("attention_cpu_contract");
    SRunner *sr = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, load, NULL);
    tcase_add_test(tc, descriptor_and_table);
    tcase_add_test(tc, refuses_zero_sizes);
    tcase_add_test(tc, refuses_wrong_values);
    tcase_add_test(tc, refuses_other_types);
    tcase_add_test(tc, refuses_what_does_not_fit);
    tcase_add_test(tc, refuses_short_tables);
    tcase_add_test(tc, refuses_unfit_devices);
    tcase_add_test(tc, no_memory_is_an_error);
    tcase_add_test(tc, close_takes_null);
    tcase_add_test(tc, params_as_the_header_says);
    tcase_add_test(tc, saved_is_as_small_as_documented);
    tcase_add_test(tc, memory_is_linear_in_the_sequence);
    tcase_add_test(tc, sizes_refuses_short_struct);
    tcase_add_test(tc, passes_name_the_missing_pointer);
    tcase_add_test(tc, passes_refuse_short_io);
    tcase_add_test(tc, passes_only_launch);
    tcase_add_test(tc, an_aborted_job_ends_the_pass);
    tcase_add_test(tc, instances_do_not_meet);
    tcase_add_test(tc, blas_threads);
    suite_add_tcase(s, tc);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? 0 : 1;
}
