/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * nccl_fake.c: a libnccl for tests, on the streams of the fake CUDA driver: point-to-point
 * operations in groups, matched in order between each two ranks, for threads and processes, with
 * real blocking of the stream until both sides have come; sums, which are added in another order
 * than that of ranks; communicators that are split off others.
 *
 * It is as awkward as NCCL where that finds mistakes: communicators of non-blocking configuration
 * do nothing until they are polled, work reaches the stream only then; counts that differ are an
 * error; operations of one communicator run one group after the other; the blocks of a kernel each
 * need a multiprocessor of the stream's share and keep it until the kernel is done, nothing moves
 * before all have one, and clusters do not fit into what a split of the device left over; two ranks
 * are connected when they first talk, each side when its context is idle (which is not asked for
 * where ranks share one), and fake_nccl_connections() counts the sides, fake_nccl_bytes() what was
 * sent, fake_nccl_windows() windows; a communicator that is split off is there some time after the
 * call, whose pointer has to be good until then; the same GPU twice under one NCCL_HOSTID is
 * refused, unless DP_FAKE_NCCL_SHARE=1 (ranks as threads); a communicator has two streams, one of
 * which each launch waits for, and which waits for it. DP_FAKE_NCCL_FAIL=n lets the n-th group
 * of this process fail with an asynchronous error.
 *
 * Windows and puts are those of 2.29: all ranks register, out of memory that NCCL has made; there
 * is no window, and no word of it, where GPUs do not reach each other (another NCCL_HOSTID) or
 * NCCL_WIN_ENABLE is 0. What is put has to lie in a window, the first put of each rank sets up
 * something with the others, and the bytes of one put come in a separate order; puts to one
 * rank, and all of one communicator, come one after the other, and need no multiprocessor.
 * DP_FAKE_NCCL_VERSION is another version than that of the header. DP_FAKE_NCCL_WINDOWLESS=r lets
 * rank r of any communicator have no window, without a word, while the others wait for it; with
 * =r:late it fails when all have come. */
#include "tests/support/debug.h"

#include <cuda.h>
#include <nccl.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define EXPORT      __attribute__((visibility("default")))
#define CHUNK       (16u << 10)
#define HOST_BYTES  64
#define LAUNCH_POLL 2 /* polls until work is on its stream */
#define SMS_MOST    132
#define CTAS        32 /* without a limit */
#define PAGE        4096
#define PUTS_SINCE  22900

/* From one rank to another. Each word has one writer. */
typedef struct lane {
    uint64_t bytes[2];         /* of operation k, at k % 2 */
    uint32_t sent, received;   /* operations that the sender, the receiver have posted */
    uint32_t filled, drained;  /* chunks */
    uint32_t unequal;          /* counts differed */
    uint32_t sender, receiver; /* want to talk */
    unsigned char chunk[CHUNK];
} lane_t;

/* A window of one rank, for the others. */
typedef struct offer {
    CUipcMemHandle handle; /* of the allocation */
    uint64_t base, offset, bytes;
} offer_t;

typedef struct member {
    int32_t pid, device;
    char host[HOST_BYTES];
    uint32_t splits; /* begun; the next two are of split k, at k % 2 */
    int32_t color[2], key[2];
    uint32_t windows; /* begun; offers as those */
    uint32_t mapped;  /* have come this far */
    uint32_t gone;    /* aborted */
    offer_t offer[2];
    uint32_t puts; /* has begun to */
} member_t;

typedef struct shared {
    uint32_t joined;
    uint32_t pad[15];
} shared_t;

struct handle {
    struct handle *next;
};

struct allocation {
    struct allocation *next;
    unsigned char *base;
    size_t bytes;
    unsigned windows; /* in it */
};

struct window {
    struct window *next;
    struct allocation *allocation;
    unsigned char *base;
    size_t bytes;
    struct {
        unsigned char *at;
        CUdeviceptr opened; /* 0: is of this process */
    } of[];                 /* each rank */
};

struct ncclComm {
    int n, rank, blocking, refs, polls;
    unsigned ctas;
    bool cluster; /* its kernels' blocks go in clusters */
    char name[NCCL_UNIQUE_ID_BYTES];
    shared_t *shared;
    member_t *members;
    lane_t *lanes; /* [from * n + to] */
    size_t bytes;
    uint32_t *send_no, *recv_no; /* [n] operations enqueued */
    bool *asked;                 /* [2n] to receive, to send: a connection, of us */
    uint32_t tickets, served;    /* groups enqueued, groups over */
    uint32_t aborted;
    int state; /* ncclResult_t */
    bool joining, finishing;
    struct task *pending; /* not yet on the stream */
    uint32_t splits;      /* over */
    ncclComm_t *child;    /* of the split that is not: where it goes */
    ncclConfig_t child_config;
    struct handle *handles;
    struct window *windows, *opening; /* opening: not there yet */
    ncclWindow_t *opening_out;
    uint32_t windows_made;
    bool puts;             /* may */
    CUstream own[2];       /* of the device's work, of the host's, as 2.28 has them */
    CUevent order;         /* of the first and the user's */
    struct ncclComm *next; /* of those that a group aborts */
};

typedef struct op {
    bool sends, posted, done;
    unsigned char *to; /* of a put; else NULL */
    int peer;
    uint32_t number;
    unsigned char *data;
    size_t bytes, moved;
} op_t;

/* A sum of everyone's elements, which the operations of a task bring. */
typedef struct reduction {
    struct ncclComm *comm; /* NULL: none */
    void *data;
    unsigned char *all; /* [n] ranks, ours left out */
    size_t count;
    ncclDataType_t type;
} reduction_t;

