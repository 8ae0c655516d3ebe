/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * channel.c: messages and bundles of them. A message is two of MPI's on the tag of its channel: a
 * head, which says what it is, and the data, in their own size. All messages of a bundle are handed
 * to MPI before the first is waited for. */
#include "comm_mpi.h"
#include "plugins/common/do.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* What a stream gets to do. */
typedef struct transfer {
    dp_channel_end_t *end;
    const void *from;    /* of a send */
    unsigned char *slot; /* of a receive */
    dp_message_tag_t tag;
} transfer_t;

dp_status_t mpi_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    dp_channel_end_t *end = NULL;
    dp_status_t status = comm_check_new_end(comm, "comm_mpi", UINT32_MAX, config);

    if (status == DP_OK && config->slot_bytes > INT_MAX)
        return DP_FAIL(comm->host, DP_ERR_UNSUPPORTED,
                       "group %s: channel %u has slots of %zu bytes; MPI counts to %d: use smaller micro-batches",
                       comm->name, config->id, config->slot_bytes, INT_MAX);
    if (status == DP_OK)
        status = comm_make_end(comm, config, &end);
    if (status < 0)
        return status;
    end->requests[0] = end->requests[1] = MPI_REQUEST_NULL;
    end->stride = comm_round_line(config->slot_bytes);
    if (config->sender == 0) {
        end->slots = mpi_memory(comm, config->slots, end->stride);
        status = end->slots != NULL ? mpi_runtime_tags(comm->host, 1, &end->tag) : DP_ERR_NOMEM;
        if (status < 0) {
            mpi_channel_free(end);
            return status;
        }
    }
    comm_add_end(end);
    *end_out = end;
    return DP_OK;
}

void mpi_channel_free(dp_channel_end_t *end)
{
    comm_release(end->comm, end->slots);
    comm_release(end->comm, end);
}

/* ---- on the stream ---- */

static void describe_transfer(const transfer_t *t, const char *doing, char *text, size_t bytes)
{
    const dp_channel_end_t *end = t->end;
    const dp_comm_t *comm = end->comm;

    snprintf(text, bytes, "rank %d: %s of micro-batch %d, step %u, on channel \"%s\" %s rank %d",
             comm->world[comm->rank], doing, t->tag.microbatch, t->tag.step, end->label,
             end->config.sender != 0 ? "to" : "from", comm->world[end->config.peer]);
}

static int post_message(const transfer_t *t)
{
    dp_channel_end_t *end = t->end;
    MPI_Comm c = end->comm->mpi->comm;
    int place = end->comm->places[end->config.peer], head_bytes = (int)sizeof(end->head);
    int code;

    if (end->config.sender != 0) {
        code = MPI_Isend(&end->head, head_bytes, MPI_BYTE, place, end->tag, c, &end->requests[0]);
        return code != MPI_SUCCESS
                   ? code
                   : MPI_Isend(t->from, (int)t->tag.bytes, MPI_BYTE, place, end->tag, c, &end->requests[1]);
    }
    code = MPI_Irecv(&end->head, head_bytes, MPI_BYTE, place, end->tag, c, &end->requests[0]);
    return code != MPI_SUCCESS
               ? code
               : MPI_Irecv(t->slot, (int)end->config.slot_bytes, MPI_BYTE, place, end->tag, c, &end->requests[1]);
}

static dp_status_t run_post(void *arg)
{
    const transfer_t *t = arg;
    dp_channel_end_t *end = t->end;
    const dp_host_t *host = end->comm->host;
    char what[200];
    entry_t entry;
    int code;

    describe_transfer(t, end->config.sender != 0 ? "send" : "receive", what, sizeof(what));
    if (end->config.sender != 0) {
        end->head = t->tag;
    } else {
        dp_status_t status =
            /* for the slot */
            host->wait(host, &end->released, t->tag.number + 1 - end->config.slots, -1, what);

        if (status < 0)
            return status;
    }
    mpi_runtime_enter(&entry);
    code = post_message(t);
    mpi_runtime_exit(&entry);
    return mpi_check(end->comm, code, what);
}

