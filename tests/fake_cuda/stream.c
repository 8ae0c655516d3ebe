/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stream.c: streams, each a thread that works off its ops in order, and events. */
#include "fake.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static CUstream streams;          /* all that are open */
static __thread CUstream running; /* the stream whose thread this is: it may not call the driver */

bool stream_is_worker(void)
{
    return running != NULL;
}

/* ---- points that streams get to ---- */

point_t *point_make(void)
{
    point_t *p = calloc(1, sizeof(*p));

    if (p != NULL)
        p->uses = 1;
    return p;
}

point_t *point_keep(point_t *p)
{
    __atomic_add_fetch(&p->uses, 1, __ATOMIC_RELAXED);
    return p;
}

void point_drop(point_t *p)
{
    if (p != NULL && __atomic_sub_fetch(&p->uses, 1, __ATOMIC_ACQ_REL) == 0)
        free(p);
}

/* ---- hardware queues ---- */

static unsigned placed[FAKE_DEVICES_MAX]; /* streams that were given a queue */

/* Which streams share one is the driver's secret: here they take turns. */
static queue_t *assign_queue(int device)
{
    enum { MOST = 128 };
    static queue_t queues[FAKE_DEVICES_MAX][MOST];
    const char *text = getenv("DP_FAKE_QUEUES");
    unsigned n = text != NULL ? (unsigned)atoi(text) : 0;

    return n == 0 || n > MOST ? NULL : &queues[device][placed[device]++ % n];
}

/* Of the current device. */
FAKE_EXPORT unsigned fake_streams_placed(void)
{
    int device = fake_device();
    unsigned n;

    pthread_mutex_lock(&fake_lock);
    n = placed[device];
    pthread_mutex_unlock(&fake_lock);
    return n;
}

/* Both under the lock. */
static void wait_for_turn(CUstream s, const op_t *op)
{
    while (s->queue != NULL && s->queue->served != op->place)
        pthread_cond_wait(&fake_changed, &fake_lock);
}

static void end_turn(CUstream s)
{
    if (s->queue != NULL)
        s->queue->served++;
}

/* ---- the thread of a stream ---- */

static void release_op(op_t *op)
{
    point_drop(op->point);
    if (op->run == run_kernel) {
        free(op->u.kernel.bytes);
        free(op->u.kernel.args);
    }
    free(op);
}

/* Ops behind a fault are skipped, but those that others wait for. */
static void *work(void *arg)
{
    CUstream s = arg;

    running = s;
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        op_t *op = s->first;

        if (op == NULL) {
            if (s->leaving)
                break;
            pthread_cond_wait(&s->given, &fake_lock);
            continue;
        }
        s->first = op->next;
        if (s->first == NULL)
            s->last = &s->first;
        wait_for_turn(s, op);
        pthread_mutex_unlock(&fake_lock);
        if (fake_broken() == CUDA_SUCCESS || op->run == run_record)
            op->run(s, op);
        release_op(op);
        pthread_mutex_lock(&fake_lock);
        end_turn(s);
        s->done++;
        pthread_cond_broadcast(&fake_changed);
    }
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

void run_record(CUstream s, op_t *op)
{
    (void)s;
    pthread_mutex_lock(&fake_lock);
    op->point->done = true;
    op->point->at_ns = emu_clock_ns();
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

void run_wait(CUstream s, op_t *op)
{
    (void)s;
    pthread_mutex_lock(&fake_lock);
    while (!op->point->done && fake_broken() == CUDA_SUCCESS)
        pthread_cond_wait(&fake_changed, &fake_lock);
    pthread_mutex_unlock(&fake_lock);
}

static void run_copy(CUstream s, op_t *op)
{
    (void)s;
    memmove(op->u.copy.to, op->u.copy.from, op->u.copy.bytes);
}

static void run_fill(CUstream s, op_t *op)
{
    (void)s;
    if (op->u.fill.value == 0) {
        memory_zero(op->u.fill.to, op->u.fill.count * op->u.fill.width);
    } else if (op->u.fill.width == 1) {
        memset(op->u.fill.to, (int)op->u.fill.value, op->u.fill.count);
    } else {
        for (size_t i = 0; i < op->u.fill.count; i++)
            memcpy((char *)op->u.fill.to + i * 4, &op->u.fill.value, 4);
    }
}

static void run_host(CUstream s, op_t *op)
{
    (void)s;
    op->u.host.fn(op->u.host.user);
}

static void run_write(CUstream s, op_t *op)
{
    (void)s;
    if (op->u.word.width == 4)
        __atomic_store_n((uint32_t *)op->u.word.at, (uint32_t)op->u.word.value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)op->u.word.at, op->u.word.value, __ATOMIC_RELEASE);
}

