/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * channel.h: channels by groups of calls or by one-sided puts, and which of the two. */
#ifndef COMM_NCCL_CHANNEL_H
#define COMM_NCCL_CHANNEL_H

#include "comm_nccl.h"

/* channel.c */
dp_status_t nccl_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out);
/* Whose communicator it is; one-sided, it has one for itself. */
dp_status_t nccl_channel_keep_pair(dp_channel_end_t *end);
dp_status_t nccl_channel_connect(dp_channel_end_t *end);
/* Whether this message may be enqueued. */
dp_status_t nccl_channel_check(const dp_channel_end_t *end, const dp_message_tag_t *tag, bool sends);
/* What a head holds. */
void nccl_channel_words(const dp_message_tag_t *tag, uint32_t words[4]);
void nccl_channel_free(dp_channel_end_t *end);
dp_status_t nccl_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s);
dp_status_t nccl_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                              dp_stream_t *s);
dp_status_t nccl_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s);
dp_status_t nccl_bundle_begin(dp_comm_t *comm, dp_stream_t *s);
dp_status_t nccl_bundle_end(dp_comm_t *comm, dp_stream_t *s);

/* choose.c */
dp_status_t nccl_channels_wished(const dp_host_t *host, uint32_t *channels_out);
const char *nccl_channels_name(uint32_t channels);
/* What one-sided channels need: refused where they were asked for, else remembered. */
dp_status_t nccl_channels_check(dp_comm_t *comm);
/* All ranks call it, with the same. lacks: the first rank that lacks something; none: nranks.
 * [blocks until the others have come] */
dp_status_t nccl_channels_choose(dp_comm_t *comm, int32_t lacks, const char *lacking);

/* puts.c: one-sided channels. */
dp_status_t nccl_puts_open(dp_comm_t *comm);
/* Both ends, when their communicator is there: makes the window, and greets. */
dp_status_t nccl_puts_connect(dp_channel_end_t *end);
dp_status_t nccl_puts_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s);
dp_status_t nccl_puts_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                           dp_stream_t *s);
dp_status_t nccl_puts_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s);
/* Streams that wait for a message or a credit go on; any thread may call it, and has to again: the
 * other end may put a smaller number. */
void nccl_puts_let_go(dp_comm_t *comm);
void nccl_puts_close(dp_comm_t *comm);

#endif
