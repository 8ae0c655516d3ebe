/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_attention_poke.c: attention_cpu with one number changed, to see who notices. MOCK_REAL: the
 * file of attention_cpu. MOCK_POKE=serial: in every instance but the first of this process (the
 * serial run of --verify) the first output is off by about 1e-6. MOCK_POKE=nan:RANK:STEP: on that
 * rank it is not a number from that step on. MOCK_POKE=slow:RANK:US: there each forward takes US
 * microseconds more. */
#include <dualpipe/attention.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct dp_attention {
    const dp_host_t *host;
    dp_attention_t *real;
    const dp_attention_vt_t *vt;
    const dp_device_vt_t *device_vt;
    dp_dtype_t dtype;
    int number; /* of this instance in the process, from 0 */
    int rank, step;
    int sleep_us; /* 0: not slow */
};

static int instances;

static dp_status_t poke_open(const dp_host_t *host, const dp_attention_config_t *config, dp_attention_t **out)
{
    const char *file = getenv("MOCK_REAL"), *what = getenv("MOCK_POKE"), *rank = getenv("RANK");
    void *library = file != NULL ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    const dp_plugin_t *plugin = library != NULL ? dlsym(library, "dp_plugin_entry") : NULL;
    dp_attention_t *a;
    dp_status_t status;

    if (plugin == NULL)
        return DP_FAIL(host, DP_ERR_PLUGIN, "MOCK_REAL does not name attention_cpu");
    a = host->allocate(host, sizeof(*a), 64);
    if (a == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory");
    *a = (dp_attention_t){.vt = plugin->get_interface(DP_IFACE_ATTENTION), .device_vt = config->device_vt};
    a->host = host;
    a->dtype = config->shape->dtype;
    a->number = __atomic_fetch_add(&instances, 1, __ATOMIC_RELAXED);
    a->step = -1;
    if (what != NULL && sscanf(what, "nan:%d:%d", &a->rank, &a->step) == 2 && (rank == NULL || atoi(rank) != a->rank))
        a->step = -1;
    if (what != NULL && sscanf(what, "slow:%d:%d", &a->rank, &a->sleep_us) == 2 &&
        (rank == NULL || atoi(rank) != a->rank))
        a->sleep_us = 0;
    status = a->vt->open(host, config, &a->real);
    if (status < 0) {
        host->release(host, a);
        return status;
    }
    *out = a;
    return DP_OK;
}

static void poke_close(dp_attention_t *a)
{
    a->vt->close(a->real);
    a->host->release(a->host, a);
}

static dp_status_t poke_sizes(const dp_attention_t *a, dp_block_sizes_t *out)
{
    return a->vt->sizes(a->real, out);
}

static dp_status_t poke_params(const dp_attention_t *a, dp_param_t *out)
{
    return a->vt->params(a->real, out);
}

typedef struct poke {
    void *y;
    dp_dtype_t dtype;
    double factor;
} poke_t;

static dp_status_t run_poke(void *arg)
{
    const poke_t *poke = arg;

    if (poke->dtype == DP_F64)
        *(double *)poke->y *= poke->factor;
    else
        *(float *)poke->y *= (float)poke->factor;
    return DP_OK;
}

static dp_status_t run_sleep(void *arg)
{
    const int us = *(const int *)arg;
    const struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};

    nanosleep(&t, NULL);
    return DP_OK;
}

static dp_status_t poke_forward(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    const dp_status_t status = a->vt->forward(a->real, io, s);
    poke_t poke = {io->y, a->dtype, 1 + 1e-6};

    if (status < 0)
        return status;
    if (a->sleep_us > 0)
        return a->device_vt->launch(s, run_sleep, &a->sleep_us, sizeof(a->sleep_us));
    if (a->step >= 0 && io->step >= (uint32_t)a->step)
        poke.factor = NAN;
    else if (getenv("MOCK_POKE") == NULL || strcmp(getenv("MOCK_POKE"), "serial") != 0 || a->number == 0)
        return DP_OK;
    return a->device_vt->launch(s, run_poke, &poke, sizeof(poke));
}

static dp_status_t poke_backward_input(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return a->vt->backward_input(a->real, io, s);
}

static dp_status_t poke_backward_weight(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return a->vt->backward_weight(a->real, io, s);
}

static const dp_attention_vt_t table = {
    .struct_size = sizeof(table),
    .open = poke_open,
    .close = poke_close,
    .sizes = poke_sizes,
    .params = poke_params,
    .forward = poke_forward,
    .backward_input = poke_backward_input,
    .backward_weight = poke_backward_weight,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_ATTENTION) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(mock_attention_poke) = {
    DP_PLUGIN_HEAD,
    .name = "mock_attention_poke",
    .version = "0.1",
    .summary = "attention_cpu with one number changed",
    .get_interface = get_interface,
};