static bool word_fits(const op_t *op)
{
    uint64_t value = op->u.word.value;
    bool narrow = op->u.word.width == 4;
    uint64_t now = narrow ? __atomic_load_n((const uint32_t *)op->u.word.at, __ATOMIC_ACQUIRE)
                          : __atomic_load_n((const uint64_t *)op->u.word.at, __ATOMIC_ACQUIRE);

    switch (op->u.word.flags & 3u) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return narrow ? (int32_t)((uint32_t)now - (uint32_t)value) >= 0 : (int64_t)(now - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & value) != 0;
    default:
        return (narrow ? (uint32_t) ~(now | value) : ~(now | value)) != 0;
    }
}

double fake_hang_seconds(void)
{
    const char *text = getenv("DP_FAKE_HANG_SECONDS");

    return text != NULL ? atof(text) : 60;
}

/* The word may be written by a host thread, a kernel or another process: it is looked at again and
 * again. */
static void run_wait_value(CUstream s, op_t *op)
{
    uint64_t start = emu_clock_ns();

    (void)s;
    for (unsigned rounds = 0; !word_fits(op) && fake_broken() == CUDA_SUCCESS; rounds++)
        if (emu_nap(rounds, start))
            fake_break(CUDA_ERROR_LAUNCH_TIMEOUT, "a stream waits for a value that does not come");
}

void run_kernel(CUstream s, op_t *op)
{
    emu_launch_t launch = {.kernel = op->u.kernel.kernel,
                           .args = op->u.kernel.args,
                           .grid = op->u.kernel.grid,
                           .block = op->u.kernel.block,
                           .shared_bytes = op->u.kernel.shared_bytes};
    unsigned threads = launch.block.x * launch.block.y * launch.block.z, per_sm = 2048 / threads;
    sm_set_t sms;

    stream_sms(s, &sms);
    if (per_sm > 32)
        per_sm = 32;
    if (launch.shared_bytes > 0 && per_sm > (228u << 10) / (launch.shared_bytes + 1024))
        per_sm = (unsigned)((228u << 10) / (launch.shared_bytes + 1024));
    launch.sms = sms.sm;
    launch.nsms = sms.count;
    launch.resident = sms.count * (per_sm > 0 ? per_sm : 1);
    if (emu_run(&launch) != EMU_FINE)
        fake_break(launch.failure == EMU_HANG ? CUDA_ERROR_LAUNCH_TIMEOUT : CUDA_ERROR_LAUNCH_FAILED, launch.message);
}

/* ---- putting ops on streams ---- */

