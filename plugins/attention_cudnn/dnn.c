/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dnn.c: opens cuDNN. */
#include "dnn.h"
#include "../cuda/import.h"

enum { OLDEST = 90500 };

dp_status_t dnn_load(const dp_host_t *host, dnn_t *dnn)
{
    static const cuda_source_t source = {"cuDNN", "DUALPIPE_CUDNN", {"libcudnn.so.9", "libcudnn.so"}};
    const cuda_symbol_t symbols[] = {
#define X(name) {#name, (void **)&dnn->name},
        CUDNN_SYMBOLS(X)
#undef X
    };
    dp_status_t status = cuda_import(host, &source, symbols, sizeof(symbols) / sizeof(symbols[0]));
    size_t version;

    if (status < 0)
        return status;
    version = dnn->cudnnGetVersion();
    if (version < OLDEST)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "cuDNN %zu is too old: attention needs %d (9.5) or later", version,
                       OLDEST);
    return DP_OK;
}

dp_status_t dnn_check(const dp_host_t *host, const dnn_t *dnn, cudnnStatus_t status, const char *what)
{
    char words[512] = "";

    if (status == CUDNN_STATUS_SUCCESS)
        return DP_OK;
    dnn->cudnnGetLastErrorString(words, sizeof(words));
    return DP_FAIL(host, status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000 ? DP_ERR_UNSUPPORTED : DP_ERR_DEVICE,
                   "cuDNN: %s: %s: %s", what, dnn->cudnnGetErrorString(status), words);
}