typedef struct task {
    struct ncclComm *comm;
    CUstream stream;
    uint32_t ticket;
    bool puts;
    unsigned char sms[SMS_MOST]; /* those that its blocks have */
    reduction_t reduction;
    int count;
    op_t ops[];
} task_t;

/* What a thread's open group holds. */
typedef struct call {
    struct ncclComm *comm;
    CUstream stream;
    op_t op;
} call_t;

static __thread struct {
    int depth, count, room;
    struct ncclComm *aborted;
    call_t *calls;
    reduction_t reduction;
} group;

static struct {
    pthread_mutex_t lock;
    CUresult (*launch)(CUstream, CUhostFn, void *);
    CUresult (*device)(CUdevice *);
    CUresult (*allocate)(CUdeviceptr *, size_t);
    CUresult (*release)(CUdeviceptr);
    CUresult (*drain)(void);
    CUresult (*get_handle)(CUipcMemHandle *, CUdeviceptr);
    CUresult (*open_handle)(CUdeviceptr *, CUipcMemHandle, unsigned);
    CUresult (*close_handle)(CUdeviceptr);
    struct allocation *allocations;
    CUresult (*stream)(CUstream *, unsigned, int);
    CUresult (*end_stream)(CUstream);
    CUresult (*event)(CUevent *, unsigned);
    CUresult (*end_event)(CUevent);
    CUresult (*record)(CUevent, CUstream);
    CUresult (*wait)(CUstream, CUevent, unsigned);
    unsigned (*take)(CUstream, unsigned, unsigned char *, unsigned *);
    void (*give)(CUstream, unsigned char *);
    int (*fits_cluster)(CUstream);
    int (*idle)(void);
    unsigned connections, windows;
    uint64_t sent;
    int groups;
    char error[256];
} world = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ncclResult_t fail(ncclResult_t result, const char *text)
{
    pthread_mutex_lock(&world.lock);
    snprintf(world.error, sizeof(world.error), "%s", text);
    pthread_mutex_unlock(&world.lock);
    return result;
}

static bool find_driver(void)
{
    const struct {
        const char *name;
        void **to;
    } functions[] = {{"cuLaunchHostFunc", (void **)&world.launch},
                     {"cuCtxGetDevice", (void **)&world.device},
                     {"cuMemAlloc_v2", (void **)&world.allocate},
                     {"cuMemFree_v2", (void **)&world.release},
                     {"cuCtxSynchronize", (void **)&world.drain},
                     {"cuIpcGetMemHandle", (void **)&world.get_handle},
                     {"cuIpcOpenMemHandle_v2", (void **)&world.open_handle},
                     {"cuIpcCloseMemHandle", (void **)&world.close_handle},
                     {"cuStreamCreateWithPriority", (void **)&world.stream},
                     {"cuStreamDestroy_v2", (void **)&world.end_stream},
                     {"cuEventCreate", (void **)&world.event},
                     {"cuEventDestroy_v2", (void **)&world.end_event},
                     {"cuEventRecord", (void **)&world.record},
                     {"cuStreamWaitEvent", (void **)&world.wait},
                     {"fake_sms_take", (void **)&world.take},
                     {"fake_sms_give", (void **)&world.give},
                     {"fake_sms_cluster", (void **)&world.fits_cluster},
                     {"fake_idle", (void **)&world.idle}};
    const char *path = debug_entry("lib.cuda");
    void *driver = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    bool all = driver != NULL;

    pthread_mutex_lock(&world.lock);
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]) && all; i++) {
        if (*functions[i].to == NULL)
            *functions[i].to = dlsym(driver, functions[i].name);
        all = *functions[i].to != NULL;
    }
    pthread_mutex_unlock(&world.lock);
    return all;
}

static void nap(void)
{
    struct timespec t = {0, 50000};

    nanosleep(&t, NULL);
}

static int state_of(const struct ncclComm *c)
{
    return __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
}

static void set_state(struct ncclComm *c, ncclResult_t state)
{
    __atomic_store_n(&c->state, (int)state, __ATOMIC_RELEASE);
}

static bool is_aborted(const struct ncclComm *c)
{
    return __atomic_load_n(&c->aborted, __ATOMIC_ACQUIRE) != 0;
}

