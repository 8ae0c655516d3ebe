/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * graph.c: a capture is a log of what was put on which stream. A graph launches it on streams of
 * its own, one for each that took part in the capture, so that branches that were captured side by
 * side run side by side. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define LANES 64

typedef enum entry_kind { ENTRY_OP, ENTRY_RECORD, ENTRY_WAIT } entry_kind_t;

typedef struct entry {
    entry_kind_t kind;
    unsigned lane, edge;
    op_t op; /* of ENTRY_OP; owns its arguments */
} entry_t;

typedef struct capture {
    struct capture *before; /* begun earlier */
    unsigned uses;          /* streams that capture, the graph made of it */
    CUstream origin;
    pthread_t thread;
    CUstreamCaptureMode mode;
    CUresult invalid;
    CUstream streams[LANES];
    bool joined[LANES]; /* nothing was put on the lane since another one waited for it */
    unsigned nlanes, nedges, edge_lane[4096];
    bool edge_last[4096]; /* nothing was put on its lane behind the record */
    entry_t *entries;
    unsigned nentries, room;
    CUgreenCtx greens[LANES];
    int device;
} capture_t;

struct CUgraph_st {
    capture_t log;
};

struct CUgraphExec_st {
    capture_t log;
    CUstream streams[LANES];
};

static capture_t *latest;       /* captures are kept for ever: an event may still name one */
static __thread capture_t *own; /* begun by this thread, not in relaxed mode */

bool capture_hinders(void)
{
    return own != NULL;
}

static CUresult log_entry(capture_t *c, entry_kind_t kind, unsigned lane, unsigned edge, const op_t *op)
{
    entry_t *e;

    if (c->nentries == c->room) {
        unsigned room = c->room > 0 ? 2 * c->room : 256;
        entry_t *more = realloc(c->entries, room * sizeof(*more));

        if (more == NULL)
            return c->invalid = CUDA_ERROR_OUT_OF_MEMORY;
        c->entries = more;
        c->room = room;
    }
    e = &c->entries[c->nentries++];
    memset(e, 0, sizeof(*e));
    e->kind = kind;
    e->lane = lane;
    e->edge = edge;
    if (op != NULL)
        e->op = *op;
    if (kind != ENTRY_RECORD) {
        c->joined[lane] = false;
        for (unsigned i = 0; i < c->nedges; i++)
            if (c->edge_lane[i] == lane)
                c->edge_last[i] = false;
    }
    return CUDA_SUCCESS;
}

CUresult capture_put(CUstream s, const op_t *op)
{
    return s->capture->invalid != CUDA_SUCCESS ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                               : log_entry(s->capture, ENTRY_OP, s->lane, 0, op);
}

CUresult capture_record(CUstream s, CUevent e, bool external)
{
    capture_t *c = s->capture;

    if (external)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (c->nedges == sizeof(c->edge_lane) / sizeof(c->edge_lane[0]))
        return c->invalid = CUDA_ERROR_OUT_OF_MEMORY;
    e->capture = c;
    e->edge = c->nedges++;
    c->edge_lane[e->edge] = s->lane;
    c->edge_last[e->edge] = true;
    return log_entry(c, ENTRY_RECORD, s->lane, e->edge, NULL);
}

static CUresult join(capture_t *c, CUstream s)
{
    if (c->nlanes == LANES)
        return c->invalid = CUDA_ERROR_NOT_SUPPORTED;
    s->capture = c;
    s->lane = c->nlanes++;
    c->streams[s->lane] = s;
    c->greens[s->lane] = s->green;
    c->joined[s->lane] = true;
    return CUDA_SUCCESS;
}

