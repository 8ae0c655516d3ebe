/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cudnn_fake.c: the part of cuDNN's backend that attention_cudnn uses, as an interpreter: graphs
 * run one operation after the other, in plain loops on host memory, in the order of the fake
 * driver's streams. It shows what a graph computes; whether the real cuDNN has a kernel for it is
 * another question (tests/unit/cuda/test_cudnn_graph.c). Every tensor has four dimensions. */
#include "first_use.h"
#include "tests/support/debug.h"

#include <cuda.h>
#include <cudnn_graph.h>
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ATTRIBUTES = 12, MOST_TENSORS = 128, WORKSPACE = 4096 };

typedef struct attribute {
    cudnnBackendAttributeName_t name;
    int64_t count;
    void *bytes;
} attribute_t;

typedef struct object {
    cudnnBackendDescriptorType_t type;
    bool finished;
    int nattributes;
    attribute_t attributes[MOST_ATTRIBUTES];
    struct object *graph; /* of engines, their configurations and heuristics */
} object_t;

/* Calls are kept until the handle goes: a captured one runs again. */
typedef struct call {
    struct call *next;
    const object_t *graph;
    int64_t count, *ids;
    void **pointers;
    double *values; /* what by-value tensors held when the call was made */
    char *workspace;
} call_t;

/* Streams of the handle for each priority, as cuDNN 9.19 has them: [how much above the least]. */
enum { PRIORITIES = 6, STREAMS = 16 };

struct cudnnContext {
    cudaStream_t stream;
    CUevent order; /* recorded on each new stream */
    CUstream own[PRIORITIES][STREAMS];
    call_t *calls;
};

static __thread char last_error[256];

static cudnnStatus_t refuse(cudnnStatus_t status, const char *why)
{
    snprintf(last_error, sizeof(last_error), "%s", why);
    return status;
}

size_t cudnnGetVersion(void)
{
    const char *version = getenv("DP_FAKE_CUDNN_VERSION");

    return version == NULL ? CUDNN_VERSION : (size_t)strtoul(version, NULL, 10);
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS     ? "CUDNN_STATUS_SUCCESS"
           : status == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM"
                                              : "CUDNN_STATUS_?";
}

void cudnnGetLastErrorString(char *message, size_t bytes)
{
    snprintf(message, bytes, "%s", last_error);
}

/* ---- handles ---- */

/* A function of the fake driver; NULL: there is none. */
static void *driver_function(const char *name)
{
    const char *driver = debug_entry("lib.cuda");
    void *handle = driver != NULL ? dlopen(driver, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) : NULL;
    void *function = handle != NULL ? dlsym(handle, name) : NULL;

    if (handle != NULL)
        dlclose(handle);
    return function;
}

/* CALL(cuEventCreate, &event, flags) */
#define CALL(name, ...)                                                                                                \
    ({                                                                                                                 \
        __typeof__(name) *function_ = NULL;                                                                            \
                                                                                                                       \
        *(void **)&function_ = driver_function(DRIVER_NAME(name));                                                     \
        function_ != NULL ? function_(__VA_ARGS__) : CUDA_ERROR_NOT_INITIALIZED;                                       \
    })
#define DRIVER_NAME(name)  DRIVER_NAME_(name)
#define DRIVER_NAME_(name) #name

static int streams_made;

