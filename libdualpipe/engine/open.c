/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * open.c: a pipeline from its options to the first step, and back. */
#include "base/memory.h"
#include "engine/engine.h"
#include "group/pin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUM_COUNT 4096 /* doubles that dp_pipeline_sum moves at once */
#define INLINE_BYTES 16384
#define MOST_TRACE_STEPS 65536

/* ---- options ---- */

static dp_status_t set_grid(dp_pipeline_t *p)
{
    int32_t size = dp_group_size(p->group), rank = dp_group_rank(p->group);
    dp__grid_t *g = &p->grid;

    g->ep = p->options.ep > 0 ? p->options.ep : 1;
    g->dp = p->options.dp > 0 ? p->options.dp : 1;
    if (size % ((int64_t)g->ep * g->dp) != 0)
        return dp_fail(DP_ERR_INVALID, "%d ranks cannot be split into ep = %d times dp = %d pipelines of equal length", size,
                       g->ep, g->dp);
    g->pp = size / (g->ep * g->dp);
    g->p = rank % g->pp;
    g->e = rank / g->pp % g->ep;
    g->d = rank / g->pp / g->ep;
    return DP_OK;
}

static dp_status_t check_options(const dp_pipeline_options_t *o)
{
    const dp_schedule_t *s = o->schedule;

    if (o->build == NULL)
        return dp_fail(DP_ERR_INVALID, "build is NULL: a pipeline needs a function that makes its stages");
    if (o->dtype != DP_F32 && o->dtype != DP_F64 && o->dtype != DP_BF16)
        return dp_fail(DP_ERR_UNSUPPORTED, "dtype %d: parameters must be DP_F32, DP_F64 or DP_BF16", (int)o->dtype);
    if (o->boundary_bytes == 0 || o->boundary_bytes > UINT32_MAX)
        return dp_fail(DP_ERR_INVALID, "boundary_bytes is %zu; 1 to %u are legal", o->boundary_bytes, UINT32_MAX);
    if (o->ep < 0 || o->dp < 0 || o->slots < 0)
        return dp_fail(DP_ERR_INVALID, "ep %d, dp %d, slots %d: none may be negative", o->ep, o->dp, o->slots);
    if (o->trace_steps < 0 || o->trace_steps > MOST_TRACE_STEPS)
        return dp_fail(DP_ERR_INVALID, "trace_steps is %d; 0 to %d are legal", o->trace_steps, MOST_TRACE_STEPS);
    if (s == NULL)
        return DP_OK;
    if (s->chunks < 1 || s->chunks > DP_MAX_CHUNKS)
        return dp_fail(DP_ERR_INVALID, "the schedule has %d chunks; 1 to %d are legal", s->chunks, DP_MAX_CHUNKS);
    if (o->microbatches != 0 && o->microbatches != s->microbatches)
        return dp_fail(DP_ERR_INVALID, "microbatches is %d, the schedule given has %d", o->microbatches, s->microbatches);
    return dp_schedule_verify(s);
}

/* "shm" -> "comm_shm"; names with their kind, and paths, stay. */
static dp_status_t full_name(const char *kind, const char *name, const char *variable, const char *fallback,
                             char text[DP__NAME_BYTES])
{
    size_t n = strlen(kind);
    int length, plain;

    if (name == NULL)
        name = secure_getenv(variable);
    if (name == NULL || name[0] == '\0')
        name = fallback;
    plain = strchr(name, '/') == NULL && (strncmp(name, kind, n) != 0 || name[n] != '_');
    length = snprintf(text, DP__NAME_BYTES, "%s%s%s", plain ? kind : "", plain ? "_" : "", name);
    if (length < 0 || length >= DP__NAME_BYTES)
        return dp_fail(DP_ERR_INVALID, "the name of the %s plugin has %zu characters; at most %d are possible", kind,
                       strlen(name), DP__NAME_BYTES - 1);
    return DP_OK;
}

/* ---- schedule and program ---- */

static dp_status_t lower(dp_pipeline_t *p, const dp_schedule_t *schedule, dp_program_t **program_out)
{
    dp_transport_t transport = p->grouped ? DP_TRANSPORT_GROUPS : DP_TRANSPORT_CREDITS;
    dp_lower_options_t options = {
        .struct_size = sizeof(options), .slots = p->options.slots, .prefetch = 1, .transport = (int32_t)transport};
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    dp_status_t status = dp_schedule_verify(schedule);

    if (status >= 0)
        status = dp_program_lower(schedule, &options, program_out);
    if (status >= 0 && p->options.graph)
        dp__graph_slots(*program_out);
    if (status >= 0)
        status = dp_program_verify(*program_out, transport, &report);
    if (status >= 0 && p->grouped && !report.in_order)
        return dp_fail(DP_ERR_REJECTED, "schedule %s: ranks that do one thing at a time would wait in a circle, which a backend "
                       "with matched groups may come to", schedule->method);
    return status;
}

