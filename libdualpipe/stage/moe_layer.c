/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_layer.c: a MoE transformer layer out of an attention and a MoE plugin, as four segments.
 *
 *   forward    attention + route | dispatch | experts | combine
 *   backward   combine(B) | experts(I), experts(W) | dispatch(B) | route(I) + attention(I),
 *              route(W) + attention(W)
 *
 * Where an instance was opened with `apart` it has the segments of types.h: attention in halves, of
 * which the second has route, or shared experts and the sum. With `posted` dispatch and combine are
 * on the compute lane, and there is a sum, which waits for combine.
 *
 * with recompute of experts and of attention before their I where the blocks want it. Parameters,
 * saved, backward_buffer and work memory of the layer are those of attention followed by those of
 * MoE; work memory starts with h, the tensor between the two. */
#include "base/do.h"
#include "base/memory.h"
#include "base/sized.h"
#include "stage/dtype.h"
#include "stage/replicas.h"
#include "stage/stage.h"

#include <string.h>

#define ALIGNMENT 64

enum { PROJECT, ATTENTION, DISPATCH, MLP, SHARED, COMBINE, SUM, NSEGMENTS };

struct dp_moe_layer {
    const dp_attention_vt_t *attention_vt;
    dp_attention_t *attention;
    const dp_moe_vt_t *moe_vt;
    dp_moe_t *moe;
    dp_dtype_t dtype;
    size_t boundary_bytes;            /* of a micro-batch with as many tokens as were announced */
    size_t h_bytes;                   /* of h in work memory */
    dp_block_sizes_t attention_sizes; /* rounded up, so that MoE's memory is aligned */
    dp_block_sizes_t moe_sizes;
    dp_segment_t segments[NSEGMENTS]; /* the first nsegments of these are its own */
    int32_t nsegments;
    dp_block_sizes_t sizes;
    dp_param_t *param_list;
    char *names;

    dp__replicas_t *replicas;  /* NULL: experts are not replicated */
    size_t first_replica;      /* of ours, in elements from the start of the layer's parameters */
    int32_t *placement;        /* [2][R] of the next step; and the one that its experts move to */
    int32_t *device_placement; /* the same, as route reads it */
    bool moving;               /* between begin and end */
    uint64_t revision;         /* changes of placement, and of where loads are */
    int64_t *loads;            /* where route counts; NULL: nowhere */
};

/* What both blocks take from a call; attention's memory comes first. */
static dp_io_t common_io(const dp_segment_call_t *call)
{
    return (dp_io_t){
        .struct_size = sizeof(dp_io_t),
        .step = call->step,
        .microbatch = call->microbatch,
        .params = call->params,
        .grads = call->grads,
        .saved = call->saved,
        .scratch = call->scratch,
        .backward_buffer = call->backward_buffer,
        .tokens = call->tokens,
        .documents = call->documents,
        .document_ends = call->document_ends,
    };
}

static void *h_of(const dp_segment_call_t *call)
{
    return call->work;
}

static dp_io_t attention_io(const dp_moe_layer_t *layer, const dp_segment_call_t *call)
{
    dp_io_t io = common_io(call);

    io.work = call->work != NULL ? (char *)call->work + layer->h_bytes : NULL;
    io.cache = call->cache;
    io.slots = call->slots;
    io.past = call->past;
    return io;
}

static dp_io_t moe_io(const dp_moe_layer_t *layer, const dp_segment_call_t *call)
{
    size_t params = layer->attention_sizes.param_count * dp_dtype_bytes(layer->dtype);
    dp_io_t io = common_io(call);

    io.params = (const char *)call->params + params;
    io.grads = call->grads != NULL ? (char *)call->grads + dp__grads_offset(layer->dtype, params) : NULL;
    io.saved = (char *)call->saved + layer->attention_sizes.saved_bytes;
    io.backward_buffer = call->backward_buffer != NULL
                             ? (char *)call->backward_buffer + layer->attention_sizes.backward_buffer_bytes
                             : NULL;
    io.work = call->work != NULL ? (char *)call->work + layer->h_bytes + layer->attention_sizes.work_bytes : NULL;
    return io;
}

