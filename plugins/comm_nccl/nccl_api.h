/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * nccl_api.h: NCCL as a table of functions, filled when the first group is opened. Nothing is
 * linked with libnccl.
 *
 * DUALPIPE_DEBUG=lib.nccl=FILE names another library than libnccl.so.2. With
 * DUALPIPE_DEBUG=nccl.same_gpu=1 the process gets its own NCCL_HOSTID before the library is
 * opened, so that NCCL lets several processes share a GPU (it then uses sockets: for tests). */
#ifndef COMM_NCCL_API_H
#define COMM_NCCL_API_H

#include <nccl.h>

#include "cuda/driver.h"

#include <stdbool.h>

#define NCCL_REQUIRED(X)                                                                                               \
    X(ncclGetVersion)                                                                                                  \
    X(ncclGetUniqueId)                                                                                                 \
    X(ncclCommInitRankConfig)                                                                                          \
    X(ncclCommSplit)                                                                                                   \
    X(ncclCommFinalize)                                                                                                \
    X(ncclCommDestroy)                                                                                                 \
    X(ncclCommAbort)                                                                                                   \
    X(ncclCommGetAsyncError)                                                                                           \
    X(ncclGetErrorString)                                                                                              \
    X(ncclGetLastError)                                                                                                \
    X(ncclGroupStart)                                                                                                  \
    X(ncclGroupEnd)                                                                                                    \
    X(ncclSend)                                                                                                        \
    X(ncclRecv)                                                                                                        \
    X(ncclAllReduce)                                                                                                   \
    X(ncclMemAlloc)                                                                                                    \
    X(ncclMemFree)

/* NULL where missing: the feature is off. */
#define NCCL_OPTIONAL(X)                                                                                               \
    X(ncclCommRegister)                                                                                                \
    X(ncclCommDeregister)

/* Of 2.29, all or none; declared here, since the header may be older. A window is what later
 * headers call ncclWindow_t. A put goes `offset` bytes into the window of rank `to`, from memory of
 * ours that is in a window of the communicator. */
#define NCCL_PUTS_SINCE 22900
#define NCCL_PUTS(X)                                                                                                   \
    X(ncclCommWindowRegister, (ncclComm_t comm, void *buffer, size_t bytes, void **window, int flags))                 \
    X(ncclCommWindowDeregister, (ncclComm_t comm, void *window))                                                       \
    X(ncclPutSignal, (const void *from, size_t count, ncclDataType_t type, int to, void *window, size_t offset,        \
                      int signal, int context, unsigned flags, ncclComm_t comm, cudaStream_t s))

#define NCCL_WINDOW_SYMMETRIC 1 /* NCCL_WIN_COLL_SYMMETRIC */

typedef struct nccl_api {
#define NCCL_MEMBER(function)            __typeof__(function) *function;
#define NCCL_LATER(function, parameters) ncclResult_t(*function) parameters;
    NCCL_REQUIRED(NCCL_MEMBER)
    NCCL_OPTIONAL(NCCL_MEMBER)
    NCCL_PUTS(NCCL_LATER)
#undef NCCL_LATER
#undef NCCL_MEMBER
    int version;
    bool puts; /* those of 2.29 are there */
} nccl_api_t;

/* The same for all callers. DP_ERR_UNSUPPORTED: no library, an old one, or one that lacks
 * something; a later call tries again. */
dp_status_t nccl_api(const dp_host_t *host, const nccl_api_t **api_out);

#endif