CUresult stream_put_now(CUstream s, const op_t *op)
{
    op_t *copy = malloc(sizeof(*copy));

    if (copy == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = *op;
    copy->next = NULL;
    if (op->point != NULL)
        point_keep(op->point);
    pthread_mutex_lock(&fake_lock);
    if (s->queue != NULL)
        copy->place = s->queue->enqueued++;
    *s->last = copy;
    s->last = &copy->next;
    s->put++;
    pthread_cond_signal(&s->given);
    pthread_mutex_unlock(&fake_lock);
    return CUDA_SUCCESS;
}

CUresult stream_put(CUstream s, const op_t *op)
{
    /* the default stream orders nothing here; callbacks may not call the driver */
    if (s == NULL || running != NULL)
        return s == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_NOT_PERMITTED;
    return s->capture != NULL ? capture_put(s, op) : stream_put_now(s, op);
}

void stream_sms(CUstream s, sm_set_t *sms_out)
{
    if (s->green != NULL) {
        *sms_out = s->green->sms;
        return;
    }
    *sms_out = (sm_set_t){.count = FAKE_SMS};
    for (unsigned i = 0; i < FAKE_SMS; i++)
        sms_out->sm[i] = (unsigned char)i;
}

CUresult stream_make(int device, int priority, CUgreenCtx green, CUstream *stream_out)
{
    CUstream s = calloc(1, sizeof(*s));
    sigset_t all, before;
    int error;

    if (s == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->device = device;
    s->priority = priority;
    s->green = green;
    s->last = &s->first;
    pthread_cond_init(&s->given, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&s->thread, NULL, work, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        free(s);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&fake_lock);
    if (green != NULL)
        green->streams++;
    s->queue = assign_queue(device);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&fake_lock);
    *stream_out = s;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    ENTER(cuStreamCreateWithPriority);
    if (flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_NOT_SUPPORTED; /* ours never lean on the default stream */
    if (capture_hinders())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return stream_make(fake_device(), priority, NULL, stream);
}

FAKE_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    return cuStreamCreateWithPriority(stream, flags, 0);
}

/* As the driver does it: returns once all work is done (it would do so in the background). */
void stream_end(CUstream s)
{
    CUstream *at;

    pthread_mutex_lock(&fake_lock);
    s->leaving = true;
    pthread_cond_signal(&s->given);
    pthread_mutex_unlock(&fake_lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&fake_lock);
    if (s->green != NULL)
        s->green->streams--;
    for (at = &streams; *at != s; at = &(*at)->next)
        ;
    *at = s->next;
    pthread_mutex_unlock(&fake_lock);
    pthread_cond_destroy(&s->given);
    free(s);
}

FAKE_EXPORT CUresult cuStreamDestroy(CUstream s)
{
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    stream_end(s);
    return CUDA_SUCCESS;
}

/* Streams may come and go meanwhile: looked for anew after each wait. */
void device_drain(int device)
{
    bool busy = true;

    if (running != NULL)
        return;
    pthread_mutex_lock(&fake_lock);
    for (CUstream s = streams; s != NULL; s = s->next)
        s->drain = s->put;
    while (busy) {
        busy = false;
        for (CUstream s = streams; s != NULL; s = s->next)
            busy |= s->device == device && s->done < s->drain;
        if (busy)
            pthread_cond_wait(&fake_changed, &fake_lock);
    }
    pthread_mutex_unlock(&fake_lock);
}

FAKE_EXPORT int fake_idle(void)
{
    int device = fake_device();
    bool busy = false;

    pthread_mutex_lock(&fake_lock);
    for (CUstream s = streams; s != NULL; s = s->next)
        busy |= s->device == device && s->done < s->put;
    pthread_mutex_unlock(&fake_lock);
    return !busy;
}

FAKE_EXPORT CUresult cuCtxSynchronize(void)
{
    ENTER(cuCtxSynchronize);
    if (capture_hinders())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    device_drain(fake_device());
    return fake_broken();
}

FAKE_EXPORT CUresult cuStreamGetPriority(CUstream s, int *priority)
{
    ENTER(cuStreamGetPriority);
    *priority = s->priority;
    return CUDA_SUCCESS;
}

void stream_drain(CUstream s)
{
    uint64_t target;

    pthread_mutex_lock(&fake_lock);
    target = s->put;
    while (s->done < target)
        pthread_cond_wait(&fake_changed, &fake_lock);
    pthread_mutex_unlock(&fake_lock);
}

FAKE_EXPORT CUresult cuStreamSynchronize(CUstream s)
{
    ENTER(cuStreamSynchronize);
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream_drain(s);
    return fake_broken();
}

FAKE_EXPORT CUresult cuStreamQuery(CUstream s)
{
    bool idle;

    ENTER(cuStreamQuery);
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&fake_lock);
    idle = s->done == s->put;
    pthread_mutex_unlock(&fake_lock);
    return idle ? fake_broken() : CUDA_ERROR_NOT_READY;
}

/* ---- work ---- */

/* Copies on the device and fills are kernels of the driver's own, loaded at their first use. */
enum { COPIES, FILLS_OF_BYTES, FILLS_OF_WORDS, DRIVER_KERNELS };

