/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dnn.h: the part of cuDNN's backend interface in use, as a table of functions. */
#ifndef ATTENTION_CUDNN_DNN_H
#define ATTENTION_CUDNN_DNN_H

#include <dualpipe/plugin.h>

#include <cudnn_graph.h>

#define CUDNN_SYMBOLS(X)                                                                                               \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnGetLastErrorString)                                                                                         \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendExecute)

typedef struct attn_dnn {
#define X(name) __typeof__(name) *name;
    CUDNN_SYMBOLS(X)
#undef X
} attn_dnn_t;

/** Fills the table from libcudnn.so.9 (DUALPIPE_DEBUG=lib.cudnn=FILE: another). DP_ERR_UNSUPPORTED
 *  names what is missing, or a version that is before 9.8 or known to be wrong for attention over
 *  `sequence` tokens. */
dp_status_t attn_dnn_load(const dp_host_t *host, uint32_t sequence, attn_dnn_t *dnn);

/** DP_OK for CUDNN_STATUS_SUCCESS; else records `what` with cuDNN's words. */
dp_status_t attn_dnn_check(const dp_host_t *host, const attn_dnn_t *dnn, cudnnStatus_t status, const char *what);

#endif