typedef dp_status_t (*moe_fn)(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s);

static dp_status_t call_moe(const dp_moe_layer_t *layer, moe_fn fn, const dp_segment_call_t *call, const dp_io_t *io,
                            dp_stream_t *s)
{
    const dp_moe_io_t moe_io = {.struct_size = sizeof(moe_io),
                                .io = io,
                                .aux_scale = (float)call->loss_scale,
                                .aux_loss = call->aux_loss,
                                .placement = layer->device_placement,
                                .loads = layer->loads};

    return fn(layer->moe, &moe_io, s);
}

typedef dp_status_t (*attention_fn)(dp_attention_t *attention, const dp_io_t *io, dp_stream_t *s);

static dp_status_t forward_and_route(const dp_moe_layer_t *layer, attention_fn forward, const dp_segment_call_t *call,
                                     dp_stream_t *s)
{
    dp_io_t attention = attention_io(layer, call);
    dp_io_t route = moe_io(layer, call);

    attention.x = call->x;
    attention.y = h_of(call);
    DO(forward(layer->attention, &attention, s));
    route.x = h_of(call);
    return call_moe(layer, layer->moe_vt->route, call, &route, s);
}

static dp_status_t attention_forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;

    return forward_and_route(layer, layer->attention_vt->forward, call, s);
}

static dp_status_t attend_forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;

    return forward_and_route(layer, layer->attention_vt->attend, call, s);
}

static dp_status_t project_forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;
    dp_io_t attention = attention_io(layer, call);

    attention.x = call->x;
    return layer->attention_vt->project(layer->attention, &attention, s);
}

static dp_status_t route_and_backward_input(const dp_moe_layer_t *layer, attention_fn backward, void *dx,
                                            const dp_segment_call_t *call, dp_stream_t *s)
{
    dp_io_t attention = attention_io(layer, call);
    dp_io_t route = moe_io(layer, call);

    route.dx = h_of(call);
    DO(call_moe(layer, layer->moe_vt->route_backward_input, call, &route, s));
    attention.dy = h_of(call);
    attention.dx = dx;
    return backward(layer->attention, &attention, s);
}

static dp_status_t attention_backward_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;

    return route_and_backward_input(layer, layer->attention_vt->backward_input, call->dx, call, s);
}

static dp_status_t attend_backward_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;

    return route_and_backward_input(layer, layer->attention_vt->attend_backward_input, NULL, call, s);
}

static dp_status_t project_backward_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;
    dp_io_t attention = attention_io(layer, call);

    attention.dx = call->dx;
    return layer->attention_vt->project_backward_input(layer->attention, &attention, s);
}

static dp_status_t route_and_backward_weight(const dp_moe_layer_t *layer, attention_fn backward,
                                             const dp_segment_call_t *call, dp_stream_t *s)
{
    dp_io_t attention = attention_io(layer, call);
    dp_io_t route = moe_io(layer, call);

    DO(call_moe(layer, layer->moe_vt->route_backward_weight, call, &route, s));
    return backward(layer->attention, &attention, s);
}

static dp_status_t attention_backward_weight(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;

    return route_and_backward_weight(layer, layer->attention_vt->backward_weight, call, s);
}

static dp_status_t attend_backward_weight(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;

    return route_and_backward_weight(layer, layer->attention_vt->attend_backward_weight, call, s);
}

static dp_status_t project_backward_weight(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;
    dp_io_t attention = attention_io(layer, call);

    return layer->attention_vt->project_backward_weight(layer->attention, &attention, s);
}

static dp_status_t attention_recompute(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;
    const dp_io_t io = attention_io(layer, call);

    return layer->attention_vt->recompute(layer->attention, &io, s);
}

