/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * finite.c: dp_pipeline_options_t.check_finite: behind each part of a pass, on its stream, a look
 * at what it made. The first NaN or overflow stops the stream there, before another rank can get
 * it: what fails is where it began. */
#include "base/do.h"
#include "engine/engine.h"
#include "stage/stage.h"

#include <dualpipe/number.h>
#include <math.h>
#include <string.h>

typedef struct look {
    const dp_stage_t *stage;
    const dp__stage_part_t *part;
    const char *name; /* of what was made */
    const void *made, *params, *grads;
    size_t count;
    dp_dtype_t dtype;
} look_t;

dp_status_t dp__finite_open(dp_pipeline_t *p)
{
    p->finite = p->options.check_finite && dp__host_can_look(p, "check_finite: nothing is checked");
    return DP_OK;
}

/* All bits of the exponent set: NaN or infinite. Sums of these masks let the compiler look at many
 * at once. */
static bool all_finite(dp_dtype_t dtype, const void *data, size_t count)
{
    uint32_t bad = 0;

    switch (dtype) {
    case DP_F64:
        for (size_t i = 0; i < count; i++)
            bad |= (((const uint64_t *)data)[i] << 1) >= UINT64_C(0x7ff) << 53;
        return bad == 0;
    case DP_F32:
        for (size_t i = 0; i < count; i++)
            bad |= (((const uint32_t *)data)[i] << 1) >= 0xffu << 24;
        return bad == 0;
    default:
        for (size_t i = 0; i < count && bad == 0; i++)
            bad = !isfinite(dp_number_get(dtype, data, i));
        return bad == 0;
    }
}

/* The first parameter with such a value in `data`, which has room for all of the part; its name,
 * NULL: none. */
static const char *find_param(const look_t *look, dp_dtype_t dtype, const void *data)
{
    for (uint32_t k = 0; data != NULL && k < look->part->sizes.nparams; k++) {
        const dp_param_t *param = &look->stage->param_list[look->part->first_param + k];
        const size_t at = param->offset - look->part->params_offset / dp_dtype_bytes(look->stage->dtype);

        if (!all_finite(dtype, (const char *)data + at * dp_dtype_bytes(dtype), param->count))
            return param->name;
    }
    return NULL;
}

static dp_status_t tell_value(const look_t *look)
{
    const dp_dtype_t wide = dp_dtype_accumulator(look->stage->dtype);
    const char *grad = find_param(look, wide, look->grads);
    const char *param = find_param(look, look->stage->dtype, look->params);
    size_t i = 0;

    while (i < look->count && isfinite(dp_number_get(look->dtype, look->made, i)))
        i++;
    return dp_fail(DP_ERR_NUMERIC, "%s is not finite: element %zu of %zu is %g%s%s%s%s", look->name, i, look->count,
                   i < look->count ? dp_number_get(look->dtype, look->made, i) : 0,
                   grad != NULL ? "; the gradient that is not finite is that of " : "", grad != NULL ? grad : "",
                   param != NULL ? "; the parameter that is not finite itself is " : "", param != NULL ? param : "");
}

static dp_status_t run_look(void *arg)
{
    const look_t *look = arg;

    return all_finite(look->dtype, look->made, look->count) ? DP_OK : tell_value(look);
}

static dp_status_t put_look(const dp_pipeline_t *p, look_t look, const char *name, const void *made, size_t count,
                            dp_dtype_t dtype, dp_stream_t *s)
{
    if (made == NULL || count == 0)
        return DP_OK;
    look.name = name;
    look.made = made;
    look.count = count;
    look.dtype = dtype;
    return p->device_vt->launch(s, run_look, &look, sizeof(look));
}

dp_status_t dp__finite_put(const dp_pipeline_t *p, const dp_stage_t *stage, const dp__command_t *call,
                           const dp_segment_call_t *own, dp_stream_t *s)
{
    const dp__stage_segment_t *segment = &stage->segments[call->segment];
    const dp__stage_part_t *part = &stage->parts[segment->part];
    const size_t boundary = own->boundary_bytes / dp_dtype_bytes(stage->dtype);
    const look_t look = {.stage = stage, .part = part, .params = own->params, .grads = own->grads};

    if (call->op == DP_OP_F && segment->last_of_part) {
        DO(put_look(p, look, "the output", own->y, boundary, stage->dtype, s));
        return put_look(p, look, "the loss", own->loss, 1, DP_F64, s);
    }
    if (call->op == DP_OP_I && segment->first_of_part)
        return put_look(p, look, "the gradient of the input", own->dx, boundary, stage->dtype, s);
    if (call->op == DP_OP_W && segment->first_of_part)
        return put_look(p, look, "the gradient of the parameters", own->grads, part->sizes.param_count,
                        dp_dtype_accumulator(stage->dtype), s);
    return DP_OK;
}
