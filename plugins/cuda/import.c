/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * import.c: fills a table of functions, with a message that helps when it cannot. */
#include "import.h"
#include "driver.h"

#include <dlfcn.h>

dp_status_t cuda_import(const dp_host_t *host, const cuda_source_t *source, const cuda_symbol_t *symbols,
                        size_t nsymbols)
{
    char tried[512];
    void *library = cuda_library(source->key, source->names, tried, sizeof(tried));

    if (library == NULL)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "%s is not to be found (%s): install it, or name its file in DUALPIPE_DEBUG=%s=", source->what,
                       tried, source->key);
    for (size_t i = 0; i < nsymbols; i++) {
        *symbols[i].to = dlsym(library, symbols[i].name);
        if (*symbols[i].to == NULL)
            return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                           "%s has no %s: it is too old, or something else; name its file in DUALPIPE_DEBUG=%s=",
                           source->what, symbols[i].name, source->key);
    }
    return DP_OK;
}
