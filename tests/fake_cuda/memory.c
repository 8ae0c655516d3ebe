/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.c: device memory as parts of one anonymous file of the process, so that others can map
 * them by a handle; between pages that nobody may touch, poisoned when new. Handles of virtual
 * memory are separate files. */
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE        4096u
#define ARENA_BYTES ((size_t)256 << 30)
#define POISON      0xcb
#define POISON_MOST ((size_t)8 << 20)
#define GRANULE     ((size_t)2 << 20)

typedef enum range_kind { RANGE_DEVICE, RANGE_IMPORTED, RANGE_HOST, RANGE_REGISTERED, RANGE_VIRTUAL } range_kind_t;

typedef struct range {
    struct range *next;
    range_kind_t kind;
    int device;
    uintptr_t at;
    size_t bytes;
    unsigned char *map; /* with its guards */
    size_t map_bytes;
    size_t offset, pages; /* in the arena */
    uint64_t id;
    unsigned uses; /* opened more than once */
    int owner;
} range_t;

static range_t *ranges;
static int arena = -1;
static uint64_t next_id = 1;

static size_t whole(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- what is where; under the lock ---- */

static range_t *find(uintptr_t at, size_t bytes)
{
    for (range_t *r = ranges; r != NULL; r = r->next)
        if (at >= r->at && at - r->at <= r->bytes && bytes <= r->bytes - (at - r->at))
            return r;
    return NULL;
}

static range_t *find_start(uintptr_t at, range_kind_t kind)
{
    for (range_t *r = ranges; r != NULL; r = r->next)
        if (r->at == at && r->kind == kind)
            return r;
    return NULL;
}

static range_t *add(range_kind_t kind, uintptr_t at, size_t bytes)
{
    range_t *r = calloc(1, sizeof(*r));

    if (r == NULL)
        return NULL;
    r->kind = kind;
    r->at = at;
    r->bytes = bytes;
    r->uses = 1;
    r->id = next_id++;
    r->next = ranges;
    ranges = r;
    return r;
}

static void drop(range_t *r)
{
    range_t **at = &ranges;

    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    free(r);
}

bool memory_known(CUdeviceptr at, size_t bytes)
{
    bool known;

    pthread_mutex_lock(&fake_lock);
    known = bytes == 0 || find(at, bytes) != NULL;
    pthread_mutex_unlock(&fake_lock);
    return known;
}

static bool is_host(CUdeviceptr at)
{
    const range_t *r = find(at, 1);

    return r == NULL || r->kind == RANGE_HOST || r->kind == RANGE_REGISTERED;
}

bool memory_on_device(CUdeviceptr at)
{
    bool on_device;

    pthread_mutex_lock(&fake_lock);
    on_device = !is_host(at);
    pthread_mutex_unlock(&fake_lock);
    return on_device;
}

static uint64_t staged;

void memory_count_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    pthread_mutex_lock(&fake_lock);
    staged += is_host(to) != is_host(from) ? bytes : 0;
    pthread_mutex_unlock(&fake_lock);
}

FAKE_EXPORT uint64_t fake_bytes_staged(void)
{
    uint64_t bytes;

    pthread_mutex_lock(&fake_lock);
    bytes = staged;
    pthread_mutex_unlock(&fake_lock);
    return bytes;
}

/* ---- device memory ---- */

/* The first gap of the arena that is large enough. */
static bool place(size_t pages, size_t *offset_out)
{
    size_t offset = 0;
    bool moved = true;

    if (arena < 0) {
        arena = memfd_create("libdualpipe fake device", MFD_CLOEXEC);
        if (arena < 0 || ftruncate(arena, (off_t)ARENA_BYTES) != 0)
            return false;
    }
    while (moved) {
        moved = false;
        for (range_t *r = ranges; r != NULL; r = r->next)
            if (r->kind == RANGE_DEVICE && offset < r->offset + r->pages && r->offset < offset + pages) {
                offset = r->offset + r->pages;
                moved = true;
            }
    }
    *offset_out = offset;
    return offset + pages <= ARENA_BYTES;
}

