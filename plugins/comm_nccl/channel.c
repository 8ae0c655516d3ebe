/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * channel.c: messages and groups of them.
 *
 * A message is sent as a head (its tag) and a whole slot, so that the sizes of both sides agree
 * whatever the tags say, and a wrong tag is found out instead of undefined. Shorter messages are
 * first copied into a slot of the sender's. */
#include "channel.h"
#include "communicator.h"
#include "fault.h"

#include "cuda/launch.h"
#include "plugins/common/do.h"

#include <string.h>

static pair_t *find_pair(dp_comm_t *comm, int32_t peer, int32_t sends, uint32_t channel)
{
    for (pair_t *pair = comm->pairs; pair != NULL; pair = pair->next)
        if (pair->peer == peer && pair->sends == sends && pair->channel == channel)
            return pair;
    return NULL;
}

dp_status_t nccl_channel_keep_pair(dp_channel_end_t *end)
{
    dp_comm_t *comm = end->comm;
    const int32_t peer = end->config.peer, sends = end->config.sender;
    const uint32_t channel = comm->one_sided ? end->config.id : 0;
    pair_t *pair = find_pair(comm, peer, sends, channel);

    if (pair == NULL) {
        pair = comm->host->allocate(comm->host, sizeof(*pair), 16);
        if (pair == NULL)
            return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for a channel", comm->name);
        *pair = (pair_t){comm->pairs, peer, sends, channel, NULL};
        pthread_mutex_lock(&comm->lock);
        comm->pairs = pair;
        pthread_mutex_unlock(&comm->lock);
    }
    end->pair = pair;
    return DP_OK;
}

dp_status_t nccl_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    dp_channel_end_t *end = NULL;
    dp_status_t status = comm_check_new_end(comm, "comm_nccl", 65536, config);

    if (status == DP_OK)
        status = comm_make_end(comm, config, &end);
    if (status < 0)
        return status;
    end->config.sender = config->sender != 0;
    comm_add_end(end);
    *end_out = end;
    return DP_OK;
}