/* The same order with nothing but its forwards. */
static dp_status_t forwards_of(const dp_schedule_t *full, dp_schedule_t **schedule_out)
{
    int64_t *counts = dp__calloc((size_t)full->ranks, sizeof(*counts));
    dp_schedule_t *only;
    dp_status_t status;
    int64_t n = 0;

    if (counts == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a forward-only schedule");
    for (int32_t r = 0; r < full->ranks; r++)
        for (int64_t i = full->first[r]; i < full->first[r + 1]; i++)
            counts[r] += full->ops[i].kind == DP_OP_F || full->ops[i].kind == DP_OP_FB;
    status = dp_schedule_create(full->method, full->placement, full->ranks, full->microbatches, full->chunks, counts, &only);
    dp__free(counts);
    if (status < 0)
        return status;
    only->forward_only = 1;
    for (int64_t i = 0; i < full->first[full->ranks]; i++)
        if (full->ops[i].kind == DP_OP_F || full->ops[i].kind == DP_OP_FB)
            only->ops[n++] = (dp_op_t){DP_OP_F, full->ops[i].chunk, -1, full->ops[i].mb, -1};
    *schedule_out = only;
    return DP_OK;
}

dp_status_t dp__programs_make(dp_pipeline_t *p)
{
    dp_status_t status = DP_OK;

    p->schedule = p->options.schedule;
    if (p->schedule == NULL && p->own_schedule == NULL) {
        dp_schedule_request_t request = {
            .struct_size = sizeof(request),
            .method = p->options.method,
            .ranks = p->grid.pp,
            .microbatches = p->options.microbatches,
            .chunks = p->options.chunks,
        };

        status = dp_schedule_generate(&request, &p->own_schedule);
    }
    if (p->schedule == NULL)
        p->schedule = p->own_schedule;
    if (status < 0)
        return status;
    if (p->schedule->ranks != p->grid.pp)
        return dp_fail(DP_ERR_INVALID, "the schedule is for %d ranks, the pipeline has %d", p->schedule->ranks, p->grid.pp);
    status = lower(p, p->schedule, &p->program);
    if (status < 0 || p->schedule->forward_only)
        return status;
    if (p->forward_schedule == NULL)
        status = forwards_of(p->schedule, &p->forward_schedule);
    return status < 0 ? status : lower(p, p->forward_schedule, &p->forward_program);
}

void dp__programs_free(dp_pipeline_t *p)
{
    dp_program_free(p->program);
    dp_program_free(p->forward_program);
    p->program = p->forward_program = NULL;
}

/* ---- device ---- */

/* A plugin that lacks what the engine calls is refused before anything is called. */
static dp_status_t check_device(const dp_plugin_t *plugin, const dp_device_vt_t *vt)
{
#define NEED(member)                                                                                                   \
    if (vt->member == NULL)                                                                                            \
    return dp_fail(DP_ERR_PLUGIN, "device plugin %s has no " #member, plugin->name)
    NEED(open);
    NEED(close);
    NEED(allocate);
    NEED(release);
    NEED(zero);
    NEED(add);
    NEED(stream_open);
    NEED(stream_close);
    NEED(event_open);
    NEED(event_close);
    NEED(event_record);
    NEED(stream_wait);
    NEED(stamp);
    NEED(synchronize);
    NEED(query_error);
    NEED(reset);
#undef NEED
    return DP_OK;
}

/* What the lanes got is what plugins that open from now on may use. */
static dp_status_t share_device(dp_pipeline_t *p)
{
    uint32_t sms[DP_LANE_COUNT] = {0};
    dp_status_t status = DP_HAS(p->device_vt, dp_device_vt_t, partition) ? p->device_vt->partition(p->device, sms) : DP_OK;

    if (status >= 0)
        dp__group_set_sms(p->group, sms[DP_LANE_COMPUTE], sms[DP_LANE_ALL_TO_ALL]);
    return status;
}

static dp_status_t open_device(dp_pipeline_t *p)
{
    dp_device_config_t config = p->options.device_config;
    const dp_plugin_t *plugin;
    const void *table;
    dp_status_t status = dp_plugin_load(p->device_name, &plugin);

    if (status >= 0)
        status = dp_plugin_interface(plugin, DP_IFACE_DEVICE, DP_DEVICE_VT_MIN, &table);
    if (status < 0)
        return status;
    p->device_vt = table;
    status = check_device(plugin, p->device_vt);
    if (status < 0)
        return status;
    p->host_memory = (p->device_vt->caps & DP_DEVICE_CAP_HOST_MEMORY) != 0;
    if (!p->host_memory && (!DP_HAS(p->device_vt, dp_device_vt_t, host_allocate) || p->device_vt->copy == NULL ||
                            !DP_HAS(p->device_vt, dp_device_vt_t, host_release)))
        return dp_fail(DP_ERR_UNSUPPORTED, "device plugin %s keeps its memory from the host and has no host_allocate, "
                       "host_release and copy: losses could not be read", plugin->name);
    config.struct_size = sizeof(config);
    status = p->device_vt->open(p->host, &config, &p->device);
    if (status >= 0)
        status = share_device(p);
    if (status >= 0)
        status = dp__profile_open(p);
    for (int lane = 0; lane < DP_LANE_COUNT && status >= 0; lane++)
        status = p->device_vt->stream_open(p->device, (dp_lane_t)lane, &p->stream[lane]);
    return status;
}

static dp_status_t allocate_small(dp_pipeline_t *p)
{
    size_t losses = (size_t)p->schedule->microbatches * sizeof(double);
    char *memory[2] = {NULL, NULL};
    dp_status_t status = dp__shared_memory(p, losses, &p->memory.work, &p->losses);

    if (status >= 0)
        status = dp__shared_memory(p, SUM_COUNT * sizeof(double), &p->memory.work, &p->staging);
    p->losses_there = p->losses;
    p->staging_there = p->staging;
    if (status < 0 || p->host_memory)
        return status;
    status = dp__device_memory(p, losses, &p->memory.work, &memory[0]);
    p->losses_there = (double *)(void *)memory[0];
    if (status >= 0)
        status = dp__device_memory(p, SUM_COUNT * sizeof(double), &p->memory.work, &memory[1]);
    p->staging_there = (double *)(void *)memory[1];
    return status;
}

static dp_status_t build_plans(dp_pipeline_t *p)
{
    dp_status_t status = dp__plan_build(p, p->program, &p->plan);

    if (status >= 0 && p->forward_program != NULL)
        status = dp__plan_build(p, p->forward_program, &p->forward_plan);
    return status;
}

static dp_status_t place_chunks(dp_pipeline_t *p)
{
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
    dp_status_t status = dp__comms_find(p->comm_name, &p->comms.vt);

    p->grouped = status >= 0 && (p->comms.vt->caps & DP_COMM_CAP_ONE_SIDED) == 0;
    return status;
}

static dp_status_t open_comms(dp_pipeline_t *p)
{
    return dp__comms_open(p, p->comms.vt, &p->comms);
}

static dp_status_t connect(dp_pipeline_t *p)
{
    dp_status_t status = dp__links_connect(p, &p->comms);

    return status < 0 ? status : dp__comms_start(p, &p->comms);
}

static dp_status_t meet(dp_pipeline_t *p)
{
    return dp_group_barrier(p->group);
}

static dp_status_t settle_options(dp_pipeline_t *p)
{
    dp_pipeline_options_t *o = &p->options;
    dp_status_t status = check_options(o);

    if (o->inline_bytes == 0)
        o->inline_bytes = INLINE_BYTES;
    if (o->method == NULL)
        o->method = "dualpipe";
    if (status >= 0)
        status = full_name("comm", o->comm, "DUALPIPE_COMM", "comm_shm", p->comm_name);
    if (status >= 0)
        status = full_name("device", o->device, "DUALPIPE_DEVICE", "device_cpu", p->device_name);
    return status < 0 ? status : set_grid(p);
}

static dp_status_t set_up(dp_pipeline_t *p)
{
    static dp_status_t (*const steps[])(dp_pipeline_t *) = {
        settle_options,      dp__agree_on_settings, find_comm,        dp__programs_make,   open_device,
        place_chunks,        open_comms,            dp__chunks_build, dp__names_collect,   dp__agree_on_stages,
        dp__ways_open,       dp__links_open,        dp__chunks_allocate, allocate_small,   build_plans,
        dp__records_open,    dp__graphs_open,       connect,          meet};
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && status >= 0; i++)
        status = steps[i](p);
    return status;
}

dp_status_t dp_pipeline_open(const dp_pipeline_options_t *options, dp_pipeline_t **pipeline_out)
{
    dp_pipeline_t *p;
    dp_status_t status;

    if (options == NULL || pipeline_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_open: options and pipeline_out must not be NULL");
    *pipeline_out = NULL;
    if (options->struct_size < sizeof(*options) || options->group == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_open: struct_size is %u, that of dp_pipeline_options_t is %zu, and a group "
                       "is required", options->struct_size, sizeof(*options));
    p = dp__calloc(1, sizeof(*p));
    if (p == NULL) {
        status = dp_fail(DP_ERR_NOMEM, "opening the pipeline: no memory for its record");
        dp_group_abort(options->group, status, dp_last_error()); /* the others are on their way here */
        return status;
    }
    p->options = *options;
    p->group = options->group;
    p->host = dp_group_host(options->group);
    p->enqueueing = -1;
    status = set_up(p);
    if (status < 0) {
        status = dp__engine_fail(p, status, "opening the pipeline");
        dp_pipeline_close(p);
        return status;
    }
    *pipeline_out = p;
    return DP_OK;
}

void dp_pipeline_close(dp_pipeline_t *p)
{
    if (p == NULL)
        return;
    if (p->stuck) {
        dp_log(DP_LOG_WARN, "engine", "rank %d: a kernel does not return: what it may be using is left behind",
               dp_group_rank(p->group));
        dp__group_pin(p->group);
        return;
    }
    /* lanes first: after a failure their workers may still be inside a wait on memory of the comms */
    dp__graphs_close(p);
    for (int32_t i = 0; i < dp__stream_count(p); i++)
        if (dp__stream_at(p, i) != NULL)
            p->device_vt->stream_close(dp__stream_at(p, i));
    if (p->built && p->options.unbuild != NULL)
        p->options.unbuild(p->options.user);
    if (p->comms.vt != NULL)
        dp__comms_close(&p->comms);
    if (p->device != NULL) {
        dp__links_close(p);
        dp__chunks_close(p);
        if (p->losses_there != NULL && p->losses_there != p->losses)
            p->device_vt->release(p->device, p->losses_there);
        if (p->staging_there != NULL && p->staging_there != p->staging)
            p->device_vt->release(p->device, p->staging_there);
        dp__shared_release(p, p->losses);
        dp__shared_release(p, p->staging);
        dp__profile_close(p);
        p->device_vt->close(p->device);
    }
    dp__plan_free(&p->plan);
    dp__plan_free(&p->forward_plan);
    dp__free(p->history);
    dp__free(p->history_count);
    dp__free(p->names);
    dp__free(p->chunks);
    dp__programs_free(p);
    dp_schedule_free(p->own_schedule);
    dp_schedule_free(p->forward_schedule);
    dp__free(p);
}

/* ---- between steps ---- */

/* One-sided backends and those with matched groups run different lists of the same schedule. */
static dp_status_t make_lists(dp_pipeline_t *p)
{
    dp_status_t status;

    dp__links_close(p);
    dp__plan_free(&p->plan);
    dp__plan_free(&p->forward_plan);
    dp__programs_free(p);
    p->memory.total -= p->memory.boundary;
    p->memory.boundary = 0;
    status = dp__programs_make(p);
    if (status >= 0)
        status = dp__ways_open(p);
    if (status >= 0)
        status = dp__links_open(p);
    if (status >= 0)
        status = build_plans(p);
    if (status >= 0 && (p->plan.nspans > p->record_capacity || p->forward_plan.nspans > p->record_capacity))
        status = dp_fail(DP_ERR_MISMATCH, "the new list of rank %d has more operations than the old one", p->grid.p);
    return status;
}

/* New comms, new stages on them. Parameters are the pipeline's and stay where they are. */
static dp_status_t move(dp_pipeline_t *p, const dp_comm_vt_t *vt, dp__comms_t *old)
{
    dp_status_t status;

    dp__graphs_forget(p);
    *old = p->comms;
    status = dp__comms_open(p, vt, &p->comms);
    if (status >= 0)
        status = dp__chunks_rebuild(p);
    if (status >= 0)
        status = dp__names_collect(p);
    if (status >= 0 && p->grouped != ((vt->caps & DP_COMM_CAP_ONE_SIDED) == 0)) {
        p->grouped = !p->grouped;
        status = make_lists(p);
    }
    return status < 0 ? status : connect(p);
}

dp_status_t dp_pipeline_swap_comm(dp_pipeline_t *p, const char *comm)
{
    char name[DP__NAME_BYTES] = "";
    const dp_comm_vt_t *vt = NULL;
    dp__comms_t old;
    dp_status_t status;

    if (p == NULL || p->failed)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_swap_comm: the pipeline is NULL or has failed");
    status = comm != NULL ? full_name("comm", comm, "DUALPIPE_COMM", "comm_shm", name)
                          : dp_fail(DP_ERR_INVALID, "no comm backend was named");
    if (status >= 0)
        status = dp__comms_find(name, &vt);
    status = dp__agree_to_swap(p, status, name);
    if (status < 0)
        return status;
    status = move(p, vt, &old);
    if (status < 0)
        status = dp__engine_fail(p, status, "swapping the comm backend");
    else
        memcpy(p->comm_name, name, sizeof(name));
    dp__comms_close(&old); /* at once when the job has ended */
    return status;
}

/* ---- questions ---- */

int32_t dp_pipeline_chunks(const dp_pipeline_t *p)
{
    return p->nchunks;
}

dp_status_t dp_pipeline_chunk(const dp_pipeline_t *p, int32_t c, dp_chunk_view_t *view_out)
{
    const dp__chunk_t *chunk;

    if (p == NULL || view_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_chunk: pipeline and view_out must not be NULL");
    if (c < 0 || c >= p->nchunks)
        return dp_fail(DP_ERR_INVALID, "chunk %d: this rank has %d", c, p->nchunks);
    chunk = &p->chunks[c];
    *view_out = (dp_chunk_view_t){
        .chunk = c,
        .path = chunk->place.path,
        .stage = chunk->place.stage,
        .stages = dp_schedule_stages(p->schedule),
        .stage_object = chunk->stage,
        .params = chunk->params,
        .grads = dp__summed_grads(chunk),
        .param_count = chunk->stage->info.param_count,
        .nparams = chunk->stage->info.nparams,
        .param = chunk->stage->info.params,
        .primary = chunk->place.path == 0,
    };
    return DP_OK;
}

void dp_pipeline_ends(const dp_pipeline_t *p, uint8_t *first_out, uint8_t *last_out)
{
    int32_t m = p->schedule->microbatches;

    if (first_out != NULL)
        memset(first_out, 0, (size_t)m);
    if (last_out != NULL)
        memset(last_out, 0, (size_t)m);
    for (int32_t c = 0; c < p->nchunks; c++) {
        const dp_place_t *place = &p->chunks[c].place;
        int32_t start = place->path == 1 ? m / 2 : 0;
        int32_t n = dp_schedule_path_microbatches(p->schedule, place->path);

        if (first_out != NULL && place->prev_rank < 0)
            memset(first_out + start, 1, (size_t)n);
        if (last_out != NULL && place->next_rank < 0)
            memset(last_out + start, 1, (size_t)n);
    }
}

dp_status_t dp_pipeline_sum(dp_pipeline_t *p, double *values, size_t count)
{
    dp_stream_t *s;

    if (p == NULL || p->failed || (values == NULL && count > 0))
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_sum: pipeline or values are NULL, or the pipeline has failed");
    s = p->stream[DP_LANE_REDUCE];
    for (size_t at = 0; at < count; at += SUM_COUNT) {
        size_t n = count - at < SUM_COUNT ? count - at : SUM_COUNT;
        dp_status_t status;

        memcpy(p->staging, values + at, n * sizeof(*values));
        status = p->staging_there != p->staging ? p->device_vt->copy(s, p->staging_there, p->staging, n * sizeof(*values)) : DP_OK;
        if (status >= 0)
            status = p->comms.vt->all_reduce(p->comms.world, p->staging_there, n, DP_F64, s);
        if (status >= 0 && p->staging_there != p->staging)
            status = p->device_vt->copy(s, p->staging, p->staging_there, n * sizeof(*values));
        if (status >= 0)
            status = p->device_vt->synchronize(s, -1);
        if (status < 0) {
            status = dp__engine_fail(p, status, "summing over all ranks");
            dp__engine_settle(p);
            return status;
        }
        memcpy(values + at, p->staging, n * sizeof(*values));
    }
    return DP_OK;
}

void dp_pipeline_memory(const dp_pipeline_t *p, dp_memory_report_t *report_out)
{
    *report_out = p->memory;
}

const dp_program_t *dp_pipeline_program(const dp_pipeline_t *p)
{
    return p->program;
}
