/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reduce.c: all_reduce as reduce-scatter plus all-gather over staging in the ranks' blocks.
 *
 * all_reduce works in parts i = 0, 1, ... with two buffers of each kind, in the order stage i+1,
 * sum i, gather i:
 *   stage i    our slices of part i --> in[i % 2][us] of the rank that sums them, and staged = i +
 *              1 there
 *   sum i      in[i % 2][0], [1], ... added in rank order --> out[i % 2] of all ranks, and summed =
 *              i + 1 there
 *   gather i   out[i % 2], whole --> our data
 * in[i % 2] of a rank is free for i + 2 because whoever stages i + 2 has gathered i, so that rank
 * has summed i. out[i % 2] is free for i + 2 because whoever sums i + 2 has seen that all staged
 * it, which each does after its gather i. The next all_reduce begins again with buffer 0, after the
 * last gather of this one, which is enough for the same reasons. */
#include "plugins/common/do.h"
#include "queue.h"

#define REDUCE_BYTES ((size_t)32 << 20)
#define PART_MIN     4096
#define SUM_THREADS  256

/* Staging of one rank: in and out, two of each. */
void ipc_reduce_size(dp_comm_t *comm, size_t reduce_bytes)
{
    size_t budget = reduce_bytes != 0 ? reduce_bytes : REDUCE_BYTES;

    comm->part_bytes = budget / 4 / PAYLOAD_ALIGN * PAYLOAD_ALIGN;
    if (comm->part_bytes < PART_MIN)
        comm->part_bytes = PART_MIN;
}

static dp_status_t enter_sum(dp_comm_t *comm, dp_stream_t *s, queue_t *q)
{
    DO(ipc_queue_enter(comm, s, q));
    if (comm->sums_captured && !q->capturing)
        return DP_FAIL(comm->host, DP_ERR_INVALID,
                       "group %s: all_reduce is part of a graph: it is used by replays alone", comm->name);
    comm->sums_captured = q->capturing;
    return DP_OK;
}

static dp_status_t sum_slice(const queue_t *q, const plan_sum_t *sum, uint32_t part, dp_dtype_t dtype)
{
    const dp_comm_t *comm = q->comm;
    size_t n = count_of(comm->nranks);
    size_t first = ipc_plan_sum_slice(sum, part, comm->rank), end = ipc_plan_sum_slice(sum, part, comm->rank + 1);
    unsigned char *payload = comm->base_payload[comm->rank];
    uint32_t blocks;
    ipc_sum_t args = {
        .report = comm->report,
        .heads = comm->base_lines[comm->rank] + base_line_head(n, part % 2, 0) * LINE_BYTES,
        .in = payload + ipc_base_in_at(n, comm->part_bytes, part % 2, 0),
        .peers = (const uint64_t *)(const void *)payload,
        .in_stride = ipc_base_slice_room(n, comm->part_bytes),
        .out_at = ipc_base_out_at(n, comm->part_bytes, part % 2) + first * sum->element_bytes,
        .elements = end - first,
        .count = sum->count,
        .number = ipc_queue_value(q, comm->plan.counter, (uint32_t)comm->parts, part),
        .nranks = (uint32_t)comm->nranks,
        .dtype = (uint32_t)dtype,
    };

    blocks = cuda_blocks(args.elements, SUM_THREADS);
    blocks = blocks < 1 ? 1 : blocks < comm->blocks ? blocks : comm->blocks;
    return ipc_queue_launch(q,
                            comm->sum[dtype == DP_F32   ? 0
                                      : dtype == DP_F64 ? 1
                                                        : 2],
                            blocks, SUM_THREADS, &args, "comm_cuda_ipc_sum");
}

static dp_status_t run_part(const queue_t *q, const plan_sum_t *sum, uint32_t part, dp_dtype_t dtype)
{
    plan_t *plan = &q->comm->plan;
    dp_status_t status = DP_OK;

    if (part + 1 < ipc_plan_sum_parts(sum)) {
        ipc_plan_sum_stage(plan, sum, part + 1);
        status = ipc_queue_run(q, plan);
    }
    if (status == DP_OK) {
        ipc_plan_sum_hear(plan, sum, part);
        status = ipc_queue_run(q, plan);
    }
    if (status == DP_OK)
        status = sum_slice(q, sum, part, dtype);
    if (status == DP_OK) {
        ipc_plan_sum_tell(plan, sum, part);
        status = ipc_queue_run(q, plan);
    }
    if (status == DP_OK) {
        ipc_plan_sum_gather(plan, sum, part);
        status = ipc_queue_run(q, plan);
    }
    return status;
}

dp_status_t ipc_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    plan_sum_t sum = {&comm->base, comm->part_bytes, dp_dtype_bytes(dtype), count, (uint32_t)dtype, data};
    plan_t *plan = &comm->plan;
    uint32_t parts;
    dp_status_t status;
    queue_t q;

    if (dtype != DP_F32 && dtype != DP_F64 && dtype != DP_I64)
        return DP_FAIL(comm->host, DP_ERR_UNSUPPORTED, "group %s: all_reduce adds f32, f64 and i64, not dtype %d",
                       comm->name, (int)dtype);
    if (count > SIZE_MAX / 16 || count / (comm->part_bytes / dp_dtype_bytes(dtype)) > UINT32_MAX / 4)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: all_reduce of %zu elements", comm->name, count);
    if (count == 0 || comm->nranks == 1)
        return DP_OK;
    DO(enter_sum(comm, s, &q));
    parts = ipc_plan_sum_parts(&sum);
    plan->base = (uint32_t)comm->parts;
    ipc_plan_sum_stage(plan, &sum, 0);
    status = ipc_queue_run(&q, plan);
    for (uint32_t i = 0; i < parts && status == DP_OK; i++)
        status = run_part(&q, &sum, i, dtype);
    if (status == DP_OK) {
        ipc_plan_sum_end(plan, &sum);
        status = ipc_queue_run(&q, plan);
    }
    status = ipc_queue_leave(&q, status);
    comm->parts += status == DP_OK ? parts : 0;
    return status;
}
