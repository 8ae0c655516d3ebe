/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * import.h: fills a table of functions from one of NVIDIA's libraries, when a plugin opens. */
#ifndef PLUGINS_CUDA_IMPORT_H
#define PLUGINS_CUDA_IMPORT_H

#include <dualpipe/plugin.h>

/** What to open: first `key` of DUALPIPE_DEBUG, then the names, up to NULL. */
typedef struct cuda_source {
    const char *what; /* "cuBLASLt", for messages */
    const char *key;  /* "lib.cublaslt" */
    const char *names[3];
} cuda_source_t;

/** One symbol and the function pointer it goes to. */
typedef struct cuda_symbol {
    const char *name;
    void **to;
} cuda_symbol_t;

/** Opens the library and finds all of its symbols. DP_ERR_UNSUPPORTED says what was tried, or which
 *  symbol is missing. The library stays open: it keeps its own threads and exit handlers. */
dp_status_t cuda_import(const dp_host_t *host, const cuda_source_t *source, const cuda_symbol_t *symbols,
                        size_t nsymbols);

#endif
