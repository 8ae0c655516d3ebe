/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * green.c: shares of the SMs, by the rules of a Hopper GPU with 132 of them: parts of at least 8,
 * in multiples of 8; what is left over is the remainder. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

/* A resource carries its SMs in the bytes that CUDA keeps for itself. */
typedef struct part {
    uint32_t magic;
    uint8_t split, device; /* number of the split call that made it; 0: the whole device */
    uint8_t first, count, remainder;
} part_t;

#define PART_MAGIC 0x736d7061u

struct CUdevResourceDesc_st {
    CUdevResourceDesc next;
    int device;
    sm_set_t sms;
};

static CUdevResourceDesc descriptors; /* CUDA has no call to free one */

static part_t *part_of(CUdevResource *r)
{
    return (part_t *)r->_internal_padding;
}

static void fill_resource(CUdevResource *r, int device, unsigned split, unsigned first, unsigned count)
{
    memset(r, 0, sizeof(*r));
    r->type = CU_DEV_RESOURCE_TYPE_SM;
    r->sm.smCount = count;
    r->sm.minSmPartitionSize = FAKE_SM_GRANULE;
    r->sm.smCoscheduledAlignment = FAKE_SM_GRANULE;
    *part_of(r) = (part_t){PART_MAGIC, (uint8_t)split, (uint8_t)device, (uint8_t)first, (uint8_t)count, 0};
}

FAKE_EXPORT CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    ENTER_ANYWHERE(cuDeviceGetDevResource);
    if (device < 0 || device >= fake_device_count())
        return CUDA_ERROR_INVALID_DEVICE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    fill_resource(resource, device, 0, 0, FAKE_SMS);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned *groups, const CUdevResource *input,
                                                 CUdevResource *remaining, unsigned flags, unsigned min_count)
{
    static unsigned calls;
    unsigned size, wanted, possible, split;
    part_t all;

    ENTER_ANYWHERE(cuDevSmResourceSplitByCount);
    memcpy(&all, input->_internal_padding, sizeof(all));
    if (all.magic != PART_MAGIC || groups == NULL || (flags & ~3u) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (all.split != 0) /* has to become a green context first */
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    size = (min_count + FAKE_SM_GRANULE - 1) / FAKE_SM_GRANULE * FAKE_SM_GRANULE;
    if (size == 0)
        size = FAKE_SM_GRANULE;
    possible = all.count / size;
    if (result == NULL) {
        *groups = possible;
        return CUDA_SUCCESS;
    }
    if (possible == 0 || *groups == 0)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    wanted = *groups < possible ? *groups : possible;
    split = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % 255 + 1;
    for (unsigned i = 0; i < wanted; i++)
        fill_resource(&result[i], all.device, split, all.first + i * size, size);
    if (remaining != NULL) {
        fill_resource(remaining, all.device, split, all.first + wanted * size, all.count - wanted * size);
        part_of(remaining)->remainder = 1;
    }
    *groups = wanted;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources, unsigned count)
{
    CUdevResourceDesc d;

    ENTER_ANYWHERE(cuDevResourceGenerateDesc);
    if (count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    d = calloc(1, sizeof(*d));
    if (d == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < count; i++) {
        part_t *p = part_of(&resources[i]);

        if (p->magic != PART_MAGIC || p->count == 0 || p->split != part_of(&resources[0])->split ||
            d->sms.count + p->count > FAKE_SMS) {
            free(d);
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        }
        d->device = p->device;
        d->sms.remainder |= p->remainder != 0;
        for (unsigned k = 0; k < p->count; k++)
            d->sms.sm[d->sms.count++] = (unsigned char)(p->first + k);
    }
    pthread_mutex_lock(&fake_lock);
    d->next = descriptors;
    descriptors = d;
    pthread_mutex_unlock(&fake_lock);
    *desc = d;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice device, unsigned flags)
{
    CUgreenCtx g;
    bool retained;

    ENTER_ANYWHERE(cuGreenCtxCreate);
    if (desc == NULL || flags != CU_GREEN_CTX_DEFAULT_STREAM || desc->device != device)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    retained = fake_context(device)->retained > 0;
    pthread_mutex_unlock(&fake_lock);
    if (!retained)
        return CUDA_ERROR_INVALID_CONTEXT; /* stricter than CUDA, which would retain it */
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    g->device = device;
    g->sms = desc->sms;
    *green = g;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    if (green == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (green->streams > 0)
        return CUDA_ERROR_INVALID_VALUE; /* stricter than CUDA, where they would leak */
    free(green);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags, int priority)
{
    ENTER_ANYWHERE(cuGreenCtxStreamCreate);
    if (green == NULL || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    return stream_make(green->device, priority, green, stream);
}

/* ---- kernels that stay until other ranks come ---- */

static unsigned char taken[FAKE_DEVICES_MAX][FAKE_SMS];

FAKE_EXPORT unsigned fake_sms_take(CUstream s, unsigned wanted, unsigned char *mine, unsigned *most_out)
{
    unsigned has = 0;
    sm_set_t sms;

    stream_sms(s, &sms);
    *most_out = wanted < sms.count ? wanted : sms.count;
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < sms.count; i++)
        has += mine[sms.sm[i]];
    for (unsigned i = 0; i < sms.count && has < wanted; i++) {
        unsigned sm = sms.sm[i];

        if (taken[s->device][sm])
            continue;
        taken[s->device][sm] = mine[sm] = 1;
        has++;
    }
    pthread_mutex_unlock(&fake_lock);
    return has;
}

FAKE_EXPORT void fake_sms_give(CUstream s, unsigned char *mine)
{
    pthread_mutex_lock(&fake_lock);
    for (unsigned sm = 0; sm < FAKE_SMS; sm++)
        if (mine[sm])
            taken[s->device][sm] = mine[sm] = 0;
    pthread_mutex_unlock(&fake_lock);
}

FAKE_EXPORT int fake_sms_cluster(CUstream s)
{
    sm_set_t sms;

    stream_sms(s, &sms);
    return !sms.remainder;
}
