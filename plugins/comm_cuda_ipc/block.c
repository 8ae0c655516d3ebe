/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * block.c: device memory that ranks share: made, announced, mapped and let go.
 *
 * Between processes by virtual-memory handles, whose memory lives until the last process lets go,
 * or, where the device has none, by handles of the older interface. Ranks of one process use the
 * same mapping, and count themselves. */
#include "plugins/common/do.h"
#include "queue.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* smaller ones are parts of larger ones, which would be shared whole */
#define PLAIN_GRANULARITY ((size_t)2 << 20)

struct shared_block {
    shared_block_t *next;
    uint64_t nonce[2];
    uint32_t users;
    block_method_t method;
    CUdevice ordinal;
    CUdeviceptr base;
    size_t bytes;
    CUmemGenericAllocationHandle handle; /* METHOD_FD */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the next one */
static shared_block_t *shared_blocks;

static CUdeviceptr address(const void *at)
{
    return (CUdeviceptr)(uintptr_t)at;
}

static CUmemLocation here(const dp_comm_t *comm)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)comm->ordinal};

    return location;
}

static CUmemAllocationProp properties(const dp_comm_t *comm)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = here(comm)};

    return prop;
}

dp_status_t ipc_block_limits(dp_comm_t *comm)
{
    char text[32];
    const char *asked = debug_value("ipc.handles", text, sizeof(text));
    CUmemAllocationProp prop = properties(comm);
    int able = 0;

    if (asked != NULL && strcmp(asked, "fd") != 0 && strcmp(asked, "legacy") != 0)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "DUALPIPE_DEBUG=ipc.handles is \"%s\"; it must be fd or legacy",
                       asked);
    comm->method = METHOD_HANDLE;
    comm->granularity = PLAIN_GRANULARITY;
    if (asked != NULL && strcmp(asked, "legacy") == 0)
        return DP_OK;
    if (comm->cu->cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                       comm->ordinal) != CUDA_SUCCESS ||
        able == 0)
        return DP_OK;
    comm->method = METHOD_FD;
    return CUDA_CHECK(
        comm->host,
        comm->cu->cuMemGetAllocationGranularity(&comm->granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "group %s: asking for the granularity of memory", comm->name);
}

/* ---- virtual memory ---- */

