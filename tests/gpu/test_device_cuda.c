/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_device_cuda.c: what device_cuda does beyond the contract of all devices: partitions, several
 * ranks on one device, what it says without a driver or with half of one, and errors of every call
 * of the driver. */
#include "gpu.h"

#include <dualpipe/device.h>

#include <pthread.h>

#include "tests/support/debug.h"
#include "tests/support/suite.h"

CUDA_IMAGE(kernels);

#define BLOCKS_MOST 4096

typedef struct rig {
    dp_group_t *group;
    const dp_host_t *host;
    const dp_device_vt_t *vt;
    dp_device_t *device;
} rig_t;

static const dp_device_vt_t *load(void)
{
    const dp_plugin_t *plugin;
    const void *table;

    GPU_OK(dp_plugin_load("device_cuda", &plugin));
    GPU_OK(dp_plugin_interface(plugin, DP_IFACE_DEVICE, sizeof(dp_device_vt_t), &table));
    return table;
}

static dp_status_t try_open(rig_t *rig, dp_device_config_t config)
{
    dp_group_options_t options = {.struct_size = sizeof(options)};

    memset(rig, 0, sizeof(*rig));
    GPU_OK(dp_group_local(1, &options, &rig->group));
    rig->host = dp_group_host(rig->group);
    rig->vt = load();
    config.struct_size = sizeof(config);
    return rig->vt->open(rig->host, &config, &rig->device);
}

static void rig_close(rig_t *rig)
{
    rig->vt->close(rig->device);
    dp_group_leave(rig->group);
}

static bool says(const char *words)
{
    return strstr(dp_last_error(), words) != NULL;
}

/* ---- partitions ---- */

/* Marks in `used` the multiprocessors that blocks of a stream of this lane run on; many short
 * blocks, so that all get some. */
static void mark_sms(rig_t *rig, dp_lane_t lane, bool used[1024])
{
    const cuda_driver_t *cu;
    uint32_t blocks = 64, *smids, *arrived;
    void *memory[2];
    CUmodule module;
    CUfunction meet;
    dp_stream_t *s;

    GPU_OK(cuda_driver(rig->host, &cu));
    GPU_OK(cuda_module_load(rig->host, cuda_image_kernels, &module));
    GPU_OK(cuda_kernel(rig->host, module, "dp_test_smid", &meet));
    GPU_OK(rig->vt->stream_open(rig->device, lane, &s));
    GPU_OK(rig->vt->host_allocate(rig->device, BLOCKS_MOST * 4, &memory[0]));
    GPU_OK(rig->vt->host_allocate(rig->device, 4, &memory[1]));
    smids = memory[0];
    arrived = memory[1];
    blocks = gpu_is_fake() ? 512 : BLOCKS_MOST;
    GPU_OK(cuda_launch(rig->host, cu, meet, CUDA_DIM(blocks), CUDA_DIM(32), 0, (CUstream)rig->vt->stream_native(s),
                       &smids));
    GPU_OK(rig->vt->synchronize(s, -1));
    for (uint32_t i = 0; i < blocks; i++) {
        ck_assert_uint_lt(smids[i], 1024);
        used[smids[i]] = true;
    }
    rig->vt->stream_close(s);
    rig->vt->host_release(rig->device, smids);
    rig->vt->host_release(rig->device, arrived);
    cuda_module_unload(module);
}

static uint32_t count(const bool used[1024])
{
    uint32_t n = 0;

    for (int i = 0; i < 1024; i++)
        n += used[i];
    return n;
}

START_TEST(lanes_are_confined_without_being_asked_to_never)
{
    uint32_t sms[DP_LANE_COUNT] = {9, 9, 9, 9};
    rig_t rig;

    GPU_OK(try_open(&rig, (dp_device_config_t){.comm_sms = 0}));
    GPU_OK(rig.vt->partition(rig.device, sms));
    for (int lane = 0; lane < DP_LANE_COUNT; lane++)
        ck_assert_uint_eq(sms[lane], 0);
    rig_close(&rig);
}
END_TEST

