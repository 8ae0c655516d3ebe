/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stage.c: chains parts into a stage and hands every segment the memory of its part.
 *
 * Work memory of a pass: two boundary tensors, used in turn for what flows from part to part, then
 * the work memory of the part that is running (parts of one pass run one after the other, so they
 * share it). A forward has what is backward_buffer of the running part behind that. */
#include "stage/stage.h"
#include "base/do.h"
#include "base/sized.h"

#include "base/memory.h"
#include "stage/dtype.h"
#include "stage/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Thread_local const char *dp__segment_running;

#define ALIGNMENT     64
#define MOST_SEGMENTS INT16_MAX /* what the order of a pair can number */

void dp_stage_free(dp_stage_t *stage)
{
    if (stage == NULL)
        return;
    dp__free(stage->param_list);
    dp__free(stage->segments);
    dp__free(stage->parts);
    dp__free(stage);
}

/* ---- what a part may be ---- */

static const char *missing(const dp_segment_t *s)
{
    if (s->name == NULL || s->name[0] == '\0')
        return "name";
    if (s->forward == NULL && s->host_forward == NULL)
        return "forward or host_forward";
    return s->backward_input == NULL && s->host_backward_input == NULL ? "backward_input or host_backward_input" : NULL;
}

static const char *doubled(const dp_segment_t *s)
{
    if (s->forward != NULL && s->host_forward != NULL)
        return "forward and host_forward";
    if (s->backward_input != NULL && s->host_backward_input != NULL)
        return "backward_input and host_backward_input";
    if (s->backward_weight != NULL && s->host_backward_weight != NULL)
        return "backward_weight and host_backward_weight";
    return s->recompute != NULL && s->host_recompute != NULL ? "recompute and host_recompute" : NULL;
}

static bool recomputes(const dp_segment_t *s)
{
    return s->recompute != NULL || s->host_recompute != NULL;
}

static dp_status_t check_segment(const dp_segment_t *s, int32_t part, int32_t index)
{
    if (missing(s) != NULL)
        return dp_fail(DP_ERR_INVALID, "part %d segment %d %s has no %s", part, index, s->name != NULL ? s->name : "",
                       missing(s));
    if (doubled(s) != NULL)
        return dp_fail(DP_ERR_INVALID, "part %d segment %s has both %s: give one of them", part, s->name, doubled(s));
    if (s->lane != DP_LANE_COMPUTE && s->lane != DP_LANE_ALL_TO_ALL)
        return dp_fail(DP_ERR_INVALID, "part %d segment %s: a segment runs on the compute or the all-to-all lane", part,
                       s->name);
    if (recomputes(s) && s->lane != DP_LANE_COMPUTE)
        return dp_fail(DP_ERR_INVALID,
                       "part %d segment %s: a segment on the all-to-all lane recomputes nothing: keep what it makes",
                       part, s->name);
    return DP_OK;
}

static dp_status_t check_shared(const dp_param_t *param, int32_t part)
{
    const size_t length = strlen(param->shared);

    if (length == 0 || length >= DP__SHARED_BYTES)
        return dp_fail(DP_ERR_INVALID, "part %d parameter %s: shared is a name of %zu bytes; 1 to %d are legal", part,
                       param->name, length, DP__SHARED_BYTES - 1);
    if (param->sharded || param->kind == DP_PARAM_ROUTER_BIAS)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "part %d parameter %s has the shared name %s: neither parameters of experts nor biases of "
                       "routers can be shared",
                       part, param->name, param->shared);
    return DP_OK;
}

static dp_status_t check_param(const dp_param_t *param, int32_t part, uint32_t index, size_t count)
{
    if (param->name == NULL || param->name[0] == '\0')
        return dp_fail(DP_ERR_INVALID, "part %d: parameter %u has no name", part, index);
    if (param->offset > count || count - param->offset < param->count)
        return dp_fail(DP_ERR_INVALID, "part %d parameter %s lies outside the part's %zu elements", part, param->name,
                       count);
    if (param->sharded > 1 || (param->sharded == 0 && param->expert > 0))
        return dp_fail(
            DP_ERR_INVALID,
            "part %d parameter %s: sharded is %u and expert %d: a parameter of one expert has sharded 1, one "
            "that is the same on all ranks has both 0",
            part, param->name, param->sharded, param->expert);
    if (param->reserved[0] != 0 || param->reserved[1] != 0)
        return dp_fail(DP_ERR_INVALID, "part %d parameter %s: reserved must be zero", part, param->name);
    return param->shared != NULL ? check_shared(param, part) : DP_OK;
}

