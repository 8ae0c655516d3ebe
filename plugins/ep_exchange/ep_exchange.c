/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ep_exchange.c: dp.ep.draft/1 over the exchanges of any dp.comm/1, by host code on host memory. A
 * call packs rows, exchanges them and lays them where they belong, all on the stream that it is
 * given; the only state an instance changes is the number of its next exchange. What is sent stands
 * in plugins/moe/dims.h. */
#include <dualpipe/draft/ep.h>

#include "plugins/common/check.h"
#include "plugins/common/do.h"
#include "plugins/moe/dispatch.h"

#define PLUGIN "ep_exchange"

_Static_assert(sizeof(moe_list_t) == 16 && sizeof(moe_head_t) == 16, "MOE_LIST_ROWS counts with that");
static const moe_rules_t rules = {.plugin = PLUGIN,
                                  .bf16 = true,
                                  .capacity = true,
                                  .row_alignment = 16,
                                  .most_experts = 1 << 20,
                                  .most_ranks = 1 << 20,
                                  .most_tokens = INT32_MAX,
                                  .most_elements = INT32_MAX};

struct dp_ep {
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *comm_vt;
    moe_link_t out, back; /* tokens' owner to expert, and back */
    moe_dims_t n;
    dp_dtype_t dtype;
    struct {
        size_t mark, cells; /* of its dispatch; [L,R] */
        moe_dispatch_layout_t dispatch;
        size_t bytes;
    } saved;
    struct {
        size_t rows;   /* on their way */
        size_t counts; /* int32 [P] for each expert */
        size_t ranks;  /* int32 [R] */
        size_t bytes;
    } scratch;
};

/* In saved memory, written by dispatch: other calls find it, or what they were given is no
 * micro-batch of ours, or one that is over. */
typedef struct mark {
    uint64_t magic;
    const dp_ep_t *ep;
    int32_t tokens;
    uint32_t call;        /* the latest */
    int32_t reserved[10]; /* the arrays behind it begin at a multiple of 64 bytes */
} mark_t;

#define MAGIC 0x65705f65786368ULL /* "ep_exch" */

/* The argument of every kernel; copied by launch_task(). */
typedef struct task {
    const dp_ep_t *ep;
    moe_dims_t n; /* of this micro-batch; memory is laid out by those of the longest */
    uint32_t call;
    char *saved, *scratch;
    const int32_t *experts;
    const void *rows, *weights;
    void *rows_out, *weights_out;
    const double *dweights;
    double *dweights_out;
    int32_t *counts_out;
    const char *came;      /* what the exchange brought */
    const int32_t *counts; /* how many rows of it from each rank */
    int32_t room;
} task_t;

_Static_assert(sizeof(task_t) <= DP_LAUNCH_ARG_MAX, "a task is the argument of launch()");

static const char *const names[] = {[MOE_DISPATCH] = "dispatch",
                                    [MOE_COMBINE] = "combine",
                                    [MOE_COMBINE_BACKWARD] = "combine_backward",
                                    [MOE_DISPATCH_BACKWARD] = "dispatch_backward"};

static int32_t *ints_at(char *block, size_t offset)
{
    return (int32_t *)(void *)(block + offset);
}

static moe_dispatch_t dispatch_of(const task_t *t)
{
    const dp_ep_t *ep = t->ep;
    moe_dispatch_t v = {
        .host = ep->host,
        .plugin = PLUGIN,
        .n = &t->n,
        .data_bytes = (size_t)t->n.hidden * dp_dtype_bytes(ep->dtype),
        .weight_bytes = dp_dtype_bytes(dp_dtype_accumulator(ep->dtype)),
        .replica = t->experts,
        .cells = ints_at(t->saved, ep->saved.cells),
        .sent = t->scratch + ep->scratch.rows,
        .rows = t->came,
        .counts = t->counts,
        .room = t->room,
    };

    moe_dispatch_find(&v, t->saved, &ep->saved.dispatch);
    return v;
}

static mark_t *mark_of(const task_t *t)
{
    return (mark_t *)(void *)(t->saved + t->ep->saved.mark);
}

static dp_status_t find_mark(const task_t *t)
{
    mark_t *mark = mark_of(t);
    const bool ours = mark->magic == MAGIC && mark->ep == t->ep && mark->tokens == t->n.tokens;

    if (ours && mark->call < t->call) {
        mark->call = t->call;
        return DP_OK;
    }
    if (ours)
        return DP_FAIL(t->ep->host, DP_ERR_PROTOCOL,
                       PLUGIN
                       ": rank %d of the expert group, %s: since its dispatch this saved memory has had %s: a "
                       "micro-batch makes each call once, in the order of draft/ep.h, and begins with a dispatch",
                       t->n.rank, names[t->call], names[mark->call]);
    return DP_FAIL(t->ep->host, DP_ERR_PROTOCOL,
                   PLUGIN ": rank %d of the expert group, %s: this saved memory has had no dispatch of %d tokens by "
                          "this instance: make that call first, with the same io.saved",
                   t->n.rank, names[t->call], t->n.tokens);
}

