/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * partition.c: which multiprocessors the lanes run on. A device is split once, as the driver's
 * rules allow: compute gets groups of the split, which are promised to be scheduled together,
 * communication the remainder. Several ranks on one device cut it into groups of the smallest size,
 * all of them the same way, and take theirs. */
#include "device_cuda.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <string.h>

#define GROUPS_MAX 64

typedef struct split {
    CUdevResource groups[GROUPS_MAX], rest;
    unsigned count;
} split_t;

static bool has_green_contexts(const cuda_driver_t *cu)
{
    return cu->cuDeviceGetDevResource != NULL && cu->cuDevSmResourceSplitByCount != NULL &&
           cu->cuDevResourceGenerateDesc != NULL && cu->cuGreenCtxCreate != NULL && cu->cuGreenCtxDestroy != NULL &&
           cu->cuGreenCtxStreamCreate != NULL;
}

static dp_status_t make_green(dp_device_t *device, CUdevResource *parts, unsigned count, int side)
{
    const dp_host_t *host = device->host;
    const cuda_driver_t *cu = device->cu;
    CUdevResourceDesc desc;
    uint32_t sms = 0;
    dp_status_t status =
        CUDA_CHECK(host, cu->cuDevResourceGenerateDesc(&desc, parts, count), "describing a share of the device");

    if (status == DP_OK)
        status = CUDA_CHECK(
            host, cu->cuGreenCtxCreate(&device->green[side], desc, device->number, CU_GREEN_CTX_DEFAULT_STREAM),
            "making a green context");
    if (status < 0)
        return status;
    for (unsigned i = 0; i < count; i++)
        sms += parts[i].sm.smCount;
    for (int lane = 0; lane < DP_LANE_COUNT; lane++)
        if ((lane != DP_LANE_COMPUTE) == side)
            device->sms[lane] = sms;
    return DP_OK;
}

/* One rank: as many groups as compute wants in one block, the remainder for communication. */
static dp_status_t split_alone(dp_device_t *device, CUdevResource *all, uint32_t comm)
{
    const dp_host_t *host = device->host;
    CUdevResource compute, rest;
    unsigned groups = 1;
    dp_status_t status;

    memset(&rest, 0, sizeof(rest));
    status = CUDA_CHECK(
        host, device->cu->cuDevSmResourceSplitByCount(&compute, &groups, all, &rest, 0, all->sm.smCount - comm),
        "splitting %u multiprocessors with %u for communication", all->sm.smCount, comm);
    if (status == DP_OK && (groups != 1 || rest.type != CU_DEV_RESOURCE_TYPE_SM || rest.sm.smCount == 0))
        status = DP_FAIL(
            host, DP_ERR_INVALID,
            "%u of %u multiprocessors for communication: shares are rounded to multiples of %u, which leaves none",
            comm, all->sm.smCount, all->sm.smCoscheduledAlignment);
    if (status == DP_OK)
        status = make_green(device, &compute, 1, 0);
    if (status == DP_OK)
        status = make_green(device, &rest, 1, 1);
    return status;
}

/* Several ranks: of each one's groups communication gets as many as it takes, compute the others.
 * The remainder of the device is nobody's. */
static dp_status_t split_shared(dp_device_t *device, CUdevResource *all, uint32_t comm, uint32_t shares, uint32_t share)
{
    const dp_host_t *host = device->host;
    unsigned size = all->sm.minSmPartitionSize, each, for_comm;
    split_t split;
    dp_status_t status;

    memset(&split, 0, sizeof(split));
    split.count = GROUPS_MAX;
    status =
        CUDA_CHECK(host, device->cu->cuDevSmResourceSplitByCount(split.groups, &split.count, all, &split.rest, 0, size),
                   "splitting %u multiprocessors into groups of %u", all->sm.smCount, size);
    if (status < 0)
        return status;
    size = split.groups[0].sm.smCount;
    each = split.count / shares;
    for_comm = (comm + size - 1) / size;
    if (each == 0 || for_comm >= each + (comm == 0))
        return DP_FAIL(
            host, DP_ERR_INVALID,
            "%u multiprocessors are %u groups of %u: not enough for %u ranks with %u each for communication, and some "
            "for compute",
            all->sm.smCount, split.count, size, shares, comm);
    status = make_green(device, &split.groups[share * each], each - for_comm, 0);
    if (status == DP_OK)
        status = make_green(device, &split.groups[share * each + (comm > 0 ? each - for_comm : 0)],
                            comm > 0 ? for_comm : each, 1);
    return status;
}

