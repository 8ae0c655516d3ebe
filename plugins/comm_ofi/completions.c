/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * completions.c: reading completions, ringing bells; and the end of all waits when a way is
 * lost. */
#include "comm_ofi.h"

#include <stdio.h>
#include <string.h>

#define ENTRIES 16
/* A way that is lost is most often a rank that died: the job hears of that by itself, and knows
 * more. */
#define GRACE_NS (3 * 1000000000ll)
/* Bells and ops that have ended because all is over count further than any wait goes. */
#define POISON (1u << 30)

static void count_signal(dp_comm_t *comm, dp_signal_t *signal, uint32_t by)
{
    comm->host->post(comm->host, signal, signal->value + by);
}

void ofi_progress_poison(dp_comm_t *comm, dp_status_t status, const char *text)
{
    wire_t *w = &comm->wire;

    if (w->poisoned)
        return;
    w->fault_status = status;
    if (text != w->fault)
        snprintf(w->fault, sizeof(w->fault), "%s", text);
    w->dead = true;
    __atomic_store_n(&w->poisoned, true, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < comm->region_count; i++)
        for (uint32_t k = 0; k < comm->regions[i].bell_count; k++)
            count_signal(comm, &comm->regions[i].bells[k].signal, POISON);
    for (op_t *op = w->ops; op != NULL; op = op->next)
        count_signal(comm, &op->done, POISON);
}

static bell_t *bell_of(const dp_comm_t *comm, uint64_t name)
{
    uint64_t round = name >> BELL_BITS, bell = name & ((1u << BELL_BITS) - 1);

    return round < comm->region_count && bell < comm->regions[round].bell_count ? &comm->regions[round].bells[bell]
                                                                                : NULL;
}

static void ring(dp_comm_t *comm, uint64_t name)
{
    bell_t *bell = bell_of(comm, name), *credit = NULL;
    uint32_t with = bell != NULL && bell->head != NULL ? bell->head->credit : 0;
    char text[TEXT_BYTES];

    if (with != 0)
        credit = bell_of(comm, with - 1);
    if (bell == NULL || (with != 0 && credit == NULL)) {
        snprintf(text, sizeof(text), "a rank of group %s rings bell %llu, and there is none", comm->name,
                 (unsigned long long)(bell == NULL ? name : with - 1));
        ofi_progress_poison(comm, DP_ERR_PROTOCOL, text);
        return;
    }
    count_signal(comm, &bell->signal, 1);
    if (credit != NULL)
        count_signal(comm, &credit->signal, 1);
}

static void end_operation(dp_comm_t *comm, void *context)
{
    ticket_t *ticket = context;

    if (ticket != NULL)
        count_signal(comm, &ticket->op->done, 1);
}

static void lose(dp_comm_t *comm)
{
    wire_t *w = &comm->wire;
    struct fi_cq_err_entry e = {0};
    const op_t *op;

    if (fi_cq_readerr(w->cq, &e, 0) < 0 || w->lost_ns != 0)
        return;
    op = e.op_context != NULL ? ((const ticket_t *)e.op_context)->op : NULL;
    w->lost_ns = comm->host->now_ns(comm->host);
    if (op != NULL)
        snprintf(w->fault, sizeof(w->fault), "the way to rank %d is lost: %s", comm->world[op->peer],
                 fi_strerror(e.err));
    else
        snprintf(w->fault, sizeof(w->fault), "a way of group %s is lost: %s", comm->name, fi_strerror(e.err));
}

bool ofi_progress_look(dp_comm_t *comm)
{
    wire_t *w = &comm->wire;
    struct fi_cq_data_entry entries[ENTRIES];
    ssize_t n;

    if (w->lost_ns != 0 && !w->poisoned && comm->host->now_ns(comm->host) - w->lost_ns > GRACE_NS)
        ofi_progress_poison(comm, DP_ERR_PEER, w->fault);
    if (w->dead)
        return false;
    n = fi_cq_read(w->cq, entries, ENTRIES);
    for (ssize_t i = 0; i < n; i++) {
        if ((entries[i].flags & (FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA)) != 0)
            ring(comm, entries[i].data);
        else
            end_operation(comm, entries[i].op_context);
    }
    if (n == -FI_EAVAIL) {
        lose(comm);
        return true;
    }
    if (n < 0 && n != -FI_EAGAIN && w->lost_ns == 0) {
        w->lost_ns = comm->host->now_ns(comm->host);
        snprintf(w->fault, sizeof(w->fault), "group %s: the completions of provider %s cannot be read: %s", comm->name,
                 w->provider, fi_strerror((int)-n));
    }
    return n > 0;
}
