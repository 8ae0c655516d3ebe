/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * part.c: what a channel's end and an exchange have on a device whose memory is out of the host's
 * reach. */
#include "fabric.h"
#include "plugins/common/do.h"

#include <string.h>

dp_status_t ofi_part_open(dp_comm_t *comm, part_t *part, bool releases)
{
    dp_status_t status;

    if (comm->gpu == NULL)
        return DP_OK;
    comm->memory_bytes += (releases ? 2 : 1) * ofi_gpu_queue_bytes();
    status = ofi_gpu_queue_open(comm->gpu, true, &part->queue);
    return status == DP_OK && releases ? ofi_gpu_queue_open(comm->gpu, false, &part->releases) : status;
}

dp_status_t ofi_part_show(dp_comm_t *comm, part_t *part, size_t bytes)
{
    void *memory = NULL;
    dp_status_t status;

    if (comm->gpu == NULL)
        return DP_OK;
    DO(comm->device->allocate(comm->instance, bytes, &memory));
    part->shown = memory;
    comm->memory_bytes += bytes;
    if (!comm->wire.direct)
        return DP_OK;
    pthread_mutex_lock(&comm->wire.lock);
    status = ofi_fabric_register_device(comm, memory, bytes, FI_REMOTE_WRITE, &part->mr);
    pthread_mutex_unlock(&comm->wire.lock);
    if (status < 0)
        return status;
    part->key = fi_mr_key(part->mr);
    part->address = (comm->wire.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0 ? (uintptr_t)memory : 0;
    return DP_OK;
}

/* What is sent lies in few allocations, again and again: those are kept. */
dp_status_t ofi_part_lend(dp_comm_t *comm, part_t *part, const void *data, void **desc_out)
{
    lent_t now = {0};
    lent_t *lent = &part->lent[part->latest % LENT];
    dp_status_t status;

    DO(ofi_gpu_range(comm->gpu, data, &now.base, &now.bytes, &now.id));
    for (int i = 0; i < LENT; i++)
        if (now.id != 0 && part->lent[i].id == now.id && part->lent[i].base == now.base) {
            *desc_out = fi_mr_desc(part->lent[i].mr);
            return DP_OK;
        }
    pthread_mutex_lock(&comm->wire.lock);
    if (lent->mr != NULL)
        /* nothing is on its way out of it: who sends waits for that */
        (void)fi_close(&lent->mr->fid);
    memset(lent, 0, sizeof(*lent));
    status = ofi_fabric_register_device(comm, (void *)(uintptr_t)now.base, now.bytes, FI_WRITE, &now.mr);
    pthread_mutex_unlock(&comm->wire.lock);
    if (status < 0)
        return status;
    *lent = now;
    part->latest++;
    *desc_out = fi_mr_desc(now.mr);
    return DP_OK;
}

void ofi_part_withdraw(part_t *part)
{
    for (int i = 0; i < LENT; i++)
        if (part->lent[i].mr != NULL)
            (void)fi_close(&part->lent[i].mr->fid);
    if (part->mr != NULL)
        (void)fi_close(&part->mr->fid);
    part->mr = NULL;
    memset(part->lent, 0, sizeof(part->lent));
}

void ofi_part_free(const dp_comm_t *comm, part_t *part)
{
    if (part->shown != NULL)
        comm->device->release(comm->instance, part->shown);
    part->shown = NULL;
}
