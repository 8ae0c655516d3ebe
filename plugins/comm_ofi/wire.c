/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * wire.c: puts, and waiting for bells and for the provider to let go of what it sends. */
#include "comm_ofi.h"
#include "plugins/common/do.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define INJECT_MAX 512
#define HANG_NS    INT64_C(30000000000) /* where the host names no limit */

static bool is_poisoned(const dp_comm_t *comm)
{
    return __atomic_load_n(&comm->wire.poisoned, __ATOMIC_ACQUIRE);
}

bool ofi_wire_is_news(const dp_comm_t *comm, dp_status_t status)
{
    return status == DP_ERR_TIMEOUT || (is_poisoned(comm) && comm->host->aborted(comm->host) == DP_OK);
}

/* What ended all waits, unless the job has its own cause. */
static dp_status_t verdict(const dp_comm_t *comm)
{
    const wire_t *w = &comm->wire;
    dp_status_t status;

    if (!is_poisoned(comm))
        return DP_OK;
    status = comm->host->aborted(comm->host);
    return status < 0 ? status : DP_FAIL(comm->host, w->fault_status, "%s", w->fault);
}

dp_status_t ofi_wire_wait(dp_comm_t *comm, dp_signal_t *signal, uint32_t target, const char *what)
{
    dp_status_t status = DP_OK;

    if ((int32_t)(__atomic_load_n(&signal->value, __ATOMIC_ACQUIRE) - target) < 0)
        status = ofi_progress_wait(comm, signal, target, what);
    return status < 0 ? status : verdict(comm);
}

void ofi_op_init(dp_comm_t *comm, op_t *op, int32_t peer, const region_t *region, unsigned char *bounce)
{
    memset(op, 0, sizeof(*op));
    op->peer = peer;
    op->desc = region->desc;
    op->bounce = comm->wire.bounce ? bounce : NULL;
    for (int i = 0; i < TICKETS; i++)
        op->tickets[i].op = op;
    pthread_mutex_lock(&comm->wire.lock);
    op->next = comm->wire.ops;
    comm->wire.ops = op;
    pthread_mutex_unlock(&comm->wire.lock);
}

/* ---- putting ---- */

typedef struct posting {
    dp_comm_t *comm;
    op_t *op;
    const put_t *put;
    const void *data;
    int writes; /* that are still to be made */
} posting_t;

static ssize_t write_message(posting_t *p, struct fi_msg_rma *msg, ticket_t *ticket, uint64_t flags)
{
    ssize_t error;

    msg->context = &ticket->context;
    error = fi_writemsg(p->comm->wire.ep, msg, flags | FI_COMPLETION);
    if (error == 0)
        p->op->posted++;
    return error;
}

/* Nothing is posted between data and what rings behind them, so this waits for room itself, with
 * the lock, as long as any wait of the job. */
static ssize_t ring_behind(posting_t *p, struct fi_msg_rma *msg, ticket_t *ticket, uint64_t flags)
{
    const dp_host_t *host = p->comm->host;
    const dp_host_limits_t *limits = host->get_service(host, DP_HOST_LIMITS);
    const int64_t most = limits != NULL && limits->hang_ns > 0 ? limits->hang_ns : HANG_NS, start = host->now_ns(host);
    ssize_t error;

    while ((error = write_message(p, msg, ticket, flags)) == -FI_EAGAIN && !p->comm->wire.dead) {
        if (host->aborted(host) < 0)
            return -FI_ECANCELED;
        if (host->now_ns(host) - start > most)
            return -FI_ETIMEDOUT;
        while (ofi_progress_look(p->comm))
            ;
        ofi_progress_nudge(p->comm);
        sched_yield();
    }
    return error;
}

/* Where a write is too large to ring, a write of nothing behind it does: they keep their order on
 * one way. Later that one might go another way, on which nobody knows whether the data came. */
