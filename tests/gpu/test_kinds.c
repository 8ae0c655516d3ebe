/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_kinds.c: plugins for CUDA are given the CPU as their device: refused with a sentence, before
 * they ask for a driver. Needs no GPU. */
#include <dualpipe/attention.h>
#include <dualpipe/comm.h>
#include <dualpipe/group.h>
#include <dualpipe/moe.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/suite.h"

typedef struct rig {
    dp_group_t *group;
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    const dp_comm_vt_t *comm_vt;
    dp_comm_t *comm;
} rig_t;

static const int32_t world[] = {0};

/* NULL: not built here. */
static const void *table(const char *name, const char *id)
{
    const dp_plugin_t *plugin;
    const void *found;

    if (dp_plugin_load(name, &plugin) != DP_OK) {
        ck_assert_msg(strstr(dp_last_error(), "not found") != NULL, "%s", dp_last_error());
        return NULL;
    }
    ck_assert_msg(dp_plugin_interface(plugin, id, sizeof(uint32_t), &found) == DP_OK, "%s", dp_last_error());
    return found;
}

static dp_status_t open_comm(const rig_t *rig, const dp_comm_vt_t *vt, dp_comm_t **comm_out)
{
    dp_comm_config_t config = {.struct_size = sizeof(config),
                               .vt = vt,
                               .name = "alone",
                               .nranks = 1,
                               .world_ranks = world,
                               .device_vt = rig->device_vt,
                               .device = rig->device};

    return vt->open(rig->host, &config, comm_out);
}

static void rig_open(rig_t *rig)
{
    dp_device_config_t config = {.struct_size = sizeof(config)};

    memset(rig, 0, sizeof(*rig));
    ck_assert_int_eq(dp_group_local(1, NULL, &rig->group), DP_OK);
    rig->host = dp_group_host(rig->group);
    rig->device_vt = table("device_cpu", DP_IFACE_DEVICE);
    rig->comm_vt = table("comm_shm", DP_IFACE_COMM);
    ck_assert_int_eq(rig->device_vt->open(rig->host, &config, &rig->device), DP_OK);
    ck_assert_int_eq(open_comm(rig, rig->comm_vt, &rig->comm), DP_OK);
}

static void rig_close(rig_t *rig)
{
    rig->comm_vt->close(rig->comm);
    rig->device_vt->close(rig->device);
    dp_group_leave(rig->group);
}

static void expect_sentence(const char *name, dp_status_t status)
{
    char sentence[200];

    snprintf(sentence, sizeof(sentence),
             "%s needs a device of kind \"cuda\", this one is of kind \"cpu\": use device_cuda", name);
    ck_assert_int_eq(status, DP_ERR_UNSUPPORTED);
    ck_assert_str_eq(dp_last_error(), sentence);
}

START_TEST(transports_refuse_the_cpu)
{
    static const char *const names[] = {"comm_cuda_ipc", "comm_nccl"};
    const dp_comm_vt_t *vt = table(names[_i], DP_IFACE_COMM);
    dp_comm_t *comm = NULL;
    rig_t rig;

    if (vt == NULL)
        return;
    rig_open(&rig);
    expect_sentence(names[_i], open_comm(&rig, vt, &comm));
    ck_assert_ptr_null(comm);
    rig_close(&rig);
}
END_TEST

static const dp_block_shape_t shape = {
    .struct_size = sizeof(shape), .dtype = DP_BF16, .batch = 1, .sequence = 64, .hidden = 128};

START_TEST(attentions_refuse_the_cpu)
{
    static const char *const names[] = {"attention_cuda", "attention_cudnn"};
    const dp_attention_vt_t *vt = table(names[_i], DP_IFACE_ATTENTION);
    dp_attention_t *attention = NULL;
    rig_t rig;

    if (vt == NULL)
        return;
    rig_open(&rig);
    expect_sentence(names[_i], vt->open(rig.host,
                                        &(dp_attention_config_t){.struct_size = sizeof(dp_attention_config_t),
                                                                 .shape = &shape,
                                                                 .heads = 2,
                                                                 .kv_heads = 2,
                                                                 .head_dim = 64,
                                                                 .value_dim = 64,
                                                                 .device_vt = rig.device_vt,
                                                                 .device = rig.device},
                                        &attention));
    ck_assert_ptr_null(attention);
    rig_close(&rig);
}
END_TEST

START_TEST(a_mixture_refuses_the_cpu)
{
    const dp_moe_vt_t *vt = table("moe_cuda", DP_IFACE_MOE);
    dp_moe_t *moe = NULL;
    rig_t rig;

    if (vt == NULL)
        return;
    rig_open(&rig);
    expect_sentence("moe_cuda", vt->open(rig.host,
                                         &(dp_moe_config_t){.struct_size = sizeof(dp_moe_config_t),
                                                            .shape = &shape,
                                                            .experts = 4,
                                                            .top_k = 2,
                                                            .expert_hidden = 128,
                                                            .device_vt = rig.device_vt,
                                                            .device = rig.device,
                                                            .comm_vt = rig.comm_vt,
                                                            .comm = rig.comm,
                                                            .comm_size = 1},
                                         &moe));
    ck_assert_ptr_null(moe);
    rig_close(&rig);
}
END_TEST

START_TEST(the_cpu_has_a_kind)
{
    rig_t rig;

    rig_open(&rig);
    ck_assert_str_eq(rig.device_vt->kind, "cpu");
    ck_assert_uint_eq(rig.device_vt->caps & DP_DEVICE_CAP_EXPORT, 0);
    rig_close(&rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kinds of devices");
    TCase *tc = tcase_create("kinds");

    tcase_add_loop_test(tc, transports_refuse_the_cpu, 0, 2);
    tcase_add_loop_test(tc, attentions_refuse_the_cpu, 0, 2);
    tcase_add_test(tc, a_mixture_refuses_the_cpu);
    tcase_add_test(tc, the_cpu_has_a_kind);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
