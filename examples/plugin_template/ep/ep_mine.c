/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ep_mine.c: dispatch and combine, to start from: ep.h's four calls written down plainly over the
 * exchanges of any dp.comm/1, for devices whose streams run host functions on host memory. Correct
 * and slow.
 *
 * One row is sent for each (token, choice), with a head in front, in one exchange that has
 * `pair_rows` places for each pair of ranks. Rows for rank p, and rows that came from it, lie from
 * place p * pair_rows on, in the order of tokens, and go back to the place that they came from. So
 * dispatch makes two lists, the place of each choice's row at the tokens' owner, and at the experts
 * the place of each received row in the order of the header; every call is: pack by one list,
 * exchange, take by the other. */
#include <dualpipe/ep.h>

#include <string.h>

enum { DISPATCH, COMBINE, COMBINE_BACKWARD, DISPATCH_BACKWARD };
enum { OWNER, EXPERT }; /* the two ends of a way */

static const char *const names[] = {"dispatch", "combine", "combine_backward", "dispatch_backward"};

/* In front of a row on its way. */
typedef struct head {
    int32_t call, expert;    /* expert: of the receiver's own, from 0; on the way to it */
    unsigned char weight[8]; /* the bytes of the weight, or of its gradient */
} head_t;

/* All state of one instance; after open only the number of its exchange changes. */
struct dp_ep {
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *comm_vt;
    dp_exchange_t *exchange;
    uint32_t number; /* of the next exchange */
    size_t tokens, experts, k, ranks, rank;
    size_t local;                               /* experts of each rank */
    size_t pair_rows;                           /* most that one rank sends to another */
    size_t data_bytes, row_bytes, weight_bytes; /* of a row, of one on its way, of a weight */
};

/* In front of saved memory, written by dispatch: where it is not, there was none. */
typedef struct mark {
    const dp_ep_t *ep;
    size_t tokens, received; /* received: rows of our experts */
    int32_t call;            /* the latest: each is made once, in the order of the header */
} mark_t;

/* What a micro-batch keeps. */
typedef struct saved {
    mark_t *mark;
    int32_t *first;     /* [ranks] place of the first row for each rank */
    int32_t *counts[2]; /* [ranks] rows for each rank, seen from either end */
    int32_t *places[2]; /* [T, k] of choices, [N] of received rows */
} saved_t;

static void *cut(char **at, size_t bytes)
{
    char *here = *at;

    *at += (bytes + 63) / 64 * 64;
    return here;
}

static size_t lay_out_saved(const dp_ep_t *ep, void *base, saved_t *s)
{
    char *at = base;

    s->mark = cut(&at, sizeof(*s->mark));
    s->first = cut(&at, ep->ranks * sizeof(int32_t));
    s->counts[OWNER] = cut(&at, ep->ranks * sizeof(int32_t));
    s->counts[EXPERT] = cut(&at, ep->ranks * sizeof(int32_t));
    s->places[OWNER] = cut(&at, ep->tokens * ep->k * sizeof(int32_t));
    s->places[EXPERT] = cut(&at, ep->ranks * ep->pair_rows * sizeof(int32_t));
    return (size_t)(at - (char *)base);
}

/* One call, as its stream carries it. */
typedef struct call {
    dp_ep_t *ep;
    int32_t call, from, to; /* DISPATCH ...; the end that rows leave, the end that they come to */
    dp_ep_io_t io;
    const char *weights; /* or their gradients, of weight_bytes each; NULL: they are not sent */
    char *weights_out;
    size_t weight_bytes;
    /* what the exchange brought: pair_rows places for each rank, counts of them used */
    const char *came;
    const int32_t *counts; /* [ranks] */
} call_t;

static head_t *row_at(const dp_ep_t *ep, const void *rows, size_t place)
{
    return (head_t *)(void *)((char *)rows + place * ep->row_bytes);
}

/* ---- on the stream ---- */

static dp_status_t place_choices(const call_t *c, saved_t *s)
{
    const dp_ep_t *ep = c->ep;
    int32_t *counts = s->counts[OWNER];

    memset(counts, 0, ep->ranks * sizeof(*counts));
    for (size_t p = 0; p < ep->ranks; p++)
        s->first[p] = (int32_t)(p * ep->pair_rows);
    for (size_t i = 0; i < c->io.tokens * ep->k; i++) {
        const int32_t e = c->io.experts[i];
        size_t p;

        if (e < 0 || (size_t)e >= ep->experts)
            return DP_FAIL(ep->host, DP_ERR_INVALID,
                           "ep_mine: rank %zu of the expert group, dispatch: token %zu chose expert %d, there are %zu",
                           ep->rank, i / ep->k, e, ep->experts);
        p = (size_t)e / ep->local;
        if ((size_t)counts[p] == ep->pair_rows)
            return DP_FAIL(ep->host, DP_ERR_INVALID,
                           "ep_mine: rank %zu of the expert group, dispatch: a token chose an expert of rank %zu "
                           "twice: each expert may be chosen once",
                           ep->rank, p);
        s->places[OWNER][i] = s->first[p] + counts[p]++;
    }
    return DP_OK;
}

