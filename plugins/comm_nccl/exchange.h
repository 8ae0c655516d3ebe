/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exchange.h: exchanges, of whole stretches or of exact sizes. */
#ifndef COMM_NCCL_EXCHANGE_H
#define COMM_NCCL_EXCHANGE_H

#include "comm_nccl.h"

/* exchange.c */
dp_status_t nccl_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out);
dp_status_t nccl_exchange_connect(dp_exchange_t *x);
void nccl_exchange_free(dp_exchange_t *x);
dp_status_t nccl_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                              const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                              dp_stream_t *s);
dp_status_t nccl_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s);

/* rows.c: exchanges of exact sizes, and the thread that makes them. Behind an abort it lets streams
 * go on that wait for rows, or in a one-sided channel. rows_release: streams that wait for rows go
 * on; any thread may call it. */
dp_status_t nccl_rows_choose(dp_comm_t *comm);
/* All ranks call it, with the same: what `rank`, which has the most streams, has. Exchanges that
 * nobody has asked to be exact move their capacity where those are more than there are queues. */
void nccl_rows_settle(dp_comm_t *comm, int32_t rank, const streams_t *streams);
/* NCCL has what it launches wait for each other in the order of calls, which threads do not have in
 * common, nor streams that wait. */
bool nccl_rows_are_in_order(void);
dp_status_t nccl_rows_open(dp_comm_t *comm);
dp_status_t nccl_rows_connect(dp_exchange_t *x);
dp_status_t nccl_rows_enqueue(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *offsets,
                              const int32_t *counts, dp_stream_t *s);
void nccl_rows_release(dp_comm_t *comm);
void nccl_rows_close(dp_comm_t *comm);

#endif
