/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * swap.c: another comm backend between two steps. */
#include "base/do.h"
#include "engine/engine.h"

#include "group/reform.h"
#include <dualpipe/draft/graph.h>

#include <stdbool.h>
#include <string.h>

/* One-sided backends and those with matched groups run different lists of the same schedule. */
static dp_status_t make_lists(dp_pipeline_t *p)
{
    dp__links_close(p);
    dp__programs_free(p);
    p->memory.total -= p->memory.boundary;
    p->memory.boundary = 0;
    DO(dp__programs_make(p));
    DO(dp__transfer_streams_open(p));
    return dp__links_list(p);
}

/* Where messages leave from depends on the backend. */
static dp_status_t make_plans(dp_pipeline_t *p)
{
    DO(dp__plans_build(p));
    if (p->plans.training.nspans > p->trace.capacity || p->plans.forward.nspans > p->trace.capacity)
        return dp_fail(DP_ERR_MISMATCH, "the new list of rank %d has more operations than the old one", p->grid.p);
    return DP_OK;
}

/* New comms, new stages on them. Parameters are the pipeline's and stay where they are. */
static dp_status_t move(dp_pipeline_t *p, const dp_comm_vt_t *vt, dp__comms_t *old)
{
    bool other_lists = false;
    dp_status_t status;

    dp__graphs_forget(p);
    *old = p->comms;
    status = dp__comms_open(p, vt, &p->comms);
    if (status >= 0)
        other_lists = p->programs.bundled != dp__comms_bundle(&p->comms);
    if (status >= 0)
        status = dp__chunks_rebuild(p);
    if (status >= 0)
        status = dp__comms_open_ties(p, &p->comms);
    if (status >= 0)
        status = dp__names_collect(p);
    dp__plans_free(p);
    p->programs.bundled ^= other_lists;
    if (status >= 0 && other_lists)
        status = make_lists(p);
    if (status >= 0)
        status = dp__links_connect(p, &p->comms);
    if (status >= 0)
        status = make_plans(p);
    if (status >= 0 && other_lists)
        status = dp__buffers_open(p);
    return status < 0 ? status : dp__comms_start(p, &p->comms);
}

static dp_status_t find_backend(dp_pipeline_t *p, const char *name, dp__backend_t *backend)
{
    dp_status_t status = dp__backend_find(p, name, backend);

    if (status >= 0 && p->options.graph && (backend->vt->caps & DP_COMM_CAP_CAPTURE) == 0)
        return dp_fail(DP_ERR_UNSUPPORTED, "graph: transfers of comm plugin %s cannot be captured", name);
    return status;
}

dp_status_t dp_pipeline_swap_comm(dp_pipeline_t *p, const char *comm)
{
    char name[DP__NAME_BYTES] = "";
    dp__backend_t backend = {0};
    dp__comms_t old;
    dp_status_t status;
    bool automatic;

    DO(dp__pipeline_check(p, "dp_pipeline_swap_comm"));
    status = comm != NULL ? dp__backend_name(comm, name) : dp_fail(DP_ERR_INVALID, "no comm backend was named");
    automatic = status >= 0 && strcmp(name, DP__AUTO) == 0;
    if (status >= 0 && !automatic)
        status = find_backend(p, name, &backend);
    status = dp__agree_to_swap(p, status, name);
    if (status >= 0 && automatic) /* all together */
        status = dp__agree_to_swap(p, find_backend(p, name, &backend), name);
    if (status < 0)
        return status;
    status = dp__gather_finish(p);
    if (status < 0)
        return dp__engine_fail(p, status, "swapping the comm backend");
    dp__group_start_opening(p->group);
    status = move(p, backend.vt, &old);
    if (status >= 0)
        status = dp__group_settle(p->group);
    if (status < 0) {
        status = dp__engine_fail(p, status, "swapping the comm backend");
    } else {
        memcpy(p->comm_name, name, sizeof(name));
        p->backend = backend;
        dp__backend_log(p);
    }
    dp__comms_close(&old); /* at once when the job has ended */
    return status;
}
