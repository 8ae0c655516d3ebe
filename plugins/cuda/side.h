/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * side.h: a stream for what is not a lane's: new memory, clocks, the release of what waits. One for
 * all instances of a plugin on a device: streams that share a hardware queue wait for each other,
 * and there are at most 32. Nothing that waits for another rank is ever put there. */
#ifndef PLUGINS_CUDA_SIDE_H
#define PLUGINS_CUDA_SIDE_H

#include "driver.h"

/** The stream of the current context's device. [any] */
dp_status_t cuda_side_open(const dp_host_t *host, const cuda_driver_t *cu, CUstream *stream_out);
/** Waits until the stream is idle, so that memory it was given may go; `what` it does, for
 *  messages. DP_ERR_TIMEOUT after a minute, when a device does nothing any more. [blocks] */
dp_status_t cuda_side_settle(const dp_host_t *host, const cuda_driver_t *cu, CUstream stream, const char *what);
/** Gives it back; the last one ends it. NULL is allowed. [any] */
void cuda_side_close(const cuda_driver_t *cu, CUstream stream);

#endif