START_TEST(compute_and_communication_share_no_multiprocessor)
{
    static const uint32_t wanted[] = {20, 28, 8, 4, 64};
    uint32_t sms[DP_LANE_COUNT];
    bool used[DP_LANE_COUNT][1024];
    rig_t rig;

    memset(used, 0, sizeof(used));
    GPU_OK(try_open(&rig, (dp_device_config_t){.comm_sms = wanted[_i]}));
    GPU_OK(rig.vt->partition(rig.device, sms));
    ck_assert_uint_gt(sms[DP_LANE_COMPUTE], 0);
    ck_assert_uint_gt(sms[DP_LANE_P2P], 0);
    ck_assert_uint_le(sms[DP_LANE_P2P], wanted[_i]);
    if (gpu_is_fake()) { /* 132 in groups of 8: compute is rounded up */
        ck_assert_uint_eq(sms[DP_LANE_COMPUTE], (132 - wanted[_i] + 7) / 8 * 8);
        ck_assert_uint_eq(sms[DP_LANE_P2P], 132 - sms[DP_LANE_COMPUTE]);
    }
    for (int lane = 0; lane < DP_LANE_COUNT; lane++) {
        mark_sms(&rig, (dp_lane_t)lane, used[lane]);
        ck_assert_uint_eq(count(used[lane]), sms[lane]);
        for (int i = 0; i < 1024; i++)
            ck_assert(lane == DP_LANE_COMPUTE || !used[lane][i] || !used[DP_LANE_COMPUTE][i]);
    }
    rig_close(&rig);
}
END_TEST

/* ---- several ranks on one device ---- */

typedef struct sharer {
    pthread_t thread;
    dp_group_t *group;
    const dp_device_vt_t *vt;
    uint32_t share, sms[DP_LANE_COUNT];
    dp_status_t status;
    bool used[2][1024];
} sharer_t;

static void *share_device(void *arg)
{
    sharer_t *me = arg;
    rig_t rig = {.group = me->group, .host = dp_group_host(me->group), .vt = me->vt};
    dp_device_config_t config = {.struct_size = sizeof(config), .comm_sms = 8, .shares = 4, .share = me->share};

    me->status = rig.vt->open(rig.host, &config, &rig.device);
    if (me->status != DP_OK)
        return NULL;
    (void)rig.vt->partition(rig.device, me->sms);
    mark_sms(&rig, DP_LANE_COMPUTE, me->used[0]);
    mark_sms(&rig, DP_LANE_ALL_TO_ALL, me->used[1]);
    rig.vt->close(rig.device);
    return NULL;
}

START_TEST(ranks_of_one_device_share_no_multiprocessor)
{
    static sharer_t sharers[4];
    dp_group_options_t options = {.struct_size = sizeof(options)};
    dp_group_t *groups[4];
    int owners[1024] = {0};

    GPU_OK(dp_group_local(4, &options, groups));
    for (uint32_t r = 0; r < 4; r++) {
        sharers[r] = (sharer_t){.group = groups[r], .vt = load(), .share = r};
        ck_assert_int_eq(pthread_create(&sharers[r].thread, NULL, share_device, &sharers[r]), 0);
    }
    for (int r = 0; r < 4; r++) {
        pthread_join(sharers[r].thread, NULL);
        ck_assert_int_eq(sharers[r].status, DP_OK);
        for (int side = 0; side < 2; side++) {
            ck_assert_uint_eq(count(sharers[r].used[side]),
                              sharers[r].sms[side == 0 ? DP_LANE_COMPUTE : DP_LANE_REDUCE]);
            for (int i = 0; i < 1024; i++)
                owners[i] += sharers[r].used[side][i];
        }
        if (gpu_is_fake())
            ck_assert(sharers[r].sms[DP_LANE_COMPUTE] == 24 && sharers[r].sms[DP_LANE_P2P] == 8);
        dp_group_leave(groups[r]);
    }
    for (int i = 0; i < 1024; i++)
        ck_assert_int_le(owners[i], 1);
}
END_TEST

