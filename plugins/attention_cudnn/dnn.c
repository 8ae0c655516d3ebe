/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dnn.c: opens cuDNN. */
#include "dnn.h"
#include "../cuda/import.h"
#include "plugins/common/do.h"

/* What NVIDIA's own frontend knows of versions: graphs without a handle need 9.8, backward of
 * 9.10.0 and 9.10.1 is wrong, and up to 9.15.0 keys past the last whole tile of 128 are read unless
 * a padding mask is given. */
enum { OLDEST = 90800, TILE = 128, LAST_WITH_WHOLE_TILES = 91500 };

dp_status_t attn_dnn_load(const dp_host_t *host, uint32_t sequence, attn_dnn_t *dnn)
{
    static const cuda_source_t source = {"cuDNN", "lib.cudnn", {"libcudnn.so.9", "libcudnn.so"}};
    const cuda_symbol_t symbols[] = {
#define X(name) {#name, (void **)&dnn->name},
        CUDNN_SYMBOLS(X)
#undef X
    };
    size_t version;

    DO(cuda_import(host, &source, symbols, sizeof(symbols) / sizeof(symbols[0])));
    version = dnn->cudnnGetVersion();
    if (version < OLDEST)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "cuDNN %zu is too old: attention needs %d (9.8) or later", version,
                       OLDEST);
    if (version == 91000 || version == 91001)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "cuDNN %zu has a wrong backward of attention: take 9.10.2 or later",
                       version);
    if (version <= LAST_WITH_WHOLE_TILES && sequence % TILE != 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "cuDNN %zu: shape.sequence is %u, up to cuDNN 9.15.0 it must be a multiple of %d; take a later "
                       "cuDNN or attention_cuda",
                       version, sequence, TILE);
    return DP_OK;
}

dp_status_t attn_dnn_check(const dp_host_t *host, const attn_dnn_t *dnn, cudnnStatus_t status, const char *what)
{
    char words[512] = "";

    if (status == CUDNN_STATUS_SUCCESS)
        return DP_OK;
    dnn->cudnnGetLastErrorString(words, sizeof(words));
    return DP_FAIL(host, status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000 ? DP_ERR_UNSUPPORTED : DP_ERR_DEVICE,
                   "cuDNN: %s: %s: %s", what, dnn->cudnnGetErrorString(status), words);
}