/* Without green contexts lanes differ by priority, and kernels keep to a number of blocks. */
static dp_status_t fall_back(dp_device_t *device, uint32_t comm, uint32_t shares, const char *why)
{
    uint32_t all = (uint32_t)device->sm_count / shares;
    char text[256];

    if (comm >= all)
        return DP_FAIL(device->host, DP_ERR_INVALID,
                       "%u of %u multiprocessors for communication leave none for compute", comm, all);
    for (int lane = 0; lane < DP_LANE_COUNT; lane++)
        device->sms[lane] = comm == 0 ? all : lane == DP_LANE_COMPUTE ? all - comm : comm;
    snprintf(
        text, sizeof(text),
        "lanes are not confined (%s): streams have priorities, and kernels are told to keep to %u and %u multiprocessors",
        why, device->sms[DP_LANE_COMPUTE], device->sms[DP_LANE_P2P]);
    device->host->log(device->host, DP_LOG_WARN, "device_cuda", text);
    return DP_OK;
}

static dp_status_t confine_streams(dp_device_t *device, uint32_t comm, uint32_t shares, uint32_t share)
{
    const cuda_driver_t *cu = device->cu;
    CUdevResource all;
    dp_status_t status;

    if (!has_green_contexts(cu))
        return fall_back(device, comm, shares, "the driver has no green contexts: CUDA 12.5 or later has");
    memset(&all, 0, sizeof(all));
    status = CUDA_CHECK(device->host, cu->cuDeviceGetDevResource(device->number, &all, CU_DEV_RESOURCE_TYPE_SM),
                        "asking for the device's multiprocessors");
    if (status == DP_OK && comm >= all.sm.smCount / shares)
        return DP_FAIL(device->host, DP_ERR_INVALID,
                       "%u of %u multiprocessors for communication leave none for compute", comm,
                       all.sm.smCount / shares);
    if (status == DP_OK)
        status = shares == 1 ? split_alone(device, &all, comm) : split_shared(device, &all, comm, shares, share);
    if (status == DP_ERR_UNSUPPORTED) {
        cuda_partition_close(device);
        return fall_back(device, comm, shares, "the driver supports no green contexts on this device");
    }
    return status;
}

dp_status_t cuda_partition_open(dp_device_t *device, const dp_device_config_t *config)
{
    uint32_t shares = config->shares > 0 ? config->shares : 1, share = shares > 1 ? config->share : 0;
    int least = 0, greatest = 0;

    DO(CUDA_CHECK(device->host, device->cu->cuCtxGetStreamPriorityRange(&least, &greatest),
                  "asking for stream priorities"));
    device->priority[0] = least;
    device->priority[1] = greatest;
    if (shares > GROUPS_MAX || share >= shares)
        return DP_FAIL(device->host, DP_ERR_INVALID, "share %u of %u: at most %d ranks share a device, numbered from 0",
                       share, shares, GROUPS_MAX);
    if (config->comm_sms == 0 && shares == 1)
        return DP_OK;
    return confine_streams(device, config->comm_sms, shares, share);
}

void cuda_partition_close(dp_device_t *device)
{
    for (int side = 0; side < 2; side++) {
        if (device->green[side] != NULL)
            (void)device->cu->cuGreenCtxDestroy(device->green[side]);
        device->green[side] = NULL;
    }
}