START_TEST(senseless_shares_are_refused)
{
    static const dp_device_config_t bad[] = {
        {.comm_sms = 132}, {.comm_sms = 4000},        {.comm_sms = 17, .shares = 8},
        {.shares = 1000},  {.shares = 2, .share = 2}, {.shares = 64, .share = 1, .comm_sms = 1},
        {.device = 99},
    };
    rig_t rig;

    ck_assert_int_eq(try_open(&rig, bad[_i]), DP_ERR_INVALID);
    ck_assert_ptr_null(rig.device);
    dp_group_leave(rig.group);
}
END_TEST

/* ---- failures of the device ---- */

START_TEST(a_fault_is_told_everywhere_and_stays)
{
    const cuda_driver_t *cu;
    int64_t stamp = 0;
    CUmodule module;
    CUfunction mistake;
    dp_stream_t *s[2];
    int which = 1;
    rig_t rig;

    GPU_OK(try_open(&rig, (dp_device_config_t){.comm_sms = 0}));
    GPU_OK(cuda_driver(rig.host, &cu));
    GPU_OK(cuda_module_load(rig.host, cuda_image_kernels, &module));
    GPU_OK(cuda_kernel(rig.host, module, "dp_test_mistake", &mistake));
    for (int i = 0; i < 2; i++)
        GPU_OK(rig.vt->stream_open(rig.device, i == 0 ? DP_LANE_COMPUTE : DP_LANE_P2P, &s[i]));
    GPU_OK(rig.vt->stamp(s[0], &stamp));
    GPU_OK(rig.vt->synchronize(s[0], -1));
    ck_assert_int_ne(stamp, 0);
    GPU_OK(cuda_launch(rig.host, cu, mistake, CUDA_DIM(1), CUDA_DIM(32), 0, (CUstream)rig.vt->stream_native(s[0]),
                       &which));
    ck_assert_int_eq(rig.vt->synchronize(s[0], -1), DP_ERR_DEVICE);
    ck_assert(says("stream compute") && says("the CUDA driver says"));
    ck_assert_int_eq(rig.vt->synchronize(s[1], -1), DP_ERR_DEVICE);
    ck_assert_int_eq(rig.vt->query_error(rig.device), DP_ERR_DEVICE);
    ck_assert(says("stream compute"));
    cuda_module_unload(module);
    rig_close(&rig);
}
END_TEST

/* ---- without a driver, or with half of one: where the driver is the fake one ---- */

START_TEST(without_a_driver_the_message_names_what_was_tried)
{
    rig_t rig;

    debug_set("lib.cuda", "/nowhere/libcuda.so.1");
    ck_assert_int_eq(try_open(&rig, (dp_device_config_t){.comm_sms = 0}), DP_ERR_UNSUPPORTED);
    ck_assert_msg(says("no CUDA device") && says("/nowhere/libcuda.so.1"), "%s", dp_last_error());
    debug_set("lib.cuda", "libm.so.6"); /* a library, but no driver */
    ck_assert_int_eq(
        rig.vt->open(rig.host, &(dp_device_config_t){.struct_size = sizeof(dp_device_config_t)}, &rig.device),
        DP_ERR_UNSUPPORTED);
    ck_assert_msg(says("no CUDA device") && says("cuInit"), "%s", dp_last_error());
    rig_close(&rig);
}
END_TEST

START_TEST(without_devices_the_message_says_so)
{
    rig_t rig;

    setenv("DP_FAKE_DEVICES", "0", 1);
    ck_assert_int_eq(try_open(&rig, (dp_device_config_t){.comm_sms = 0}), DP_ERR_UNSUPPORTED);
    ck_assert_msg(says("no CUDA device") && says("no CUDA-capable device"), "%s", dp_last_error());
    rig_close(&rig);
}
END_TEST

