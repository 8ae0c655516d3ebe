/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * import.h: fills a table of functions from one of NVIDIA's libraries, opened when an instance of a plugin is. */
#ifndef DP_CUDA_IMPORT_H
#define DP_CUDA_IMPORT_H

#include <dualpipe/plugin.h>

/** What to open. `variable`, of the environment, comes before the names; the list of names ends with NULL. */
typedef struct dp_cuda_source {
    const char *what;     /* "cuBLASLt", for messages */
    const char *variable; /* "DUALPIPE_CUBLASLT"      */
    const char *names[3];
} dp_cuda_source_t;

/** One symbol and the function pointer it goes to. */
typedef struct dp_cuda_symbol {
    const char *name;
    void **to;
} dp_cuda_symbol_t;

/** Opens the library and finds all of its symbols. DP_ERR_UNSUPPORTED says what was tried, or which symbol is missing.
 *  The library stays open: it keeps threads and exit handlers of its own. */
dp_status_t dp_cuda_import(const dp_host_t *host, const dp_cuda_source_t *source,
                           const dp_cuda_symbol_t *symbols, size_t nsymbols);

#endif
