/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * nccl_api.c: finds libnccl and fills its table, once for the process. */
#include "nccl_api.h"

#include "plugins/common/debug.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OLDEST 21900 /* finalize, non-blocking communicators, registration */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static nccl_api_t table;
static bool ready;

/* Before the library is opened: it reads these once. What the user has set stays. */
static void share_the_gpu(void)
{
    char text[8];
    const char *wish = debug_value("nccl.same_gpu", text, sizeof(text));
    char own[300], host[200] = "host";

    if (wish == NULL || strcmp(wish, "1") != 0)
        return;
    (void)gethostname(host, sizeof(host) - 1);
    snprintf(own, sizeof(own), "%s-%ld", host, (long)getpid());
    (void)setenv("NCCL_HOSTID", own, 0);
    (void)setenv("NCCL_NET", "Socket", 0);
    (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    (void)setenv("NCCL_IB_DISABLE", "1", 0);
    (void)setenv("NCCL_MNNVL_ENABLE", "0", 0);
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0);
}

static const char *fill_api(void *library, nccl_api_t *api)
{
#define OPTIONAL(function) *(void **)&api->function = dlsym(library, #function);
#define REQUIRED(function)                                                                                             \
    OPTIONAL(function)                                                                                                 \
    if (api->function == NULL)                                                                                         \
        return #function;
    NCCL_REQUIRED(REQUIRED)
    NCCL_OPTIONAL(OPTIONAL)
#undef OPTIONAL
#undef REQUIRED
    return NULL;
}

static bool has_puts(void *library, nccl_api_t *api)
{
    bool all = api->version >= NCCL_PUTS_SINCE;

#define LATER(function, parameters)                                                                                    \
    *(void **)&api->function = dlsym(library, #function);                                                              \
    all = all && api->function != NULL;
    NCCL_PUTS(LATER)
#undef LATER
    return all;
}

/* NULL, or what is wrong. */
static const char *find_library(void)
{
    static const char *const names[] = {"libnccl.so.2", "libnccl.so", NULL};
    static char why[700];
    const char *missing;
    char tried[600];
    void *library;

    share_the_gpu();
    library = cuda_library("lib.nccl", names, tried, sizeof(tried));
    if (library == NULL) {
        snprintf(why, sizeof(why),
                 "NCCL was not found (%s): install libnccl2, or name its file in DUALPIPE_DEBUG=lib.nccl=", tried);
        return why;
    }
    missing = fill_api(library, &table);
    if (missing != NULL) {
        snprintf(why, sizeof(why), "the NCCL library that was found has no %s: it is too old", missing);
        return why;
    }
    if (table.ncclGetVersion(&table.version) != ncclSuccess || table.version < OLDEST) {
        snprintf(why, sizeof(why), "NCCL %d was found; %d (2.19) or later is needed", table.version, OLDEST);
        return why;
    }
    table.puts = has_puts(library, &table);
    return NULL;
}

dp_status_t nccl_api(const dp_host_t *host, const nccl_api_t **api_out)
{
    const char *why = NULL;
    dp_status_t status = DP_OK;

    pthread_mutex_lock(&lock);
    if (!ready)
        why = find_library();
    ready = why == NULL;
    if (!ready)
        status = DP_FAIL(host, DP_ERR_UNSUPPORTED, "%s", why);
    pthread_mutex_unlock(&lock);
    if (status >= 0)
        *api_out = &table;
    return status;
}