START_TEST(without_green_contexts_numbers_are_limits)
{
    static const char *const missing[] = {"cuGreenCtxCreate", "cuDeviceGetDevResource",
                                          "cuGreenCtxCreate,cuDevResourceGenerateDesc"};
    uint32_t sms[DP_LANE_COUNT];
    dp_stream_t *s;
    bool used[1024] = {false};
    rig_t rig;

    setenv("DP_FAKE_WITHOUT", missing[_i], 1);
    GPU_OK(try_open(&rig, (dp_device_config_t){.comm_sms = 20}));
    GPU_OK(rig.vt->partition(rig.device, sms));
    ck_assert(sms[DP_LANE_COMPUTE] == 112 && sms[DP_LANE_P2P] == 20);
    GPU_OK(rig.vt->stream_open(rig.device, DP_LANE_P2P, &s));
    GPU_OK(rig.vt->synchronize(s, -1));
    mark_sms(&rig, DP_LANE_P2P, used); /* its blocks may run anywhere */
    ck_assert_uint_eq(count(used), 132);
    rig_close(&rig);
}
END_TEST

START_TEST(processes_of_a_host_take_one_device_after_another)
{
    const cuda_driver_t *cu;
    CUdevice device = -1;
    rig_t rig;

    setenv("DP_FAKE_DEVICES", "3", 1);
    GPU_OK(try_open(&rig, (dp_device_config_t){.local_rank = 5}));
    GPU_OK(cuda_driver(rig.host, &cu));
    GPU_OK(cuda_current(rig.host, &device));
    ck_assert_int_eq(device, 2);
    rig_close(&rig);
}
END_TEST

/* The nth call of each function of the driver fails: open says which, gives nothing out and keeps
 * nothing. */
static const char *const fallible[] = {
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuDeviceGetAttribute",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuFuncLoad",
    "cuCtxGetStreamPriorityRange",
    "cuStreamCreateWithPriority",
    "cuEventCreate",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer",
    "cuLaunchKernelEx",
    "cuDevSmResourceSplitByCount",
    "cuDevResourceGenerateDesc",
    "cuGreenCtxCreate",
    "cuDeviceGetDevResource",
    "cuMemAlloc",
    "cuMemsetD8Async",
    "cuMemsetD32Async",
    "cuMemcpyAsync",
};

START_TEST(errors_of_the_driver_come_out_of_open)
{
    char rule[128];
    dp_status_t status;
    rig_t rig;

    snprintf(rule, sizeof(rule), "%s:1:999", fallible[_i]);
    setenv("DP_FAKE_FAIL", rule, 1);
    status = try_open(&rig, (dp_device_config_t){.comm_sms = 20});
    ck_assert_msg(status == DP_ERR_DEVICE || status == DP_ERR_UNSUPPORTED, "%s: %s: %s", fallible[_i],
                  dp_status_name(status), dp_last_error());
    ck_assert_msg(says("unknown error"), "%s", dp_last_error());
    ck_assert_ptr_null(rig.device);
    /* the rule is used up: all is well now */
    GPU_OK(rig.vt->open(rig.host, &(dp_device_config_t){.struct_size = sizeof(dp_device_config_t)}, &rig.device));
    rig_close(&rig);
}
END_TEST

START_TEST(errors_of_the_driver_come_out_of_calls)
{
    static const char *const calls[] = {"cuMemAlloc:2:2", "cuMemsetD8Async:2:999", "cuMemcpyAsync:2:999",
                                        "cuEventRecord:1:999", "cuLaunchKernelEx:2:999"};
    void *memory = NULL;
    dp_event_t *event = NULL;
    dp_stream_t *s = NULL;
    int64_t stamp;
    dp_status_t status;
    rig_t rig;

    setenv("DP_FAKE_FAIL", calls[_i], 1); /* the first of some are made by open */
    GPU_OK(try_open(&rig, (dp_device_config_t){.comm_sms = 0}));
    GPU_OK(rig.vt->stream_open(rig.device, DP_LANE_COMPUTE, &s));
    GPU_OK(rig.vt->event_open(rig.device, &event));
    status = rig.vt->allocate(rig.device, 256, &memory);
    ck_assert_int_eq(status, _i == 0 ? DP_ERR_NOMEM : _i == 1 ? DP_ERR_DEVICE : DP_OK);
    ck_assert(_i != 0 || says("out of memory"));
    if (status != DP_OK)
        GPU_OK(rig.vt->allocate(rig.device, 256, &memory));
    ck_assert_int_eq(rig.vt->copy(s, memory, (char *)memory + 128, 128), _i == 2 ? DP_ERR_DEVICE : DP_OK);
    ck_assert_int_eq(rig.vt->event_record(event, s), _i == 3 ? DP_ERR_DEVICE : DP_OK);
    ck_assert_int_eq(rig.vt->stamp(s, &stamp), _i == 4 ? DP_ERR_DEVICE : DP_OK);
    GPU_OK(rig.vt->synchronize(s, -1)); /* what was not enqueued has not failed */
    rig.vt->release(rig.device, memory);
    rig_close(&rig);
}
END_TEST