/* Sorted by (expert, source rank, token). */
static void place_received(const call_t *c, saved_t *s)
{
    const dp_ep_t *ep = c->ep;
    int32_t *next = s->places[EXPERT], *count = c->io.counts_out;

    for (size_t e = 0; e < ep->local; e++)
        for (size_t p = 0; p < ep->ranks; p++, count++) {
            *count = 0;
            for (int32_t place = s->first[p]; place < s->first[p] + c->counts[p]; place++)
                if ((size_t)row_at(ep, c->came, (size_t)place)->expert == e) {
                    *next++ = place;
                    ++*count;
                }
        }
    memcpy(s->counts[EXPERT], c->counts, ep->ranks * sizeof(int32_t));
    *s->mark = (mark_t){.ep = ep, .tokens = c->io.tokens, .received = (size_t)(next - s->places[EXPERT])};
}

static dp_status_t find_mark(const call_t *c, saved_t *s)
{
    if (s->mark->ep == c->ep && s->mark->tokens == c->io.tokens && s->mark->call < c->call) {
        s->mark->call = c->call;
        return DP_OK;
    }
    return DP_FAIL(c->ep->host, DP_ERR_PROTOCOL,
                   "ep_mine: rank %zu of the expert group, %s: this saved memory has had no dispatch of %u tokens, or "
                   "this call or a later one since: make that call first, with the same io.saved, and each other once",
                   c->ep->rank, names[c->call], c->io.tokens);
}

static size_t rows_at(const call_t *c, const saved_t *s, int32_t end)
{
    return end == OWNER ? c->io.tokens * c->ep->k : s->mark->received;
}

static dp_status_t run_pack(void *arg)
{
    const call_t *c = arg;
    const dp_ep_t *ep = c->ep;
    saved_t s;
    dp_status_t status;

    lay_out_saved(ep, c->io.saved, &s);
    status = c->call == DISPATCH ? place_choices(c, &s) : find_mark(c, &s);
    for (size_t i = 0; status >= 0 && i < rows_at(c, &s, c->from); i++) {
        head_t *row = row_at(ep, c->io.scratch, (size_t)s.places[c->from][i]);
        const size_t data = c->from == OWNER ? i / ep->k : i;

        memset(row, 0, ep->row_bytes); /* no byte is sent unset */
        row->call = c->call;
        if (c->from == OWNER)
            row->expert = c->io.experts[i] % (int32_t)ep->local;
        if (c->weights != NULL)
            memcpy(row->weight, c->weights + i * c->weight_bytes, c->weight_bytes);
        memcpy(row + 1, (const char *)c->io.rows + data * ep->data_bytes, ep->data_bytes);
    }
    return status;
}

/* Rank p made the same call for the same micro-batch, as far as its rows tell. */
static int in_step(const call_t *c, const saved_t *s, size_t p)
{
    if (c->call != DISPATCH && c->counts[p] != s->counts[c->to][p])
        return 0;
    for (int32_t i = 0; i < c->counts[p]; i++) {
        const head_t *row = row_at(c->ep, c->came, (size_t)(s->first[p] + i));

        if (row->call != c->call || row->expert < 0 || (size_t)row->expert >= c->ep->local)
            return 0;
    }
    return 1;
}

static dp_status_t run_take(void *arg)
{
    const call_t *c = arg;
    const dp_ep_t *ep = c->ep;
    saved_t s;

    lay_out_saved(ep, c->io.saved, &s);
    for (size_t p = 0; p < ep->ranks; p++)
        if (!in_step(c, &s, p))
            return DP_FAIL(ep->host, DP_ERR_PROTOCOL,
                           "ep_mine: rank %zu of the expert group, %s: the rows from rank %zu are not of this call: "
                           "all ranks must make the same calls for the same micro-batches in the same order",
                           ep->rank, names[c->call], p);
    if (c->call == DISPATCH)
        place_received(c, &s);
    for (size_t i = 0; i < rows_at(c, &s, c->to); i++) {
        const head_t *row = row_at(ep, c->came, (size_t)s.places[c->to][i]);

        memcpy((char *)c->io.rows_out + i * ep->data_bytes, row + 1, ep->data_bytes);
        if (c->weights_out != NULL)
            memcpy(c->weights_out + i * c->weight_bytes, row->weight, c->weight_bytes);
    }
    return DP_OK;
}