/* Of all handles that are there. */
int fake_cudnn_streams(void)
{
    return __atomic_load_n(&streams_made, __ATOMIC_RELAXED);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    cudnnHandle_t h = calloc(1, sizeof(*h));

    *handle = h;
    if (h == NULL)
        return CUDNN_STATUS_ALLOC_FAILED;
    if (CALL(cuEventCreate, &h->order, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)
        return CUDNN_STATUS_SUCCESS;
    free(h);
    *handle = NULL;
    return refuse(CUDNN_STATUS_NOT_INITIALIZED, "no fake driver, or no context");
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    for (int i = 0; i < PRIORITIES * STREAMS; i++)
        if (handle->own[i / STREAMS][i % STREAMS] != NULL) {
            (void)CALL(cuStreamDestroy, handle->own[i / STREAMS][i % STREAMS]);
            __atomic_sub_fetch(&streams_made, 1, __ATOMIC_RELAXED);
        }
    (void)CALL(cuEventDestroy, handle->order);
    for (call_t *c = handle->calls, *next; c != NULL; c = next) {
        next = c->next;
        free(c->ids);
        free(c->pointers);
        free(c->values);
        free(c);
    }
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

/* Those that are not there yet. */
static cudnnStatus_t make_streams(cudnnHandle_t h, int priority, int above)
{
    for (int i = 0; i < STREAMS; i++) {
        if (h->own[above][i] != NULL)
            continue;
        if (CALL(cuStreamCreateWithPriority, &h->own[above][i], CU_STREAM_NON_BLOCKING, priority) != CUDA_SUCCESS)
            return refuse(CUDNN_STATUS_INTERNAL_ERROR, "the driver makes no stream");
        __atomic_add_fetch(&streams_made, 1, __ATOMIC_RELAXED);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Checks and streams are those of cuDNN 9.19. */
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    CUstream s = (CUstream)stream;
    int priority = 0, least = 0;

    if (s != NULL && stream != handle->stream && CALL(cuEventRecord, handle->order, s) != CUDA_SUCCESS)
        return refuse(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, "the stream is not of the handle's context");
    if (s != NULL && (CALL(cuStreamGetPriority, s, &priority) != CUDA_SUCCESS ||
                      CALL(cuCtxGetStreamPriorityRange, &least, NULL) != CUDA_SUCCESS))
        return refuse(CUDNN_STATUS_INTERNAL_ERROR, "the driver knows no priority");
    if (abs(priority - least) >= PRIORITIES)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "a priority that is more than 5 from the least");
    handle->stream = stream;
    return make_streams(handle, priority, abs(priority - least));
}

/* ---- descriptors ---- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    object_t *o = calloc(1, sizeof(*o));

    if (o == NULL)
        return CUDNN_STATUS_ALLOC_FAILED;
    o->type = type;
    *out = o;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t object)
{
    object_t *o = object;

    for (int i = 0; i < o->nattributes; i++)
        free(o->attributes[i].bytes);
    free(o);
    return CUDNN_STATUS_SUCCESS;
}

static size_t bytes_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
        return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_HANDLE:
        return 8;
    default:
        return 4;
    }
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t object, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    object_t *o = object;
    const size_t bytes = (size_t)count * bytes_of(type);
    attribute_t *a = &o->attributes[o->nattributes];

    if (o->finished)
        return refuse(CUDNN_STATUS_BAD_PARAM, "the descriptor is finalised");
    if (o->nattributes == MOST_ATTRIBUTES || count < 1)
        return refuse(CUDNN_STATUS_BAD_PARAM, "too many attributes, or an empty one");
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++)
            if (!((object_t *const *)values)[i]->finished)
                return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute is not finalised");
    *a = (attribute_t){name, count, malloc(bytes)};
    memcpy(a->bytes, values, bytes);
    o->nattributes++;
    return CUDNN_STATUS_SUCCESS;
}

static const attribute_t *find(const object_t *o, cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < o->nattributes; i++)
        if (o->attributes[i].name == name)
            return &o->attributes[i];
    return NULL;
}

static object_t *child(const object_t *o, cudnnBackendAttributeName_t name)
{
    const attribute_t *a = find(o, name);

    return a != NULL ? *(object_t **)a->bytes : NULL;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t object)
{
    object_t *o = object;

    if (o->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
        o->graph = child(o, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    if (o->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        if (child(o, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP) == NULL)
            return refuse(CUDNN_STATUS_BAD_PARAM, "a plan without a device");
        o->graph = child(o, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->graph;
    }
    o->finished = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const object, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values)
{
    const object_t *o = object;

    (void)type;
    *count = 1;
    if (room < 1)
        return refuse(CUDNN_STATUS_BAD_PARAM, "no room for an attribute");
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        /* as the real one: for no device there are no engines, and that is no error */
        if (child(o, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP) == NULL) {
            *count = 0;
            return CUDNN_STATUS_SUCCESS;
        }
        (*(object_t **)values)->graph = o->graph;
        (*(object_t **)values)->finished = true;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        (*(object_t **)values)->graph = o->graph;
        (*(object_t **)values)->finished = true;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *count = 0;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
        *(int64_t *)values = 0;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)values = WORKSPACE;
        return CUDNN_STATUS_SUCCESS;
    default:
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "an attribute that the fake does not have");
    }
}

/* ---- tensors ---- */

typedef struct tensor {
    const object_t *object;
    cudnnDataType_t type;
    int64_t id, dims[4], strides[4], count;
    bool has_memory, by_value;
    double *values; /* [dims], in the tensor's precision */
} tensor_t;