static dp_status_t grant(dp_comm_t *comm, CUdeviceptr base, size_t bytes)
{
    CUmemAccessDesc access = {.location = here(comm), .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    return CUDA_CHECK(comm->host, comm->cu->cuMemSetAccess(base, bytes, &access, 1),
                      "rank %d, group %s: giving device %d access to %zu bytes", WORLD(comm), comm->name,
                      (int)comm->ordinal, bytes);
}

/* Gives memory an address; on failure nothing is left but the handle. */
static dp_status_t map_block(dp_comm_t *comm, CUmemGenericAllocationHandle handle, size_t bytes, CUdeviceptr *base_out)
{
    const cuda_driver_t *cu = comm->cu;
    CUdeviceptr base = 0;
    dp_status_t status;

    DO(CUDA_CHECK(comm->host, cu->cuMemAddressReserve(&base, bytes, 0, 0, 0),
                  "group %s: reserving %zu bytes of addresses", comm->name, bytes));
    status = CUDA_CHECK(comm->host, cu->cuMemMap(base, bytes, 0, handle, 0), "group %s: mapping %zu bytes", comm->name,
                        bytes);
    if (status == DP_OK) {
        status = grant(comm, base, bytes);
        if (status < 0)
            (void)cu->cuMemUnmap(base, bytes);
    }
    if (status < 0)
        (void)cu->cuMemAddressFree(base, bytes);
    else
        *base_out = base;
    return status;
}

static void unmap_block(const dp_comm_t *comm, CUdeviceptr base, size_t bytes, CUmemGenericAllocationHandle handle)
{
    (void)comm->cu->cuMemUnmap(base, bytes);
    (void)comm->cu->cuMemAddressFree(base, bytes);
    (void)comm->cu->cuMemRelease(handle);
}

static dp_status_t allocate_block(dp_comm_t *comm, shared_block_t *shared)
{
    const cuda_driver_t *cu = comm->cu;
    CUmemAllocationProp prop = properties(comm);
    dp_status_t status;

    if (shared->method == METHOD_HANDLE)
        return CUDA_CHECK(comm->host, cu->cuMemAlloc(&shared->base, shared->bytes),
                          "rank %d, group %s: allocating %zu bytes", WORLD(comm), comm->name, shared->bytes);
    DO(CUDA_CHECK(comm->host, cu->cuMemCreate(&shared->handle, shared->bytes, &prop, 0),
                  "rank %d, group %s: allocating %zu bytes", WORLD(comm), comm->name, shared->bytes));
    status = map_block(comm, shared->handle, shared->bytes, &shared->base);
    if (status < 0)
        (void)cu->cuMemRelease(shared->handle);
    return status;
}

static void release_shared(dp_comm_t *comm, shared_block_t *shared)
{
    shared_block_t **at = &shared_blocks;
    bool last;

    pthread_mutex_lock(&lock);
    last = --shared->users == 0;
    while (last && *at != shared)
        at = &(*at)->next;
    if (last)
        *at = shared->next;
    pthread_mutex_unlock(&lock);
    if (!last)
        return;
    if (shared->method == METHOD_HANDLE)
        (void)comm->cu->cuMemFree(shared->base);
    else
        unmap_block(comm, shared->base, shared->bytes, shared->handle);
    free(shared);
}

/* ---- ours ---- */

static dp_status_t export_block(dp_comm_t *comm, const shared_block_t *shared, announcement_t *announcement,
                                int *fd_out)
{
    const cuda_driver_t *cu = comm->cu;

    if (shared->method == METHOD_HANDLE)
        return CUDA_CHECK(comm->host, cu->cuIpcGetMemHandle(&announcement->handle, shared->base),
                          "rank %d, group %s: making a handle of %zu bytes", WORLD(comm), comm->name, shared->bytes);
    return CUDA_CHECK(
        comm->host,
        cu->cuMemExportToShareableHandle(fd_out, shared->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "rank %d, group %s: making a descriptor of %zu bytes", WORLD(comm), comm->name, shared->bytes);
}

static dp_status_t clear_block(dp_comm_t *comm, const shared_block_t *shared)
{
    dp_status_t status = CUDA_CHECK(comm->host, comm->cu->cuMemsetD8Async(shared->base, 0, shared->bytes, comm->side),
                                    "group %s: clearing %zu bytes", comm->name, shared->bytes);

    return status == DP_OK
               ? ipc_queue_upload(comm, (void *)(uintptr_t)shared->base, shared->nonce, sizeof(shared->nonce))
               : status;
}

dp_status_t ipc_block_create(dp_comm_t *comm, size_t bytes, block_t *block_out, announcement_t *announcement,
                             int *fd_out)
{
    /* not the host's memory: the rank that frees it may be another one, with another host */
    shared_block_t *shared = calloc(1, sizeof(*shared));
    dp_status_t status;

    *fd_out = -1;
    if (shared == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for a record of a block", comm->name);
    shared->users = 1;
    shared->method = comm->method;
    shared->ordinal = comm->ordinal;
    shared->bytes = bytes;
    if (getrandom(shared->nonce, sizeof(shared->nonce), 0) != (ssize_t)sizeof(shared->nonce)) {
        free(shared);
        return DP_FAIL(comm->host, DP_ERR_IO, "rank %d: the system gives no random bytes", WORLD(comm));
    }
    status = allocate_block(comm, shared);
    if (status < 0) {
        free(shared);
        return status;
    }
    pthread_mutex_lock(&lock);
    shared->next = shared_blocks;
    shared_blocks = shared;
    pthread_mutex_unlock(&lock);
    *block_out = (block_t){BLOCK_SHARED, (unsigned char *)(uintptr_t)shared->base, bytes, shared, 0};
    announcement->bytes = bytes;
    announcement->method = shared->method;
    announcement->ordinal = (int32_t)comm->ordinal;
    memcpy(announcement->nonce, shared->nonce, sizeof(shared->nonce));
    status = clear_block(comm, shared);
    if (status == DP_OK && comm->nranks > 1)
        status = export_block(comm, shared, announcement, fd_out);
    if (status < 0)
        ipc_block_drop(comm, block_out);
    return status;
}

/* ---- the others' ---- */

static shared_block_t *look_up(const announcement_t *announcement)
{
    shared_block_t *found;

    pthread_mutex_lock(&lock);
    for (found = shared_blocks; found != NULL; found = found->next)
        if (memcmp(found->nonce, announcement->nonce, sizeof(found->nonce)) == 0 && found->bytes == announcement->bytes)
            break;
    if (found != NULL)
        found->users++;
    pthread_mutex_unlock(&lock);
    return found;
}

static dp_status_t reach_device(dp_comm_t *comm, const shared_block_t *shared)
{
    const cuda_driver_t *cu = comm->cu;
    CUcontext context;
    CUresult result;
    int able = 0;

    if (shared->ordinal == comm->ordinal)
        return DP_OK;
    if (cu->cuDeviceCanAccessPeer(&able, comm->ordinal, shared->ordinal) != CUDA_SUCCESS || able == 0)
        return DP_FAIL(comm->host, DP_ERR_UNSUPPORTED, "group %s: device %d cannot reach the memory of device %d",
                       comm->name, (int)comm->ordinal, (int)shared->ordinal);
    if (shared->method == METHOD_FD)
        return grant(comm, shared->base, shared->bytes);
    result = cu->cuDevicePrimaryCtxRetain(&context, shared->ordinal);
    if (result == CUDA_SUCCESS) {
        result = cu->cuCtxEnablePeerAccess(context, 0);
        (void)cu->cuDevicePrimaryCtxRelease(shared->ordinal);
    }
    return result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
               ? DP_OK
               : CUDA_CHECK(comm->host, result, "group %s: giving device %d access to device %d", comm->name,
                            (int)comm->ordinal, (int)shared->ordinal);
}

static dp_status_t join_process(dp_comm_t *comm, int32_t rank, const announcement_t *announcement, block_t *block_out)
{
    shared_block_t *shared = look_up(announcement);
    dp_status_t status;

    if (shared == NULL)
        return DP_FAIL(comm->host, DP_ERR_PEER, "rank %d: the memory that rank %d announced is not there any more",
                       WORLD(comm), comm->world[rank]);
    status = reach_device(comm, shared);
    if (status < 0) {
        release_shared(comm, shared);
        return status;
    }
    *block_out = (block_t){BLOCK_SHARED, (unsigned char *)(uintptr_t)shared->base, shared->bytes, shared, 0};
    return DP_OK;
}

static dp_status_t import_fd(dp_comm_t *comm, int32_t rank, const announcement_t *announcement, int fd,
                             block_t *block_out)
{
    const cuda_driver_t *cu = comm->cu;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;
    dp_status_t status;

    if (fd < 0)
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL, "rank %d: rank %d announced memory and sent no descriptor of it",
                       WORLD(comm), comm->world[rank]);
    DO(CUDA_CHECK(
        comm->host,
        cu->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "rank %d: opening %llu bytes of rank %d", WORLD(comm), (unsigned long long)announcement->bytes,
        comm->world[rank]));
    status = map_block(comm, handle, announcement->bytes, &base);
    if (status < 0) {
        (void)cu->cuMemRelease(handle);
        return status;
    }
    *block_out = (block_t){BLOCK_IMPORTED, (unsigned char *)(uintptr_t)base, announcement->bytes, NULL, handle};
    return DP_OK;
}

static dp_status_t open_handle(dp_comm_t *comm, int32_t rank, const announcement_t *announcement, block_t *block_out)
{
    CUdeviceptr base;
    dp_status_t status = CUDA_CHECK(
        comm->host, comm->cu->cuIpcOpenMemHandle(&base, announcement->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        "rank %d: opening %llu bytes of rank %d", WORLD(comm), (unsigned long long)announcement->bytes,
        comm->world[rank]);

    if (status == DP_OK)
        *block_out = (block_t){BLOCK_OPENED, (unsigned char *)(uintptr_t)base, announcement->bytes, NULL, 0};
    return status;
}

static dp_status_t verify(dp_comm_t *comm, int32_t rank, const announcement_t *announcement, const block_t *block)
{
    uint64_t nonce[2] = {0, 0};
    dp_status_t status = ipc_queue_download(comm, nonce, block->base, sizeof(nonce));

    if (status == DP_OK && memcmp(nonce, announcement->nonce, sizeof(nonce)) != 0)
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL, "rank %d: the memory that rank %d shares is not what it announced",
                       WORLD(comm), comm->world[rank]);
    return status;
}

dp_status_t ipc_block_import(dp_comm_t *comm, int32_t rank, const announcement_t *announcement, int fd,
                             block_t *block_out)
{
    dp_status_t status;

    if (ipc_wire_same_process(comm->wire, rank))
        status = join_process(comm, rank, announcement, block_out);
    else if (announcement->method == METHOD_FD)
        status = import_fd(comm, rank, announcement, fd, block_out);
    else if (announcement->method == METHOD_HANDLE)
        status = open_handle(comm, rank, announcement, block_out);
    else
        status = DP_FAIL(comm->host, DP_ERR_PROTOCOL, "rank %d: rank %d shares memory by an unknown method %u",
                         WORLD(comm), comm->world[rank], announcement->method);
    if (fd >= 0)
        close(fd);
    if (status < 0)
        return status;
    status = verify(comm, rank, announcement, block_out);
    if (status < 0)
        ipc_block_drop(comm, block_out);
    return status;
}

void ipc_block_drop(dp_comm_t *comm, block_t *block)
{
    if (block->kind == BLOCK_SHARED)
        release_shared(comm, block->shared);
    else if (block->kind == BLOCK_IMPORTED)
        unmap_block(comm, address(block->base), block->bytes, block->imported);
    else if (block->kind == BLOCK_OPENED)
        (void)comm->cu->cuIpcCloseMemHandle(address(block->base));
    block->kind = BLOCK_NONE;
}