/* How many rows each expert gets from us. */
static dp_status_t count_choices(const task_t *t, int32_t *counts)
{
    const moe_dims_t *n = &t->n;
    const size_t all = (size_t)n->tokens * (size_t)n->top_k;

    memset(counts, 0, (size_t)n->replicas * sizeof(*counts));
    for (size_t i = 0; i < all; i++) {
        const int32_t e = t->experts[i];

        if (e < 0 || e >= n->replicas)
            return DP_FAIL(t->ep->host, DP_ERR_INVALID,
                           PLUGIN ": rank %d of the expert group, dispatch: token %zu chose expert %d, there are %d",
                           n->rank, i / (size_t)n->top_k, e, n->replicas);
        counts[e]++;
    }
    return DP_OK;
}

static dp_status_t check_room(const task_t *t, const moe_dispatch_t *v)
{
    for (int32_t p = 0; p < t->n.ranks; p++)
        if (v->out_heads[p] > t->n.pair_rows)
            return DP_FAIL(t->ep->host, DP_ERR_OVERFLOW,
                           PLUGIN ": rank %d of the expert group, dispatch: %d rows for rank %d, where there is room "
                                  "for %d: ask for a larger capacity, or 0 for the worst case",
                           t->n.rank, v->out_heads[p], p, t->n.pair_rows);
    return DP_OK;
}

/* Before an exchange to the experts. */
static dp_status_t pack_out(void *arg)
{
    const task_t *t = arg;
    const moe_dispatch_t v = dispatch_of(t);
    int32_t *counts = ints_at(t->scratch, t->ep->scratch.counts);
    dp_status_t status;

    if (t->call != MOE_DISPATCH) {
        status = find_mark(t);
    } else {
        status = count_choices(t, counts);
        if (status >= 0) {
            moe_dispatch_place(&v, counts);
            status = check_room(t, &v);
        }
    }
    if (status >= 0)
        moe_dispatch_pack(&v, t->rows, t->weights, t->call, ints_at(t->scratch, t->ep->scratch.ranks));
    return status;
}

static dp_status_t take_out(void *arg)
{
    const task_t *t = arg;
    const moe_dispatch_t v = dispatch_of(t);

    DO(moe_dispatch_take_out(&v, t->call));
    moe_dispatch_fan_out(&v, ints_at(t->scratch, t->ep->scratch.ranks), t->rows_out, t->weights_out);
    if (t->call == MOE_DISPATCH) {
        *mark_of(t) = (mark_t){.magic = MAGIC, .ep = t->ep, .tokens = t->n.tokens, .call = t->call};
        memcpy(t->counts_out, v.cells, (size_t)t->n.local * (size_t)t->n.ranks * sizeof(*v.cells));
    }
    return DP_OK;
}

/* Before an exchange back: rows by source rank, those of an expert in the order they came in. */
static dp_status_t pack_back(void *arg)
{
    const task_t *t = arg;
    const moe_dims_t *n = &t->n;
    const moe_dispatch_t v = dispatch_of(t);
    const int32_t *cell = v.cells;
    const char *row = t->rows;
    int32_t *done = ints_at(t->scratch, t->ep->scratch.ranks);
    size_t at = 0;

    DO(find_mark(t));
    moe_dispatch_begin_back(&v, t->call);
    memset(done, 0, (size_t)n->ranks * sizeof(*done));
    for (int32_t e = 0; e < n->local; e++)
        for (int32_t p = 0; p < n->ranks; p++, cell++) {
            char *rows;
            moe_head_t *heads = moe_dispatch_back(&v, p, &rows);

            for (int32_t i = 0; i < *cell; i++, done[p]++, at++, row += v.data_bytes) {
                char *to = moe_row_at(rows, n, (size_t)done[p]);

                heads[done[p]] = (moe_head_t){.row = done[p], .weight = t->dweights != NULL ? t->dweights[at] : 0};
                memcpy(to, row, v.data_bytes);
                moe_pad_row(&v, to);
            }
        }
    return DP_OK;
}

static dp_status_t take_back(void *arg)
{
    const task_t *t = arg;
    const moe_dispatch_t v = dispatch_of(t);
    const size_t all = (size_t)t->n.tokens * (size_t)t->n.top_k;
    char *to = t->rows_out;
    double weight;
    dp_status_t status = moe_dispatch_take_back(&v, t->call);

    for (size_t at = 0; status >= 0 && at < all; at++, to += v.data_bytes) {
        memcpy(to, moe_dispatch_returned(&v, at, &weight), v.data_bytes);
        if (t->dweights_out != NULL)
            t->dweights_out[at] = weight;
    }
    return status;
}

