/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * channel.h: channels and exchanges. */
#ifndef COMM_OFI_CHANNEL_H
#define COMM_OFI_CHANNEL_H

#include "join.h"

/* channel.c */
dp_status_t ofi_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out);
void ofi_channel_free(dp_channel_end_t *end);
/* Before its area is told to others. */
dp_status_t ofi_channel_show(dp_channel_end_t *end);
/* The area of one side of the channel as that side's directory has it. */
area_t ofi_channel_area(const dp_channel_end_t *end, bool ours);
dp_status_t ofi_channel_connect(dp_channel_end_t *end, const area_t *ours, const region_t *region, view_t *views);
dp_status_t ofi_channel_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s);
dp_status_t ofi_channel_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                             dp_stream_t *s);
dp_status_t ofi_channel_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s);

/* exchange.c */
dp_status_t ofi_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out);
void ofi_exchange_free(dp_exchange_t *x);
dp_status_t ofi_exchange_show(dp_exchange_t *x);
area_t ofi_exchange_area(const dp_exchange_t *x);
dp_status_t ofi_exchange_connect(dp_exchange_t *x, const area_t *ours, const region_t *region, view_t *views);
dp_status_t ofi_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                             const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                             dp_stream_t *s);
dp_status_t ofi_exchange_post(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                              const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                              dp_stream_t *s);
dp_status_t ofi_exchange_wait(dp_exchange_t *x, uint32_t number, dp_stream_t *s);
dp_status_t ofi_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s);

#endif