static ssize_t write_one(posting_t *p, const struct iovec *iov, size_t iovs, const struct fi_rma_iov *rma, size_t rmas,
                         uint32_t bell)
{
    wire_t *w = &p->comm->wire;
    /* then head and data are two writes */
    bool lent = p->put->desc != NULL && iov->iov_base == p->data;
    void *desc[2] = {lent ? p->put->desc : p->op->desc, p->op->desc};
    struct fi_msg_rma msg = {
        .msg_iov = iov,
        .desc = w->bounce ? desc : NULL,
        .iov_count = iovs,
        .addr = w->peers[p->put->to],
        .rma_iov = rma,
        .rma_iov_count = rmas,
        .data = bell,
    };
    const struct iovec none = {iov->iov_base, 0};
    const struct fi_rma_iov nowhere = {rma->addr, 0, rma->key};
    ticket_t *tickets = &p->op->tickets[2 * (p->writes - 1)];
    uint64_t rings = FI_REMOTE_CQ_DATA | (p->put->delivered && w->delivery ? FI_DELIVERY_COMPLETE : 0);
    ssize_t error;

    if (HEAD_BYTES + p->put->bytes <= w->whole_bytes)
        return write_message(p, &msg, tickets, rings);
    error = write_message(p, &msg, tickets, 0);
    if (error != 0)
        return error;
    msg.msg_iov = &none;
    msg.rma_iov = &nowhere;
    msg.iov_count = msg.rma_iov_count = 1;
    return ring_behind(p, &msg, tickets + 1, rings);
}

/* All in one call, which copies what it is given. */
static ssize_t inject(posting_t *p)
{
    const put_t *put = p->put;
    wire_t *w = &p->comm->wire;
    unsigned char all[INJECT_MAX];

    memcpy(all, &p->op->head, HEAD_BYTES);
    if (put->bytes > 0)
        memcpy(all + HEAD_BYTES, p->data, put->bytes);
    return fi_inject_writedata(w->ep, all, HEAD_BYTES + put->bytes, put->bell, w->peers[put->to], put->head_at,
                               put->key);
}

static bool fits_inject(const posting_t *p)
{
    size_t all = HEAD_BYTES + p->put->bytes, most = p->comm->wire.inject_bytes;

    return !p->put->delivered && (!p->put->apart || p->put->bytes == 0) && all <= most && all <= INJECT_MAX;
}

static ssize_t write_next(posting_t *p)
{
    const put_t *put = p->put;
    struct iovec iov[2] = {{&p->op->head, HEAD_BYTES}, {(void *)(uintptr_t)p->data, put->bytes}};
    struct fi_rma_iov rma[2] = {{put->head_at, HEAD_BYTES, put->key}, {put->data_at, put->bytes, put->data_key}};
    bool apart = put->apart && put->bytes > 0;

    if (fits_inject(p))
        return inject(p);
    if (!apart) {
        rma[0].len += put->bytes;
        return write_one(p, iov, put->bytes > 0 ? 2 : 1, rma, 1, put->bell);
    }
    if (p->comm->wire.scatter)
        return write_one(p, iov, 2, rma, 2, put->bell);
    return p->writes == 2 ? write_one(p, iov + 1, 1, rma + 1, 1, put->data_bell)
                          : write_one(p, iov, 1, rma, 1, put->bell);
}

static void lose(dp_comm_t *comm, int32_t to, ssize_t error)
{
    char text[TEXT_BYTES];

    snprintf(text, sizeof(text), "the way to rank %d is lost: %s", comm->world[to], fi_strerror((int)-error));
    ofi_progress_poison(comm, DP_ERR_PEER, text);
}

static void settle_ops(op_t **at)
{
    if (--(*at)->owed == 0)
        *at = (*at)->next_owing;
}

/* A credit that is owed to that rank goes with this put. */
static void take_along(const posting_t *p)
{
    op_t **at = &p->comm->wire.owing;

    while (*at != NULL && (*at)->credit.to != p->put->to)
        at = &(*at)->next_owing;
    if (*at == NULL)
        return;
    p->op->head.credit = (*at)->credit.bell + 1;
    settle_ops(at);
}