/* ---- calls ---- */

static dp_status_t check_io(const dp_ep_t *ep, const dp_ep_io_t *io, uint32_t call)
{
    const bool out = call == MOE_DISPATCH || call == MOE_COMBINE_BACKWARD;
    const char *missing;

    DO(DP_TAKE(ep->host, PLUGIN, dp_ep_io_t, DP_EP_IO_MIN, NULL, io));
    missing = io->saved == NULL                                          ? "saved"
              : io->scratch == NULL                                      ? "scratch"
              : io->experts == NULL                                      ? "experts"
              : io->rows == NULL                                         ? "rows"
              : io->rows_out == NULL                                     ? "rows_out"
              : io->counts_out == NULL && call == MOE_DISPATCH           ? "counts_out"
              : out && io->weights == NULL && io->weights_out != NULL    ? "weights"
              : !out && io->dweights == NULL && io->dweights_out != NULL ? "dweights"
                                                                         : NULL;
    if (missing != NULL)
        return DP_FAIL(ep->host, DP_ERR_INVALID, PLUGIN ": %s needs io.%s, which is NULL", names[call], missing);
    if (io->tokens > (uint32_t)ep->n.tokens)
        return DP_FAIL(ep->host, DP_ERR_INVALID, PLUGIN ": %s: io.tokens is %u, more than config.tokens = %d",
                       names[call], io->tokens, ep->n.tokens);
    return DP_OK;
}

static dp_status_t launch_task(const dp_ep_t *ep, dp_launch_fn kernel, const task_t *t, dp_stream_t *s)
{
    return ep->device_vt->launch(s, kernel, t, sizeof(*t));
}

/* pack, exchange, take. */
static dp_status_t exchange_rows(dp_ep_t *ep, const dp_ep_io_t *io, uint32_t call, dp_stream_t *s)
{
    const bool out = call == MOE_DISPATCH || call == MOE_COMBINE_BACKWARD;
    const moe_dispatch_layout_t *l = &ep->saved.dispatch;
    moe_link_t *link = out ? &ep->out : &ep->back;
    task_t t = {.ep = ep, .n = ep->n, .call = call};
    const void *came;

    DO(check_io(ep, io, call));
    if (io->tokens > 0)
        moe_dims_set_tokens(&t.n, (int32_t)io->tokens);
    t.saved = io->saved;
    t.scratch = io->scratch;
    t.experts = io->experts;
    t.rows = io->rows;
    t.rows_out = io->rows_out;
    t.weights = io->weights;
    t.weights_out = io->weights_out;
    t.dweights = io->dweights;
    t.dweights_out = io->dweights_out;
    t.counts_out = io->counts_out;
    DO(launch_task(ep, out ? pack_out : pack_back, &t, s));
    DO(ep->comm_vt->exchange(link->exchange, link->number, t.scratch + ep->scratch.rows,
                             ints_at(t.saved, out ? l->out_offsets : l->back_offsets),
                             ints_at(t.saved, out ? l->out_counts : l->back_counts), &came, &t.counts, s));
    t.came = came;
    t.room = link->room;
    DO(launch_task(ep, out ? take_out : take_back, &t, s));
    return ep->comm_vt->exchange_release(link->exchange, link->number++, s);
}

static dp_status_t ep_dispatch(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s)
{
    return exchange_rows(ep, io, MOE_DISPATCH, s);
}

static dp_status_t ep_combine(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s)
{
    return exchange_rows(ep, io, MOE_COMBINE, s);
}

static dp_status_t ep_combine_backward(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s)
{
    return exchange_rows(ep, io, MOE_COMBINE_BACKWARD, s);
}

static dp_status_t ep_dispatch_backward(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s)
{
    return exchange_rows(ep, io, MOE_DISPATCH_BACKWARD, s);
}

/* ---- instances ---- */

static dp_status_t check_ep_config(const dp_host_t *host, const dp_ep_config_t *c)
{
    DO(DP_TAKE(host, PLUGIN, dp_ep_config_t, DP_EP_CONFIG_MIN, NULL, c));
    if (c->tokens == 0 || c->hidden == 0)
        return DP_FAIL(host, DP_ERR_INVALID, PLUGIN ": tokens %u, hidden %u: each must be at least 1", c->tokens,
                       c->hidden);
    if (c->device == NULL || c->device_vt == NULL || !(c->device_vt->caps & DP_DEVICE_CAP_LAUNCH) ||
        !(c->device_vt->caps & DP_DEVICE_CAP_HOST_MEMORY))
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       PLUGIN " runs host code on host memory, which this device does not offer: use it with "
                              "device_cpu");
    return DP_OK;
}

