/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * open.c: a pipeline from its options to the first step, and back. */
#include "base/do.h"
#include "base/memory.h"
#include "base/sized.h"
#include "engine/engine.h"
#include "engine/guard.h"
#include "group/reform.h"
#include "stage/dtype.h"
#include "stage/guard.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* a call puts all its work on the stream before the first of it runs */
#define GUARDED_QUEUE    4096
#define INLINE_BYTES     16384
#define MOST_TRACE_STEPS 65536

/* ---- options ---- */

static dp_status_t set_grid(dp_pipeline_t *p)
{
    int32_t size = dp_group_size(p->group), rank = dp_group_rank(p->group);
    dp__grid_t *g = &p->grid;

    g->ep = p->options.ep > 0 ? p->options.ep : 1;
    g->dp = p->options.dp > 0 ? p->options.dp : 1;
    if (size % ((int64_t)g->ep * g->dp) != 0)
        return dp_fail(DP_ERR_INVALID, "%d ranks cannot be split into ep = %d times dp = %d pipelines of equal length",
                       size, g->ep, g->dp);
    g->pp = size / (g->ep * g->dp);
    g->p = rank % g->pp;
    g->e = rank / g->pp % g->ep;
    g->d = rank / g->pp / g->ep;
    return DP_OK;
}

static dp_status_t check_options(const dp_pipeline_options_t *o)
{
    dp_device_config_t device;
    const dp_schedule_t *s = o->schedule;

    if (o->build == NULL)
        return dp_fail(DP_ERR_INVALID, "build is NULL: a pipeline needs a function that makes its stages");
    if (!dp__dtype_of_params(o->dtype))
        return dp_fail(DP_ERR_UNSUPPORTED, "dtype is %s: parameters must be DP_F32, DP_F64 or DP_BF16",
                       dp__dtype_name(o->dtype));
    if (o->boundary_bytes == 0 || o->boundary_bytes > UINT32_MAX)
        return dp_fail(DP_ERR_INVALID, "boundary_bytes is %zu; 1 to %u are legal", o->boundary_bytes, UINT32_MAX);
    if (o->ep < 0 || o->dp < 0 || o->slots < 0)
        return dp_fail(DP_ERR_INVALID, "ep %d, dp %d, slots %d: none may be negative", o->ep, o->dp, o->slots);
    if (o->zero < 0 || o->zero > 1)
        return dp_fail(DP_ERR_INVALID, "zero is %d: 0 and 1 (ZeRO-1) are legal", o->zero);
    if (o->buddy < 0 || o->buddy > 1)
        return dp_fail(DP_ERR_INVALID, "buddy is %d: 0 and 1 are legal", o->buddy);
    if (o->one_accumulator < 0 || o->one_accumulator > 1)
        return dp_fail(DP_ERR_INVALID, "one_accumulator is %d: 0 and 1 are legal", o->one_accumulator);
    if (o->check_bits < 0)
        return dp_fail(DP_ERR_INVALID, "check_bits is %d: it may not be negative", o->check_bits);
    if (o->trace_steps < 0 || o->trace_steps > MOST_TRACE_STEPS)
        return dp_fail(DP_ERR_INVALID, "trace_steps is %d; 0 to %d are legal", o->trace_steps, MOST_TRACE_STEPS);
    if (o->device_config != NULL)
        DO(dp__take("dp_pipeline_open: options.device_config", dp_device_config_t, DP_DEVICE_CONFIG_MIN, &device,
                    o->device_config));
    if (s == NULL)
        return dp__lengths_check(o);
    if (s->chunks < 1 || s->chunks > DP_MAX_CHUNKS)
        return dp_fail(DP_ERR_INVALID, "the schedule has %d chunks; 1 to %d are legal", s->chunks, DP_MAX_CHUNKS);
    if (o->microbatches != 0 && o->microbatches != s->microbatches)
        return dp_fail(DP_ERR_INVALID, "microbatches is %d, the schedule given has %d", o->microbatches,
                       s->microbatches);
    return dp__lengths_check(o);
}

/* ---- device ---- */

/* What the lanes got is what plugins that open from now on may use. */
static dp_status_t share_device(dp_pipeline_t *p)
{
    uint32_t sms[DP_LANE_COUNT] = {0};

    DO(p->device_vt->partition(p->device, sms));
    dp__group_set_sms(p->group, sms[DP_LANE_COMPUTE], sms[DP_LANE_ALL_TO_ALL]);
    return DP_OK;
}

static dp_status_t find_device(dp_pipeline_t *p)
{
    const dp_plugin_t *plugin;
    const void *table;

    DO(dp_plugin_load(p->device_name, &plugin));
    DO(dp_plugin_interface(plugin, DP_IFACE_DEVICE, DP_DEVICE_VT_MIN, &table));
    p->device_vt = table;
    p->host_memory = (p->device_vt->caps & DP_DEVICE_CAP_HOST_MEMORY) != 0;
    return DP_OK;
}