/* DP_PENDING while the provider has no room. A failure that is final comes with the completions, or
 * here. */
static dp_status_t post(void *arg)
{
    posting_t *p = arg;
    dp_comm_t *comm = p->comm;
    wire_t *w = &comm->wire;
    ssize_t error = 0;

    pthread_mutex_lock(&w->lock);
    if (p->put->carries && p->op->head.credit == 0)
        take_along(p);
    while (p->writes > 0 && error == 0 && !w->dead) {
        error = write_next(p);
        p->writes -= error == 0;
    }
    if (error == -FI_EAGAIN)
        (void)ofi_progress_look(comm);
    else if (error != 0)
        lose(comm, p->put->to, error);
    if (error != 0)
        ofi_progress_nudge(comm);
    pthread_mutex_unlock(&w->lock);
    if (is_poisoned(comm))
        return verdict(comm);
    /* once it is dead for good, the job's end or its limit ends this */
    return p->writes == 0 ? DP_OK : DP_PENDING;
}

dp_status_t ofi_wire_put(dp_comm_t *comm, op_t *op, const put_t *put)
{
    bool apart = put->apart && put->bytes > 0;
    posting_t p = {comm, op, put, put->data, apart && !comm->wire.scatter ? 2 : 1};
    dp_status_t status;

    op->head.credit = 0;
    if (op->bounce != NULL && put->bytes > 0 && (comm->gpu != NULL || !fits_inject(&p))) {
        DO(ofi_copy(comm, op->bounce, put->data, put->bytes));
        p.data = op->bounce;
    }
    status = post(&p);
    return status == DP_PENDING ? comm->host->poll(comm->host, post, &p, -1, put->what) : status;
}

/* ---- credits ---- */

void ofi_wire_pay(dp_comm_t *comm, int64_t before_ns)
{
    wire_t *w = &comm->wire;
    ssize_t error = 0;

    while (w->owing != NULL && w->owing_since <= before_ns && error == 0 && !w->dead) {
        op_t *op = w->owing;
        posting_t p = {comm, op, &op->credit, NULL, 1};

        /* a write keeps its context as long as it is under way; what is injected has none */
        error = fits_inject(&p) || op->done.value == op->posted ? write_next(&p) : -FI_EAGAIN;
        if (error == 0)
            settle_ops(&w->owing);
        else if (error != -FI_EAGAIN)
            lose(comm, op->credit.to, error);
    }
}

/* While threads of ours wait all the time, a credit need not stand in the way of what this stream
 * sends next. A sender that has no slot left is not kept waiting. */
dp_status_t ofi_wire_owe(dp_comm_t *comm, op_t *op, uint32_t slots)
{
    wire_t *w = &comm->wire;
    bool at_once, left;

    pthread_mutex_lock(&w->lock);
    if (w->owing == NULL)
        w->owing_since = comm->host->now_ns(comm->host);
    if (op->owed++ == 0) {
        op->next_owing = w->owing;
        w->owing = op;
    }
    at_once = op->owed >= slots || !__atomic_load_n(&w->away, __ATOMIC_SEQ_CST);
    ofi_wire_pay(comm, at_once ? INT64_MAX : comm->host->now_ns(comm->host) - WIRE_OWE_NS);
    left = at_once && w->owing != NULL;
    pthread_mutex_unlock(&w->lock);
    if (left)
        ofi_progress_wake(comm);
    return verdict(comm);
}

void ofi_wire_abandon(dp_comm_t *comm)
{
    pthread_mutex_lock(&comm->wire.lock);
    comm->wire.dead = true;
    pthread_mutex_unlock(&comm->wire.lock);
}

dp_status_t ofi_wire_finish(dp_comm_t *comm, op_t *op, const char *what)
{
    dp_status_t status = ofi_wire_wait(comm, &op->done, op->posted, what);

    if (status < 0)
        ofi_wire_abandon(comm);
    return status;
}