static int by_offset(const void *a, const void *b)
{
    const dp_param_t *x = a, *y = b;

    return x->offset != y->offset ? (x->offset > y->offset ? 1 : -1) : (x->count > y->count) - (x->count < y->count);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const dp_param_t *)a)->name, ((const dp_param_t *)b)->name);
}

/* No two parameters of the stage share an element or a name. Its list is complete. */
static dp_status_t check_list(dp_stage_t *stage)
{
    uint32_t n = stage->info.nparams;
    dp_param_t *sorted = dp__calloc(n + 1u, sizeof(*sorted));
    dp_status_t status = DP_OK;

    if (sorted == NULL)
        return dp_fail(DP_ERR_NOMEM, "stage: no memory to check %u parameters", n);
    memcpy(sorted, stage->param_list, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_offset);
    stage->rising = n == 0 || memcmp(sorted, stage->param_list, n * sizeof(*sorted)) == 0;
    for (uint32_t i = 1; i < n && status >= 0; i++)
        if (sorted[i].offset < sorted[i - 1].offset + sorted[i - 1].count)
            status = dp_fail(DP_ERR_INVALID,
                             "parameters %s and %s overlap: %zu elements from %zu, %zu from %zu of the stage's",
                             sorted[i - 1].name, sorted[i].name, sorted[i - 1].count, sorted[i - 1].offset,
                             sorted[i].count, sorted[i].offset);
    qsort(sorted, n, sizeof(*sorted), by_name);
    for (uint32_t i = 1; i < n && status >= 0; i++)
        if (strcmp(sorted[i].name, sorted[i - 1].name) == 0)
            status =
                dp_fail(DP_ERR_INVALID, "two parameters of the stage are called %s: give the parts different prefixes",
                        sorted[i].name);
    dp__free(sorted);
    return status;
}

/* ---- taking what the trainer gave ---- */

static const void *at(const void *array, uint32_t stride, int32_t index)
{
    return (const char *)array + (size_t)stride * (size_t)index;
}

/* What waits for the segments beside a SHARED one need not wait for it. */
static dp_status_t check_shared_experts(const dp__stage_part_t *part, int32_t index)
{
    const dp_segment_t *s = part->segments;
    const int32_t last = part->part.nsegments - 1;

    for (int32_t i = 0; i <= last; i++)
        if (s[i].role == DP_ROLE_SHARED &&
            (i == 0 || i == last || s[i].lane != DP_LANE_COMPUTE || s[0].lane != DP_LANE_COMPUTE ||
             s[last].lane != DP_LANE_COMPUTE || s[i - 1].role == DP_ROLE_SHARED))
            return dp_fail(DP_ERR_INVALID,
                           "part %d segment %s has DP_ROLE_SHARED: one such segment stands between others, on the "
                           "compute lane, and so do the part's first and last",
                           index, s[i].name);
    return DP_OK;
}

static dp_status_t take_segments(dp_stage_t *stage, dp__stage_part_t *part, int32_t index)
{
    const dp_segment_t *given = part->part.segments;
    char what[48];

    if (given == NULL || part->part.nsegments < 1)
        return dp_fail(DP_ERR_INVALID, "part %d has %d segments%s; at least one is needed", index, part->part.nsegments,
                       given == NULL ? " and no list of them" : "");
    for (int32_t s = 0; s < part->part.nsegments; s++) {
        const dp_segment_t *from = at(given, given->struct_size, s);

        if (from->struct_size != given->struct_size)
            return dp_fail(DP_ERR_INVALID,
                           "part %d: segments[%d].struct_size is %u, that of segments[0] %u: set both to "
                           "sizeof(dp_segment_t)",
                           index, s, from->struct_size, given->struct_size);
        snprintf(what, sizeof(what), "part %d: segments[%d]", index, s);
        DO(dp__take(what, dp_segment_t, DP_SEGMENT_MIN, &part->segments[s], from));
        DO(check_segment(&part->segments[s], index, s));
        stage->host |= part->segments[s].host_forward != NULL || part->segments[s].host_backward_input != NULL ||
                       part->segments[s].host_backward_weight != NULL || part->segments[s].host_recompute != NULL;
    }
    return check_shared_experts(part, index);
}

