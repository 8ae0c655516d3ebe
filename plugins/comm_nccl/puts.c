/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * puts.c: one-sided channels, through ncclPutSignal (2.29).
 *
 * Each channel has a communicator of its two ranks and in it a window, the same on both sides: two
 * words that the other end writes, words to be put, and the slots. The sender copies a message into
 * its own slot, since NCCL puts out of windows alone, and puts head and data to where they are with
 * the receiver, then the number of its puts; the receiver puts the number of credits. Puts to one
 * rank are done in order, so whoever sees a number has what was put before it.
 *
 * Streams wait for these words by themselves, and not by ncclWaitSignal: that waits for memory that
 * only NCCL and the other rank can write, and neither ncclCommAbort nor anything else ends it when
 * that rank has died. NCCL also does the operations of a communicator one after the other, on
 * whatever streams they are; without waits among them that holds up nothing. */
#include "channel.h"
#include "communicator.h"
#include "fault.h"

#include "cuda/side.h"
#include "plugins/common/do.h"

#include <string.h>

#define LINE_BYTES 128
#define WORD_BYTES 8 /* what NCCL itself writes as one; the first half counts */
#define HEAD_ROOM  256
#define PAGE_BYTES 4096

enum { ARRIVED, CREDITS, OWN }; /* lines of a window; [slots] of OWN */

static size_t line_at(size_t line)
{
    return line * LINE_BYTES;
}

static size_t slots_at(const dp_channel_end_t *end)
{
    return (line_at(OWN + end->config.slots) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static size_t slot_at(const dp_channel_end_t *end, uint32_t number)
{
    return slots_at(end) + number % end->config.slots * end->stride;
}

static CUdeviceptr address(const dp_channel_end_t *end, size_t at)
{
    return (CUdeviceptr)(uintptr_t)(end->window + at);
}

/* The word that the other end writes. */
static CUdeviceptr ours(const dp_channel_end_t *end)
{
    return address(end, line_at(end->config.sender ? CREDITS : ARRIVED));
}

/* Remembered, so that it can be ended. */
static dp_status_t await(dp_channel_end_t *end, uint32_t value, dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;

    __atomic_store_n(&end->awaited, AWAITED | value, __ATOMIC_RELEASE);
    return CUDA_CHECK(comm->host,
                      comm->cu->cuStreamWaitValue32(native(comm, s), ours(end), value, CU_STREAM_WAIT_VALUE_GEQ),
                      "waiting in a channel");
}

static ncclResult_t put_bytes(const dp_channel_end_t *end, size_t from, size_t bytes, size_t to, dp_stream_t *s)
{
    const dp_comm_t *comm = end->comm;

    return comm->nccl->ncclPutSignal(end->window + from, bytes, ncclUint8, end->config.sender ? 1 : 0, end->handle, to,
                                     0, 0, 0, end->pair->comm, (cudaStream_t)native(comm, s));
}

/* `bytes` of the slot of message `number`, if any, and then `value`. */
static dp_status_t put_message(dp_channel_end_t *end, uint32_t number, size_t bytes, uint32_t value, dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;
    const size_t own = line_at(OWN + number % end->config.slots), slot = slot_at(end, number);
    ncclComm_t *comms[1] = {&end->pair->comm};
    ncclResult_t result = ncclSuccess;
    dp_status_t status = CUDA_CHECK(
        comm->host,
        comm->cu->cuStreamWriteValue32(native(comm, s), address(end, own), value, CU_STREAM_WRITE_VALUE_DEFAULT),
        "writing a number");

    if (status >= 0)
        status = nccl_begin(comm);
    if (status < 0)
        return status;
    if (bytes > 0)
        result = put_bytes(end, slot, bytes, slot, s);
    if (result == ncclSuccess || result == ncclInProgress)
        result = put_bytes(end, own, WORD_BYTES, line_at(end->config.sender ? ARRIVED : CREDITS), s);
    return nccl_end(comm, result, comms, 1, end->label);
}

/* ---- messages ---- */

/* Message k is put number k + 2: the first was the greeting. */
dp_status_t nccl_puts_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;
    dp_status_t status;
    size_t slot;
    uint32_t words[4];

    DO(nccl_channel_check(end, tag, true));
    slot = slot_at(end, tag->number);
    nccl_channel_words(tag, words);
    status = await(end, tag->number + 1, s);
    if (status >= 0 && tag->bytes > 0)
        status = CUDA_CHECK(comm->host,
                            comm->cu->cuMemcpyAsync(address(end, slot + HEAD_ROOM), (CUdeviceptr)(uintptr_t)from,
                                                    tag->bytes, native(comm, s)),
                            "copying a message");
    if (status >= 0)
        status = nccl_write_head(comm, (uint32_t *)(void *)(end->window + slot), words, s);
    if (status >= 0)
        status = put_message(end, tag->number, HEAD_ROOM + tag->bytes, tag->number + 2, s);
    end->count += status >= 0;
    return status;
}

dp_status_t nccl_puts_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                           dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;
    dp_status_t status;
    const unsigned char *slot;
    uint32_t words[4];

    DO(nccl_channel_check(end, expected, false));
    slot = end->window + slot_at(end, expected->number);
    nccl_channel_words(expected, words);
    status = await(end, expected->number + 2, s);
    if (status >= 0)
        status = nccl_check_heads(comm, (const uint32_t *)(const void *)slot, 1, -1, words, NCCL_FAULT_TAG, end, s);
    if (status < 0)
        return status;
    *data_out = slot + HEAD_ROOM;
    end->count++;
    return DP_OK;
}

