/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ctas.c: how many blocks the kernels of the communicators have, and how many streams there are.
 *
 * A block of NCCL's fills a multiprocessor, and a kernel that waits for its peer keeps what it has.
 * Two ranks that have started different kernels, each with too little room left for the other's,
 * wait for ever. So all that may run at once has to fit: the kernels of every pair (each has
 * its own stream), one exchange and one sum (each kind has a lane), over all groups of a
 * rank. */
#include "comm_nccl.h"

#include <stdio.h>
#include <stdlib.h>

/* of a device that is not divided: what kernels of NCCL may take from computation */
#define UNDIVIDED 40

static dp_comm_t *comms; /* all that are open in this process */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned share_of(const dp_comm_t *comm)
{
    const dp_host_sm_t *sm = comm->host->get_service(comm->host, DP_HOST_SM);

    return sm == NULL ? 0 : sm->comm_sms;
}

static unsigned power_below(unsigned n)
{
    unsigned power = 1;

    while (2 * power <= n)
        power *= 2;
    return power;
}

ctas_t nccl_ctas_of(const dp_comm_t *comm)
{
    unsigned sms = share_of(comm), left;
    ctas_t ctas = {.confined = sms > 0};

    sms = sms > 0 ? sms : UNDIVIDED;
    ctas.pair = comm->one_sided ? 1 : sms >= 40 ? 4 : sms >= 16 ? 2 : 1;
    /* two neighbours, two directions */
    left = comm->one_sided ? sms : sms > 4 * ctas.pair ? sms - 4 * ctas.pair : 0;
    ctas.rows = power_below(left * 2 / 3);
    ctas.sums = power_below(left > ctas.rows ? left - ctas.rows : 1);
    return ctas;
}

/* What NCCL makes of a limit: the user's own goes before ours, and the channels of sends and
 * receives are rounded up to a power of two behind it. */
static unsigned made_of(unsigned ctas)
{
    const char *text = getenv("NCCL_MAX_CTAS");
    unsigned most = text != NULL && atoi(text) > 0 ? (unsigned)atoi(text) : ctas, power = power_below(most);

    return power < most ? 2 * power : power;
}

/* Those of one-sided channels start no kernels. */
static unsigned count_pairs(const dp_comm_t *comm)
{
    unsigned n = 0;

    for (const pair_t *pair = comm->one_sided ? NULL : comm->pairs; pair != NULL; pair = pair->next)
        n++;
    return n;
}

void nccl_ctas_join(dp_comm_t *comm)
{
    pthread_mutex_lock(&lock);
    comm->next = comms;
    comms = comm;
    pthread_mutex_unlock(&lock);
}

void nccl_ctas_leave(dp_comm_t *comm)
{
    pthread_mutex_lock(&lock);
    for (dp_comm_t **at = &comms; *at != NULL; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    pthread_mutex_unlock(&lock);
}

/* Pairs that channels have or will have: of a peer and direction, or each channel. */
static uint32_t count_future_pairs(const dp_comm_t *comm)
{
    uint32_t n = 0;

    for (const dp_channel_end_t *end = comm->ends; end != NULL; end = end->next) {
        const dp_channel_end_t *e = comm->channels == CHANNELS_GROUPS ? end->next : NULL;

        while (e != NULL && (e->config.peer != end->config.peer || e->config.sender != end->config.sender))
            e = e->next;
        n += e == NULL;
    }
    return n;
}

/* Streams beside the lanes': of the device, attention, the trainer, and of one-sided channels. */
enum { SIDE_STREAMS = 3, STREAMS_OF_NCCL = 2 };

/* The engine gives each pair a stream; what is idle takes a place in a queue all the same. */
streams_t nccl_count_streams(const dp_comm_t *comm)
{
    streams_t all = {.streams = DP_LANE_COUNT + SIDE_STREAMS, .queues = (uint32_t)comm->cu->queues};
    bool side = false;

    pthread_mutex_lock(&lock);
    for (const dp_comm_t *c = comms; c != NULL; c = c->next)
        if (c->device == comm->device && c->nranks > 1) {
            const uint32_t pairs = count_future_pairs(c);

            all.communicators += 1 + pairs + (c->exchanges != NULL);
            all.streams += pairs + (c->exchanges != NULL);
            side = side || c->side != NULL; /* one for all */
        }
    pthread_mutex_unlock(&lock);
    all.streams += side + STREAMS_OF_NCCL * all.communicators;
    return all;
}

dp_status_t nccl_ctas_check(dp_comm_t *comm)
{
    ctas_t ctas = nccl_ctas_of(comm);
    unsigned share = share_of(comm), pairs = 0, rows = 0, sums = 0, all;

    pthread_mutex_lock(&lock);
    comm->use = (ctas_t){.pair = count_pairs(comm), .rows = comm->exchanges != NULL, .sums = 1};
    for (const dp_comm_t *c = comms; c != NULL; c = c->next)
        if (c->device == comm->device && c->nranks > 1) {
            pairs += c->use.pair;
            rows |= c->use.rows;
            sums |= c->use.sums;
        }
    pthread_mutex_unlock(&lock);
    all = pairs * made_of(ctas.pair) + rows * made_of(ctas.rows) + sums * made_of(ctas.sums);
    if (share == 0 || all <= share)
        return DP_OK;
    return DP_FAIL(
        comm->host, DP_ERR_INVALID,
        "rank %d: group %s: kernels of NCCL that may run at once have %u blocks (%u pairs of %u, exchanges %u, "
        "sums %u), each on a separate multiprocessor; the share for communication has %u: ranks could wait "
        "for each other for ever. Give it more (comm_sms)%s",
        WORLD(comm), comm->name, all, pairs, made_of(ctas.pair), rows * made_of(ctas.rows), sums * made_of(ctas.sums),
        share, getenv("NCCL_MAX_CTAS") != NULL ? ", or unset NCCL_MAX_CTAS" : "");
}