static dp_status_t take_sizes(const dp_stage_t *stage, dp__stage_part_t *part, int32_t index)
{
    const dp_block_sizes_t *given = part->part.sizes;
    char what[48];

    part->sizes = (dp_block_sizes_t){.struct_size = sizeof(part->sizes)};
    if (part->part.boundary_bytes > stage->boundary_bytes)
        return dp_fail(DP_ERR_INVALID, "part %d takes %zu bytes of a boundary that has %zu", index,
                       part->part.boundary_bytes, stage->boundary_bytes);
    if (given == NULL)
        return DP_OK;
    snprintf(what, sizeof(what), "part %d: sizes", index);
    DO(dp__take(what, dp_block_sizes_t, DP_BLOCK_SIZES_MIN, &part->sizes, given));
    if (part->sizes.nparams > 0 && part->part.param_list == NULL)
        return dp_fail(DP_ERR_INVALID, "part %d: %u parameters announced, no list given", index, part->sizes.nparams);
    for (uint32_t p = 0; p < part->sizes.nparams; p++)
        DO(check_param(&part->part.param_list[p], index, p, part->sizes.param_count));
    return DP_OK;
}

/* The records of all parts, as many segments as they have in all. */
static dp_status_t take_parts(dp_stage_t *stage, const dp_part_t *parts)
{
    int64_t segments = 0;
    char what[48];

    stage->parts = dp__calloc((size_t)stage->nparts, sizeof(*stage->parts));
    if (stage->parts == NULL)
        return dp_fail(DP_ERR_NOMEM, "stage: no memory for %d parts", stage->nparts);
    for (int32_t i = 0; i < stage->nparts; i++) {
        const dp_part_t *from = at(parts, parts->struct_size, i);

        if (from->struct_size != parts->struct_size)
            return dp_fail(DP_ERR_INVALID,
                           "part %d: struct_size is %u, that of part 0 %u: set both to sizeof(dp_part_t)", i,
                           from->struct_size, parts->struct_size);
        snprintf(what, sizeof(what), "part %d", i);
        DO(dp__take(what, dp_part_t, DP_PART_MIN, &stage->parts[i].part, from));
        segments += from->nsegments > 0 ? from->nsegments : 0;
    }
    if (segments > MOST_SEGMENTS)
        return dp_fail(DP_ERR_INVALID, "stage: more than %d segments", MOST_SEGMENTS);
    stage->nsegments = (int32_t)segments;
    if (!dp__arrays(DP__ARRAY(stage->segments, segments), DP__ARRAY(stage->copies, segments),
                    DP__ARRAY(stage->shapes, segments)))
        return dp_fail(DP_ERR_NOMEM, "stage: no memory for %d segments", stage->nsegments);
    return DP_OK;
}

/* ---- the stage ---- */

/* Adds a part's sizes to the stage's and remembers where it starts. false: the sum wraps. */
static bool place_part(dp_stage_t *stage, dp__stage_part_t *part, size_t *params_bytes, size_t *work)
{
    const dp_block_sizes_t *sizes = &part->sizes;
    size_t bytes;

    part->params_offset = *params_bytes;
    part->saved_offset = stage->info.saved_bytes;
    part->backward_buffer_offset = stage->info.backward_buffer_bytes;
    part->cache_offset = stage->info.cache_bytes;
    part->first_param = stage->info.nparams;
    if (!dp__mul(sizes->param_count, dp_dtype_bytes(stage->dtype), &bytes) || !dp__round_up(bytes, ALIGNMENT, &bytes) ||
        !dp__add(*params_bytes, bytes, params_bytes))
        return false;
    if (!dp__round_up(sizes->saved_bytes, ALIGNMENT, &bytes) ||
        !dp__add(stage->info.saved_bytes, bytes, &stage->info.saved_bytes))
        return false;
    if (!dp__round_up(sizes->backward_buffer_bytes, ALIGNMENT, &bytes) ||
        !dp__add(stage->info.backward_buffer_bytes, bytes, &stage->info.backward_buffer_bytes))
        return false;
    stage->backward_buffer_room = stage->backward_buffer_room < bytes ? bytes : stage->backward_buffer_room;
    if (!dp__round_up(sizes->cache_bytes, ALIGNMENT, &bytes) ||
        !dp__add(stage->info.cache_bytes, bytes, &stage->info.cache_bytes))
        return false;
    *work = *work < sizes->work_bytes ? sizes->work_bytes : *work;
    if (stage->info.scratch_bytes < sizes->scratch_bytes)
        stage->info.scratch_bytes = sizes->scratch_bytes;
    stage->info.nparams += sizes->nparams;
    return true;
}