typedef struct run {
    const call_t *call;
    tensor_t tensors[MOST_TENSORS];
    int ntensors;
} run_t;

static double round_to(cudnnDataType_t type, double value)
{
    float f = (float)value;
    uint32_t bits;

    if (type != CUDNN_DATA_BFLOAT16 || isnan(f))
        return type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_FLOAT ? (double)f : value;
    memcpy(&bits, &f, sizeof(bits));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &bits, sizeof(f));
    return (double)f;
}

static int64_t offset_of(const tensor_t *t, int64_t i)
{
    int64_t offset = 0;

    for (int d = 3; d >= 0; i /= t->dims[d], d--)
        offset += i % t->dims[d] * t->strides[d];
    return offset;
}

static char *memory_of(const call_t *call, int64_t id)
{
    for (int64_t i = 0; i < call->count; i++)
        if (call->ids[i] == id)
            return call->pointers[i];
    return NULL;
}

static void read_memory(const call_t *call, tensor_t *t)
{
    const char *memory = memory_of(call, t->id);

    for (int64_t i = 0; i < t->count; i++) {
        const int64_t at = offset_of(t, i);

        if (t->type == CUDNN_DATA_FLOAT) {
            t->values[i] = (double)((const float *)memory)[at];
        } else {
            const uint32_t bits = (uint32_t)((const uint16_t *)memory)[at] << 16;
            float f;

            memcpy(&f, &bits, sizeof(f));
            t->values[i] = (double)f;
        }
    }
}

static void write_memory(const call_t *call, const tensor_t *t)
{
    char *memory = memory_of(call, t->id);

    for (int64_t i = 0; i < t->count; i++) {
        const int64_t at = offset_of(t, i);
        const float f = (float)t->values[i];
        uint32_t bits;

        memcpy(&bits, &f, sizeof(bits));
        if (t->type == CUDNN_DATA_FLOAT)
            ((float *)memory)[at] = f;
        else
            ((uint16_t *)memory)[at] = (uint16_t)(isnan(f) ? 0x7fff : bits >> 16);
    }
}

static tensor_t describe(const object_t *o)
{
    tensor_t t = {.object = o, .count = 1};

    t.type = *(cudnnDataType_t *)find(o, CUDNN_ATTR_TENSOR_DATA_TYPE)->bytes;
    t.id = *(int64_t *)find(o, CUDNN_ATTR_TENSOR_UNIQUE_ID)->bytes;
    t.by_value = *(bool *)find(o, CUDNN_ATTR_TENSOR_IS_BY_VALUE)->bytes;
    t.has_memory = !t.by_value && !*(bool *)find(o, CUDNN_ATTR_TENSOR_IS_VIRTUAL)->bytes;
    memcpy(t.dims, find(o, CUDNN_ATTR_TENSOR_DIMENSIONS)->bytes, sizeof(t.dims));
    memcpy(t.strides, find(o, CUDNN_ATTR_TENSOR_STRIDES)->bytes, sizeof(t.strides));
    for (int d = 0; d < 4; d++)
        t.count *= t.dims[d];
    return t;
}

/* The tensor with its values: those of an earlier operation, of memory, or none yet. */
static tensor_t *tensor_of(run_t *r, const object_t *operation, cudnnBackendAttributeName_t name)
{
    const object_t *o = child(operation, name);
    tensor_t *t = &r->tensors[r->ntensors];

    if (o == NULL)
        return NULL;
    for (int i = 0; i < r->ntensors; i++)
        if (r->tensors[i].object == o)
            return &r->tensors[i];
    *t = describe(o);
    t->values = malloc((size_t)t->count * sizeof(*t->values));
    if (t->by_value) {
        for (int64_t i = 0; i < r->call->count; i++)
            if (r->call->ids[i] == t->id)
                t->values[0] = r->call->values[i];
    } else if (t->has_memory) {
        read_memory(r->call, t);
    }
    r->ntensors++;
    return t;
}

/* The element of t that index i of `of` sees: dimensions of 1 are stretched, fewer heads are
 * shared. */
static int64_t shared(const tensor_t *t, const tensor_t *of, int64_t i)
{
    int64_t index[4], at = 0;

    for (int d = 3; d >= 0; i /= of->dims[d], d--)
        index[d] = i % of->dims[d];
    for (int d = 0; d < 4; d++)
        at = at * t->dims[d] + index[d] / (of->dims[d] / t->dims[d]);
    return at;
}