/* A function of a segment that does what one function of the MoE plugin does. */
#define MOE_CALL(name, member)                                                                                         \
    static dp_status_t name(void *self, const dp_segment_call_t *call, dp_stream_t *s)                                 \
    {                                                                                                                  \
        const dp_moe_layer_t *layer = self;                                                                            \
        const dp_io_t io = moe_io(layer, call);                                                                        \
                                                                                                                       \
        return call_moe(layer, layer->moe_vt->member, call, &io, s);                                                   \
    }
MOE_CALL(dispatch_forward, dispatch)
MOE_CALL(dispatch_backward, dispatch_backward)
MOE_CALL(experts_forward, experts)
MOE_CALL(experts_backward_input, experts_backward_input)
MOE_CALL(experts_backward_weight, experts_backward_weight)
MOE_CALL(experts_recompute, experts_recompute)
MOE_CALL(shared_forward, shared)
MOE_CALL(shared_backward_input, shared_backward_input)
MOE_CALL(shared_backward_weight, shared_backward_weight)
MOE_CALL(shared_recompute, shared_recompute)
MOE_CALL(combine_rows_forward, combine)
MOE_CALL(combine_rows_backward, combine_backward)

/* The ends of the layer: into y, out of dy. */
static dp_status_t call_into_y(const dp_moe_layer_t *layer, moe_fn fn, const dp_segment_call_t *call, dp_stream_t *s)
{
    dp_io_t io = moe_io(layer, call);

    io.y = call->y;
    return call_moe(layer, fn, call, &io, s);
}

static dp_status_t call_out_of_dy(const dp_moe_layer_t *layer, moe_fn fn, const dp_segment_call_t *call, dp_stream_t *s)
{
    dp_io_t io = moe_io(layer, call);

    io.dy = call->dy;
    return call_moe(layer, fn, call, &io, s);
}

static dp_status_t combine_forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;

    return call_into_y(layer, layer->moe_vt->combine, call, s);
}

static dp_status_t combine_backward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;

    return call_out_of_dy(layer, layer->moe_vt->combine_backward, call, s);
}

static dp_status_t sum_forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;

    return call_into_y(layer, layer->moe_vt->sum, call, s);
}

static dp_status_t sum_backward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;

    return call_out_of_dy(layer, layer->moe_vt->sum_backward, call, s);
}

static const dp_segment_t project = {.name = "project",
                                     .role = DP_ROLE_PROJECT,
                                     .lane = DP_LANE_COMPUTE,
                                     .forward = project_forward,
                                     .backward_input = project_backward_input,
                                     .backward_weight = project_backward_weight};
static const dp_segment_t attention = {.name = "attention",
                                       .role = DP_ROLE_ATTENTION,
                                       .lane = DP_LANE_COMPUTE,
                                       .forward = attention_forward,
                                       .backward_input = attention_backward_input,
                                       .backward_weight = attention_backward_weight};
static const dp_segment_t dispatch = {.name = "dispatch",
                                      .role = DP_ROLE_DISPATCH,
                                      .lane = DP_LANE_ALL_TO_ALL,
                                      .forward = dispatch_forward,
                                      .backward_input = dispatch_backward};
static const dp_segment_t mlp = {.name = "mlp",
                                 .role = DP_ROLE_MLP,
                                 .lane = DP_LANE_COMPUTE,
                                 .forward = experts_forward,
                                 .backward_input = experts_backward_input,
                                 .backward_weight = experts_backward_weight};
static const dp_segment_t shared = {.name = "shared",
                                    .role = DP_ROLE_SHARED,
                                    .lane = DP_LANE_COMPUTE,
                                    .forward = shared_forward,
                                    .backward_input = shared_backward_input,
                                    .backward_weight = shared_backward_weight};
static const dp_segment_t combine = {.name = "combine",
                                     .role = DP_ROLE_COMBINE,
                                     .lane = DP_LANE_ALL_TO_ALL,
                                     .forward = combine_forward,
                                     .backward_input = combine_backward};
static const dp_segment_t sum = {.name = "sum",
                                 .role = DP_ROLE_SUM,
                                 .lane = DP_LANE_COMPUTE,
                                 .forward = sum_forward,
                                 .backward_input = sum_backward};