static size_t name_bytes(const dp__stage_part_t *part)
{
    size_t bytes = 0;

    for (int32_t s = 0; s < part->part.nsegments; s++)
        bytes += strlen(part->segments[s].name) + 1;
    for (uint32_t p = 0; p < part->sizes.nparams; p++)
        bytes += (part->part.prefix != NULL ? strlen(part->part.prefix) : 0) + strlen(part->part.param_list[p].name) +
                 1 + (part->part.param_list[p].shared != NULL ? strlen(part->part.param_list[p].shared) + 1 : 0);
    return bytes;
}

static const char *keep_name(char **next, const char *prefix, const char *name)
{
    char *kept = *next;

    *next = stpcpy(stpcpy(kept, prefix != NULL ? prefix : ""), name) + 1;
    return kept;
}

/* The stage's own list of parameters: offsets within the stage, names with their part's prefix. */
static void list_params(dp_stage_t *stage, const dp__stage_part_t *part, char **next)
{
    for (uint32_t p = 0; p < part->sizes.nparams; p++) {
        dp_param_t *param = &stage->param_list[part->first_param + p];

        *param = part->part.param_list[p];
        param->offset += part->params_offset / dp_dtype_bytes(stage->dtype);
        param->name = keep_name(next, part->part.prefix, param->name);
        if (param->shared != NULL)
            param->shared = keep_name(next, NULL, param->shared);
    }
}

static void list_segments(dp_stage_t *stage, int32_t index, int32_t first, char **next)
{
    dp__stage_part_t *part = &stage->parts[index];

    for (int32_t s = 0; s < part->part.nsegments; s++) {
        dp_segment_t *segment = &part->segments[s];
        bool weight = segment->backward_weight != NULL || segment->host_backward_weight != NULL;

        segment->name = keep_name(next, NULL, segment->name);
        stage->segments[first + s] = (dp__stage_segment_t){segment, index, s == 0, s == part->part.nsegments - 1};
        stage->shapes[first + s] = (dp__segment_shape_t){.role = (uint8_t)segment->role,
                                                         .lane = (uint8_t)segment->lane,
                                                         .has_weight = weight,
                                                         .begins_part = s == 0,
                                                         .recomputes = recomputes(segment)};
    }
}

static dp_status_t list_all(dp_stage_t *stage)
{
    size_t bytes = 1;
    int32_t first = 0;
    char *next;

    for (int32_t i = 0; i < stage->nparts; i++)
        bytes += name_bytes(&stage->parts[i]);
    if (!dp__arrays(DP__ARRAY(stage->param_list, stage->info.nparams), DP__ARRAY(stage->names, bytes)))
        return dp_fail(DP_ERR_NOMEM, "stage: no memory for a list of %u parameters", stage->info.nparams);
    next = stage->names;
    for (int32_t i = 0; i < stage->nparts; i++) {
        list_segments(stage, i, first, &next);
        list_params(stage, &stage->parts[i], &next);
        first += stage->parts[i].part.nsegments;
    }
    stage->info.param_list = stage->param_list;
    return check_list(stage);
}

static dp_status_t build_stage(dp_stage_t *stage, const dp_part_t *parts)
{
    size_t params_bytes = 0, work = 0, boundary, forward;
    int32_t first = 0;

    DO(take_parts(stage, parts));
    for (int32_t i = 0; i < stage->nparts; i++) {
        dp__stage_part_t *part = &stage->parts[i];

        part->segments = stage->copies + first;
        DO(take_segments(stage, part, i));
        DO(take_sizes(stage, part, i));
        if (!place_part(stage, part, &params_bytes, &work))
            return dp_fail(DP_ERR_INVALID, "stage: the sizes of part %d add up to more than memory can hold", i);
        first += part->part.nsegments;
    }
    if (!dp__add(stage->boundary_bytes, dp__guard_wanted() ? DP__GUARD_BYTES : 0, &stage->boundary_room) ||
        !dp__round_up(stage->boundary_room, ALIGNMENT, &stage->boundary_room) ||
        !dp__mul(stage->boundary_room, 2, &boundary) || !dp__add(boundary, work, &stage->info.work_bytes) ||
        !dp__add(stage->info.work_bytes, dp__guard_wanted() ? DP__GUARD_BYTES : 0, &stage->backward_buffer_at) ||
        !dp__round_up(stage->backward_buffer_at, ALIGNMENT, &stage->backward_buffer_at) ||
        !dp__add(stage->backward_buffer_at, stage->backward_buffer_room, &forward))
        return dp_fail(DP_ERR_INVALID, "stage: a boundary tensor of %zu bytes is too large", stage->boundary_bytes);
    stage->info.nsegments = stage->nsegments;
    stage->info.param_count = params_bytes / dp_dtype_bytes(stage->dtype);
    return list_all(stage);
}