/* ---- operations ---- */

static void multiply(run_t *r, const object_t *o)
{
    const tensor_t *a = tensor_of(r, o, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    const tensor_t *b = tensor_of(r, o, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    tensor_t *c = tensor_of(r, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    const int64_t rows = c->dims[2], columns = c->dims[3], inner = a->dims[3];

    for (int64_t m = 0; m < c->dims[0] * c->dims[1]; m++) {
        const int64_t batch = m / c->dims[1], head = m % c->dims[1];
        const double *left = a->values + (batch * a->dims[1] + head / (c->dims[1] / a->dims[1])) * rows * inner;
        const double *right = b->values + (batch * b->dims[1] + head / (c->dims[1] / b->dims[1])) * inner * columns;
        double *out = c->values + m * rows * columns;

        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < columns; j++)
                out[i * columns + j] = 0;
            for (int64_t k = 0; k < inner; k++)
                for (int64_t j = 0; j < columns; j++)
                    out[i * columns + j] += left[i * inner + k] * right[k * columns + j];
        }
    }
}

static double apply(cudnnPointwiseMode_t mode, double x, double b, double condition)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_IDENTITY:
        return x;
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return condition != 0 ? x : b;
    default:
        return NAN;
    }
}

static void pointwise(run_t *r, const object_t *o)
{
    const object_t *kind = child(o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const cudnnPointwiseMode_t mode = *(cudnnPointwiseMode_t *)find(kind, CUDNN_ATTR_POINTWISE_MODE)->bytes;
    const attribute_t *axis = find(kind, CUDNN_ATTR_POINTWISE_AXIS);
    const tensor_t *x = tensor_of(r, o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const tensor_t *b = tensor_of(r, o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const tensor_t *t = tensor_of(r, o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    tensor_t *y = tensor_of(r, o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);

    for (int64_t i = 0; i < y->count; i++) {
        int64_t rest = i;

        if (mode == CUDNN_POINTWISE_GEN_INDEX) {
            for (int d = 3; d > *(int64_t *)axis->bytes; d--)
                rest /= y->dims[d];
            y->values[i] = (double)(rest % y->dims[*(int64_t *)axis->bytes]);
            continue;
        }
        y->values[i] = apply(mode, x->values[shared(x, y, i)], b != NULL ? b->values[shared(b, y, i)] : 0,
                             t != NULL ? t->values[shared(t, y, i)] : 0);
    }
}

/* Over dimensions of which nothing or fewer heads are left. */
static void reduce(run_t *r, const object_t *o)
{
    const object_t *kind = child(o, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    const bool max =
        *(cudnnReduceTensorOp_t *)find(kind, CUDNN_ATTR_REDUCTION_OPERATOR)->bytes == CUDNN_REDUCE_TENSOR_MAX;
    const tensor_t *x = tensor_of(r, o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    tensor_t *y = tensor_of(r, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);

    for (int64_t i = 0; i < y->count; i++)
        y->values[i] = max ? -INFINITY : 0;
    for (int64_t i = 0; i < x->count; i++) {
        double *to = &y->values[shared(y, x, i)];

        *to = max ? fmax(*to, x->values[i]) : *to + x->values[i];
    }
}

/* The same memory with other strides. */
static void reshape(run_t *r, const object_t *o)
{
    const tensor_t *x = tensor_of(r, o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    tensor_t *y = tensor_of(r, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    double *memory = calloc((size_t)x->count, sizeof(*memory));

    for (int64_t i = 0; i < x->count; i++)
        memory[offset_of(x, i)] = x->values[i];
    for (int64_t i = 0; i < y->count; i++)
        y->values[i] = memory[offset_of(y, i)];
    free(memory);
}

/* What an operation made is rounded to the tensor's type, and stored where it has memory. */
static void finish(run_t *r, const object_t *o, cudnnBackendAttributeName_t name)
{
    tensor_t *t = tensor_of(r, o, name);

    for (int64_t i = 0; i < t->count; i++)
        t->values[i] = round_to(t->type, t->values[i]);
    if (t->has_memory)
        write_memory(r->call, t);
}

static void run_operation(run_t *r, const object_t *o)
{
    switch (o->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        multiply(r, o);
        finish(r, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
        break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        pointwise(r, o);
        finish(r, o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        reduce(r, o);
        finish(r, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
        break;
    default:
        reshape(r, o);
        finish(r, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    }
}

static void run_call(void *arg)
{
    const call_t *call = arg;
    const attribute_t *operations = find(call->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    run_t r = {.call = call};

    memset(call->workspace, 0xa5, WORKSPACE);
    for (int64_t i = 0; i < operations->count; i++)
        run_operation(&r, ((object_t **)operations->bytes)[i]);
    for (int i = 0; i < r.ntensors; i++)
        free(r.tensors[i].values);
}

/* ---- execution ---- */

/* Every tensor that is not virtual must be in the pack, memory aligned as the graph says. */
static cudnnStatus_t check_tensor(const call_t *call, const object_t *o)
{
    const tensor_t t = describe(o);
    const char *memory = memory_of(call, t.id);
    const int64_t alignment = *(int64_t *)find(o, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)->bytes;

    if (!t.has_memory && !t.by_value)
        return CUDNN_STATUS_SUCCESS;
    if (memory == NULL)
        return refuse(CUDNN_STATUS_BAD_PARAM, "a tensor is not in the variant pack");
    if ((uintptr_t)memory % (uintptr_t)alignment != 0)
        return refuse(CUDNN_STATUS_BAD_PARAM, "a tensor is less aligned than the graph says");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_call(const call_t *call)
{
    const attribute_t *operations = find(call->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);

    for (int64_t i = 0; i < operations->count; i++) {
        const object_t *o = ((object_t **)operations->bytes)[i];

        for (int a = 0; a < o->nattributes; a++) {
            const object_t *value = o->attributes[a].count == 1 &&
                                            o->attributes[a].name != CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1 &&
                                            o->attributes[a].name != CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2
                                        ? *(object_t **)o->attributes[a].bytes
                                        : NULL;
            cudnnStatus_t status = value != NULL && value->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR
                                       ? check_tensor(call, value)
                                       : CUDNN_STATUS_SUCCESS;

            if (status != CUDNN_STATUS_SUCCESS)
                return status;
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t enqueue(cudaStream_t stream, call_t *call)
{
    const CUresult result = CALL(cuLaunchHostFunc, (CUstream)stream, run_call, call);

    if (result == CUDA_ERROR_NOT_INITIALIZED)
        return refuse(CUDNN_STATUS_NOT_INITIALIZED, "no fake driver");
    return result == CUDA_SUCCESS ? CUDNN_STATUS_SUCCESS
                                  : refuse(CUDNN_STATUS_EXECUTION_FAILED, "the driver takes no call");
}

/* Values are small and few; ids of the plugin's scalars are those whose tensors are by value. */
static bool is_by_value(const object_t *graph, int64_t id)
{
    const attribute_t *operations = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);

    for (int64_t i = 0; i < operations->count; i++) {
        const object_t *b = child(((object_t **)operations->bytes)[i], CUDNN_ATTR_OPERATION_POINTWISE_BDESC);

        if (b != NULL && describe(b).id == id)
            return describe(b).by_value;
    }
    return false;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    const object_t *p = pack;
    const attribute_t *ids = find(p, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const attribute_t *pointers = find(p, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    const attribute_t *workspace = find(p, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    call_t *call;

    if (handle == NULL || !p->finished || !((object_t *)plan)->finished || ids == NULL || pointers == NULL ||
        handle->stream == NULL || workspace == NULL || ids->count != pointers->count ||
        *(void **)workspace->bytes == NULL)
        return refuse(CUDNN_STATUS_BAD_PARAM, "the variant pack is not complete, or the handle has no stream");
    call = calloc(1, sizeof(*call));
    *call = (call_t){.next = handle->calls,
                     .graph = ((object_t *)plan)->graph,
                     .count = ids->count,
                     .ids = malloc((size_t)ids->count * 8),
                     .pointers = malloc((size_t)ids->count * 8),
                     .values = calloc((size_t)ids->count, 8),
                     .workspace = *(char **)workspace->bytes};
    handle->calls = call;
    memcpy(call->ids, ids->bytes, (size_t)ids->count * 8);
    memcpy(call->pointers, pointers->bytes, (size_t)ids->count * 8);
    for (int64_t i = 0; i < call->count; i++)
        if (is_by_value(call->graph, call->ids[i]))
            call->values[i] = (double)*(float *)call->pointers[i];
    {
        const cudnnStatus_t status = check_call(call);

        if (status != CUDNN_STATUS_SUCCESS)
            return status;
        first_use((uint64_t)(uintptr_t)plan);
        return enqueue(handle->stream, call);
    }
}
