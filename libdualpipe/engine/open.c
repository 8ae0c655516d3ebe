/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * open.c: a pipeline from its options to the first step, and back. */
#include "base/memory.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUM_COUNT 4096 /* doubles that dp_pipeline_sum moves at once */
#define INLINE_BYTES 16384
#define SETTINGS_BYTES 512

/* Gives the job its first cause, or takes over the one it has. Our message names rank, step and operation. */
dp_status_t dp__engine_fail(dp_pipeline_t *p, dp_status_t status, const char *what)
{
    char doing[256] = "", text[1024];
    dp_status_t cause;

    snprintf(text, sizeof(text), "%s", dp_last_error());
    p->failed = 1;
    cause = dp_group_health(p->group);
    if (cause < 0)
        return cause;
    dp_group_describe(p->group, dp_group_rank(p->group), doing, sizeof(doing));
    dp_fail(status, "rank %d: %s%s%s: %s", dp_group_rank(p->group), what, doing[0] != '\0' ? ", " : "", doing, text);
    snprintf(text, sizeof(text), "%s", dp_last_error());
    dp_group_abort(p->group, status, text);
    return dp_fail(status, "%s", text);
}

/* ---- options and agreement ---- */

static dp_status_t set_grid(dp_pipeline_t *p)
{
    int32_t size = dp_group_size(p->group), rank = dp_group_rank(p->group);
    dp__grid_t *g = &p->grid;

    g->ep = p->options.ep > 0 ? p->options.ep : 1;
    g->dp = p->options.dp > 0 ? p->options.dp : 1;
    if (size % (g->ep * g->dp) != 0)
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
    if (o == NULL || o->struct_size < sizeof(*o) || o->group == NULL || o->build == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_open: struct_size, group and build are required");
    if (o->dtype != DP_F32 && o->dtype != DP_F64)
        return dp_fail(DP_ERR_UNSUPPORTED, "dp_pipeline_open: parameters must be DP_F32 or DP_F64, not %d", (int)o->dtype);
    if (o->boundary_bytes == 0 || o->boundary_bytes > UINT32_MAX)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_open: boundary_bytes is %zu; 1 to %u are legal", o->boundary_bytes,
                       UINT32_MAX);
    if (o->ep < 0 || o->dp < 0 || o->slots < 0 || o->trace_steps < 0)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_open: ep, dp, slots and trace_steps must not be negative");
    return DP_OK;
}

/* "shm" -> "comm_shm"; names with their kind, and paths, stay. */
static void full_name(const char *kind, const char *name, const char *variable, const char *fallback, char *text, size_t bytes)
{
    size_t n = strlen(kind);

    if (name == NULL)
        name = getenv(variable);
    if (name == NULL || name[0] == '\0')
        name = fallback;
    if (strchr(name, '/') != NULL || (strncmp(name, kind, n) == 0 && name[n] == '_'))
        snprintf(text, bytes, "%s", name);
    else
        snprintf(text, bytes, "%s_%s", kind, name);
}

static dp_status_t compare_settings(dp_pipeline_t *p, const char *mine, const char *all)
{
    for (int32_t r = 0; r < dp_group_size(p->group); r++) {
        const char *a = all, *b = all + (size_t)r * SETTINGS_BYTES;

        if (strcmp(a, b) == 0)
            continue;
        while (*a != '\0' || *b != '\0') {
            size_t na = strcspn(a, "\n"), nb = strcspn(b, "\n");

            if (na != nb || strncmp(a, b, na) != 0)
                return dp_fail(DP_ERR_MISMATCH, "the ranks were opened with different settings: rank 0 has %.*s, rank %d has %.*s",
                               (int)na, a, r, (int)nb, b);
            a += na + (a[na] == '\n');
            b += nb + (b[nb] == '\n');
        }
    }
    (void)mine;
    return DP_OK;
}