dp_status_t dp_stage_create(const dp_part_t *parts, int32_t nparts, size_t boundary_bytes, dp_dtype_t dtype,
                            dp_stage_t **stage_out)
{
    dp_stage_t *stage;
    dp_status_t status;

    if (stage_out == NULL || (parts == NULL && nparts > 0))
        return dp_fail(DP_ERR_INVALID, "dp_stage_create: parts and stage_out must not be NULL");
    if (nparts < 1 || nparts > MOST_SEGMENTS)
        return dp_fail(DP_ERR_INVALID, "dp_stage_create: %d parts; a stage has 1 to %d%s", nparts, MOST_SEGMENTS,
                       nparts == 0 ? " (are there more stages than layers?)" : "");
    if (!dp__dtype_of_params(dtype))
        return dp_fail(DP_ERR_INVALID, "dp_stage_create: dtype is %s; parameters are DP_F32, DP_F64 or DP_BF16",
                       dp__dtype_name(dtype));
    stage = dp__calloc(1, sizeof(*stage));
    if (stage == NULL)
        return dp_fail(DP_ERR_NOMEM, "stage: no memory for its record");
    stage->nparts = nparts;
    stage->boundary_bytes = boundary_bytes;
    stage->dtype = dtype;
    status = build_stage(stage, parts);
    if (status < 0) {
        dp_stage_free(stage);
        return status;
    }
    *stage_out = stage;
    return DP_OK;
}

/* ---- calls ---- */

/* Where part `i` leaves what the next part in the pass reads. */
static void *boundary(const dp_stage_t *stage, const dp_segment_call_t *call, int32_t i)
{
    return (char *)call->work + (i % 2 != 0 ? stage->boundary_room : 0);
}

/* What the part takes of it, in a micro-batch of this length. */
static size_t own_boundary(const dp_stage_t *stage, const dp__stage_part_t *part, const dp_segment_call_t *call)
{
    const size_t most = stage->boundary_bytes, own = part->part.boundary_bytes, all = call->boundary_bytes;

    return own == 0 || own == most ? all : (size_t)((unsigned __int128)own * all / most);
}

void dp__stage_call(const dp_stage_t *stage, int32_t index, dp_op_kind_t pass, const dp_segment_call_t *call,
                    dp_segment_call_t *own)
{
    const int32_t i = stage->segments[index].part;
    const dp__stage_part_t *part = &stage->parts[i];
    const bool first = i == 0, last = i == stage->nparts - 1, on_compute = stage->shapes[index].lane == DP_LANE_COMPUTE;

    *own = *call;
    own->params = (const char *)call->params + part->params_offset;
    own->grads = NULL;
    own->saved = (char *)call->saved + part->saved_offset;
    own->boundary_bytes = own_boundary(stage, part, call);
    own->backward_buffer = NULL;
    own->cache = NULL;
    own->work = NULL;
    own->x = own->dy = NULL;
    own->y = own->dx = own->output = NULL;
    own->input = first ? call->input : NULL;
    own->target = last ? call->target : NULL;
    own->loss = own->aux_loss = NULL;
    if (call->grads != NULL && (pass == DP_OP_W || (pass == DP_OP_I && on_compute)))
        own->grads = (char *)call->grads + dp__grads_offset(stage->dtype, part->params_offset);
    if (pass != DP_OP_F && call->backward_buffer != NULL && part->sizes.backward_buffer_bytes > 0)
        own->backward_buffer = (char *)call->backward_buffer + part->backward_buffer_offset;
    if (pass == DP_OP_W || pass == DP_OP_R)
        return; /* W may run long after its backward, R before dy is there */
    own->work = call->work != NULL ? (char *)call->work + 2 * stage->boundary_room : NULL;
    if (pass == DP_OP_F) {
        if (call->work != NULL && part->sizes.backward_buffer_bytes > 0)
            own->backward_buffer = (char *)call->work + stage->backward_buffer_at;
        if (call->cache != NULL && part->sizes.cache_bytes > 0)
            own->cache = (char *)call->cache + part->cache_offset;
        own->x = first ? call->x : boundary(stage, call, i - 1);
        own->y = last ? call->y : boundary(stage, call, i);
        own->output = last ? call->output : NULL;
        own->loss = last ? call->loss : NULL;
        own->aux_loss = call->aux_loss != NULL ? call->aux_loss + 2 * i : NULL;
    } else {
        own->dy = last ? call->dy : boundary(stage, call, i + 1);
        own->dx = first ? call->dx : boundary(stage, call, i);
    }
}