static void use_driver_kernel(int which)
{
    static bool loaded[DRIVER_KERNELS];
    const char *loading = getenv("CUDA_MODULE_LOADING");

    if (!__atomic_exchange_n(&loaded[which], true, __ATOMIC_ACQ_REL) &&
        (loading == NULL || strcmp(loading, "EAGER") != 0))
        fake_load_kernel();
}

static CUresult put_copy(CUstream s, void *to, const void *from, size_t bytes)
{
    op_t op = {.run = run_copy, .name = "copy"};

    op.u.copy.to = to;
    op.u.copy.from = from;
    op.u.copy.bytes = bytes;
    return bytes > 0 ? stream_put(s, &op) : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    ENTER(cuMemcpyAsync);
    memory_count_copy(to, from, bytes);
    if (memory_on_device(to) && memory_on_device(from))
        use_driver_kernel(COPIES);
    return put_copy(s, (void *)to, (const void *)from, bytes);
}

FAKE_EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    ENTER(cuMemcpyDtoDAsync);
    if (!memory_known(to, bytes) || !memory_known(from, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    use_driver_kernel(COPIES);
    return put_copy(s, (void *)to, (const void *)from, bytes);
}

FAKE_EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream s)
{
    ENTER(cuMemcpyHtoDAsync);
    if (!memory_known(to, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return put_copy(s, (void *)to, from, bytes);
}

FAKE_EXPORT CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream s)
{
    ENTER(cuMemcpyDtoHAsync);
    if (!memory_known(from, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return put_copy(s, to, (const void *)from, bytes);
}

static CUresult put_fill(CUstream s, CUdeviceptr to, uint32_t value, unsigned width, size_t count)
{
    op_t op = {.run = run_fill, .name = "fill"};

    if (!memory_known(to, count * width))
        return CUDA_ERROR_INVALID_VALUE;
    use_driver_kernel(width == 1 ? FILLS_OF_BYTES : FILLS_OF_WORDS);
    op.u.fill.to = (void *)to;
    op.u.fill.value = value;
    op.u.fill.width = width;
    op.u.fill.count = count;
    return count > 0 ? stream_put(s, &op) : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream s)
{
    ENTER(cuMemsetD8Async);
    return put_fill(s, to, value, 1, count);
}

FAKE_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream s)
{
    ENTER(cuMemsetD32Async);
    if (to % 4 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return put_fill(s, to, value, 4, count);
}

FAKE_EXPORT CUresult cuLaunchHostFunc(CUstream s, CUhostFn fn, void *user)
{
    op_t op = {.run = run_host, .name = "host function"};

    ENTER(cuLaunchHostFunc);
    if (fn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    op.u.host.fn = fn;
    op.u.host.user = user;
    return stream_put(s, &op);
}

static CUresult put_word(CUstream s, op_fn run, CUdeviceptr at, uint64_t value, unsigned flags, unsigned width)
{
    op_t op = {.run = run, .name = "word"};

    if (at % width != 0 || !memory_known(at, width))
        return CUDA_ERROR_INVALID_VALUE;
    op.u.word.at = (void *)at;
    op.u.word.value = value;
    op.u.word.flags = flags;
    op.u.word.width = width;
    return stream_put(s, &op);
}

FAKE_EXPORT CUresult cuStreamWriteValue32(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    ENTER(cuStreamWriteValue32);
    return put_word(s, run_write, at, value, flags, 4);
}

FAKE_EXPORT CUresult cuStreamWriteValue64(CUstream s, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    ENTER(cuStreamWriteValue64);
    return put_word(s, run_write, at, value, flags, 8);
}

FAKE_EXPORT CUresult cuStreamWaitValue32(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    ENTER(cuStreamWaitValue32);
    return put_word(s, run_wait_value, at, value, flags, 4);
}

FAKE_EXPORT CUresult cuStreamWaitValue64(CUstream s, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    ENTER(cuStreamWaitValue64);
    return put_word(s, run_wait_value, at, value, flags, 8);
}

FAKE_EXPORT CUresult cuStreamBatchMemOp(CUstream s, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags)
{
    CUresult result = CUDA_SUCCESS;

    ENTER(cuStreamBatchMemOp);
    if (flags != 0 || count > 256)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUstreamBatchMemOpParams *p = &ops[i];

        switch (p->operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            result = put_word(s, run_wait_value, p->waitValue.address, p->waitValue.value, p->waitValue.flags, 4);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            result = put_word(s, run_write, p->writeValue.address, p->writeValue.value, p->writeValue.flags, 4);
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            result = put_word(s, run_wait_value, p->waitValue.address, p->waitValue.value64, p->waitValue.flags, 8);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            result = put_word(s, run_write, p->writeValue.address, p->writeValue.value64, p->writeValue.flags, 8);
            break;
        default:
            result = CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return result;
}

/* ---- events ---- */

FAKE_EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    CUevent e;

    ENTER(cuEventCreate);
    e = calloc(1, sizeof(*e));
    if (e == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->timed = !(flags & CU_EVENT_DISABLE_TIMING);
    *event = e;
    return CUDA_SUCCESS;
}

/* As the driver does it: streams that are on their way to the event get there. */
FAKE_EXPORT CUresult cuEventDestroy(CUevent e)
{
    if (e == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    point_drop(e->latest);
    free(e);
    return CUDA_SUCCESS;
}

static CUresult put_record(CUstream s, CUevent e)
{
    op_t op = {.run = run_record, .name = "event record", .point = point_make()};
    CUresult result;

    if (op.point == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = stream_put_now(s, &op);
    pthread_mutex_lock(&fake_lock);
    point_drop(e->latest);
    e->latest = op.point;
    e->capture = NULL;
    pthread_mutex_unlock(&fake_lock);
    return result;
}

static CUresult put_wait(CUstream s, CUevent e)
{
    op_t op = {.run = run_wait, .name = "event wait"};
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&fake_lock);
    if (e->latest != NULL && !e->latest->done)
        op.point = point_keep(e->latest);
    pthread_mutex_unlock(&fake_lock);
    if (op.point != NULL)
        result = stream_put_now(s, &op);
    point_drop(op.point);
    return result;
}

FAKE_EXPORT CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags)
{
    ENTER(cuEventRecordWithFlags);
    if (e == NULL || s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture != NULL)
        return capture_record(s, e, (flags & CU_EVENT_RECORD_EXTERNAL) != 0);
    return put_record(s, e);
}

FAKE_EXPORT CUresult cuEventRecord(CUevent e, CUstream s)
{
    ENTER(cuEventRecord);
    if (e == NULL || s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    return s->capture != NULL ? capture_record(s, e, false) : put_record(s, e);
}

FAKE_EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
    ENTER(cuStreamWaitEvent);
    if (e == NULL || s == NULL || (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) != 0)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture != NULL || e->capture != NULL)
        return capture_wait(s, e, (flags & CU_EVENT_WAIT_EXTERNAL) != 0);
    return put_wait(s, e);
}

FAKE_EXPORT CUresult cuEventQuery(CUevent e)
{
    bool passed;

    ENTER(cuEventQuery);
    if (e->capture != NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    pthread_mutex_lock(&fake_lock);
    passed = e->latest == NULL || e->latest->done;
    pthread_mutex_unlock(&fake_lock);
    return passed ? fake_broken() : CUDA_ERROR_NOT_READY;
}

FAKE_EXPORT CUresult cuEventSynchronize(CUevent e)
{
    ENTER(cuEventSynchronize);
    if (e->capture != NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    pthread_mutex_lock(&fake_lock);
    if (e->latest != NULL) {
        point_t *p = point_keep(e->latest);

        while (!p->done)
            pthread_cond_wait(&fake_changed, &fake_lock);
        point_drop(p);
    }
    pthread_mutex_unlock(&fake_lock);
    return fake_broken();
}

FAKE_EXPORT CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    CUresult result = CUDA_SUCCESS;

    ENTER(cuEventElapsedTime);
    pthread_mutex_lock(&fake_lock);
    if (!from->timed || !to->timed || from->latest == NULL || to->latest == NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (!from->latest->done || !to->latest->done)
        result = CUDA_ERROR_NOT_READY;
    else
        *ms = (float)((double)(int64_t)(to->latest->at_ns - from->latest->at_ns) * 1e-6);
    pthread_mutex_unlock(&fake_lock);
    return result;
}