/* ---- the calls ---- */

/* Takes the call over and refuses it when something is missing. */
static dp_status_t begin(dp_ep_t *ep, const dp_ep_io_t *io, int32_t call, call_t *c)
{
    const int out = call == DISPATCH || call == COMBINE_BACKWARD;
    const char *missing;

    dp_status_t status;

    memset(c, 0, sizeof(*c));
    status = DP_TAKE(ep->host, "ep_mine: io", dp_ep_io_t, DP_EP_IO_MIN, &c->io, io);
    if (status < 0)
        return status;
    c->ep = ep;
    c->call = call;
    c->from = out ? OWNER : EXPERT;
    c->to = out ? EXPERT : OWNER;
    c->weights = out ? c->io.weights : (const void *)c->io.dweights;
    c->weights_out = out ? c->io.weights_out : (void *)c->io.dweights_out;
    c->weight_bytes = out ? ep->weight_bytes : sizeof(double);
    missing = c->io.saved == NULL                            ? "saved"
              : c->io.scratch == NULL                        ? "scratch"
              : c->io.experts == NULL                        ? "experts"
              : c->io.rows == NULL                           ? "rows"
              : c->io.rows_out == NULL                       ? "rows_out"
              : c->io.counts_out == NULL && call == DISPATCH ? "counts_out"
              : c->weights == NULL && c->weights_out != NULL ? (out ? "weights" : "dweights")
                                                             : NULL;
    if (missing != NULL)
        return DP_FAIL(ep->host, DP_ERR_INVALID, "ep_mine: %s: io.%s is NULL", names[call], missing);
    if (c->io.tokens > ep->tokens)
        return DP_FAIL(ep->host, DP_ERR_INVALID, "ep_mine: %s: io.tokens is %u, more than config.tokens = %zu",
                       names[call], c->io.tokens, ep->tokens);
    if (c->io.tokens == 0)
        c->io.tokens = (uint32_t)ep->tokens;
    return DP_OK;
}

static dp_status_t carry(dp_ep_t *ep, const dp_ep_io_t *io, int32_t call, dp_stream_t *s)
{
    const void *came;
    saved_t saved;
    call_t c;
    dp_status_t status = begin(ep, io, call, &c);

    if (status < 0)
        return status;
    lay_out_saved(ep, c.io.saved, &saved);
    status = ep->device_vt->launch(s, run_pack, &c, sizeof(c));
    if (status >= 0)
        status = ep->comm_vt->exchange(ep->exchange, ep->number, c.io.scratch, saved.first, saved.counts[c.from], &came,
                                       &c.counts, s);
    if (status < 0)
        return status;
    c.came = came;
    status = ep->device_vt->launch(s, run_take, &c, sizeof(c));
    return status < 0 ? status : ep->comm_vt->exchange_release(ep->exchange, ep->number++, s);
}

static dp_status_t ep_dispatch(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s)
{
    return carry(ep, io, DISPATCH, s);
}

static dp_status_t ep_combine(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s)
{
    return carry(ep, io, COMBINE, s);
}

static dp_status_t ep_combine_backward(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s)
{
    return carry(ep, io, COMBINE_BACKWARD, s);
}

static dp_status_t ep_dispatch_backward(dp_ep_t *ep, const dp_ep_io_t *io, dp_stream_t *s)
{
    return carry(ep, io, DISPATCH_BACKWARD, s);
}

/* ---- instances ---- */

static dp_status_t ep_sizes(const dp_ep_t *ep, dp_ep_sizes_t *sizes_out)
{
    saved_t none;
    const dp_ep_sizes_t sizes = {
        .struct_size = sizeof(sizes),
        .rows = (uint32_t)(ep->ranks * ep->pair_rows),
        .saved_bytes = lay_out_saved(ep, NULL, &none),
        .scratch_bytes = ep->ranks * ep->pair_rows * ep->row_bytes,
    };

    dp_sized_put(sizes_out, &sizes);
    return DP_OK;
}