dp_status_t dp__stage_pass_by(const dp_stage_t *stage, int32_t index, dp_op_kind_t pass, const dp_segment_call_t *call,
                              const dp_segment_call_t *own, const dp_device_vt_t *vt, dp_stream_t *s)
{
    const dp__stage_segment_t *segment = &stage->segments[index];
    const bool begins = pass == DP_OP_F ? segment->first_of_part : pass == DP_OP_I && segment->last_of_part;
    const size_t at = own->boundary_bytes, bytes = call->boundary_bytes - at;
    const void *from = pass == DP_OP_F ? own->x : own->dy;
    char *to = pass == DP_OP_F ? own->y : own->dx;

    if (!begins || bytes == 0 || to == NULL)
        return DP_OK;
    return from != NULL ? vt->copy(s, to + at, (const char *)from + at, bytes) : vt->zero(s, to + at, bytes);
}

/* A host function on its way through launch(). */
typedef struct host_call {
    dp_segment_host_fn run;
    const dp_segment_t *segment;
    dp_segment_call_t call;
} host_call_t;
_Static_assert(sizeof(host_call_t) <= DP_LAUNCH_ARG_MAX, "a call fits a launch");

static dp_status_t explain_status(const char *segment, dp_status_t status)
{
    if (status > 0)
        return dp_fail(DP_ERR_INVALID, "segment %s returned %d: DP_OK or a negative status is expected", segment,
                       (int)status);
    return dp_last_error()[0] != '\0' ? status
                                      : dp_fail(status, "segment %s returned %s without a message (dp_fail gives both)",
                                                segment, dp_status_name(status));
}

static dp_status_t run_on_host(void *arg)
{
    const host_call_t *h = arg;
    dp_status_t status;

    (void)dp_fail(DP_ERR_INVALID, "%s", ""); /* to see whether the segment says why */
    dp__segment_running = h->segment->name;
    status = h->run(h->segment->self, &h->call);
    dp__segment_running = NULL;
    return status == DP_OK ? DP_OK : explain_status(h->segment->name, status);
}

dp_status_t dp__stage_put(const dp_stage_t *stage, int32_t index, dp_op_kind_t pass, const dp_segment_call_t *own,
                          const dp_device_vt_t *vt, dp_stream_t *s)
{
    const dp_segment_t *segment = stage->segments[index].segment;
    const dp_segment_fn put = pass == DP_OP_F   ? segment->forward
                              : pass == DP_OP_I ? segment->backward_input
                              : pass == DP_OP_W ? segment->backward_weight
                                                : segment->recompute;
    const host_call_t host = {.run = pass == DP_OP_F   ? segment->host_forward
                                     : pass == DP_OP_I ? segment->host_backward_input
                                     : pass == DP_OP_W ? segment->host_backward_weight
                                                       : segment->host_recompute,
                              .segment = segment,
                              .call = *own};
    dp_status_t status;

    if (put == NULL)
        return vt->launch(s, run_on_host, &host, sizeof(host));
    (void)dp_fail(DP_ERR_INVALID, "%s", "");
    dp__segment_running = segment->name;
    status = put(segment->self, own, s);
    dp__segment_running = NULL;
    return status == DP_OK ? DP_OK : explain_status(segment->name, status);
}

dp_status_t dp__stage_reduce(const dp_stage_t *stage, void *grads, dp_stream_t *s)
{
    size_t size = dp_dtype_bytes(stage->dtype), accumulator = dp_dtype_bytes(dp_dtype_accumulator(stage->dtype));

    for (int32_t i = 0; i < stage->nparts; i++) {
        const dp__stage_part_t *part = &stage->parts[i];

        if (part->part.reduce != NULL)
            DO(part->part.reduce(part->part.reduce_self, (char *)grads + part->params_offset / size * accumulator, s));
    }
    return DP_OK;
}

uint64_t dp__stage_revision(const dp_stage_t *stage)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < stage->nparts; i++)
        sum += stage->parts[i].part.revision != NULL ? *stage->parts[i].part.revision : 0;
    return sum;
}