static unsigned char *map_guarded(int fd, size_t offset, size_t bytes)
{
    unsigned char *map = mmap(NULL, bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (map == MAP_FAILED)
        return NULL;
    if (mmap(map + PAGE, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED) {
        munmap(map, bytes + 2 * PAGE);
        return NULL;
    }
    return map;
}

/* Of the device: $DP_FAKE_MEMORY MiB, or 8 GiB. */
static size_t memory_bytes(void)
{
    const char *mib = getenv("DP_FAKE_MEMORY");

    return mib == NULL ? (size_t)8 << 30 : (size_t)strtoul(mib, NULL, 10) << 20;
}

/* What is left of it. With fake_lock. */
static size_t memory_left(void)
{
    size_t used = 0;

    for (const range_t *r = ranges; r != NULL; r = r->next)
        used += r->kind == RANGE_DEVICE ? r->pages : 0;
    return memory_bytes() > used ? memory_bytes() - used : 0;
}

/* The end lies against the guard, as far as 256-byte alignment allows. */
FAKE_EXPORT CUresult cuMemAlloc(CUdeviceptr *at, size_t bytes)
{
    size_t pages = whole(bytes, PAGE), offset;
    unsigned char *map = NULL;
    range_t *r = NULL;

    ENTER(cuMemAlloc);
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (capture_hinders())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&fake_lock);
    if (bytes <= memory_left() && place(pages, &offset) && (map = map_guarded(arena, offset, pages)) != NULL)
        r = add(RANGE_DEVICE, (uintptr_t)map + PAGE + pages - whole(bytes, 256), bytes);
    if (r != NULL) {
        r->device = fake_device();
        r->map = map;
        r->map_bytes = pages + 2 * PAGE;
        r->offset = offset;
        r->pages = pages;
        r->owner = getpid();
        *at = r->at;
    }
    pthread_mutex_unlock(&fake_lock);
    if (r == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* of more, the host may not have as much */
    memset((void *)*at, POISON, bytes <= POISON_MOST ? bytes : PAGE);
    return CUDA_SUCCESS;
}

void memory_zero(void *at, size_t bytes)
{
    uintptr_t from = whole((uintptr_t)at, PAGE), to = ((uintptr_t)at + bytes) / PAGE * PAGE;
    const range_t *r;
    off_t offset = -1;

    pthread_mutex_lock(&fake_lock);
    r = bytes > POISON_MOST ? find((CUdeviceptr)(uintptr_t)at, bytes) : NULL;
    if (r != NULL && r->kind == RANGE_DEVICE && r->map != NULL && r->owner == getpid())
        offset = (off_t)(r->offset + (from - (uintptr_t)r->map - PAGE));
    pthread_mutex_unlock(&fake_lock);
    if (offset < 0 || fallocate(arena, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)(to - from)) != 0) {
        memset(at, 0, bytes);
        return;
    }
    memset(at, 0, from - (uintptr_t)at);
    memset((void *)to, 0, (uintptr_t)at + bytes - to);
}

/* Waits for the whole device, as CUDA's does. */
FAKE_EXPORT CUresult cuMemFree(CUdeviceptr at)
{
    CUresult result = CUDA_SUCCESS;
    range_t *r;

    if (at == 0)
        return CUDA_SUCCESS;
    if (fake_enter("cuMemFree", true) == CUDA_SUCCESS)
        device_drain(fake_device());
    pthread_mutex_lock(&fake_lock);
    r = find_start(at, RANGE_DEVICE);
    if (r == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        (void)fallocate(arena, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)r->offset, (off_t)r->pages);
        munmap(r->map, r->map_bytes);
        drop(r);
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE_EXPORT CUresult cuMemGetInfo(size_t *unused, size_t *total)
{
    ENTER(cuMemGetInfo);
    pthread_mutex_lock(&fake_lock);
    *unused = memory_left();
    pthread_mutex_unlock(&fake_lock);
    *total = memory_bytes();
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr at)
{
    range_t *r;

    ENTER(cuMemGetAddressRange);
    pthread_mutex_lock(&fake_lock);
    r = find(at, 1);
    if (r != NULL && base != NULL)
        *base = r->at;
    if (r != NULL && bytes != NULL)
        *bytes = r->bytes;
    pthread_mutex_unlock(&fake_lock);
    return r != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

FAKE_EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr at)
{
    CUresult result = CUDA_SUCCESS;
    range_t *r;

    ENTER(cuPointerGetAttribute);
    pthread_mutex_lock(&fake_lock);
    r = find(at, 1);
    if (r == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    else
        switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(unsigned *)data =
                r->kind == RANGE_HOST || r->kind == RANGE_REGISTERED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            *(int *)data = r->device;
            break;
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            *(CUcontext *)data = fake_context(r->device);
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            *(CUdeviceptr *)data = at;
            break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            *(uint64_t *)data = r->id;
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            *(CUdeviceptr *)data = r->at;
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            *(size_t *)data = r->bytes;
            break;
        default:
            result = CUDA_ERROR_NOT_SUPPORTED;
        }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE_EXPORT CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
    ENTER(cuMemcpyHtoD);
    if (!memory_known(to, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy((void *)to, from, bytes);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
    ENTER(cuMemcpyDtoH);
    if (!memory_known(from, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(to, (const void *)from, bytes);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    ENTER(cuMemcpy);
    memmove((void *)to, (const void *)from, bytes);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t bytes)
{
    ENTER(cuMemsetD8);
    if (!memory_known(to, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memset((void *)to, value, bytes);
    return CUDA_SUCCESS;
}

/* ---- host memory that the device reaches ---- */

FAKE_EXPORT CUresult cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    unsigned char *map;
    range_t *r;

    ENTER(cuMemHostAlloc);
    if (bytes == 0 || (flags & ~7u) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (capture_hinders())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    map = mmap(NULL, whole(bytes, PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    r = add(RANGE_HOST, (uintptr_t)map, bytes);
    if (r != NULL) {
        r->device = fake_device();
        r->map = map;
        r->map_bytes = whole(bytes, PAGE);
    }
    pthread_mutex_unlock(&fake_lock);
    if (r == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(map, POISON, bytes < POISON_MOST ? bytes : POISON_MOST);
    *at = map;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemFreeHost(void *at)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    range_t *r;

    if (fake_enter("cuMemFreeHost", true) == CUDA_SUCCESS)
        device_drain(fake_device());
    pthread_mutex_lock(&fake_lock);
    r = find_start((uintptr_t)at, RANGE_HOST);
    if (r != NULL) {
        munmap(r->map, r->map_bytes);
        drop(r);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE_EXPORT CUresult cuMemHostRegister(void *at, size_t bytes, unsigned flags)
{
    CUresult result = CUDA_SUCCESS;

    ENTER(cuMemHostRegister);
    (void)flags;
    if (at == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    for (range_t *r = ranges; r != NULL; r = r->next)
        if ((uintptr_t)at < r->at + r->bytes && r->at < (uintptr_t)at + bytes)
            result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (result == CUDA_SUCCESS && add(RANGE_REGISTERED, (uintptr_t)at, bytes) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE_EXPORT CUresult cuMemHostUnregister(void *at)
{
    CUresult result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    range_t *r;

    if (fake_enter("cuMemHostUnregister", true) == CUDA_SUCCESS)
        device_drain(fake_device());
    pthread_mutex_lock(&fake_lock);
    r = find_start((uintptr_t)at, RANGE_REGISTERED);
    if (r != NULL) {
        drop(r);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE_EXPORT CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *at, unsigned flags)
{
    ENTER(cuMemHostGetDevicePointer);
    if (flags != 0 || !memory_known((uintptr_t)at, 1))
        return CUDA_ERROR_INVALID_VALUE;
    *device = (uintptr_t)at;
    return CUDA_SUCCESS;
}

/* ---- memory of other processes ---- */

typedef struct ipc_handle {
    uint32_t magic;
    int32_t pid, fd, device;
    uint64_t id, offset, pages, bytes;
} ipc_handle_t;

#define IPC_MAGIC 0x64706970u

FAKE_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at)
{
    ipc_handle_t h = {.magic = IPC_MAGIC, .pid = getpid()};
    range_t *r;

    ENTER(cuIpcGetMemHandle);
    pthread_mutex_lock(&fake_lock);
    r = find(at, 1);
    if (r != NULL && r->kind != RANGE_DEVICE)
        r = NULL;
    if (r != NULL) {
        h.fd = arena;
        h.device = r->device;
        h.id = r->id;
        h.offset = r->offset;
        h.pages = r->pages;
        h.bytes = r->bytes;
    }
    pthread_mutex_unlock(&fake_lock);
    if (r == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof(*handle));
    memcpy(handle, &h, sizeof(h));
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags)
{
    unsigned char *map = NULL;
    range_t *r = NULL;
    ipc_handle_t h;
    char path[64];
    int fd;

    ENTER(cuIpcOpenMemHandle);
    memcpy(&h, &handle, sizeof(h));
    if (h.magic != IPC_MAGIC || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (h.pid == getpid()) /* CUDA does not open a process's own handles */
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&fake_lock);
    for (r = ranges; r != NULL; r = r->next)
        if (r->kind == RANGE_IMPORTED && r->owner == h.pid && r->id == h.id)
            break;
    if (r != NULL)
        r->uses++;
    pthread_mutex_unlock(&fake_lock);
    if (r != NULL) {
        *at = r->at;
        return CUDA_SUCCESS;
    }
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)h.pid, (int)h.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        map = map_guarded(fd, h.offset, h.pages);
    if (fd >= 0)
        close(fd);
    if (map == NULL)
        return CUDA_ERROR_INVALID_HANDLE; /* the owner is gone */
    pthread_mutex_lock(&fake_lock);
    r = add(RANGE_IMPORTED, (uintptr_t)map + PAGE + h.pages - whole(h.bytes, 256), h.bytes);
    if (r != NULL) {
        r->map = map;
        r->map_bytes = h.pages + 2 * PAGE;
        r->owner = h.pid;
        r->id = h.id;
        r->device = h.device;
        *at = r->at;
    }
    pthread_mutex_unlock(&fake_lock);
    return r != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

FAKE_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr at)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    range_t *r;

    if (fake_enter("cuIpcCloseMemHandle", true) == CUDA_SUCCESS)
        device_drain(fake_device());
    pthread_mutex_lock(&fake_lock);
    r = find_start(at, RANGE_IMPORTED);
    if (r != NULL) {
        result = CUDA_SUCCESS;
        if (--r->uses == 0) {
            munmap(r->map, r->map_bytes);
            drop(r);
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

/* ---- virtual memory: a handle is a descriptor ---- */

static int handle_fd(CUmemGenericAllocationHandle handle)
{
    return (int)(uint32_t)handle;
}

static CUmemGenericAllocationHandle handle_of(int fd)
{
    return (CUmemGenericAllocationHandle)(uint32_t)fd | (CUmemGenericAllocationHandle)1 << 40;
}

FAKE_EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
                                                   CUmemAllocationGranularity_flags option)
{
    ENTER_ANYWHERE(cuMemGetAllocationGranularity);
    (void)prop;
    (void)option;
    *bytes = GRANULE;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                                 unsigned long long flags)
{
    int fd;

    ENTER(cuMemCreate);
    if (bytes == 0 || bytes % GRANULE != 0 || flags != 0 || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > (size_t)8 << 30)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fd = memfd_create("libdualpipe fake device handle", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = handle_of(fd);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    return close(handle_fd(handle)) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                                  CUmemAllocationHandleType type, unsigned long long flags)
{
    int fd;

    ENTER_ANYWHERE(cuMemExportToShareableHandle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    fd = fcntl(handle_fd(handle), F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                                    CUmemAllocationHandleType type)
{
    int fd;

    ENTER(cuMemImportFromShareableHandle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    fd = fcntl((int)(intptr_t)os_handle, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = handle_of(fd);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wish,
                                         unsigned long long flags)
{
    unsigned char *map;
    uintptr_t start;

    ENTER_ANYWHERE(cuMemAddressReserve);
    if (bytes == 0 || bytes % GRANULE != 0 || flags != 0 || alignment > GRANULE)
        return CUDA_ERROR_INVALID_VALUE;
    (void)wish;
    map = mmap(NULL, bytes + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    start = whole((uintptr_t)map, GRANULE);
    if (start > (uintptr_t)map)
        munmap(map, start - (uintptr_t)map);
    if (start + bytes < (uintptr_t)map + bytes + GRANULE)
        munmap((void *)(start + bytes), (uintptr_t)map + GRANULE - start);
    *at = start;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
    return munmap((void *)at, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                              unsigned long long flags)
{
    struct stat info;
    range_t *r;

    ENTER_ANYWHERE(cuMemMap);
    if (at % GRANULE != 0 || bytes % GRANULE != 0 || offset != 0 || flags != 0 ||
        fstat(handle_fd(handle), &info) != 0 || (size_t)info.st_size < bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap((void *)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, handle_fd(handle), 0) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    r = add(RANGE_VIRTUAL, at, bytes);
    pthread_mutex_unlock(&fake_lock);
    return r != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

FAKE_EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    range_t *r;

    if (fake_enter("cuMemUnmap", true) == CUDA_SUCCESS)
        device_drain(fake_device());
    pthread_mutex_lock(&fake_lock);
    r = find_start(at, RANGE_VIRTUAL);
    if (r != NULL && r->bytes == bytes &&
        mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
            MAP_FAILED) {
        drop(r);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE_EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    ENTER_ANYWHERE(cuMemSetAccess);
    for (size_t i = 0; i < count; i++)
        if (mprotect((void *)at, bytes,
                     access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                     : access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                           : PROT_NONE) != 0)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