static uint32_t load(const uint32_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static void store(uint32_t *at, uint32_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

/* ---- life of a communicator ---- */

static void drop(struct ncclComm *c)
{
    if (__atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    while (c->handles != NULL) {
        struct handle *h = c->handles;

        c->handles = h->next;
        free(h);
    }
    if (c->shared != NULL)
        munmap(c->shared, c->bytes);
    free(c->send_no);
    free(c->recv_no);
    free(c->asked);
    free(c);
}

EXPORT ncclResult_t ncclGetVersion(int *version)
{
    const char *text = getenv("DP_FAKE_NCCL_VERSION");

    *version = text != NULL ? atoi(text) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const names[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "operation in progress"};

    return (size_t)result < sizeof(names) / sizeof(names[0]) ? names[result] : "unknown result code";
}

EXPORT const char *ncclGetLastError(ncclComm_t c)
{
    static _Thread_local char error[sizeof(world.error)];

    (void)c;
    pthread_mutex_lock(&world.lock);
    memcpy(error, world.error, sizeof(error));
    pthread_mutex_unlock(&world.lock);
    return error;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    uint64_t random[2];

    memset(id, 0, sizeof(*id));
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return fail(ncclSystemError, "no random numbers");
    snprintf(id->internal, sizeof(id->internal), "/dp_nccl_fake_%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return ncclSuccess;
}

static bool map(struct ncclComm *c)
{
    size_t n = (size_t)c->n, lanes = sizeof(shared_t) + n * sizeof(member_t);
    int fd = shm_open(c->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *memory;

    lanes = (lanes + 63) / 64 * 64;
    c->bytes = lanes + n * n * sizeof(lane_t);
    if (fd < 0)
        return false;
    memory = ftruncate(fd, (off_t)c->bytes) == 0 ? mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                                                 : MAP_FAILED;
    close(fd);
    if (memory == MAP_FAILED)
        return false;
    c->shared = memory;
    c->members = (member_t *)(void *)(c->shared + 1);
    c->lanes = (lane_t *)(void *)((char *)memory + lanes);
    return true;
}

static void introduce(struct ncclComm *c)
{
    member_t *me = &c->members[c->rank];
    const char *host = getenv("NCCL_HOSTID");
    CUdevice device = -1;

    (void)world.device(&device);
    me->pid = getpid();
    me->device = device;
    snprintf(me->host, sizeof(me->host), "%s", host != NULL ? host : "this host");
    __atomic_add_fetch(&c->shared->joined, 1, __ATOMIC_ACQ_REL);
}

/* Channels are rounded up to a power of two behind the limit. */
static unsigned blocks_of(int most)
{
    const char *text = getenv("NCCL_MAX_CTAS");
    int wanted = text != NULL ? atoi(text) : most == NCCL_CONFIG_UNDEF_INT ? CTAS : most;
    unsigned blocks = 1;

    while ((int)blocks < wanted && blocks < CTAS)
        blocks *= 2;
    return blocks;
}

/* On Hopper, unless told not to. */
static bool wants_clusters(int size)
{
    const char *text = getenv("NCCL_CGA_CLUSTER_SIZE");

    return text != NULL ? atoi(text) > 0 : size == NCCL_CONFIG_UNDEF_INT || size > 0;
}

static bool open_streams(struct ncclComm *c)
{
    return world.stream(&c->own[0], CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS &&
           world.stream(&c->own[1], CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS &&
           world.event(&c->order, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
}

static void close_streams(struct ncclComm *c)
{
    for (int i = 0; i < 2; i++)
        if (c->own[i] != NULL)
            (void)world.end_stream(c->own[i]);
    if (c->order != NULL)
        (void)world.end_event(c->order);
}

static struct ncclComm *make(const char *name, int n, int rank, const ncclConfig_t *config)
{
    struct ncclComm *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return NULL;
    *c = (struct ncclComm){
        .n = n, .rank = rank, .blocking = config->blocking != 0, .refs = 1, .state = ncclInProgress, .joining = true};
    memcpy(c->name, name, sizeof(c->name) - 1);
    c->ctas = blocks_of(config->maxCTAs);
    c->cluster = wants_clusters(config->cgaClusterSize);
    c->send_no = calloc((size_t)n, sizeof(*c->send_no));
    c->recv_no = calloc((size_t)n, sizeof(*c->recv_no));
    c->asked = calloc(2 * (size_t)n, sizeof(*c->asked));
    if (c->send_no == NULL || c->recv_no == NULL || c->asked == NULL || !open_streams(c) || !map(c)) {
        close_streams(c);
        drop(c);
        return NULL;
    }
    introduce(c);
    return c;
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    struct ncclComm *c;
    CUdevice device;

    if (n < 1 || rank < 0 || rank >= n || config == NULL || config->magic != 0xcafebeef || id.internal[0] != '/')
        return fail(ncclInvalidArgument, "a rank, the unique id or the configuration makes no sense");
    if (!find_driver() || world.device(&device) != CUDA_SUCCESS)
        return fail(ncclUnhandledCudaError, "no CUDA context is current");
    c = make(id.internal, n, rank, config);
    if (c == NULL)
        return fail(ncclSystemError, "no shared memory");
    *out = c;
    if (!c->blocking)
        return ncclInProgress;
    while (state_of(c) == ncclInProgress) {
        ncclResult_t state;

        (void)ncclCommGetAsyncError(c, &state);
        nap();
    }
    return (ncclResult_t)state_of(c);
}

/* Non-blocking ones alone. */
EXPORT ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    member_t *me;

    if (c == NULL || out == NULL || config == NULL || config->magic != 0xcafebeef || config->blocking != 0)
        return fail(ncclInvalidArgument, "a communicator or a configuration makes no sense");
    if (state_of(c) != ncclSuccess)
        return fail(ncclInvalidUsage, "the communicator is busy, finished or broken: poll it first");
    if (config->splitShare == 1)
        return fail(ncclInvalidUsage, "kernels of communicators that share resources run one after the other");
    *out = NULL;
    me = &c->members[c->rank];
    me->color[c->splits % 2] = color;
    me->key[c->splits % 2] = key;
    store(&me->splits, c->splits + 1);
    c->child = out;
    c->child_config = *config;
    c->polls = 0;
    set_state(c, ncclInProgress);
    return ncclInProgress;
}

/* All have said in which one they are. */
static void split(struct ncclComm *c)
{
    const uint32_t k = c->splits % 2;
    const member_t *me = &c->members[c->rank];
    char name[sizeof(c->name)];
    int n = 0, rank = 0;

    for (int i = 0; i < c->n; i++)
        if ((int32_t)(load(&c->members[i].splits) - c->splits) < 1)
            return;
    for (int i = 0; i < c->n; i++) {
        const member_t *m = &c->members[i];

        if (m->color[k] != me->color[k])
            continue;
        n++;
        rank += m->key[k] < me->key[k] || (m->key[k] == me->key[k] && i < c->rank);
    }
    snprintf(name, sizeof(name), "%.80s.%u.%d", c->name, c->splits, me->color[k]);
    c->splits++;
    if (me->color[k] != NCCL_SPLIT_NOCOLOR)
        *c->child = make(name, n, rank, &c->child_config);
    set_state(c, me->color[k] == NCCL_SPLIT_NOCOLOR || *c->child != NULL ? ncclSuccess
                                                                         : fail(ncclSystemError, "no shared memory"));
    c->child = NULL;
}

/* Ranks as threads on one device: NCCL itself knows no such thing. */
static bool shares_device(void)
{
    const char *share = getenv("DP_FAKE_NCCL_SHARE");

    return share != NULL && strcmp(share, "1") == 0;
}

/* All are there: the name has served, and no GPU may be there twice. */
static void join(struct ncclComm *c)
{
    if (__atomic_load_n(&c->shared->joined, __ATOMIC_ACQUIRE) < (uint32_t)c->n)
        return;
    c->joining = false;
    if (c->rank == 0)
        shm_unlink(c->name);
    for (int a = 0; a < c->n && !shares_device(); a++)
        for (int b = a + 1; b < c->n; b++)
            if (c->members[a].device == c->members[b].device && strcmp(c->members[a].host, c->members[b].host) == 0) {
                set_state(c, fail(ncclInvalidUsage, "Duplicate GPU detected: two ranks are on the same CUDA device"));
                return;
            }
    set_state(c, ncclSuccess);
}

/* ---- windows ---- */

static bool reach_each_other(const struct ncclComm *c)
{
    const char *enabled = getenv("NCCL_WIN_ENABLE");

    for (int i = 0; i < c->n; i++)
        if (strcmp(c->members[i].host, c->members[c->rank].host) != 0)
            return false;
    return enabled == NULL || strcmp(enabled, "0") != 0;
}

static bool is_windowless(const struct ncclComm *c, const char *when)
{
    const char *text = getenv("DP_FAKE_NCCL_WINDOWLESS");
    char *end;

    return text != NULL && text[0] != '\0' && strtol(text, &end, 10) == c->rank && strcmp(end, when) == 0;
}

/* Counts a window in it. */
static struct allocation *allocation_of(const unsigned char *at, size_t bytes)
{
    struct allocation *a;

    pthread_mutex_lock(&world.lock);
    for (a = world.allocations; a != NULL; a = a->next)
        if (at >= a->base && bytes <= a->bytes && (size_t)(at - a->base) <= a->bytes - bytes)
            break;
    if (a != NULL)
        a->windows++;
    pthread_mutex_unlock(&world.lock);
    return a;
}

static void close_window(struct ncclComm *c, struct window *w)
{
    for (int i = 0; i < c->n; i++)
        if (w->of[i].opened != 0)
            (void)world.close_handle(w->of[i].opened);
    pthread_mutex_lock(&world.lock);
    w->allocation->windows--;
    pthread_mutex_unlock(&world.lock);
    free(w);
}

/* With nothing on its way, and the last thing of a communicator. */
static void leave(struct ncclComm *c)
{
    if (c->opening != NULL)
        close_window(c, c->opening);
    c->opening = NULL;
    while (c->windows != NULL) {
        struct window *w = c->windows;

        c->windows = w->next;
        close_window(c, w);
    }
    close_streams(c);
    drop(c);
}

EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *buffer, size_t bytes, ncclWindow_t *out, int flags)
{
    struct allocation *a;
    struct window *w;
    member_t *me;
    offer_t *offer;

    if (c == NULL || out == NULL || buffer == NULL || bytes == 0 || (uintptr_t)buffer % PAGE != 0 ||
        flags != NCCL_WIN_COLL_SYMMETRIC || c->blocking)
        return fail(ncclInvalidArgument, "a communicator, a buffer or flags make no sense");
    if (state_of(c) != ncclSuccess)
        return fail(ncclInvalidUsage, "the communicator is busy, finished or broken: poll it first");
    *out = NULL;
    if (!reach_each_other(c) || is_windowless(c, ""))
        return ncclSuccess;
    for (w = c->windows; w != NULL; w = w->next)
        if ((unsigned char *)buffer < w->base + w->bytes && w->base < (unsigned char *)buffer + bytes)
            return fail(ncclInvalidUsage, "a buffer is in two windows");
    a = allocation_of(buffer, bytes);
    if (a == NULL)
        return fail(ncclInvalidArgument, "a window is of memory of ncclMemAlloc");
    w = calloc(1, sizeof(*w) + (size_t)c->n * sizeof(w->of[0]));
    if (w == NULL)
        return fail(ncclSystemError, "no memory");
    *w = (struct window){.allocation = a, .base = buffer, .bytes = bytes};
    me = &c->members[c->rank];
    offer = &me->offer[c->windows_made % 2];
    *offer = (offer_t){
        .base = (uint64_t)(uintptr_t)buffer, .offset = (uint64_t)((unsigned char *)buffer - a->base), .bytes = bytes};
    c->opening = w;
    c->opening_out = out;
    if (world.get_handle(&offer->handle, (CUdeviceptr)(uintptr_t)a->base) != CUDA_SUCCESS)
        return fail(ncclUnhandledCudaError, "memory that others cannot map");
    store(&me->windows, c->windows_made + 1);
    c->polls = 0;
    set_state(c, ncclInProgress);
    return ncclInProgress;
}

/* All have said where theirs is. */
static void open_window(struct ncclComm *c)
{
    struct window *w = c->opening;

    for (int i = 0; i < c->n; i++)
        if (load(&c->members[i].gone)) {
            set_state(c, fail(ncclRemoteError, "a rank has left"));
            return;
        }
    for (int i = 0; i < c->n; i++)
        if ((int32_t)(load(&c->members[i].windows) - c->windows_made) < 1)
            return;
    if (is_windowless(c, ":late")) {
        set_state(c, fail(ncclSystemError, "a window that was not to be"));
        return;
    }
    store(&c->members[c->rank].mapped, c->windows_made + 1);
    for (int i = 0; i < c->n; i++)
        if ((int32_t)(load(&c->members[i].mapped) - c->windows_made) < 1)
            return;
    for (int i = 0; i < c->n; i++) {
        const offer_t *offer = &c->members[i].offer[c->windows_made % 2];

        if (offer->bytes != w->bytes) {
            set_state(c, fail(ncclInvalidUsage, "windows of one call differ in size"));
            return;
        }
        w->of[i].at = (unsigned char *)(uintptr_t)offer->base;
        if (c->members[i].pid == getpid())
            continue;
        if (world.open_handle(&w->of[i].opened, offer->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS) {
            set_state(c, fail(ncclUnhandledCudaError, "memory of another rank cannot be mapped"));
            return;
        }
        w->of[i].at = (unsigned char *)(uintptr_t)w->of[i].opened + offer->offset;
    }
    c->windows_made++;
    w->next = c->windows;
    c->windows = w;
    *c->opening_out = (ncclWindow_t)(void *)w;
    __atomic_add_fetch(&world.windows, 1, __ATOMIC_RELAXED);
    c->opening = NULL;
    set_state(c, ncclSuccess);
}

EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t window)
{
    for (struct window **at = &c->windows; *at != NULL; at = &(*at)->next)
        if ((void *)*at == (void *)window) {
            struct window *w = *at;

            *at = w->next;
            close_window(c, w);
            return ncclSuccess;
        }
    return fail(ncclInvalidArgument, "this was not registered");
}

/* Where so many bytes begin in a window. */
static bool is_inside(const struct window *w, const unsigned char *at, size_t bytes)
{
    return at >= w->base && bytes <= w->bytes && (size_t)(at - w->base) <= w->bytes - bytes;
}

/* ---- work on the stream ---- */

static bool peer_is_gone(const struct ncclComm *c, int peer)
{
    return kill(c->members[peer].pid, 0) != 0 && errno == ESRCH;
}

/* Moves what can be moved; true when anything did. */
static bool push(struct ncclComm *c, op_t *op)
{
    lane_t *lane = &c->lanes[c->rank * c->n + op->peer];
    size_t n;

    if (!op->posted) {
        lane->bytes[op->number % 2] = op->bytes;
        store(&lane->sent, op->number + 1);
        op->posted = true;
        return true;
    }
    if ((int32_t)(load(&lane->received) - op->number) < 1 || load(&lane->filled) != load(&lane->drained))
        return false;
    if (op->moved == op->bytes) {
        op->done = true;
        return true;
    }
    n = op->bytes - op->moved < CHUNK ? op->bytes - op->moved : CHUNK;
    memcpy(lane->chunk, op->data + op->moved, n);
    op->moved += n;
    __atomic_add_fetch(&world.sent, n, __ATOMIC_RELAXED);
    store(&lane->filled, load(&lane->filled) + 1);
    return true;
}

static bool pull(struct ncclComm *c, op_t *op)
{
    lane_t *lane = &c->lanes[op->peer * c->n + c->rank];
    size_t n;

    if (!op->posted) {
        store(&lane->received, op->number + 1);
        op->posted = true;
        return true;
    }
    if ((int32_t)(load(&lane->sent) - op->number) < 1)
        return false;
    if (lane->bytes[op->number % 2] != op->bytes) {
        store(&lane->unequal, 1);
        set_state(c, fail(ncclInvalidUsage, "a send and its receive have different counts"));
        return false;
    }
    if (op->moved == op->bytes) {
        op->done = true;
        return true;
    }
    if (load(&lane->filled) == load(&lane->drained))
        return false;
    n = op->bytes - op->moved < CHUNK ? op->bytes - op->moved : CHUNK;
    memcpy(op->data + op->moved, lane->chunk, n);
    op->moved += n;
    store(&lane->drained, load(&lane->drained) + 1);
    return true;
}

/* Operations between two ranks in one direction go one after the other. */
static bool is_first(const task_t *t, int i)
{
    for (int k = 0; k < i; k++)
        if (!t->ops[k].done && t->ops[k].peer == t->ops[i].peer && t->ops[k].sends == t->ops[i].sends)
            return false;
    return true;
}

static void look_for_trouble(struct ncclComm *c, const task_t *t)
{
    for (int i = 0; i < t->count; i++) {
        const op_t *op = &t->ops[i];

        if (op->done)
            continue;
        if (op->sends && load(&c->lanes[c->rank * c->n + op->peer].unequal))
            set_state(c, fail(ncclInvalidUsage, "a send and its receive have different counts"));
        if (peer_is_gone(c, op->peer))
            set_state(c, fail(ncclRemoteError, "a rank is gone"));
    }
}

/* Blocks start where there is room, and stay there. */
static void become_resident(struct ncclComm *c, task_t *t)
{
    unsigned most = 0;

    while (world.take(t->stream, c->ctas, t->sms, &most) < most && !is_aborted(c))
        nap();
}

/* From the last rank to the first. */
#define ADD(T)                                                                                                         \
    for (size_t i = 0; i < r->count; i++) {                                                                            \
        T sum = 0;                                                                                                     \
                                                                                                                       \
        for (int p = r->comm->n - 1; p >= 0; p--)                                                                      \
            sum +=                                                                                                     \
                p == r->comm->rank ? ((T *)r->data)[i] : ((const T *)(const void *)r->all)[(size_t)p * r->count + i];  \
        ((T *)r->data)[i] = sum;                                                                                       \
    }
static void add_up(const reduction_t *r)
{
    if (r->type == ncclFloat32)
        ADD(float)
    else if (r->type == ncclFloat64)
        ADD(double)
    else
        ADD(uint64_t)
}

/* The second half first: what has come of one put says nothing of the rest. A word comes as one. */
static void move(op_t *op)
{
    const size_t half = op->bytes / 2;

    if (op->bytes == sizeof(uint64_t)) {
        __atomic_store_n((uint64_t *)(void *)op->to, *(const uint64_t *)(const void *)op->data, __ATOMIC_RELEASE);
    } else {
        memcpy(op->to + half, op->data + half, op->bytes - half);
        memcpy(op->to, op->data, half);
    }
    op->done = true;
    __atomic_add_fetch(&world.sent, op->bytes, __ATOMIC_RELAXED);
}

static void CUDA_CB run_task(void *arg)
{
    task_t *t = arg;
    struct ncclComm *c = t->comm;
    int left = t->count;

    while (load(&c->served) != t->ticket && !is_aborted(c))
        nap();
    for (int i = 0; t->puts && i < t->count; i++, left--) {
        move(&t->ops[i]);
        nap(); /* what is put next comes later */
    }
    if (!t->puts)
        become_resident(c, t);
    for (unsigned round = 0; left > 0 && !is_aborted(c); round++) {
        bool moved = false;

        left = 0;
        for (int i = 0; i < t->count; i++) {
            op_t *op = &t->ops[i];

            if (!op->done && is_first(t, i) && state_of(c) == ncclSuccess)
                moved |= op->sends ? push(c, op) : pull(c, op);
            left += !op->done;
        }
        if (!moved && left > 0) {
            nap();
            if (round % 64 == 63)
                look_for_trouble(c, t);
        }
    }
    if (t->reduction.comm != NULL && left == 0)
        add_up(&t->reduction);
    free(t->reduction.all);
    world.give(t->stream, t->sms);
    __atomic_add_fetch(&c->served, 1, __ATOMIC_ACQ_REL);
    drop(c);
    free(t);
}

EXPORT unsigned fake_nccl_connections(void)
{
    return __atomic_load_n(&world.connections, __ATOMIC_RELAXED);
}

/* Made, not those that are there. */
EXPORT unsigned fake_nccl_windows(void)
{
    return __atomic_load_n(&world.windows, __ATOMIC_RELAXED);
}

EXPORT uint64_t fake_nccl_bytes(void)
{
    return __atomic_load_n(&world.sent, __ATOMIC_RELAXED);
}

static void ask(struct ncclComm *c, const op_t *op)
{
    lane_t *lane = op->sends ? &c->lanes[c->rank * c->n + op->peer] : &c->lanes[op->peer * c->n + c->rank];

    c->asked[op->peer + (op->sends ? c->n : 0)] = true;
    store(op->sends ? &lane->sender : &lane->receiver, 1);
    __atomic_add_fetch(&world.connections, 1, __ATOMIC_RELAXED);
}

/* Maps memory and the like, for which nothing may run here; then the other side has to do so.
 * Whether all that the task needs is there. */
static bool may_put(struct ncclComm *c)
{
    if (!c->puts && !shares_device() && !world.idle())
        return false;
    if (!c->puts)
        __atomic_add_fetch(&world.connections, 1, __ATOMIC_RELAXED);
    c->puts = true;
    store(&c->members[c->rank].puts, 1);
    for (int i = 0; i < c->n; i++)
        if (!load(&c->members[i].puts))
            return false;
    return true;
}

static bool is_connected(struct ncclComm *c, const task_t *t)
{
    bool all = true;

    if (t->puts)
        return may_put(c);
    for (int i = 0; i < t->count; i++)
        all &= c->asked[t->ops[i].peer + (t->ops[i].sends ? c->n : 0)];
    if (!all && !shares_device() && !world.idle())
        return false;
    for (int i = 0; i < t->count; i++)
        if (!c->asked[t->ops[i].peer + (t->ops[i].sends ? c->n : 0)])
            ask(c, &t->ops[i]);
    for (int i = 0; i < t->count; i++) {
        const op_t *op = &t->ops[i];

        if (!load(op->sends ? &c->lanes[c->rank * c->n + op->peer].receiver
                            : &c->lanes[op->peer * c->n + c->rank].sender))
            return false;
    }
    return true;
}

/* Behind what the communicator's stream has, which then waits for it. */
static bool put_on_streams(struct ncclComm *c, task_t *t)
{
    CUstream user = t->stream;

    if (world.record(c->order, c->own[0]) != CUDA_SUCCESS || world.wait(user, c->order, 0) != CUDA_SUCCESS ||
        world.launch(user, run_task, t) != CUDA_SUCCESS)
        return false;
    if (world.record(c->order, user) != CUDA_SUCCESS || world.wait(c->own[0], c->order, 0) != CUDA_SUCCESS)
        set_state(c, fail(ncclUnhandledCudaError, "a stream takes no event"));
    return true;
}

static void launch(struct ncclComm *c)
{
    task_t *t = c->pending;

    c->pending = NULL;
    if (!t->puts && c->cluster && !world.fits_cluster(t->stream))
        set_state(c, fail(ncclUnhandledCudaError, "a cluster of blocks does not fit into this share of the device"));
    else if (put_on_streams(c, t))
        return;
    else
        set_state(c, fail(ncclUnhandledCudaError, "the stream takes no work"));
    free(t->reduction.all);
    drop(c);
    free(t);
}

/* Everything that a non-blocking communicator does, it does when it is asked how it is. */
EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    if (c == NULL)
        return fail(ncclInvalidArgument, "no communicator");
    c->polls++;
    if (state_of(c) == ncclInProgress && c->joining)
        join(c);
    else if (state_of(c) == ncclInProgress && c->child != NULL && c->polls >= LAUNCH_POLL)
        split(c);
    else if (state_of(c) == ncclInProgress && c->opening != NULL && c->polls >= LAUNCH_POLL)
        open_window(c);
    else if (state_of(c) == ncclInProgress && c->pending != NULL && c->polls >= LAUNCH_POLL &&
             is_connected(c, c->pending)) {
        set_state(c, ncclSuccess);
        launch(c);
    } else if (state_of(c) == ncclInProgress && c->finishing && load(&c->served) == c->tickets)
        set_state(c, ncclSuccess);
    *state = (ncclResult_t)state_of(c);
    return ncclSuccess;
}

/* ---- groups ---- */

EXPORT ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

static ncclResult_t add(ncclComm_t c, cudaStream_t s, const op_t *op)
{
    ncclResult_t result;

    if (state_of(c) != ncclSuccess)
        return fail(ncclInvalidUsage, "the communicator is busy, finished or broken: poll it first");
    if (group.depth == 0) {
        group.depth++;
        result = add(c, s, op);
        return result != ncclSuccess ? result : ncclGroupEnd();
    }
    if (group.count == group.room) {
        int room = group.room > 0 ? 2 * group.room : 16;
        call_t *calls = realloc(group.calls, (size_t)room * sizeof(*calls));

        if (calls == NULL)
            return fail(ncclSystemError, "no memory");
        group.calls = calls;
        group.room = room;
    }
    group.calls[group.count++] = (call_t){c, (CUstream)s, *op};
    return ncclSuccess;
}

static ncclResult_t put(bool sends, void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                        cudaStream_t s)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    op_t op = {.sends = sends, .peer = peer, .data = data};

    if (c == NULL || peer < 0 || peer >= c->n || peer == c->rank || (size_t)type >= sizeof(sizes) / sizeof(sizes[0]) ||
        s == NULL)
        return fail(ncclInvalidArgument, "a communicator, a peer, a type or a stream makes no sense");
    op.bytes = count * sizes[type];
    return add(c, s, &op);
}

/* Not in the header of 2.28. Its signals nobody waits for here. */
EXPORT ncclResult_t ncclPutSignal(const void *from, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
                                  size_t offset, int signal, int context, unsigned flags, ncclComm_t c, cudaStream_t s);

EXPORT ncclResult_t ncclPutSignal(const void *from, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
                                  size_t offset, int signal, int context, unsigned flags, ncclComm_t c, cudaStream_t s)
{
    const struct window *w, *own;
    op_t op = {.sends = true, .peer = peer, .data = (unsigned char *)(uintptr_t)from, .bytes = count};
    int version;

    (void)ncclGetVersion(&version);
    if (version < PUTS_SINCE)
        return fail(ncclInvalidUsage, "this version does not put");
    if (c == NULL || peer < 0 || peer >= c->n || type != ncclUint8 || s == NULL || signal != 0 || context != 0 ||
        flags != 0)
        return fail(ncclInvalidArgument, "a peer, a type or a stream makes no sense, or a signal that is not 0");
    for (w = c->windows; w != NULL && (const void *)w != (const void *)window; w = w->next) {
    }
    for (own = c->windows; own != NULL && !is_inside(own, from, count); own = own->next) {
    }
    if (w == NULL || own == NULL || count == 0 || !is_inside(w, w->base + offset, count))
        return fail(ncclInvalidArgument, "a put is out of a window and into one");
    op.to = w->of[peer].at + offset;
    return add(c, s, &op);
}

EXPORT ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                             cudaStream_t s)
{
    return put(true, (void *)(uintptr_t)data, count, type, peer, c, s);
}

EXPORT ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s)
{
    return put(false, data, count, type, peer, c, s);
}

EXPORT ncclResult_t ncclAllReduce(const void *send, void *data, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t c, cudaStream_t s)
{
    const size_t bytes = count * (type == ncclFloat32 ? 4 : 8);
    ncclResult_t result = ncclSuccess;

    if (c == NULL || send != data || count == 0 || op != ncclSum || group.reduction.comm != NULL ||
        (type != ncclFloat32 && type != ncclFloat64 && type != ncclInt64))
        return fail(ncclInvalidArgument, "not one sum in place, of a type that is known");
    (void)ncclGroupStart();
    group.reduction = (reduction_t){c, data, malloc((size_t)c->n * bytes), count, type};
    for (int p = 0; p < c->n && result == ncclSuccess; p++) {
        if (p == c->rank)
            continue;
        result = put(true, data, bytes, ncclUint8, p, c, s);
        if (result == ncclSuccess)
            result = put(false, group.reduction.all + (size_t)p * bytes, bytes, ncclUint8, p, c, s);
    }
    return result == ncclSuccess ? ncclGroupEnd() : result;
}

/* Takes the calls of one communicator out of the group. */
static ncclResult_t make_task(struct ncclComm *c)
{
    task_t *t = malloc(sizeof(*t) + (size_t)group.count * sizeof(op_t));
    ncclResult_t result = ncclSuccess;
    int kept = 0;

    if (t == NULL)
        return fail(ncclSystemError, "no memory");
    *t = (task_t){.comm = c, .ticket = c->tickets++};
    for (int i = 0; i < group.count; i++) {
        call_t *call = &group.calls[i];

        if (call->comm != c) {
            group.calls[kept++] = *call;
            continue;
        }
        if (t->count > 0 && t->puts != (call->op.to != NULL))
            result = fail(ncclInvalidUsage, "puts and transfers of both sides are in one group");
        t->puts = call->op.to != NULL;
        if (!t->puts)
            call->op.number = (call->op.sends ? c->send_no : c->recv_no)[call->op.peer]++;
        t->stream = call->stream;
        t->ops[t->count++] = call->op;
    }
    group.count = kept;
    if (group.reduction.comm == c) {
        t->reduction = group.reduction;
        group.reduction.comm = NULL;
    }
    if (result != ncclSuccess) {
        free(t->reduction.all);
        free(t);
        return result;
    }
    __atomic_add_fetch(&c->refs, 1, __ATOMIC_RELAXED);
    c->pending = t;
    c->polls = 0;
    if (c->blocking) {
        while (!is_connected(c, t))
            nap();
        launch(c);
        return ncclSuccess;
    }
    set_state(c, ncclInProgress);
    return ncclInProgress;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    const char *failing = getenv("DP_FAKE_NCCL_FAIL");
    ncclResult_t result = ncclSuccess;
    struct ncclComm *first;

    if (group.depth == 0)
        return fail(ncclInvalidUsage, "no group is open");
    if (--group.depth > 0)
        return ncclSuccess;
    if (group.aborted != NULL)
        (void)world.drain();
    while (group.aborted != NULL) {
        struct ncclComm *c = group.aborted;

        group.aborted = c->next;
        leave(c);
    }
    if (group.count == 0)
        return ncclSuccess;
    first = group.calls[0].comm;
    while (group.count > 0) {
        ncclResult_t one = make_task(group.calls[0].comm);

        result = one != ncclSuccess ? one : result;
        if (one != ncclSuccess && one != ncclInProgress)
            group.count = 0;
    }
    free(group.calls);
    group.calls = NULL;
    group.room = 0;
    if (failing != NULL && __atomic_add_fetch(&world.groups, 1, __ATOMIC_RELAXED) == atoi(failing))
        set_state(first, fail(ncclSystemError, "an error that was asked for"));
    return result;
}

/* ---- the end ---- */

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    if (c == NULL || state_of(c) != ncclSuccess)
        return fail(ncclInvalidUsage, "the communicator is busy or broken");
    c->finishing = true;
    set_state(c, ncclInProgress);
    return ncclInProgress;
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    if (c == NULL || !c->finishing || state_of(c) != ncclSuccess)
        return fail(ncclInvalidUsage, "the communicator was not finalized");
    leave(c);
    return ncclSuccess;
}

/* Gives back memory, which waits for the whole device; in a group, when all of it have been
 * told. */
EXPORT ncclResult_t ncclCommAbort(ncclComm_t c)
{
    task_t *t;

    if (c == NULL)
        return fail(ncclInvalidArgument, "no communicator");
    __atomic_store_n(&c->aborted, 1, __ATOMIC_RELEASE);
    store(&c->members[c->rank].gone, 1);
    if (c->joining)
        shm_unlink(c->name);
    t = c->pending;
    c->pending = NULL;
    if (t != NULL) {
        free(t->reduction.all);
        drop(c);
        free(t);
    }
    if (group.depth > 0) {
        c->next = group.aborted;
        group.aborted = c;
    } else {
        (void)world.drain();
        leave(c);
    }
    return ncclSuccess;
}

/* Whole pages: a window begins with one. */
EXPORT ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    struct allocation *a = calloc(1, sizeof(*a));
    CUdeviceptr made = 0;

    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    if (a == NULL || !find_driver() || world.allocate(&made, bytes) != CUDA_SUCCESS) {
        free(a);
        return fail(ncclUnhandledCudaError, "out of memory");
    }
    *memory = (void *)(uintptr_t)made;
    a->base = *memory;
    a->bytes = bytes;
    pthread_mutex_lock(&world.lock);
    a->next = world.allocations;
    world.allocations = a;
    pthread_mutex_unlock(&world.lock);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclMemFree(void *memory)
{
    struct allocation *a = NULL;
    bool window = false;

    pthread_mutex_lock(&world.lock);
    for (struct allocation **at = &world.allocations; *at != NULL; at = &(*at)->next)
        if ((*at)->base == memory) {
            a = *at;
            window = a->windows > 0;
            if (!window)
                *at = a->next;
            break;
        }
    pthread_mutex_unlock(&world.lock);
    if (a == NULL || window)
        return fail(ncclInvalidArgument, window ? "this is a window yet" : "not from here");
    free(a);
    return world.release((CUdeviceptr)(uintptr_t)memory) == CUDA_SUCCESS ? ncclSuccess
                                                                         : fail(ncclInvalidArgument, "not from here");
}

EXPORT ncclResult_t ncclCommRegister(const ncclComm_t c, void *buffer, size_t bytes, void **handle)
{
    struct handle *h = buffer != NULL && bytes > 0 ? malloc(sizeof(*h)) : NULL;

    if (h == NULL)
        return fail(ncclInvalidArgument, "nothing to register");
    h->next = c->handles;
    c->handles = h;
    *handle = h;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle)
{
    for (struct handle **at = &c->handles; *at != NULL; at = &(*at)->next)
        if (*at == handle) {
            *at = (*at)->next;
            free(handle);
            return ncclSuccess;
        }
    return fail(ncclInvalidArgument, "this was not registered");
}