static uint64_t digest_schedule(const dp_schedule_t *s)
{
    uint64_t h = 1469598103934665603u; /* FNV-1a, over fields and not padding */

    for (int64_t i = 0; i < s->first[s->ranks]; i++) {
        const dp_op_t *op = &s->ops[i];
        const int64_t fields[] = {op->kind, op->chunk, op->chunk2, op->mb, op->mb2};

        for (size_t f = 0; f < sizeof(fields) / sizeof(fields[0]); f++)
            h = (h ^ (uint64_t)fields[f]) * 1099511628211u;
    }
    return h;
}

/* Every rank must run the same program on tensors of the same size. */
static dp_status_t agree(dp_pipeline_t *p)
{
    const dp_pipeline_options_t *o = &p->options;
    char mine[SETTINGS_BYTES] = {0};
    char *all = dp__calloc((size_t)dp_group_size(p->group), SETTINGS_BYTES);
    dp_status_t status;

    if (all == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to compare the settings of %d ranks", dp_group_size(p->group));
    snprintf(mine, sizeof(mine),
             "method=%s\nmicrobatches=%d\nchunks=%d\nep=%d\ndp=%d\nboundary_bytes=%zu\ndtype=%d\nslots=%d\n"
             "schedule_digest=%016llx\ncomm=%s\nversion=%s\n",
             p->schedule->method, p->schedule->microbatches, p->schedule->chunks, p->grid.ep, p->grid.dp,
             o->boundary_bytes, (int)o->dtype, o->slots, (unsigned long long)digest_schedule(p->schedule), p->comm_name,
             DP_VERSION);
    status = dp_group_all_gather(p->group, mine, sizeof(mine), all);
    if (status >= 0)
        status = compare_settings(p, mine, all);
    dp__free(all);
    return status;
}

/* Both copies of a stage, and its replicas, must have the same parameters. */
static dp_status_t agree_on_stages(dp_pipeline_t *p)
{
    int32_t n = dp_group_size(p->group), chunks = p->nchunks;
    int64_t *mine = dp__calloc((size_t)chunks, 2 * sizeof(*mine));
    int64_t *all = dp__calloc((size_t)n * (size_t)chunks, 2 * sizeof(*all));
    dp_status_t status = mine != NULL && all != NULL ? DP_OK : dp_fail(DP_ERR_NOMEM, "no memory to compare stages");

    for (int32_t c = 0; c < chunks && status >= 0; c++) {
        mine[2 * c] = p->chunks[c].place.stage;
        mine[2 * c + 1] = (int64_t)p->chunks[c].stage->info.param_count;
    }
    if (status >= 0)
        status = dp_group_all_gather(p->group, mine, (size_t)chunks * 2 * sizeof(*mine), all);
    for (int32_t i = 0; i < n * chunks && status >= 0; i++)
        for (int32_t c = 0; c < chunks && status >= 0; c++)
            if (all[2 * i] == mine[2 * c] && all[2 * i + 1] != mine[2 * c + 1])
                status = dp_fail(DP_ERR_MISMATCH, "stage %lld has %lld parameters on rank %d and %lld on rank %d",
                                 (long long)mine[2 * c], (long long)mine[2 * c + 1], dp_group_rank(p->group),
                                 (long long)all[2 * i + 1], i / chunks);
    dp__free(mine);
    dp__free(all);
    return status;
}

/* ---- schedule and program ---- */

static dp_status_t lower(dp_pipeline_t *p, const dp_schedule_t *schedule, dp_program_t **program_out)
{
    dp_lower_options_t options = {.struct_size = sizeof(options), .slots = p->options.slots, .prefetch = 1};
    dp_status_t status = dp_schedule_verify(schedule);

    if (status >= 0)
        status = dp_program_lower(schedule, &options, program_out);
    return status < 0 ? status : dp_program_verify(*program_out, DP_TRANSPORT_CREDITS, NULL);
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

static dp_status_t make_programs(dp_pipeline_t *p)
{
    dp_status_t status = DP_OK;

    p->schedule = p->options.schedule;
    if (p->schedule == NULL) {
        dp_schedule_request_t request = {
            .struct_size = sizeof(request),
            .method = p->options.method != NULL ? p->options.method : "dualpipe",
            .ranks = p->grid.pp,
            .microbatches = p->options.microbatches,
            .chunks = p->options.chunks,
        };

        status = dp_schedule_generate(&request, &p->own_schedule);
        p->schedule = p->own_schedule;
    }
    if (status < 0)
        return status;
    if (p->schedule->ranks != p->grid.pp)
        return dp_fail(DP_ERR_INVALID, "the schedule is for %d ranks, the pipeline has %d", p->schedule->ranks, p->grid.pp);
    status = lower(p, p->schedule, &p->program);
    if (status < 0 || p->schedule->forward_only)
        return status;
    status = forwards_of(p->schedule, &p->forward_schedule);
    return status < 0 ? status : lower(p, p->forward_schedule, &p->forward_program);
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

static dp_status_t open_device(dp_pipeline_t *p)
{
    dp_device_config_t config = p->options.device_config;
    const dp_plugin_t *plugin;
    const void *table;
    char name[128];
    dp_status_t status;

    full_name("device", p->options.device, "DUALPIPE_DEVICE", "device_cpu", name, sizeof(name));
    status = dp_plugin_load(name, &plugin);
    if (status >= 0)
        status = dp_plugin_interface(plugin, DP_IFACE_DEVICE, sizeof(dp_device_vt_t), &table);
    if (status < 0)
        return status;
    p->device_vt = table;
    status = check_device(plugin, p->device_vt);
    if (status < 0)
        return status;
    if ((p->device_vt->caps & DP_DEVICE_CAP_HOST_MEMORY) == 0)
        return dp_fail(DP_ERR_UNSUPPORTED, "device plugin %s keeps its memory from the host; this version of the engine "
                       "reads losses there directly", plugin->name);
    config.struct_size = sizeof(config);
    status = p->device_vt->open(p->host, &config, &p->device);
    for (int lane = 0; lane < DP_LANE_COUNT && status >= 0; lane++)
        status = p->device_vt->stream_open(p->device, (dp_lane_t)lane, &p->stream[lane]);
    return status;
}

static dp_status_t allocate_small(dp_pipeline_t *p)
{
    char *memory;
    dp_status_t status = dp__device_memory(p, (size_t)p->schedule->microbatches * sizeof(double), &p->memory.work, &memory);

    p->losses = (double *)(void *)memory;
    if (status < 0)
        return status;
    status = dp__device_memory(p, SUM_COUNT * sizeof(double), &p->memory.work, &memory);
    p->staging = (double *)(void *)memory;
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

static dp_status_t set_up(dp_pipeline_t *p)
{
    static dp_status_t (*const before_comms[])(dp_pipeline_t *) = {agree, open_device, place_chunks};
    static dp_status_t (*const after_comms[])(dp_pipeline_t *) = {
        dp__chunks_build, dp__names_collect, agree_on_stages, dp__links_open, dp__chunks_allocate,
        allocate_small,   build_plans,       dp__records_open};
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < sizeof(before_comms) / sizeof(before_comms[0]) && status >= 0; i++)
        status = before_comms[i](p);
    if (status >= 0)
        status = dp__comms_open(p, p->comm_name, &p->comms);
    for (size_t i = 0; i < sizeof(after_comms) / sizeof(after_comms[0]) && status >= 0; i++)
        status = after_comms[i](p);
    if (status >= 0)
        status = dp__links_connect(p, &p->comms);
    if (status >= 0)
        status = dp__comms_start(p, &p->comms);
    return status >= 0 ? dp_group_barrier(p->group) : status;
}

dp_status_t dp_pipeline_open(const dp_pipeline_options_t *options, dp_pipeline_t **pipeline_out)
{
    dp_pipeline_t *p;
    dp_status_t status = check_options(options);

    if (status < 0)
        return status;
    p = dp__calloc(1, sizeof(*p));
    if (p == NULL)
        return dp_fail(DP_ERR_NOMEM, "pipeline: no memory for its record");
    p->options = *options;
    p->group = options->group;
    p->host = dp_group_host(options->group);
    if (p->options.inline_bytes == 0)
        p->options.inline_bytes = INLINE_BYTES;
    full_name("comm", options->comm, "DUALPIPE_COMM", "comm_shm", p->comm_name, sizeof(p->comm_name));
    status = set_grid(p);
    if (status >= 0)
        status = make_programs(p);
    if (status >= 0)
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
    /* lanes first: after a failure their workers may still be inside a wait on memory of the comms */
    for (int lane = 0; lane < DP_LANE_COUNT; lane++)
        if (p->stream[lane] != NULL)
            p->device_vt->stream_close(p->stream[lane]);
    if (p->comms.vt != NULL)
        dp__comms_close(&p->comms);
    if (p->device != NULL) {
        dp__links_close(p);
        dp__chunks_close(p);
        if (p->losses != NULL)
            p->device_vt->release(p->device, p->losses);
        if (p->staging != NULL)
            p->device_vt->release(p->device, p->staging);
        p->device_vt->close(p->device);
    }
    dp__plan_free(&p->plan);
    dp__plan_free(&p->forward_plan);
    dp__free(p->history);
    dp__free(p->history_count);
    dp__free(p->names);
    dp__free(p->chunks);
    dp_program_free(p->program);
    dp_program_free(p->forward_program);
    dp_schedule_free(p->own_schedule);
    dp_schedule_free(p->forward_schedule);
    dp__free(p);
}

/* ---- between steps ---- */

/* New comms, new stages on them, then the old comms go. Parameters are the pipeline's and stay where they are. */
static dp_status_t swap(dp_pipeline_t *p, const char *name, dp__comms_t *old)
{
    dp__comms_t fresh;
    dp_status_t status = dp__comms_open(p, name, &fresh);

    if (status < 0)
        return status;
    *old = p->comms;
    p->comms = fresh;
    status = dp__chunks_build(p);
    if (status >= 0)
        status = dp__names_collect(p);
    if (status >= 0)
        status = dp__links_connect(p, &p->comms);
    if (status >= 0)
        status = dp__comms_start(p, &p->comms);
    if (status >= 0)
        dp__comms_close(old);
    return status;
}

dp_status_t dp_pipeline_swap_comm(dp_pipeline_t *p, const char *comm)
{
    dp__comms_t old = {.vt = NULL};
    char name[128];
    const dp_plugin_t *plugin;
    dp_status_t status;

    if (p->failed || comm == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_swap_comm: the pipeline has failed, or no backend is named");
    full_name("comm", comm, "DUALPIPE_COMM", "comm_shm", name, sizeof(name));
    status = dp_plugin_load(name, &plugin); /* everything that can be refused without touching the pipeline */
    if (status < 0)
        return status;
    status = swap(p, name, &old);
    if (status < 0)
        return dp__engine_fail(p, status, "swapping the comm backend");
    snprintf(p->comm_name, sizeof(p->comm_name), "%s", name);
    return DP_OK;
}

/* ---- questions ---- */

int32_t dp_pipeline_chunks(const dp_pipeline_t *p)
{
    return p->nchunks;
}

dp_status_t dp_pipeline_chunk(const dp_pipeline_t *p, int32_t c, dp_chunk_view_t *view_out)
{
    const dp__chunk_t *chunk;

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
    dp_stream_t *s = p->stream[DP_LANE_REDUCE];

    for (size_t at = 0; at < count; at += SUM_COUNT) {
        size_t n = count - at < SUM_COUNT ? count - at : SUM_COUNT;
        dp_status_t status;

        memcpy(p->staging, values + at, n * sizeof(*values));
        status = p->comms.vt->all_reduce(p->comms.world, p->staging, n, DP_F64, s);
        if (status >= 0)
            status = p->device_vt->synchronize(s, -1);
        if (status < 0)
            return dp__engine_fail(p, status, "summing over all ranks");
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