/* After the communicator of the pair is there. */
dp_status_t nccl_channel_connect(dp_channel_end_t *end)
{
    dp_comm_t *comm = end->comm;
    uint32_t slots = end->config.slots;
    dp_status_t status;

    end->stride = (end->config.slot_bytes + 255) / 256 * 256;
    status = nccl_memory(comm, end->stride * (end->config.sender ? 1 : slots), &end->slots);
    if (status >= 0)
        status = nccl_device_memory(comm, (size_t)slots * HEAD_BYTES, &end->heads);
    if (status < 0)
        return status;
    nccl_buffer_register(comm, end->pair->comm, end->slots, end->stride * (end->config.sender ? 1 : slots));
    end->connected = true;
    if (end->config.sender)
        return DP_OK;
    end->released = comm->host->allocate(comm->host, slots * sizeof(*end->released), 16);
    if (end->released == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for %u slots", comm->name, slots);
    memset(end->released, 0, slots * sizeof(*end->released));
    for (uint32_t i = 0; i < slots && status >= 0; i++)
        status = comm->device_vt->event_open(comm->device, &end->released[i]);
    return status;
}

void nccl_channel_free(dp_channel_end_t *end)
{
    dp_comm_t *comm = end->comm;

    nccl_memory_free(comm, end->slots);
    nccl_memory_free(comm, end->window);
    if (end->heads != NULL)
        comm->device_vt->release(comm->device, end->heads);
    for (uint32_t i = 0; end->released != NULL && i < end->config.slots; i++)
        if (end->released[i] != NULL)
            comm->device_vt->event_close(end->released[i]);
    comm_release(comm, end->released);
    comm->host->release(comm->host, end);
}

/* ---- groups ---- */

static uint32_t slot_of(const member_t *m)
{
    return m->tag.number % m->end->config.slots;
}

static uint32_t *head_of(const member_t *m)
{
    return m->end->heads + slot_of(m) * (HEAD_BYTES / sizeof(uint32_t));
}

void nccl_channel_words(const dp_message_tag_t *tag, uint32_t words[4])
{
    words[0] = tag->number;
    words[1] = tag->step;
    words[2] = (uint32_t)tag->microbatch;
    words[3] = tag->bytes;
}

/* What has to be on the stream before NCCL's work. */
static dp_status_t prepare_member(dp_comm_t *comm, member_t *m, dp_stream_t *s)
{
    dp_channel_end_t *end = m->end;
    uint32_t words[4];
    dp_status_t status = DP_OK;

    if (!end->config.sender)
        return comm->device_vt->stream_wait(s, end->released[slot_of(m)]);
    nccl_channel_words(&m->tag, words);
    if (m->tag.bytes < end->config.slot_bytes) {
        if (m->tag.bytes > 0)
            status = CUDA_CHECK(comm->host,
                                comm->cu->cuMemcpyAsync((CUdeviceptr)(uintptr_t)end->slots,
                                                        (CUdeviceptr)(uintptr_t)m->from, m->tag.bytes, native(comm, s)),
                                "copying a message");
        m->from = end->slots;
    }
    return status >= 0 ? nccl_write_head(comm, head_of(m), words, s) : status;
}

static ncclResult_t put_member(dp_comm_t *comm, const member_t *m, CUstream s)
{
    const dp_channel_end_t *end = m->end;
    ncclComm_t c = end->pair->comm;
    ncclResult_t result;

    if (end->config.sender) {
        result = comm->nccl->ncclSend(head_of(m), HEAD_BYTES, ncclUint8, 1, c, (cudaStream_t)s);
        return result != ncclSuccess && result != ncclInProgress
                   ? result
                   : comm->nccl->ncclSend(m->from, end->config.slot_bytes, ncclUint8, 1, c, (cudaStream_t)s);
    }
    result = comm->nccl->ncclRecv(head_of(m), HEAD_BYTES, ncclUint8, 0, c, (cudaStream_t)s);
    return result != ncclSuccess && result != ncclInProgress
               ? result
               : comm->nccl->ncclRecv(end->slots + slot_of(m) * end->stride, end->config.slot_bytes, ncclUint8, 0, c,
                                      (cudaStream_t)s);
}

static dp_status_t run_members(dp_comm_t *comm, dp_stream_t *s)
{
    ncclComm_t *comms[1];
    ncclResult_t result = ncclSuccess;
    int n = comm->nmembers;
    dp_status_t status = DP_OK;

    comm->nmembers = 0;
    if (n == 0)
        return DP_OK;
    comms[0] = &comm->members[0].end->pair->comm;
    for (int i = 0; i < n && status >= 0; i++)
        status = prepare_member(comm, &comm->members[i], s);
    if (status >= 0)
        status = nccl_begin(comm);
    if (status < 0)
        return status;
    for (int i = 0; i < n && (result == ncclSuccess || result == ncclInProgress); i++)
        result = put_member(comm, &comm->members[i], native(comm, s));
    status = nccl_end(comm, result, comms, 1, comm->members[0].end->label);
    for (int i = 0; i < n && status >= 0; i++) {
        const member_t *m = &comm->members[i];
        uint32_t words[4];

        nccl_channel_words(&m->tag, words);
        if (!m->end->config.sender)
            status = nccl_check_heads(comm, head_of(m), 1, -1, words, NCCL_FAULT_TAG, m->end, s);
    }
    return status;
}

dp_status_t nccl_bundle_begin(dp_comm_t *comm, dp_stream_t *s)
{
    if (comm->grouping)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: bundle_begin inside of a group", comm->name);
    comm->grouping = true;
    comm->stream = s;
    return DP_OK;
}

dp_status_t nccl_bundle_end(dp_comm_t *comm, dp_stream_t *s)
{
    if (!comm->grouping || comm->stream != s)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: bundle_end outside of a group, or on another stream",
                       comm->name);
    comm->grouping = false;
    return run_members(comm, s);
}

dp_status_t nccl_channel_check(const dp_channel_end_t *end, const dp_message_tag_t *tag, bool sends)
{
    dp_status_t status = comm_check_call(end, sends, end->count, tag->number, tag->bytes, sends ? "send" : "receive");

    if (status == DP_OK && !sends && end->count - end->freed >= end->config.slots)
        return DP_FAIL(end->comm->host, DP_ERR_INVALID,
                       "receive of message %u on channel \"%s\": all %u slots hold messages that were not released",
                       tag->number, end->label, end->config.slots);
    return status;
}

static dp_status_t enqueue(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;

    if (comm->nmembers == MEMBERS_MAX || (comm->grouping && comm->stream != s))
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: at most %d transfers, all on one stream, form a group",
                       comm->name, MEMBERS_MAX);
    if (comm->nmembers > 0 &&
        /* kernels of two communicators on one stream: one waits */
        comm->members[0].end->pair != end->pair)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: a group goes to one rank or comes from one", comm->name);
    comm->members[comm->nmembers++] = (member_t){end, from, *tag};
    end->count++;
    return comm->grouping ? DP_OK : run_members(comm, s);
}

dp_status_t nccl_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    dp_status_t status = nccl_channel_check(end, tag, true);

    return status < 0 ? status : enqueue(end, from, tag, s);
}

dp_status_t nccl_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                              dp_stream_t *s)
{
    DO(nccl_channel_check(end, expected, false));
    *data_out = end->slots + expected->number % end->config.slots * end->stride;
    return enqueue(end, NULL, expected, s);
}

dp_status_t nccl_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    DO(comm_check_release(end, end->freed, number));
    end->freed++;
    return end->comm->device_vt->event_record(end->released[number % end->config.slots], s);
}
