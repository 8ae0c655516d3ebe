/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fake.h: the inside of libcuda_fake.so, a CUDA driver for tests whose device is the host: device
 * memory is host memory, streams are threads, kernels run on the emulator. It is stricter than a
 * GPU's where that finds mistakes.
 *
 * Environment: DP_FAKE_FAIL="cuMemAlloc:3,cuLaunchKernelEx:1:719" lets the 3rd call of one function
 * and the 1st of another fail (with CUDA_ERROR_UNKNOWN, or the code given); DP_FAKE_DEVICES, how
 * many devices (1); DP_FAKE_HANG_SECONDS, how long a kernel or a wait for a value may spin (60);
 * DP_FAKE_WITHOUT="cuGreenCtxCreate,...", functions that answer "not supported"; DP_FAKE_QUEUES=8,
 * how many hardware queues the streams of a device share, in which work runs in the order it was
 * enqueued (0: a queue each); DP_FAKE_MEMORY=n, its memory in MiB (8 GiB), of which the host holds
 * what was written; DP_FAKE_START_MS=n, what a start costs: half of it cuInit, half a context, one
 * process after the other; CUDA_LAUNCH_BLOCKING=1, as CUDA's: a launch waits for its kernel.
 *
 * For libraries whose kernels wait for other ranks: fake_sms_take() has up to `wanted`
 * multiprocessors of a stream's share (those it has already: mine[sm] != 0) and says how many it
 * has now, of how many it can ever have; fake_sms_give() gives them back. A block of such a kernel
 * fills a multiprocessor. int fake_sms_cluster() says whether clusters fit. int fake_idle() says
 * whether the streams of the current context have nothing left to do.
 *
 * uint64_t fake_bytes_staged(void) tells a test how many bytes cuMemcpyAsync has moved between host
 * and device, unsigned long fake_launches(const char *kernel) how often a kernel was launched. */
#ifndef DP_FAKE_CUDA_H
#define DP_FAKE_CUDA_H

#include <cuda.h>

#include "launch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_SMS         132
#define FAKE_SM_GRANULE  8
#define FAKE_DEVICES_MAX 8
#define FAKE_EXPORT      __attribute__((visibility("default")))

/* One lock for everything small, one condition for everything that changes. */
extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;

struct CUctx_st {
    int device;
    int retained;
};

typedef struct sm_set {
    unsigned char sm[FAKE_SMS];
    unsigned count;
    bool remainder; /* what a split left over: blocks of a cluster may not find room together */
} sm_set_t;

struct CUgreenCtx_st {
    int device;
    sm_set_t sms;
    unsigned streams; /* open ones */
    bool destroyed;
};

/* Where a stream gets to, once. */
typedef struct point {
    unsigned uses;
    bool done;
    uint64_t at_ns;
} point_t;

/* A hardware queue: what its streams enqueue runs in that order, whatever stream it is of. */
typedef struct queue {
    uint64_t enqueued, served;
} queue_t;

typedef struct op op_t;
typedef void (*op_fn)(CUstream s, op_t *op);

/* One entry of a stream. Ops are flat: a graph keeps copies of them and puts them on streams
 * again. */
struct op {
    op_t *next;
    op_fn run;
    const char *name;
    uint64_t place; /* in the queue of its stream */
    point_t *point; /* of records and waits; each op holds it */
    union {
        struct {
            void *to;
            const void *from;
            size_t bytes;
        } copy;
        struct {
            void *to;
            uint32_t value;
            unsigned width;
            size_t count;
        } fill;
        struct {
            void *at;
            uint64_t value;
            unsigned flags, width;
        } word;
        struct {
            CUhostFn fn;
            void *user;
        } host;
        struct {
            const emu_kernel_t *kernel;
            emu_dim_t grid, block;
            size_t shared_bytes;
            unsigned char *bytes; /* arguments; owned */
            void **args;          /* [nparameters], into bytes; owned */
        } kernel;
    } u;
};

struct capture;

struct CUstream_st {
    int device, priority;
    CUgreenCtx green;
    queue_t *queue; /* NULL: its own */
    pthread_t thread;
    pthread_cond_t given; /* an op, or the word to leave: for the thread alone */
    op_t *first, **last;
    uint64_t put, done; /* ops */
    uint64_t drain;     /* see device_drain */
    bool leaving;
    struct capture *capture;
    unsigned lane; /* of the capture */
    CUstream next;
};

struct CUevent_st {
    point_t *latest; /* NULL: never recorded */
    bool timed;
    struct capture *capture; /* when the latest record was captured */
    unsigned edge;
};

struct CUmod_st {
    int device;
    const void *image;
    CUfunction functions;
};

struct CUfunc_st {
    emu_kernel_t *kernel;
    CUmodule module;
    int shared_limit;
    CUfunction next;
};

/* fake.c */
CUresult fake_enter(const char *name, bool needs_context);
/* What a function of the driver begins with. */
#define ENTER(name)                                                                                                    \
    do {                                                                                                               \
        CUresult enter_result = fake_enter(#name, true);                                                               \
        if (enter_result != CUDA_SUCCESS)                                                                              \
            return enter_result;                                                                                       \
    } while (0)
#define ENTER_ANYWHERE(name)                                                                                           \
    do {                                                                                                               \
        CUresult enter_result = fake_enter(#name, false);                                                              \
        if (enter_result != CUDA_SUCCESS)                                                                              \
            return enter_result;                                                                                       \
    } while (0)
int fake_device(void); /* of the current context */
struct CUctx_st *fake_context(int device);
void fake_load_kernel(void); /* first_use.h */
/* The device has failed: every later call says so, as after a fault of a GPU. */
void fake_break(CUresult result, const char *why);
CUresult fake_broken(void);
int fake_device_count(void);
double fake_hang_seconds(void);

/* stream.c */
CUresult stream_make(int device, int priority, CUgreenCtx green, CUstream *stream_out);
/* Copies *op to the end of the stream, or into the graph that it is captured into. */
CUresult stream_put(CUstream s, const op_t *op);
CUresult stream_put_now(CUstream s, const op_t *op); /* whatever it is captured into */
void stream_end(CUstream s);
void stream_drain(CUstream s); /* until all that is on it now is done */
void device_drain(int device); /* until all that is on its streams now is done */
void stream_sms(CUstream s, sm_set_t *sms_out);
bool stream_is_worker(void);
point_t *point_make(void);
point_t *point_keep(point_t *p);
void point_drop(point_t *p); /* NULL is allowed */
void run_record(CUstream s, op_t *op);
void run_wait(CUstream s, op_t *op);
void run_kernel(CUstream s, op_t *op);

/* graph.c */
CUresult capture_put(CUstream s, const op_t *op);
CUresult capture_record(CUstream s, CUevent event, bool external);
CUresult capture_wait(CUstream s, CUevent event, bool external);
bool capture_hinders(void); /* this thread captures: calls that allocate or wait are not allowed */

/* memory.c */
bool memory_known(CUdeviceptr at, size_t bytes);
bool memory_on_device(CUdeviceptr at);
/* As memset; much at once is given back to the host, which need not have as much as the device. */
void memory_zero(void *at, size_t bytes);
/* Of cuMemcpyAsync, for fake_bytes_staged. */
void memory_count_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes);

#endif