static dp_status_t run_finish(void *arg)
{
    const transfer_t *t = arg;
    dp_channel_end_t *end = t->end;
    const dp_message_tag_t *e = &t->tag, *found = &end->head;
    MPI_Status statuses[2];
    char what[200];
    int bytes = 0;
    dp_status_t status;

    describe_transfer(t, end->config.sender != 0 ? "send" : "receive", what, sizeof(what));
    status = mpi_wait(end->comm, end->requests, 2, statuses, what);
    if (status < 0 || end->config.sender != 0)
        return status;
    MPI_Get_count(&statuses[1], MPI_BYTE, &bytes);
    if (found->number != e->number || found->step != e->step || found->microbatch != e->microbatch ||
        found->bytes != e->bytes || (uint32_t)bytes != e->bytes) {
        char behind[40];

        snprintf(behind, sizeof(behind), ", of which %d came", bytes);
        return comm_refuse_message(end, e, found, behind);
    }
    return DP_OK;
}

static dp_status_t run_message_release(void *arg)
{
    const transfer_t *t = arg;
    const dp_host_t *host = t->end->comm->host;

    host->post(host, &t->end->released, t->tag.number + 1);
    return DP_OK;
}

/* ---- on the caller's thread ---- */

/* In a bundle the second half waits for bundle_end, which knows the message by what is kept
 * here. */
static dp_status_t enqueue(const transfer_t *t, dp_stream_t *s)
{
    dp_channel_end_t *end = t->end, *first = end->comm->members;
    dp_comm_t *comm = end->comm;

    if (comm->bundling && s != comm->stream)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: a bundle is on one stream", comm->name);
    for (const dp_channel_end_t *m = first; m != NULL; m = m->next_member)
        if (m == end || m->config.peer != end->config.peer || (m->config.sender != 0) != (end->config.sender != 0))
            return DP_FAIL(comm->host, DP_ERR_INVALID,
                           "group %s: a bundle goes to one rank or comes from one, with one message of each channel",
                           comm->name);
    DO(comm->device->launch(s, run_post, t, sizeof(*t)));
    end->count++;
    if (!comm->bundling)
        return comm->device->launch(s, run_finish, t, sizeof(*t));
    end->bundled = t->tag;
    end->next_member = first;
    comm->members = end;
    return DP_OK;
}

dp_status_t mpi_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    transfer_t t = {.end = end, .from = from, .tag = *tag};
    dp_status_t status = comm_check_call(end, true, end->count, tag->number, tag->bytes, "send");

    return status < 0 ? status : enqueue(&t, s);
}

dp_status_t mpi_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                             dp_stream_t *s)
{
    transfer_t t = {.end = end, .tag = *expected};
    dp_status_t status;

    DO(comm_check_call(end, false, end->count, expected->number, expected->bytes, "receive"));
    t.slot = end->slots + end->count % end->config.slots * end->stride;
    status = enqueue(&t, s);
    if (status >= 0)
        *data_out = t.slot;
    return status;
}

dp_status_t mpi_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    transfer_t t = {.end = end, .tag = {.number = number}};

    DO(comm_check_release(end, end->freed, number));
    DO(end->comm->device->launch(s, run_message_release, &t, sizeof(t)));
    end->freed++;
    return DP_OK;
}

dp_status_t mpi_bundle_begin(dp_comm_t *comm, dp_stream_t *s)
{
    if (comm->bundling)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: bundle_begin inside of a bundle", comm->name);
    comm->bundling = true;
    comm->stream = s;
    return DP_OK;
}

dp_status_t mpi_bundle_end(dp_comm_t *comm, dp_stream_t *s)
{
    dp_status_t status = DP_OK;

    if (!comm->bundling || comm->stream != s)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: bundle_end outside of a bundle, or on another stream",
                       comm->name);
    comm->bundling = false;
    while (comm->members != NULL) {
        dp_channel_end_t *end = comm->members;
        transfer_t t = {.end = end, .tag = end->bundled};

        comm->members = end->next_member;
        if (status >= 0)
            status = comm->device->launch(s, run_finish, &t, sizeof(t));
    }
    return status;
}