static dp_segment_t *put_segment(dp_moe_layer_t *layer, const dp_segment_t *segment)
{
    dp_segment_t *put = &layer->segments[layer->nsegments++];

    *put = *segment;
    put->struct_size = sizeof(*put);
    put->self = layer;
    return put;
}

/* With R where a block wants it. */
static void put_segments(dp_moe_layer_t *layer)
{
    const bool halves = layer->attention_sizes.apart, apart = layer->moe_sizes.apart, posted = layer->moe_sizes.posted;
    const dp_lane_t lane = posted ? DP_LANE_COMPUTE : DP_LANE_ALL_TO_ALL;
    dp_segment_t *put;

    if (halves)
        (void)put_segment(layer, &project);
    put = put_segment(layer, &attention);
    if (halves) {
        put->forward = attend_forward;
        put->backward_input = attend_backward_input;
        put->backward_weight = attend_backward_weight;
    }
    put->recompute = layer->attention_sizes.recomputes ? attention_recompute : NULL;
    put_segment(layer, &dispatch)->lane = lane;
    put_segment(layer, &mlp)->recompute = layer->moe_sizes.recomputes ? experts_recompute : NULL;
    if (apart)
        put_segment(layer, &shared)->recompute = layer->moe_sizes.recomputes ? shared_recompute : NULL;
    put = put_segment(layer, &combine);
    put->lane = lane;
    if (apart || posted) {
        put->forward = combine_rows_forward;
        put->backward_input = combine_rows_backward;
        (void)put_segment(layer, &sum);
    }
}

static bool round_sizes(dp_block_sizes_t *sizes)
{
    return dp__round_up(sizes->saved_bytes, ALIGNMENT, &sizes->saved_bytes) &&
           dp__round_up(sizes->backward_buffer_bytes, ALIGNMENT, &sizes->backward_buffer_bytes) &&
           dp__round_up(sizes->cache_bytes, ALIGNMENT, &sizes->cache_bytes) &&
           dp__round_up(sizes->work_bytes, ALIGNMENT, &sizes->work_bytes) &&
           dp__round_up(sizes->param_count, ALIGNMENT, &sizes->param_count);
}

/* Fills the part's sizes with the sums over both blocks. */
static bool add_sizes(const dp_moe_layer_t *layer, dp_block_sizes_t *sum)
{
    const dp_block_sizes_t *a = &layer->attention_sizes, *m = &layer->moe_sizes;

    *sum = (dp_block_sizes_t){.struct_size = sizeof(*sum), .nparams = a->nparams + m->nparams};
    sum->cache_bytes = a->cache_bytes;
    sum->scratch_bytes = a->scratch_bytes > m->scratch_bytes ? a->scratch_bytes : m->scratch_bytes;
    return dp__add(a->saved_bytes, m->saved_bytes, &sum->saved_bytes) &&
           dp__add(a->backward_buffer_bytes, m->backward_buffer_bytes, &sum->backward_buffer_bytes) &&
           dp__add(a->work_bytes, m->work_bytes, &sum->work_bytes) &&
           dp__add(sum->work_bytes, layer->h_bytes, &sum->work_bytes) &&
           dp__add(a->param_count, m->param_count, &sum->param_count);
}

/* Both blocks have a "norm": "attention." and "moe." tell whose. */
static dp_status_t name_params(dp_moe_layer_t *layer)
{
    const uint32_t na = layer->attention_sizes.nparams, n = na + layer->moe_sizes.nparams;
    size_t bytes = 1;
    char *next;

    for (uint32_t p = 0; p < n; p++) {
        if (layer->param_list[p].name == NULL)
            return dp_fail(DP_ERR_PLUGIN, "MoE layer: the %s plugin gave its parameter %u no name",
                           p < na ? "attention" : "MoE", p < na ? p : p - na);
        bytes += strlen("attention.") + strlen(layer->param_list[p].name) + 1;
    }
    next = layer->names = dp__calloc(1, bytes);
    if (next == NULL)
        return dp_fail(DP_ERR_NOMEM, "MoE layer: no memory for the names of %u parameters", n);
    for (uint32_t p = 0; p < n; p++) {
        char *name = next;

        next = stpcpy(stpcpy(name, p < na ? "attention." : "moe."), layer->param_list[p].name) + 1;
        layer->param_list[p].name = name;
    }
    return DP_OK;
}