static dp_status_t open_device(dp_pipeline_t *p)
{
    dp_device_config_t config = {.struct_size = sizeof(config)};

    if (p->device != NULL)
        return DP_OK; /* since an epoch before */
    if (p->options.device_config != NULL)
        /* found in order before */
        (void)dp_sized_take(&config, sizeof(config), p->options.device_config);
    if (dp__guard_wanted() && config.queue_length > 0 && config.queue_length < GUARDED_QUEUE)
        config.queue_length = GUARDED_QUEUE;
    p->options.device_config = NULL; /* the trainer's again when open returns */
    if (config.local_rank == 0)
        config.local_rank = (uint32_t)dp__group_local_rank(p->group);
    return p->device_vt->open(p->host, &config, &p->device);
}

static dp_status_t open_lanes(dp_pipeline_t *p)
{
    DO(share_device(p));
    DO(dp__profile_open(p));
    for (int lane = 0; lane < DP_LANE_COUNT; lane++)
        DO(p->device_vt->stream_open(p->device, (dp_lane_t)lane, &p->lanes.stream[lane]));
    return DP_OK;
}

static dp_status_t place_chunks(dp_pipeline_t *p)
{
    if (p->chunks != NULL)
        return DP_OK;
    p->nchunks = p->schedule->chunks;
    p->chunks = dp__calloc((size_t)p->nchunks, sizeof(*p->chunks));
    if (p->chunks == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d chunks", p->nchunks);
    for (int32_t c = 0; c < p->nchunks; c++)
        dp_schedule_place(p->schedule, p->grid.p, c, &p->chunks[c].place);
    return DP_OK;
}

static dp_status_t find_comm(dp_pipeline_t *p)
{
    return dp__backend_find(p, p->comm_name, &p->backend);
}

static dp_status_t open_comms(dp_pipeline_t *p)
{
    int bundled;

    dp__backend_log(p);
    DO(dp__comms_open(p, p->backend.vt, &p->comms));
    bundled = dp__comms_bundle(&p->comms);
    if (p->programs.training != NULL && p->programs.bundled != bundled)
        dp__programs_free(p); /* other ranks, another backend: with its own lists */
    p->programs.bundled = bundled;
    return DP_OK;
}

static dp_status_t connect_comms(dp_pipeline_t *p)
{
    DO(dp__links_connect(p, &p->comms));
    return dp__comms_start(p, &p->comms);
}

static dp_status_t settle_opening(dp_pipeline_t *p)
{
    return dp__group_settle(p->group);
}

static dp_status_t settle_options(dp_pipeline_t *p)
{
    dp_pipeline_options_t *o = &p->options;

    DO(check_options(o));
    if (o->inline_bytes == 0)
        o->inline_bytes = INLINE_BYTES;
    snprintf(p->method, sizeof(p->method), "%s", o->method != NULL ? o->method : "dualpipe");
    DO(dp__backend_name(o->comm, p->comm_name));
    DO(dp__full_name("device", o->device, "device_cpu", p->device_name));
    return set_grid(p);
}

dp_status_t dp__pipeline_set_up(dp_pipeline_t *p)
{
    static dp_status_t (*const steps[])(dp_pipeline_t *) = {
        /* clang-format off: one thing after the other */
        dp__agree_on_settings, find_device,         find_comm,
        dp__schedule_make,     open_device,         open_lanes,
        dp__guard_open,        dp__finite_open,     dp__meter_open,
        place_chunks,          open_comms,          dp__programs_make,
        dp__chunks_build,      dp__names_collect,   dp__agree_on_stages,
        dp__ties_find,         dp__shards_make,     dp__transfer_streams_open,
        dp__links_list,        connect_comms,       dp__plans_build,
        dp__buffers_open,      dp__chunks_allocate, dp__sums_open,
        dp__lengths_open,      dp__requests_open,   dp__records_open,
        dp__graphs_open,       dp__bits_open,       settle_opening,
        /* clang-format on */
    };

    dp__group_start_opening(p->group);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
        DO(steps[i](p));
    return DP_OK;
}

/* Lanes first: after a failure their workers may still be inside a wait on memory of the comms. */
static void close_epoch(dp_pipeline_t *p, void (*tell)(void *user))
{
    dp__graphs_close(p);
    if (!p->run.failed && dp__gather_finish(p) < 0) /* closing streams cuts off what is on them */
        dp_log(DP_LOG_WARN, "engine", "closed without its last gather: %s", dp_last_error());
    p->gathering = false;
    dp__buddy_rest(p);
    for (int32_t i = 0; i < dp__stream_count(p); i++)
        if (dp__stream_at(p, i) != NULL)
            p->device_vt->stream_close(dp__stream_at(p, i));
    for (int lane = 0; lane < DP_LANE_COUNT; lane++)
        p->lanes.stream[lane] = NULL;
    p->transfer_streams.n = 0;
    if (p->built && tell != NULL)
        tell(p->options.user);
    if (p->comms.vt != NULL)
        dp__comms_close(&p->comms);
    p->ties = (dp__ties_t){.n = 0};
    if (p->device != NULL) {
        dp__links_close(p);
        dp__chunks_suspend(p);
        dp__sums_close(p);
        dp__lengths_close(p);
        dp__requests_close(p);
    }
    dp__group_recorder_close(p->group, p->trace.records);
    dp__plans_free(p);
    dp__free(p->trace.kept);
    dp__free(p->trace.names);
    p->trace = (dp__trace_t){0};
}

void dp__pipeline_suspend(dp_pipeline_t *p)
{
    dp__save_close(p, false); /* what was being saved is not, and the trainer opens it again */
    close_epoch(p, p->options.retire);
    p->memory = (dp_memory_report_t){.struct_size = sizeof(p->memory)};
    p->generation = 0;
    p->max_segments = 0;
    p->run = (dp__run_t){.step = p->recovery.step, .enqueueing = -1, .failed = 1};
}

/* Who dies before the first step is replaced as well. */
static dp_status_t set_up_with_others(dp_pipeline_t *p)
{
    dp_status_t status = settle_options(p);

    if (status >= 0)
        status = dp__pipeline_set_up(p);
    while (status < 0) {
        status = dp__engine_fail(p, status, "opening the pipeline");
        if ((p->device != NULL && !p->host_memory) || !dp__group_survives(p->group))
            return status;
        dp__engine_settle(p);
        if (p->run.stuck)
            return status;
        dp__pipeline_suspend(p);
        status = dp__group_reform(p->group, 0);
        if (status >= 0)
            status = dp__pipeline_set_up(p);
    }
    p->run.failed = 0;
    return DP_OK;
}

dp_status_t dp_pipeline_open(const dp_pipeline_options_t *options, dp_pipeline_t **pipeline_out)
{
    dp_pipeline_options_t own;
    dp_pipeline_t *p;
    dp_status_t status;

    if (pipeline_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_open: pipeline_out is NULL");
    *pipeline_out = NULL;
    DO(dp__take("dp_pipeline_open: options", dp_pipeline_options_t, DP_PIPELINE_OPTIONS_MIN, &own, options));
    if (options->group == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_open: options.group is NULL: join one first (dp_group_join)");
    p = dp__calloc(1, sizeof(*p));
    if (p == NULL) {
        status = dp_fail(DP_ERR_NOMEM, "opening the pipeline: no memory for its record");
        /* the others are on their way here */
        dp_group_abort(options->group, status, dp_last_error());
        return status;
    }
    p->options = own;
    p->memory.struct_size = sizeof(p->memory);
    p->group = options->group;
    dp__group_hold(p->group);
    p->pid = getpid();
    p->host = dp_group_host(options->group);
    p->run.enqueueing = -1;
    p->folder_lock = -1;
    status = set_up_with_others(p);
    if (status < 0) {
        dp_pipeline_close(p);
        return status;
    }
    *pipeline_out = p;
    return DP_OK;
}

void dp_pipeline_close(dp_pipeline_t *p)
{
    dp_group_t *group;

    if (p == NULL)
        return;
    group = p->group;
    if (dp__segment_running != NULL || p->pid != getpid()) {
        dp_log(DP_LOG_ERROR, "engine", "dp_pipeline_close is ignored: it was called from %s",
               dp__segment_running != NULL ? "a segment" : "a child of fork");
        return;
    }
    if (p->run.stuck) {
        dp_log(DP_LOG_WARN, "engine", "rank %d: a kernel does not return: what it may be using is left behind",
               dp_group_rank(p->group));
        dp__group_pin(p->group);
        return;
    }
    dp__step_tell_closed(p);
    dp__save_close(p, true);
    dp__trace_write(p);
    close_epoch(p, p->options.unbuild);
    dp__buddy_close(p);
    if (p->device != NULL) {
        dp__chunks_close(p);
        dp__profile_close(p);
        p->device_vt->close(p->device);
    }
    dp__guard_close(p);
    dp__free(p->chunks);
    dp__states_free(p);
    dp__programs_free(p);
    dp_schedule_free(p->programs.own_schedule);
    dp_schedule_free(p->programs.forward_schedule);
    dp__free(p);
    dp__group_release(group);
}