dp_status_t nccl_puts_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    dp_status_t status = comm_check_release(end, end->freed, number);

    if (status >= 0)
        status = put_message(end, number, 0, end->config.slots + number + 1, s);
    end->freed += status >= 0;
    return status;
}

/* ---- set-up ---- */

static dp_status_t make_window(dp_channel_end_t *end, dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;
    const size_t words = slots_at(end), bytes = words + end->config.slots * end->stride;
    unsigned char *memory = NULL;
    dp_status_t status;

    DO(nccl_memory(comm, bytes, &memory));
    __atomic_store_n(&end->window, memory, __ATOMIC_RELEASE);
    status = CUDA_CHECK(comm->host,
                        comm->cu->cuMemsetD32Async(address(end, 0), 0, words / sizeof(uint32_t), native(comm, s)),
                        "clearing a window");
    if (status >= 0)
        status = comm->device_vt->synchronize(s, -1);
    return status >= 0 ? nccl_window_register(comm, &end->pair->comm, memory, bytes, &end->handle) : status;
}

/* The greeting of the receiver are its first credits. What NCCL sets up for a first put is set up
 * by it. */
dp_status_t nccl_puts_connect(dp_channel_end_t *end)
{
    dp_comm_t *comm = end->comm;
    dp_stream_t *s = NULL;
    dp_status_t status;

    DO(comm->device_vt->stream_open(comm->device, DP_LANE_P2P, &s));
    end->stride = HEAD_ROOM + (end->config.slot_bytes + HEAD_ROOM - 1) / HEAD_ROOM * HEAD_ROOM;
    status = make_window(end, s);
    if (status >= 0)
        status = put_message(end, 0, 0, end->config.sender ? 1 : end->config.slots, s);
    if (status >= 0)
        status = await(end, 1, s);
    if (status >= 0)
        status = comm->device_vt->synchronize(s, -1);
    comm->device_vt->stream_close(s);
    end->connected = status >= 0;
    return status;
}

/* ---- the end ---- */

dp_status_t nccl_puts_open(dp_comm_t *comm)
{
    return cuda_side_open(comm->host, comm->cu, &comm->side);
}

void nccl_puts_let_go(dp_comm_t *comm)
{
    if (comm->side == NULL || comm->cu->cuStreamQuery(comm->side) != CUDA_SUCCESS)
        return;
    for (dp_channel_end_t *end = __atomic_load_n(&comm->ends, __ATOMIC_ACQUIRE); end != NULL; end = end->next) {
        uint64_t awaited = __atomic_load_n(&end->awaited, __ATOMIC_ACQUIRE);

        if (awaited != 0)
            (void)comm->cu->cuStreamWriteValue32(comm->side, ours(end), (uint32_t)awaited,
                                                 CU_STREAM_WRITE_VALUE_DEFAULT);
    }
}

void nccl_puts_close(dp_comm_t *comm)
{
    if (comm->side == NULL)
        return;
    (void)cuda_side_settle(comm->host, comm->cu, comm->side, "ending waits");
    cuda_side_close(comm->cu, comm->side);
    comm->side = NULL;
}
