/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * graph.c: builds the graphs of causal attention, one backend operation after the other.
 *
 * After the first failure nothing more is built, so that the builders below read as the graph they
 * make. Source of the formulas: arXiv 2307.08691. */
#include "graph.h"

#include <string.h>

typedef cudnnBackendDescriptor_t object_t;

/* Dimensions and strides in elements; batch, heads, rows, columns. */
typedef struct view {
    int64_t dims[4], strides[4];
} view_t;

static void set_attribute(attn_sdpa_graph_t *g, object_t object, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (g->status >= 0)
        g->status = attn_dnn_check(g->host, g->dnn, g->dnn->cudnnBackendSetAttribute(object, name, type, count, values),
                                   "describing attention");
}

static void set_object(attn_sdpa_graph_t *g, object_t object, cudnnBackendAttributeName_t name, object_t value)
{
    set_attribute(g, object, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static object_t create_object(attn_sdpa_graph_t *g, cudnnBackendDescriptorType_t type)
{
    object_t object = NULL;

    if (g->status >= 0)
        g->status = attn_dnn_check(g->host, g->dnn, g->dnn->cudnnBackendCreateDescriptor(type, &object),
                                   "describing attention");
    if (g->status >= 0)
        g->objects[g->nobjects++] = object;
    return object;
}

static void finalize_object(attn_sdpa_graph_t *g, object_t object)
{
    if (g->status >= 0)
        g->status = attn_dnn_check(g->host, g->dnn, g->dnn->cudnnBackendFinalize(object), "describing attention");
}

static void add_operation(attn_sdpa_graph_t *g, object_t operation)
{
    finalize_object(g, operation);
    if (g->status >= 0)
        g->operations[g->noperations++] = operation;
}

/* ---- tensors ---- */

static object_t make_tensor(attn_sdpa_graph_t *g, int64_t id, cudnnDataType_t type, view_t v, bool is_virtual,
                            bool by_value)
{
    const int64_t alignment = by_value ? (int64_t)sizeof(float) : 16;
    object_t t = create_object(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);

    set_attribute(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set_attribute(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, v.dims);
    set_attribute(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, v.strides);
    set_attribute(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set_attribute(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set_attribute(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set_attribute(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize_object(g, t);
    return t;
}

static object_t in_memory(attn_sdpa_graph_t *g, attn_sdpa_tensor_t id, cudnnDataType_t type, view_t v)
{
    return make_tensor(g, id, type, v, false, false);
}

/* A result that stays inside the kernel. */
static object_t passing_tensor(attn_sdpa_graph_t *g, cudnnDataType_t type, view_t v)
{
    return make_tensor(g, g->next_id++, type, v, true, false);
}

static object_t value_tensor(attn_sdpa_graph_t *g, attn_sdpa_tensor_t id)
{
    return make_tensor(g, id, CUDNN_DATA_FLOAT, (view_t){{1, 1, 1, 1}, {1, 1, 1, 1}}, false, true);
}

/* [batch, sequence, heads, dim] seen as batch, heads, sequence, dim. */
static view_t rows_view(const attn_sdpa_shape_t *s, int64_t heads, int64_t dim)
{
    return (view_t){{s->batch, heads, s->sequence, dim}, {s->sequence * heads * dim, dim, heads * dim, 1}};
}

static view_t transposed_view(view_t v)
{
    return (view_t){{v.dims[0], v.dims[1], v.dims[3], v.dims[2]},
                    {v.strides[0], v.strides[1], v.strides[3], v.strides[2]}};
}

static view_t contiguous_view(int64_t batch, int64_t heads, int64_t rows, int64_t columns)
{
    return (view_t){{batch, heads, rows, columns}, {heads * rows * columns, rows * columns, columns, 1}};
}

static view_t scores_of(const attn_sdpa_shape_t *s)
{
    return contiguous_view(s->batch, s->heads, s->sequence, s->sequence);
}

static view_t statistics_of(const attn_sdpa_shape_t *s)
{
    return contiguous_view(s->batch, s->heads, s->sequence, 1);
}

/* ---- operations ---- */

static void add_product(attn_sdpa_graph_t *g, object_t a, object_t b, object_t c)
{
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    object_t kind = create_object(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR), operation;

    set_attribute(g, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    finalize_object(g, kind);
    operation = create_object(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_object(g, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_object(g, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_object(g, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_object(g, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    add_operation(g, operation);
}

/* y = x mode b; b and `condition` (of a selection) may be NULL. axis: of an index, else -1. */
static void add_pointwise(attn_sdpa_graph_t *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, int64_t axis,
                          object_t x, object_t b, object_t condition, object_t y)
{
    const float one = 1;
    object_t kind = create_object(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR), operation;

    set_attribute(g, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_attribute(g, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    if (axis >= 0)
        set_attribute(g, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize_object(g, kind);
    operation = create_object(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_object(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    set_object(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_object(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    if (b != NULL)
        set_object(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (condition != NULL)
        set_object(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, condition);
    set_attribute(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &one);
    set_attribute(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &one);
    add_operation(g, operation);
}

/* The same in fp32, into a new tensor or `y`. */
static object_t add_combined(attn_sdpa_graph_t *g, cudnnPointwiseMode_t mode, object_t x, object_t b, view_t v)
{
    object_t y = passing_tensor(g, CUDNN_DATA_FLOAT, v);

    add_pointwise(g, mode, CUDNN_DATA_FLOAT, -1, x, b, NULL, y);
    return y;
}

static void add_reduction(attn_sdpa_graph_t *g, cudnnReduceTensorOp_t by, object_t x, object_t y)
{
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    object_t kind = create_object(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR), operation;

    set_attribute(g, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    set_attribute(g, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &by);
    finalize_object(g, kind);
    operation = create_object(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_object(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    set_object(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_object(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_operation(g, operation);
}

/* x seen with other dimensions. */
static object_t reshape_tensor(attn_sdpa_graph_t *g, object_t x, cudnnDataType_t type, view_t v)
{
    object_t y = passing_tensor(g, type, v), operation = create_object(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    set_object(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_object(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_operation(g, operation);
    return y;
}

/* What a row's query must not see becomes -infinity. */
static object_t mask_future(attn_sdpa_graph_t *g, object_t scores, view_t v)
{
    object_t row = passing_tensor(g, CUDNN_DATA_INT32, v), column = passing_tensor(g, CUDNN_DATA_INT32, v);
    object_t visible = passing_tensor(g, CUDNN_DATA_BOOLEAN, v), masked = passing_tensor(g, CUDNN_DATA_FLOAT, v);

    add_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, scores, NULL, NULL, row);
    add_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, scores, NULL, NULL, column);
    add_pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, column, NULL, visible);
    add_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, scores, value_tensor(g, SDPA_MASKED), visible,
                  masked);
    return masked;
}

static void start_graph(const dp_host_t *host, const attn_dnn_t *dnn, attn_sdpa_graph_t *g)
{
    memset(g, 0, sizeof(*g));
    g->host = host;
    g->dnn = dnn;
    g->next_id = SDPA_COUNT;
}

static dp_status_t finish_graph(attn_sdpa_graph_t *g)
{
    g->graph = create_object(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_attribute(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, (int64_t)g->noperations,
                  g->operations);
    finalize_object(g, g->graph);
    return g->status;
}

/* scale * q k^T. */
static object_t scaled_scores(attn_sdpa_graph_t *g, const attn_sdpa_shape_t *s, object_t q, object_t k_transposed,
                              object_t scale)
{
    object_t scores = passing_tensor(g, CUDNN_DATA_FLOAT, scores_of(s));

    add_product(g, q, k_transposed, scores);
    return add_combined(g, CUDNN_POINTWISE_MUL, scores, scale, scores_of(s));
}

/* exp(x - max) / sum, and the statistics max + log(sum). */
static object_t add_softmax(attn_sdpa_graph_t *g, const attn_sdpa_shape_t *s, object_t x)
{
    const view_t scores = scores_of(s), statistics = statistics_of(s);
    object_t max = passing_tensor(g, CUDNN_DATA_FLOAT, statistics),
             sum = passing_tensor(g, CUDNN_DATA_FLOAT, statistics);
    object_t probabilities = passing_tensor(g, CUDNN_DATA_BFLOAT16, scores), exponentials, log;

    add_reduction(g, CUDNN_REDUCE_TENSOR_MAX, x, max);
    exponentials = add_combined(g, CUDNN_POINTWISE_SUB, x, max, scores);
    exponentials = add_combined(g, CUDNN_POINTWISE_EXP, exponentials, NULL, scores);
    add_reduction(g, CUDNN_REDUCE_TENSOR_ADD, exponentials, sum);
    log = add_combined(g, CUDNN_POINTWISE_LOG, sum, NULL, statistics);
    add_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, max, log, NULL,
                  in_memory(g, SDPA_STATS, CUDNN_DATA_FLOAT, statistics));
    add_pointwise(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, exponentials, sum, NULL, probabilities);
    return probabilities;
}

dp_status_t attn_sdpa_forward_graph(const dp_host_t *host, const attn_dnn_t *dnn, const attn_sdpa_shape_t *s,
                                    attn_sdpa_graph_t *g)
{
    object_t q, k, v, out, scores;

    start_graph(host, dnn, g);
    q = in_memory(g, SDPA_Q, CUDNN_DATA_BFLOAT16, rows_view(s, s->heads, s->head_dim));
    k = in_memory(g, SDPA_K, CUDNN_DATA_BFLOAT16, transposed_view(rows_view(s, s->kv_heads, s->head_dim)));
    v = in_memory(g, SDPA_V, CUDNN_DATA_BFLOAT16, rows_view(s, s->kv_heads, s->value_dim));
    out = in_memory(g, SDPA_OUT, CUDNN_DATA_BFLOAT16, rows_view(s, s->heads, s->value_dim));
    scores = scaled_scores(g, s, q, k, value_tensor(g, SDPA_SCALE));
    scores = mask_future(g, scores, scores_of(s));
    add_product(g, add_softmax(g, s, scores), v, out);
    return finish_graph(g);
}

/* gradient[keys, dim] = scores^T right, summed over the query heads that share a key/value head. */
static void gather_gradient(attn_sdpa_graph_t *g, const attn_sdpa_shape_t *s, object_t scores, object_t right,
                            int64_t dim, attn_sdpa_tensor_t id)
{
    const view_t turned = {{s->batch, s->heads, s->sequence, s->sequence},
                           {s->heads * s->sequence * s->sequence, s->sequence * s->sequence, 1, s->sequence}};
    object_t left = reshape_tensor(g, scores, CUDNN_DATA_BFLOAT16, turned);
    object_t gradient = in_memory(g, id, CUDNN_DATA_BFLOAT16, rows_view(s, s->kv_heads, dim)), each;

    if (s->heads == s->kv_heads) {
        add_product(g, left, right, gradient);
        return;
    }
    each = passing_tensor(g, CUDNN_DATA_BFLOAT16, contiguous_view(s->batch, s->heads, s->sequence, dim));
    add_product(g, left, right, each);
    add_reduction(g, CUDNN_REDUCE_TENSOR_ADD, each, gradient);
}

/* The sum of dout * out over each row. */
static object_t row_sums(attn_sdpa_graph_t *g, const attn_sdpa_shape_t *s, object_t dout, object_t out)
{
    object_t sums = passing_tensor(g, CUDNN_DATA_FLOAT, statistics_of(s));
    object_t kept = in_memory(g, SDPA_ROW_SUMS, CUDNN_DATA_FLOAT, statistics_of(s));

    add_reduction(
        g, CUDNN_REDUCE_TENSOR_ADD,
        add_combined(g, CUDNN_POINTWISE_MUL, dout, out, contiguous_view(s->batch, s->heads, s->sequence, s->value_dim)),
        sums);
    add_pointwise(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, sums, value_tensor(g, SDPA_ONE), NULL, kept);
    return kept;
}

/* dq = dscores k: in fp32 and then rounded, or at once. */
static void query_gradient(attn_sdpa_graph_t *g, const attn_sdpa_shape_t *s, object_t dscores, object_t k_transposed)
{
    object_t k = reshape_tensor(g, k_transposed, CUDNN_DATA_BFLOAT16, rows_view(s, s->kv_heads, s->head_dim));
    object_t dq = in_memory(g, SDPA_DQ, CUDNN_DATA_BFLOAT16, rows_view(s, s->heads, s->head_dim)), sums;

    if (s->deterministic) {
        add_product(g, dscores, k, dq);
        return;
    }
    sums = in_memory(g, SDPA_DQ_SUMS, CUDNN_DATA_FLOAT, contiguous_view(s->batch, s->heads, s->sequence, s->head_dim));
    add_product(g, dscores, k, sums);
    add_pointwise(g, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, -1, sums, NULL, NULL, dq);
}

dp_status_t attn_sdpa_backward_graph(const dp_host_t *host, const attn_dnn_t *dnn, const attn_sdpa_shape_t *s,
                                     attn_sdpa_graph_t *g)
{
    const view_t scores = scores_of(s);
    object_t q, k, v, out, dout, stats, scale, sums, p, ds;

    start_graph(host, dnn, g);
    q = in_memory(g, SDPA_Q, CUDNN_DATA_BFLOAT16, rows_view(s, s->heads, s->head_dim));
    k = in_memory(g, SDPA_K, CUDNN_DATA_BFLOAT16, transposed_view(rows_view(s, s->kv_heads, s->head_dim)));
    v = in_memory(g, SDPA_V, CUDNN_DATA_BFLOAT16, transposed_view(rows_view(s, s->kv_heads, s->value_dim)));
    out = in_memory(g, SDPA_OUT, CUDNN_DATA_BFLOAT16, rows_view(s, s->heads, s->value_dim));
    dout = in_memory(g, SDPA_DOUT, CUDNN_DATA_BFLOAT16, rows_view(s, s->heads, s->value_dim));
    stats = in_memory(g, SDPA_STATS, CUDNN_DATA_FLOAT, statistics_of(s));
    scale = value_tensor(g, SDPA_SCALE);

    sums = row_sums(g, s, dout, out);
    p = scaled_scores(g, s, q, k, scale);
    p = add_combined(g, CUDNN_POINTWISE_SUB, p, stats, scores);
    p = mask_future(g, p, scores);
    p = add_combined(g, CUDNN_POINTWISE_EXP, p, NULL, scores);
    gather_gradient(g, s, p, dout, s->value_dim, SDPA_DV);

    ds = passing_tensor(g, CUDNN_DATA_FLOAT, scores);
    add_product(g, dout, v, ds);
    ds = add_combined(g, CUDNN_POINTWISE_SUB, ds, sums, scores);
    ds = add_combined(g, CUDNN_POINTWISE_MUL, ds, p, scores);
    ds = add_combined(g, CUDNN_POINTWISE_MUL, ds, scale, scores);
    gather_gradient(g, s, ds, q, s->head_dim, SDPA_DK);
    query_gradient(g, s, ds, k);
    return finish_graph(g);
}

void attn_sdpa_graph_close(attn_sdpa_graph_t *g)
{
    while (g->nobjects > 0)
        g->dnn->cudnnBackendDestroyDescriptor(g->objects[--g->nobjects]);
}
