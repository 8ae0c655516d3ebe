/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mpi_trainer.c: a trainer that knows MPI itself. Joins the job, sums over comm_mpi and says how it
 * went.
 *   mpi_trainer multiple    starts MPI before, uses it afterwards and ends it
 *   mpi_trainer funneled    starts it with too little a thread level
 *   mpi_trainer finalized   has ended it before
 *   mpi_trainer plugin      leaves all that to the plugin, and finds MPI started when it asks */
#include <dualpipe/comm.h>
#include <dualpipe/group.h>

#include <mpi.h>
#include <stdio.h>
#include <string.h>

static dp_status_t sum_over_mpi(dp_group_t *group, double *sum)
{
    const dp_host_t *host = dp_group_host(group);
    const dp_plugin_t *plugin;
    const void *device_table = NULL, *comm_table = NULL;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *vt;
    dp_device_config_t device_config = {.struct_size = sizeof(device_config)};
    int32_t world[2] = {0, 1};
    dp_comm_config_t config = {
        .struct_size = sizeof(config), .name = "mpi", .rank = dp_group_rank(group), .nranks = 2, .world_ranks = world};
    dp_comm_t *comm = NULL;
    dp_stream_t *s = NULL;
    dp_status_t status = dp_plugin_load("device_cpu", &plugin);

    if (status == DP_OK)
        status = dp_plugin_interface(plugin, DP_IFACE_DEVICE, DP_DEVICE_VT_MIN, &device_table);
    if (status == DP_OK)
        status = dp_plugin_load("comm_mpi", &plugin);
    if (status == DP_OK)
        status = dp_plugin_interface(plugin, DP_IFACE_COMM, DP_COMM_VT_MIN, &comm_table);
    if (status != DP_OK)
        return status;
    device_vt = device_table;
    vt = comm_table;
    config.vt = vt;
    config.device_vt = device_vt;
    status = device_vt->open(host, &device_config, &config.device);
    if (status == DP_OK)
        status = device_vt->stream_open(config.device, DP_LANE_REDUCE, &s);
    if (status == DP_OK)
        status = vt->open(host, &config, &comm);
    if (status == DP_OK)
        status = vt->all_reduce(comm, sum, 1, DP_F64, s);
    if (status == DP_OK)
        status = device_vt->synchronize(s, -1);
    vt->close(comm);
    if (s != NULL)
        device_vt->stream_close(s);
    device_vt->close(config.device);
    return status;
}

static int use_mpi(void)
{
    int one = 1, sum = 0;

    return MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS && sum == 2;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    int level, started = 0, ours = strcmp(mode, "plugin") != 0;
    dp_group_t *group;
    double sum;
    dp_status_t status;

    if (ours)
        MPI_Init_thread(&argc, &argv, strcmp(mode, "funneled") == 0 ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE,
                        &level);
    if (strcmp(mode, "finalized") == 0)
        MPI_Finalize();
    if (dp_group_join(NULL, &group) != DP_OK) {
        printf("%s\n", dp_last_error());
        return 1;
    }
    sum = 1 + dp_group_rank(group);
    status = sum_over_mpi(group, &sum);
    if (status != DP_OK)
        printf("%s\n", dp_last_error());
    dp_group_leave(group);
    MPI_Initialized(&started);
    if (status == DP_OK && ours && use_mpi())
        printf("sum %g, MPI still works\n", sum);
    else if (status == DP_OK && !ours && started && use_mpi())
        printf("sum %g, MPI is the plugin's\n", sum);
    if (ours && strcmp(mode, "finalized") != 0)
        MPI_Finalize();
    return status != DP_OK;
}