static dp_status_t list_params(dp_moe_layer_t *layer)
{
    uint32_t na = layer->attention_sizes.nparams, nm = layer->moe_sizes.nparams;

    layer->param_list = dp__calloc((size_t)na + nm + 1, sizeof(*layer->param_list));
    if (layer->param_list == NULL)
        return dp_fail(DP_ERR_NOMEM, "MoE layer: no memory for a list of %u parameters", na + nm);
    DO(layer->attention_vt->params(layer->attention, layer->param_list));
    DO(layer->moe_vt->params(layer->moe, layer->param_list + na));
    for (uint32_t p = na; p < na + nm; p++)
        layer->param_list[p].offset += layer->attention_sizes.param_count;
    return name_params(layer);
}

/* What the blocks' sizes say that they do. */
static dp_status_t check_calls(const dp_moe_layer_t *layer)
{
    const dp_attention_vt_t *a = layer->attention_vt;
    const dp_moe_vt_t *m = layer->moe_vt;

    if (layer->attention_sizes.recomputes && !DP_HAS(a, dp_attention_vt_t, recompute))
        return dp_fail(DP_ERR_PLUGIN, "MoE layer: the attention plugin asks to be recomputed and has no recompute");
    if (layer->moe_sizes.recomputes && !DP_HAS(m, dp_moe_vt_t, experts_recompute))
        return dp_fail(DP_ERR_PLUGIN, "MoE layer: the MoE plugin asks to be recomputed and has no experts_recompute");
    if (layer->attention_sizes.apart &&
        !(DP_HAS(a, dp_attention_vt_t, project) && DP_HAS(a, dp_attention_vt_t, attend) &&
          DP_HAS(a, dp_attention_vt_t, attend_backward_input) && DP_HAS(a, dp_attention_vt_t, project_backward_input) &&
          DP_HAS(a, dp_attention_vt_t, attend_backward_weight) &&
          DP_HAS(a, dp_attention_vt_t, project_backward_weight)))
        return dp_fail(DP_ERR_PLUGIN, "MoE layer: the attention plugin asks to be called in halves and has not all");
    if (layer->moe_sizes.posted && !(DP_HAS(m, dp_moe_vt_t, sum) && DP_HAS(m, dp_moe_vt_t, sum_backward)))
        return dp_fail(DP_ERR_PLUGIN, "MoE layer: the MoE plugin posts, and has no call that waits for combine");
    if (layer->moe_sizes.apart &&
        !(DP_HAS(m, dp_moe_vt_t, shared) && DP_HAS(m, dp_moe_vt_t, sum) && DP_HAS(m, dp_moe_vt_t, sum_backward) &&
          DP_HAS(m, dp_moe_vt_t, shared_backward_input) && DP_HAS(m, dp_moe_vt_t, shared_backward_weight) &&
          (!layer->moe_sizes.recomputes || DP_HAS(m, dp_moe_vt_t, shared_recompute))))
        return dp_fail(DP_ERR_PLUGIN,
                       "MoE layer: the MoE plugin asks for shared experts and sum to be called apart and has not all");
    return DP_OK;
}