/* The driver loads its own kernels when nothing runs: not behind a stream that waits. */
START_TEST(first_copies_are_made_by_open)
{
    const cuda_driver_t *cu;
    void *memory = NULL, *word = NULL;
    dp_stream_t *waiting, *s;
    rig_t rig;

    setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    setenv("DP_FAKE_HANG_SECONDS", "2", 1);
    GPU_OK(try_open(&rig, (dp_device_config_t){.comm_sms = 0}));
    GPU_OK(cuda_driver(rig.host, &cu));
    GPU_OK(rig.vt->stream_open(rig.device, DP_LANE_P2P, &waiting));
    GPU_OK(rig.vt->stream_open(rig.device, DP_LANE_COMPUTE, &s));
    GPU_OK(rig.vt->host_allocate(rig.device, sizeof(uint32_t), &word));
    GPU_OK(CUDA_CHECK(rig.host,
                      cu->cuStreamWaitValue32(rig.vt->stream_native(waiting), (CUdeviceptr)(uintptr_t)word, 1,
                                              CU_STREAM_WAIT_VALUE_GEQ),
                      "waiting"));
    GPU_OK(rig.vt->allocate(rig.device, 256, &memory));
    GPU_OK(rig.vt->zero(s, memory, 128));
    GPU_OK(rig.vt->copy(s, (char *)memory + 128, memory, 128));
    GPU_OK(CUDA_CHECK(rig.host, cu->cuMemsetD32Async((CUdeviceptr)(uintptr_t)memory, 1, 32, rig.vt->stream_native(s)),
                      "filling"));
    GPU_OK(rig.vt->synchronize(s, -1));
    __atomic_store_n((uint32_t *)word, 1, __ATOMIC_RELEASE);
    GPU_OK(rig.vt->synchronize(waiting, -1));
    rig.vt->release(rig.device, memory);
    rig.vt->host_release(rig.device, word);
    rig_close(&rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_cuda");
    TCase *partitions = tcase_create("partitions"), *failures = tcase_create("failures"), *drivers;

    gpu_or_skip("test_device_cuda");
    tcase_set_timeout(partitions, 60);
    tcase_add_test(partitions, lanes_are_confined_without_being_asked_to_never);
    tcase_add_loop_test(partitions, compute_and_communication_share_no_multiprocessor, 0, 5);
    tcase_add_test(partitions, ranks_of_one_device_share_no_multiprocessor);
    tcase_add_loop_test(partitions, senseless_shares_are_refused, 0, 7);
    suite_add_tcase(suite, partitions);
    tcase_add_test(failures, a_fault_is_told_everywhere_and_stays);
    suite_add_tcase(suite, failures);
    if (gpu_is_fake()) {
        drivers = tcase_create("drivers");
        tcase_set_timeout(drivers, 60);
        tcase_add_test(drivers, without_a_driver_the_message_names_what_was_tried);
        tcase_add_test(drivers, without_devices_the_message_says_so);
        tcase_add_loop_test(drivers, without_green_contexts_numbers_are_limits, 0, 3);
        tcase_add_test(drivers, first_copies_are_made_by_open);
        tcase_add_test(drivers, processes_of_a_host_take_one_device_after_another);
        tcase_add_loop_test(drivers, errors_of_the_driver_come_out_of_open, 0,
                            (int)(sizeof(fallible) / sizeof(fallible[0])));
        tcase_add_loop_test(drivers, errors_of_the_driver_come_out_of_calls, 0, 5);
        suite_add_tcase(suite, drivers);
    }
    return suite_run(suite);
}