CUresult capture_wait(CUstream s, CUevent e, bool external)
{
    capture_t *c = e->capture;
    CUresult result;

    if (external)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (c == NULL) { /* the stream captures, the event's record is outside */
        s->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (s->capture == NULL) {
        result = join(c, s);
        if (result != CUDA_SUCCESS)
            return result;
    } else if (s->capture != c) {
        c->invalid = s->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_MERGE;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    result = log_entry(c, ENTRY_WAIT, s->lane, e->edge, NULL);
    if (c->edge_last[e->edge] && c->edge_lane[e->edge] != s->lane)
        c->joined[c->edge_lane[e->edge]] = true;
    return result;
}

static void free_entries(capture_t *c)
{
    for (unsigned i = 0; i < c->nentries; i++)
        if (c->entries[i].kind == ENTRY_OP && c->entries[i].op.run == run_kernel) {
            free(c->entries[i].op.u.kernel.bytes);
            free(c->entries[i].op.u.kernel.args);
        }
    free(c->entries);
}

FAKE_EXPORT CUresult cuStreamBeginCapture(CUstream s, CUstreamCaptureMode mode)
{
    capture_t *c;

    ENTER(cuStreamBeginCapture);
    if (s == NULL || s->capture != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    c->before = __atomic_exchange_n(&latest, c, __ATOMIC_ACQ_REL);
    c->origin = s;
    c->mode = mode;
    c->thread = pthread_self();
    c->device = s->device;
    (void)join(c, s);
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        own = c;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamEndCapture(CUstream s, CUgraph *graph)
{
    CUresult result;
    capture_t *c;
    CUgraph g;

    ENTER(cuStreamEndCapture);
    c = s->capture;
    if (c == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (c->origin != s)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(c->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    result = c->invalid;
    for (unsigned lane = 0; lane < c->nlanes; lane++) {
        c->streams[lane]->capture = NULL;
        if (lane > 0 && !c->joined[lane] && result == CUDA_SUCCESS)
            result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    if (own == c)
        own = NULL;
    g = result == CUDA_SUCCESS ? calloc(1, sizeof(*g)) : NULL;
    *graph = g;
    if (g == NULL) {
        free_entries(c);
        c->entries = NULL;
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    g->log = *c;
    c->entries = NULL;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status)
{
    ENTER(cuStreamIsCapturing);
    *status = s->capture == NULL                    ? CU_STREAM_CAPTURE_STATUS_NONE
              : s->capture->invalid != CUDA_SUCCESS ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    if (graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    free_entries(&graph->log);
    free(graph);
    return CUDA_SUCCESS;
}

static CUresult copy_kernel(op_t *op)
{
    const emu_kernel_t *k = op->u.kernel.kernel;
    unsigned char *bytes = op->u.kernel.bytes, *copy;
    size_t total = 1;
    void **args;

    for (unsigned i = 0; i < k->nparameters; i++)
        total += (k->parameters[i] + 15) / 16 * 16;
    copy = aligned_alloc(64, (total + 63) / 64 * 64);
    args = calloc(k->nparameters + 1, sizeof(*args));
    if (copy == NULL || args == NULL) {
        free(copy);
        free(args);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (total > 1)
        memcpy(copy, bytes, total - 1);
    for (unsigned i = 0; i < k->nparameters; i++)
        args[i] = copy + ((unsigned char *)op->u.kernel.args[i] - bytes);
    op->u.kernel.bytes = copy;
    op->u.kernel.args = args;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned lane = 0; lane < exec->log.nlanes; lane++)
        if (exec->streams[lane] != NULL)
            stream_end(exec->streams[lane]);
    free_entries(&exec->log);
    free(exec);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec_out, CUgraph graph, unsigned long long flags)
{
    CUresult result = CUDA_SUCCESS;
    CUgraphExec exec;

    ENTER(cuGraphInstantiateWithFlags);
    (void)flags;
    exec = calloc(1, sizeof(*exec));
    if (exec == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec->log = graph->log;
    exec->log.nentries = 0;
    exec->log.entries = malloc((graph->log.nentries + 1) * sizeof(entry_t));
    if (exec->log.entries == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < graph->log.nentries && result == CUDA_SUCCESS; i++) {
        entry_t e = graph->log.entries[i];

        if (e.kind == ENTRY_OP && e.op.run == run_kernel)
            result = copy_kernel(&e.op);
        if (result == CUDA_SUCCESS)
            exec->log.entries[exec->log.nentries++] = e;
    }
    for (unsigned lane = 0; lane < exec->log.nlanes && result == CUDA_SUCCESS; lane++)
        result = stream_make(exec->log.device, 0, exec->log.greens[lane], &exec->streams[lane]);
    if (result != CUDA_SUCCESS) {
        (void)cuGraphExecDestroy(exec);
        return result;
    }
    *exec_out = exec;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream s)
{
    ENTER(cuGraphUpload);
    return exec != NULL && s != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult put_point(CUstream s, op_fn run, point_t *point)
{
    op_t op = {.run = run, .name = "edge of a graph", .point = point};

    return stream_put_now(s, &op);
}

/* `after` runs behind all that is on `before`. */
static CUresult put_edge(CUstream before, CUstream after)
{
    point_t *point = point_make();
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (point != NULL && (result = put_point(before, run_record, point)) == CUDA_SUCCESS)
        result = put_point(after, run_wait, point);
    point_drop(point);
    return result;
}

FAKE_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream s)
{
    CUresult result = CUDA_SUCCESS;
    point_t **points;

    ENTER(cuGraphLaunch);
    if (s == NULL || s->capture != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    points = calloc(exec->log.nedges + 1, sizeof(*points));
    if (points == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned lane = 0; lane < exec->log.nlanes && result == CUDA_SUCCESS; lane++)
        result = put_edge(s, exec->streams[lane]);
    for (unsigned i = 0; i < exec->log.nentries && result == CUDA_SUCCESS; i++) {
        const entry_t *e = &exec->log.entries[i];
        op_t op = e->op;

        if (e->kind == ENTRY_RECORD) {
            points[e->edge] = point_make();
            result = put_point(exec->streams[e->lane], run_record, points[e->edge]);
        } else if (e->kind == ENTRY_WAIT) {
            result = put_point(exec->streams[e->lane], run_wait, points[e->edge]);
        } else {
            if (op.run == run_kernel)
                result = copy_kernel(&op);
            if (result == CUDA_SUCCESS)
                result = stream_put_now(exec->streams[e->lane], &op);
        }
    }
    for (unsigned lane = 0; lane < exec->log.nlanes && result == CUDA_SUCCESS; lane++)
        result = put_edge(exec->streams[lane], s);
    for (unsigned i = 0; i < exec->log.nedges; i++)
        point_drop(points[i]);
    free(points);
    return result;
}