static dp_status_t build_layer(dp_moe_layer_t *layer, size_t boundary_bytes, dp_part_t *part_out)
{
    layer->attention_sizes.struct_size = layer->moe_sizes.struct_size = sizeof(dp_block_sizes_t);
    DO(layer->attention_vt->sizes(layer->attention, &layer->attention_sizes));
    DO(layer->moe_vt->sizes(layer->moe, &layer->moe_sizes));
    layer->boundary_bytes = boundary_bytes;
    if (!dp__round_up(boundary_bytes, ALIGNMENT, &layer->h_bytes) || !round_sizes(&layer->attention_sizes) ||
        !round_sizes(&layer->moe_sizes) || !add_sizes(layer, &layer->sizes))
        return dp_fail(DP_ERR_INVALID, "MoE layer: its sizes add up to more than memory can hold");
    DO(list_params(layer));
    DO(check_calls(layer));
    put_segments(layer);
    dp_sized_put(part_out, &(dp_part_t){.struct_size = sizeof(dp_part_t),
                                        .nsegments = layer->nsegments,
                                        .segments = layer->segments,
                                        .sizes = &layer->sizes,
                                        .param_list = layer->param_list,
                                        .boundary_bytes = boundary_bytes});
    return DP_OK;
}

dp_status_t dp_moe_layer_part(const dp_attention_vt_t *attention_vt, dp_attention_t *attention,
                              const dp_moe_vt_t *moe_vt, dp_moe_t *moe, dp_dtype_t dtype, size_t boundary_bytes,
                              dp_moe_layer_t **layer_out, dp_part_t *part_out)
{
    dp_moe_layer_t *layer;
    dp_status_t status;

    if (attention_vt == NULL || attention == NULL || moe_vt == NULL || moe == NULL || layer_out == NULL ||
        part_out == NULL)
        return dp_fail(DP_ERR_INVALID,
                       "dp_moe_layer_part: both tables and instances, layer_out and part_out are required");
    DO(dp__sized_check("dp_moe_layer_part: part_out", part_out, "dp_part_t", DP_PART_MIN));
    if (!dp__dtype_of_params(dtype))
        return dp_fail(DP_ERR_INVALID, "dp_moe_layer_part: dtype is %s; parameters are DP_F32, DP_F64 or DP_BF16",
                       dp__dtype_name(dtype));
    layer = dp__calloc(1, sizeof(*layer));
    if (layer == NULL)
        return dp_fail(DP_ERR_NOMEM, "MoE layer: no memory for its record");
    layer->attention_vt = attention_vt;
    layer->attention = attention;
    layer->moe_vt = moe_vt;
    layer->moe = moe;
    layer->dtype = dtype;
    status = build_layer(layer, boundary_bytes, part_out);
    if (status < 0) {
        dp_moe_layer_free(layer);
        return status;
    }
    *layer_out = layer;
    return DP_OK;
}

/* ---- replicated experts ---- */

/* Finds this rank's replicas in the MoE instance's parameters: one after the other, each of
 * expert_count elements. */
static dp_status_t find_replicas(dp_moe_layer_t *layer, const dp__replicas_config_t *shape)
{
    const dp_param_t *param = layer->param_list + layer->attention_sizes.nparams;
    const size_t local = shape->replicas / (uint32_t)shape->comm_size, one = shape->expert_count;
    const size_t first = local * (size_t)shape->comm_rank;
    size_t begin = 0, end = 0;
    bool as_due = true;

    for (uint32_t i = 0; i < layer->moe_sizes.nparams; i++) {
        if (!param[i].sharded)
            continue;
        if (end == 0)
            begin = end = param[i].offset;
        as_due = as_due && param[i].offset == end && (size_t)param[i].expert == first + (end - begin) / one;
        end += param[i].count;
    }
    layer->first_replica = begin;
    if (as_due && end - begin == local * one)
        return DP_OK;
    return dp_fail(
        DP_ERR_MISMATCH,
        "MoE layer: its MoE instance does not have replicas %zu to %zu of %zu elements, one after the other: open it "
        "with config.replicas %u",
        first, first + local - 1, one, shape->replicas);
}

static dp_status_t sum_replicas(void *self, void *grads, dp_stream_t *s)
{
    const dp_moe_layer_t *layer = self;
    const size_t size = dp_dtype_bytes(dp_dtype_accumulator(dp__replicas_config(layer->replicas)->dtype));

    if (layer->moving)
        return dp_fail(DP_ERR_INVALID, "a training step while experts move: call dp_moe_layer_place_end before it");
    return dp__replicas_sum(layer->replicas, layer->placement, (char *)grads + layer->first_replica * size, s);
}