static dp_status_t check(const dp_host_t *host, const dp_ep_config_t *c)
{
    const uint32_t wishes = DP_EP_CAP_FP8 | DP_EP_CAP_COMBINE_REDUCE;

    dp_status_t status = DP_TAKE(host, "ep_mine: config", dp_ep_config_t, DP_EP_CONFIG_MIN, NULL, c);

    if (status < 0)
        return status;
    if (c->device_vt == NULL || c->device == NULL || c->comm_vt == NULL || c->comm == NULL)
        return DP_FAIL(
            host, DP_ERR_INVALID,
            "ep_mine: device_vt, device, comm_vt or comm is NULL: it needs an open device and an expert group");
    if (c->tokens == 0 || c->hidden == 0 || c->comm_size < 1 || c->comm_rank < 0 || c->comm_rank >= c->comm_size ||
        c->experts == 0 || c->experts % (uint32_t)c->comm_size != 0 || c->top_k == 0 || c->top_k > c->experts)
        return DP_FAIL(
            host, DP_ERR_INVALID,
            "ep_mine: tokens %u, hidden %u, experts %u, top_k %u, rank %d of %d: none may be 0, experts must be a "
            "multiple of the ranks, top_k at most experts",
            c->tokens, c->hidden, c->experts, c->top_k, c->comm_rank, c->comm_size);
    if (!(c->capacity >= 0) || (c->ask & ~wishes) != 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "ep_mine: capacity is %g, ask 0x%x: capacity must be 0 or positive, and DP_EP_CAP_FP8 and "
                       "DP_EP_CAP_COMBINE_REDUCE are all that can be asked for",
                       (double)c->capacity, c->ask);
    if (c->ask != 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "ep_mine: ask is 0x%x: it neither rounds rows nor sums them on their way: set ask to 0", c->ask);
    if (strcmp(c->device_vt->kind, "cpu") != 0 || !(c->device_vt->caps & DP_DEVICE_CAP_LAUNCH))
        return DP_FAIL(
            host, DP_ERR_UNSUPPORTED,
            "ep_mine: it needs a device of kind \"cpu\" whose streams run host functions, this one is \"%s\": "
            "use device_cpu",
            c->device_vt->kind);
    if (c->dtype != DP_F32 && c->dtype != DP_F64 && c->dtype != DP_BF16)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "ep_mine: dtype %d: use f32, f64 or bf16", (int)c->dtype);
    return DP_OK;
}

/* Room for the worst case, whatever the capacity: a token chooses an expert once. */
static dp_status_t take_config(dp_ep_t *ep, const dp_ep_config_t *c)
{
    const size_t ranks = (size_t)c->comm_size, local = c->experts / ranks, each = c->top_k < local ? c->top_k : local;

    if (c->tokens > INT32_MAX / ranks / each || c->hidden > SIZE_MAX / 64 / (ranks * c->tokens * each))
        return DP_FAIL(ep->host, DP_ERR_OVERFLOW,
                       "ep_mine: more than 2^31 rows, or more of their bytes than can be addressed: use smaller "
                       "micro-batches");
    ep->device_vt = c->device_vt;
    ep->comm_vt = c->comm_vt;
    ep->tokens = c->tokens;
    ep->experts = c->experts;
    ep->k = c->top_k;
    ep->ranks = ranks;
    ep->rank = (size_t)c->comm_rank;
    ep->local = local;
    ep->pair_rows = c->tokens * each;
    ep->data_bytes = c->hidden * dp_dtype_bytes(c->dtype);
    ep->row_bytes = (sizeof(head_t) + ep->data_bytes + 15) / 16 * 16;
    ep->weight_bytes = dp_dtype_bytes(dp_dtype_accumulator(c->dtype));
    return DP_OK;
}

static void ep_close(dp_ep_t *ep)
{
    if (ep != NULL)
        ep->host->release(ep->host, ep);
}

static dp_status_t ep_open(const dp_host_t *host, const dp_ep_config_t *config, dp_ep_t **ep_out)
{
    dp_exchange_config_t exchange = {.struct_size = sizeof(exchange), .label = "rows of experts"};
    dp_status_t status = check(host, config);
    dp_ep_t *ep;

    if (status < 0)
        return status;
    ep = host->allocate(host, sizeof(*ep), 16);
    if (ep == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "ep_mine: no memory for an instance");
    memset(ep, 0, sizeof(*ep));
    ep->host = host;
    status = take_config(ep, config);
    if (status >= 0) {
        exchange.id = config->exchange_id;
        exchange.row_bytes = ep->row_bytes;
        exchange.capacity_rows = (uint32_t)ep->pair_rows;
        status = config->comm_vt->exchange_open(config->comm, &exchange, &ep->exchange);
    }
    if (status < 0) {
        ep_close(ep);
        return status;
    }
    *ep_out = ep;
    return DP_OK;
}

static const dp_ep_vt_t table = {
    .struct_size = sizeof(table),
    .caps = DP_EP_CAP_DEVICE_COUNTS,
    .open = ep_open,
    .close = ep_close,
    .sizes = ep_sizes,
    .dispatch = ep_dispatch,
    .combine = ep_combine,
    .combine_backward = ep_combine_backward,
    .dispatch_backward = ep_dispatch_backward,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_EP) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(ep_mine) = {
    DP_PLUGIN_HEAD,
    .name = "ep_mine",
    .version = "0.1",
    .summary = "a template: rows of experts over the exchanges of a comm, on host memory",
    .get_interface = get_interface,
};