static dp_status_t lay_out_ep(dp_ep_t *ep)
{
    const moe_dims_t *n = &ep->n;
    layout_t saved = {.alignment = 64}, scratch = {.alignment = 64};

    ep->saved.mark = layout_take(&saved, 1, sizeof(mark_t), 1);
    ep->saved.cells = layout_take(&saved, (size_t)n->local, (size_t)n->ranks, sizeof(int32_t));
    moe_dispatch_lay_out(&saved, n, &ep->saved.dispatch);
    ep->saved.bytes = saved.bytes;
    ep->scratch.rows = layout_take(&scratch, (size_t)n->sent_rows, (size_t)n->row_bytes, 1);
    ep->scratch.counts = layout_take(&scratch, (size_t)n->replicas, 1, sizeof(int32_t));
    ep->scratch.ranks = layout_take(&scratch, (size_t)n->ranks, 1, sizeof(int32_t));
    ep->scratch.bytes = scratch.bytes;
    if (saved.overflow || scratch.overflow)
        return DP_FAIL(ep->host, DP_ERR_OVERFLOW,
                       PLUGIN ": the memory of one micro-batch does not fit this machine's addresses");
    return DP_OK;
}

static void ep_close(dp_ep_t *ep)
{
    if (ep != NULL)
        ep->host->release(ep->host, ep);
}

/* To be sent, rows are those of a MoE block with experts of any width. */
static dp_status_t open_dispatch(dp_ep_t *ep, const dp_ep_config_t *config)
{
    const dp_block_shape_t shape = {.struct_size = sizeof(shape),
                                    .dtype = config->dtype,
                                    .batch = 1,
                                    .sequence = config->tokens,
                                    .hidden = config->hidden};
    const dp_moe_config_t moe = {.struct_size = sizeof(moe),
                                 .shape = &shape,
                                 .experts = config->experts,
                                 .top_k = config->top_k,
                                 .expert_hidden = 1,
                                 .capacity = config->capacity,
                                 .comm_vt = config->comm_vt,
                                 .comm = config->comm,
                                 .comm_rank = config->comm_rank,
                                 .comm_size = config->comm_size,
                                 .exchange_id = config->exchange_id};

    DO(moe_check_comm(ep->host, PLUGIN, &moe));
    DO(moe_dims_init(ep->host, &rules, &moe, &ep->n));
    DO(lay_out_ep(ep));
    return moe_open_links(&ep->n, &moe, &ep->out, &ep->back);
}

static dp_status_t ep_open(const dp_host_t *host, const dp_ep_config_t *config, dp_ep_t **ep_out)
{
    dp_ep_t *ep;
    dp_status_t status;

    DO(check_ep_config(host, config));
    ep = host->allocate(host, sizeof(*ep), 64);
    if (ep == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, PLUGIN ": no memory for an instance");
    *ep = (dp_ep_t){.host = host, .dtype = config->dtype, .device_vt = config->device_vt, .comm_vt = config->comm_vt};
    status = open_dispatch(ep, config);
    if (status < 0) {
        ep_close(ep);
        return status;
    }
    *ep_out = ep;
    return DP_OK;
}

static dp_status_t ep_sizes(const dp_ep_t *ep, dp_ep_sizes_t *sizes_out)
{
    const dp_ep_sizes_t sizes = {
        .struct_size = sizeof(sizes),
        .rows = (uint32_t)ep->n.rows,
        .saved_bytes = ep->saved.bytes,
        .scratch_bytes = ep->scratch.bytes,
    };

    if (sizes_out->struct_size < DP_EP_SIZES_MIN)
        return DP_FAIL(ep->host, DP_ERR_INVALID,
                       PLUGIN ": struct_size of sizes_out is %u: set it to sizeof(dp_ep_sizes_t)",
                       sizes_out->struct_size);
    dp_sized_put(sizes_out, &sizes);
    return DP_OK;
}

static const dp_ep_vt_t ep_vt = {
    .struct_size = sizeof(ep_vt),
    .open = ep_open,
    .close = ep_close,
    .sizes = ep_sizes,
    .dispatch = ep_dispatch,
    .combine = ep_combine,
    .combine_backward = ep_combine_backward,
    .dispatch_backward = ep_dispatch_backward,
};

static const void *ep_interface(const char *id)
{
    return strcmp(id, DP_IFACE_EP) == 0 ? &ep_vt : NULL;
}

DP_PLUGIN_DEFINE(ep_exchange) = {
    DP_PLUGIN_HEAD,
    .name = "ep_exchange",
    .version = DP_VERSION,
    .summary = "dispatch and combine of experts' rows over the exchanges of a comm, in host memory",
    .get_interface = ep_interface,
};