static dp_status_t set_placement(dp_moe_layer_t *layer, const int32_t *placement)
{
    layer->revision++;
    memcpy(layer->placement, placement, dp__replicas_config(layer->replicas)->replicas * sizeof(*placement));
    return dp__replicas_write(layer->replicas, layer->device_placement, layer->placement);
}

dp_status_t dp__moe_layer_replicate(dp_moe_layer_t *layer, dp__replicas_t *replicas, const int32_t *placement,
                                    dp_part_t *part)
{
    const dp__replicas_config_t *shape;

    if (layer == NULL || replicas == NULL || part == NULL || layer->replicas != NULL)
        return dp_fail(DP_ERR_INVALID, "replicas of experts: layer, replicas and part are required, once for a layer");
    shape = dp__replicas_config(replicas);
    DO(dp__replicas_check(shape->experts, shape->replicas, placement));
    DO(find_replicas(layer, shape));
    layer->placement = dp__calloc(2 * (size_t)shape->replicas, sizeof(*layer->placement));
    if (layer->placement == NULL)
        return dp_fail(DP_ERR_NOMEM, "MoE layer: no memory for a placement of %u replicas", shape->replicas);
    layer->replicas = replicas;
    DO(dp__replicas_allocate(replicas, &layer->device_placement));
    part->reduce = sum_replicas;
    part->reduce_self = layer;
    part->revision = &layer->revision;
    part->placement = layer->placement;
    return set_placement(layer, placement);
}

static dp_status_t check_replicated(const dp_moe_layer_t *layer, const char *caller)
{
    if (layer == NULL || layer->replicas == NULL)
        return dp_fail(DP_ERR_INVALID, "%s: the layer has no replicated experts (dp_moe_config_t.replicas)", caller);
    return DP_OK;
}

dp_status_t dp_moe_layer_place(dp_moe_layer_t *layer, const int32_t *placement, const dp_replica_memory_t *memories,
                               int32_t count, uint64_t *sent_out)
{
    DO(check_replicated(layer, "dp_moe_layer_place"));
    DO(dp__replicas_move(layer->replicas, layer->placement, placement, memories, count, sent_out));
    return set_placement(layer, placement);
}

static int32_t *next_placement(const dp_moe_layer_t *layer)
{
    return layer->placement + dp__replicas_config(layer->replicas)->replicas;
}

dp_status_t dp_moe_layer_place_begin(dp_moe_layer_t *layer, const int32_t *placement,
                                     const dp_replica_memory_t *memories, int32_t count, uint64_t *sent_out)
{
    DO(check_replicated(layer, "dp_moe_layer_place_begin"));
    DO(dp__replicas_begin(layer->replicas, layer->placement, placement, memories, count, sent_out));
    memcpy(next_placement(layer), placement, dp__replicas_config(layer->replicas)->replicas * sizeof(*placement));
    layer->moving = true;
    return DP_OK;
}

dp_status_t dp_moe_layer_place_end(dp_moe_layer_t *layer)
{
    DO(check_replicated(layer, "dp_moe_layer_place_end"));
    if (!layer->moving)
        return dp_fail(DP_ERR_INVALID, "dp_moe_layer_place_end: no move of this layer's experts has begun");
    DO(dp__replicas_end(layer->replicas));
    layer->moving = false;
    return set_placement(layer, next_placement(layer));
}

void dp_moe_layer_count(dp_moe_layer_t *layer, int64_t *loads)
{
    layer->revision++;
    layer->loads = loads;
}

void dp_moe_layer_free(dp_moe_layer_t *layer)
{
    if (layer == NULL)
        return;
    dp__free(layer->placement);
    dp__free(layer->names);
    dp__free(layer->param_list);
    dp__free(layer);
}
