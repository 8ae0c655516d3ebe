/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * nccl_api.h: NCCL as a table of functions, filled when the first group is opened. Nothing is linked with libnccl.
 *
 * $DUALPIPE_NCCL names another library than libnccl.so.2. With DUALPIPE_NCCL_SAME_GPU=1 the process gets an NCCL_HOSTID
 * of its own before the library is opened, so that NCCL lets several processes share a GPU (it then uses sockets: for
 * tests). */
#ifndef COMM_NCCL_API_H
#define COMM_NCCL_API_H

#include <nccl.h>

#include "cuda/driver.h"

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

typedef struct nccl_api {
#define NCCL_MEMBER(function) __typeof__(function) *function;
    NCCL_REQUIRED(NCCL_MEMBER)
    NCCL_OPTIONAL(NCCL_MEMBER)
#undef NCCL_MEMBER
    int version;
} nccl_api_t;

/* The same for all callers. DP_ERR_UNSUPPORTED: no library, an old one, or one that lacks something; a later call tries
   again. */
dp_status_t nccl_api(const dp_host_t *host, const nccl_api_t **api_out);

#endif
