/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_rows.cu: rows on their way, as plugins/moe/dims.h has it: fanned out to (expert, source rank)
 * order where they arrive, and summed in the order of choice when they are back. A block takes a
 * row, or a token with all its rows; what goes to several places is read once. */
#include "moe_real.cuh"

CUDA_DEVICE moe_list_t *list_at(char *rows, int64_t row_bytes, int64_t row)
{
    return (moe_list_t *)(rows + row * row_bytes);
}

CUDA_DEVICE moe_head_t *heads_of(const moe_list_t *list)
{
    return (moe_head_t *)(list + 1);
}

/* What rank p sent: its list, and the rows behind it. */
CUDA_DEVICE const moe_list_t *arrived_list(const moe_call_t &a, int p)
{
    return (const moe_list_t *)(a.arrived + (int64_t)p * a.room * a.n.row_bytes);
}

CUDA_DEVICE const char *arrived_row(const moe_call_t &a, int p, int heads, int row)
{
    return (const char *)arrived_list(a, p) + (MOE_LIST_ROWS(heads, a.n.row_bytes) + (int64_t)row) * a.n.row_bytes;
}

/* Begins what is sent to each rank with its list, by all threads of the grid; the heads are written
 * by others. What is behind them in the list's last row becomes 0, so that no byte is sent
 * unset. */
CUDA_DEVICE void write_lists(char *rows, int64_t row_bytes, const int32_t *offsets, const int32_t *heads, int ranks,
                             int label)
{
    for (int p = (int)(blockIdx.x * blockDim.x + threadIdx.x); p < ranks; p += (int)(gridDim.x * blockDim.x)) {
        moe_list_t *list = list_at(rows, row_bytes, offsets[p]);
        moe_head_t *end = heads_of(list_at(rows, row_bytes, offsets[p] + MOE_LIST_ROWS(heads[p], row_bytes))) - 1;
        const moe_list_t begin = {(uint32_t)label, heads[p], {0, 0}};
        const moe_head_t nothing = {0, 0, 0};

        if (heads[p] == 0)
            continue;
        *list = begin;
        for (moe_head_t *head = heads_of(list) + heads[p]; head < end; head++)
            *head = nothing;
    }
}

CUDA_DEVICE void pad_row(char *row, int64_t row_bytes, int64_t data_bytes)
{
    for (int64_t i = data_bytes; i < row_bytes; i++)
        row[i] = 0;
}

/* Where a block writes a row, each warp's addresses one behind the other. */
struct moe_targets {
    char *to[256];
    int count[256 / CUDA_WARP];
};

/* Each thread gives an address, or 0. */
CUDA_DEVICE void share_targets(moe_targets *targets, char *to)
{
    const int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    const unsigned given = __ballot_sync(CUDA_FULL_MASK, to != 0);

    __syncthreads(); /* the row before is written */
    if (to != 0)
        targets->to[warp * CUDA_WARP + __popc(given & ((1u << lane) - 1))] = to;
    if (lane == 0)
        targets->count[warp] = __popc(given);
    __syncthreads();
}

/* Writes a row, whose first vectors are held, to all targets. */
template <typename V>
CUDA_DEVICE void write_targets(const moe_targets &targets, V (&held)[MOE_HELD], const V *row, int count)
{
    const int step = (int)blockDim.x, warps = step / CUDA_WARP;

    for (int i = (int)threadIdx.x; i < count; i += MOE_HELD * step) {
        if (i >= MOE_HELD * step)
            moe_hold(held, row, i, count);
        for (int w = 0; w < warps; w++)
            for (int t = 0; t < targets.count[w]; t++) {
                V *to = (V *)targets.to[w * CUDA_WARP + t];

#pragma unroll
                for (int l = 0; l < MOE_HELD; l++)
                    if (i + l * step < count)
                        to[i + l * step] = held[l];
            }
    }
}

/* ---- out ---- */

/* Writes the head of (token, choice). Returns where the row goes that belongs to it; 0 when an
 * earlier choice of the token has the same one. */
CUDA_DEVICE char *place_row(const moe_call_t &a, int t, int j, double weight)
{
    const int64_t first = (int64_t)t * a.n.top_k, choice = first + j;
    const int p = a.replica[choice] / a.n.local;
    moe_list_t *list = list_at(a.rows, a.n.row_bytes, a.out_offsets[p]);
    const moe_head_t head = {a.replica[choice] % a.n.local, a.row[choice], weight};

    heads_of(list)[a.place[choice] - a.out_first[p]] = head;
    for (int i = 0; i < j; i++)
        if (a.replica[first + i] / a.n.local == p)
            return 0;
    return (char *)list + (MOE_LIST_ROWS(a.out_heads[p], a.n.row_bytes) + (int64_t)head.row) * a.n.row_bytes;
}

template <typename T, int W> CUDA_DEVICE void pack_rows(const moe_call_t &a, const T *from, T *keep)
{
    typedef moe_vector<T, W> vector;
    const cuda_sum_t<T> *weights = (const cuda_sum_t<T> *)a.weights;
    const int k = a.n.top_k, count = a.n.hidden / W;
    __shared__ moe_targets targets;

    write_lists(a.rows, a.n.row_bytes, a.out_offsets, a.out_heads, a.n.ranks, a.label);
    for (int t = (int)blockIdx.x; t < a.n.tokens; t += (int)gridDim.x) {
        const vector *row = (const vector *)(from + (int64_t)t * a.n.hidden);

        for (int first = 0; first <= k; first += (int)blockDim.x) {
            const int j = first + (int)threadIdx.x;
            vector held[MOE_HELD];
            char *to = 0;

            moe_hold(held, row, (int)threadIdx.x, count);
            if (j < k) {
                to = place_row(a, t, j, a.label == MOE_DISPATCH ? (double)weights[(int64_t)t * k + j] : 0);
                if (to != 0)
                    pad_row(to, a.n.row_bytes, (int64_t)a.n.hidden * (int64_t)sizeof(T));
            } else if (j == k && keep != 0) {
                to = (char *)(keep + (int64_t)t * a.n.hidden);
            }
            share_targets(&targets, to);
            write_targets(targets, held, row, count);
        }
    }
}

/* One row for each rank that a token goes to: of normed, or of dy, kept in own_dy. */
template <typename T> CUDA_DEVICE void pack(const moe_call_t &a)
{
    const bool out = a.label == MOE_DISPATCH;
    const T *from = (const T *)(out ? a.normed : a.input);
    T *keep = out ? 0 : (T *)a.own_dy;

    MOE_BY_WIDTH(a.n.vectors, T, pack_rows, a, from, keep);
}
MOE_KERNEL(pack, pack, moe_call_t, MOE_ROW_BOUNDS)

/* ---- in ---- */

/* Whether rank p's list is of this call and fits. *fault_out: what is wrong otherwise. */
CUDA_DEVICE bool list_is_valid(const moe_call_t &a, int p, int *fault_out)
{
    const int count = a.arrived_counts[p];
    const moe_list_t *list = arrived_list(a, p);

    *fault_out = count > a.room ? MOE_FAULT_ROOM : MOE_FAULT_STEP;
    if (count == 0)
        return true;
    if (count < 0 || count > a.room || list->call != (uint32_t)a.label || list->heads <= 0)
        return false;
    if (list->heads > a.n.pair_rows)
        *fault_out = MOE_FAULT_ROOM;
    return list->heads <= a.n.pair_rows && MOE_LIST_ROWS(list->heads, a.n.row_bytes) <= count;
}

/* Heads that rank p sent, as far as they can be believed. */
CUDA_DEVICE int believed(const moe_call_t &a, int p)
{
    int unused;

    return a.arrived_counts[p] != 0 && list_is_valid(a, p, &unused) ? arrived_list(a, p)->heads : 0;
}

/* from[p, e]: the first head of expert e among those of rank p (y), which are sorted by expert and
 * then by row; from[p, L]: their number. */
extern "C" __global__ void __launch_bounds__(256) moe_cuda_cells(const moe_call_t a)
{
    const int p = (int)blockIdx.y, count = believed(a, p), step = (int)(gridDim.x * blockDim.x);
    const int rows = a.arrived_counts[p] - MOE_LIST_ROWS(count, a.n.row_bytes);
    const moe_head_t *heads = heads_of(arrived_list(a, p));
    int *from = a.from + (int64_t)p * (a.n.local + 1), fault;

    if (!list_is_valid(a, p, &fault))
        moe_fault(a, fault, p, a.arrived_counts[p] > a.room ? a.arrived_counts[p] : arrived_list(a, p)->heads);
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i <= count; i += step) {
        const int before = i == 0 ? -1 : heads[i - 1].expert, expert = i == count ? a.n.local : heads[i].expert;

        if (expert < before || expert < 0 || before < -1 || expert > a.n.local ||
            (i < count && (expert == a.n.local || heads[i].row < 0 || heads[i].row >= rows)) ||
            (i > 0 && expert == before && heads[i].row <= heads[i - 1].row)) {
            moe_fault(a, MOE_FAULT_STEP, p, 0);
            continue;
        }
        for (int e = before + 1; e <= expert; e++)
            from[e] = i;
    }
}

/* One block: cells, groups and what there is of each rank; nothing at all after a fault. A thread
 * takes cells that follow each other, by expert and rank, and ranks. */
extern "C" __global__ void __launch_bounds__(MOE_ALONE_THREADS) moe_cuda_groups(const moe_call_t a)
{
    const int ranks = a.n.ranks, local = a.n.local, cells = local * ranks, threads = (int)blockDim.x;
    const int strip = (cells + threads - 1) / threads, begin = (int)threadIdx.x * strip;
    const int end = begin + strip < cells ? begin + strip : cells, few = (ranks + threads - 1) / threads;
    const int rank = (int)threadIdx.x * few, last = rank + few < ranks ? rank + few : ranks;
    __shared__ int room[32], bad;
    int rows = 0, all, at, heads = 0, lists = 0;
    auto rows_of = [&](int cell) {
        const int *from = a.from + (int64_t)(cell % ranks) * (local + 1) + cell / ranks;

        return from[1] - from[0];
    };

    if (threadIdx.x == 0)
        bad = cuda_load_acquire(&a.fault->kind) != 0;
    for (int cell = begin; cell < end; cell++)
        rows += rows_of(cell);
    at = moe_scan(rows, room, &all);
    if (threadIdx.x == 0 && !bad && all > a.n.rows)
        moe_fault(a, MOE_FAULT_ROOM, -1, all);

    const bool none = bad || all > a.n.rows;

    for (int cell = begin; cell < end; cell++) {
        const int here = none ? 0 : rows_of(cell);

        at = none ? 0 : at;
        a.cells[cell] = here;
        a.first[cell] = at;
        if (cell % ranks == 0)
            a.group_first[cell / ranks] = at;
        at += here;
    }
    for (int p = rank; p < last; p++) {
        const int count = none ? 0 : believed(a, p);

        heads += count;
        lists += MOE_LIST_ROWS(count, a.n.row_bytes);
    }
    heads = moe_scan(heads, room, &rows);
    lists = moe_scan(lists, room, &rows);
    for (int p = rank; p < last; p++) {
        const int count = none ? 0 : believed(a, p), list = MOE_LIST_ROWS(count, a.n.row_bytes);

        a.in_first[p] = heads;
        a.in_heads[p] = count;
        a.in_counts[p] = none ? 0 : a.arrived_counts[p];
        a.back_offsets[p] = heads + lists;
        a.back_counts[p] = list + count;
        heads += count;
        lists += list;
    }
    for (int e = (int)threadIdx.x; e < local; e += threads) /* behind barriers of scans */
        a.group_rows[e] = (e + 1 < local ? a.group_first[e + 1] : none ? 0 : all) - a.group_first[e];
}

/* Which rank's, and which of its heads, the r-th is of all that arrived. */
CUDA_DEVICE int rank_of(const moe_call_t &a, int r, int *head)
{
    int low = 0, high = a.n.ranks - 1;

    /* the last whose first head is not behind r; empty ones among equals lie before it */
    while (low < high) {
        const int middle = (low + high + 1) / 2;

        if (a.in_first[middle] <= r)
            low = middle;
        else
            high = middle - 1;
    }
    *head = r - a.in_first[low];
    return low;
}

/* Of each head: that it is of this call and where cells found it; what is known of its row. */
template <typename T> CUDA_DEVICE void note_heads(const moe_call_t &a)
{
    const int arrived = moe_arrived(a);

    for (int r = (int)(blockIdx.x * blockDim.x + threadIdx.x); r < arrived; r += (int)(gridDim.x * blockDim.x)) {
        int i;
        const int p = rank_of(a, r, &i), list = a.back_counts[p] - a.in_heads[p];
        const moe_head_t *heads = heads_of(arrived_list(a, p)), head = heads[i];
        const bool there = head.expert >= 0 && head.expert < a.n.local;
        const int *from = a.from + (int64_t)p * (a.n.local + 1) + (there ? head.expert : 0);

        if (arrived_list(a, p)->call != (uint32_t)a.label || !there || head.row < 0 ||
            head.row >= a.in_counts[p] - list || i < from[0] || i >= from[1] ||
            (i > from[0] && head.row <= heads[i - 1].row)) {
            moe_fault(a, MOE_FAULT_STEP, p, 0);
        } else if (a.label == MOE_DISPATCH) {
            const int64_t place = a.first[(int64_t)head.expert * a.n.ranks + p] + (i - from[0]);

            a.source[place] = p;
            a.back[place] = a.back_offsets[p] + list + i;
            ((cuda_sum_t<T> *)a.arrived_weights)[place] = (cuda_sum_t<T>)head.weight;
        }
    }
}

/* Where expert e wants rank p's row in x, as a row's number; below 0: it does not. */
CUDA_DEVICE int64_t place_for(const moe_call_t &a, int p, int row, int e)
{
    const moe_head_t *heads = heads_of(arrived_list(a, p));
    const int *from = a.from + (int64_t)p * (a.n.local + 1) + e;
    int low = from[0], high = from[1];

    while (low < high) {
        const int middle = (low + high) / 2;

        if (heads[middle].row < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low < from[1] && heads[low].row == row ? a.first[(int64_t)e * a.n.ranks + p] + (low - from[0]) : -1;
}

/* Rows as they arrived, a block for each: it is read once and written for each of its experts,
 * which are found while it is on its way. */
template <typename T, int W> CUDA_DEVICE void sort_rows(const moe_call_t &a, T *to)
{
    typedef moe_vector<T, W> vector;
    const int count = a.n.hidden / W;
    __shared__ moe_targets targets;
    int row = (int)blockIdx.x;

    note_heads<T>(a);
    for (int p = 0; p < a.n.ranks; p++) {
        const int list = a.back_counts[p] - a.in_heads[p], rows = a.in_counts[p] - list;

        for (; row < rows; row += (int)gridDim.x) {
            const vector *from =
                (const vector *)((const char *)arrived_list(a, p) + ((int64_t)list + row) * a.n.row_bytes);

            for (int first = 0; first < a.n.local; first += (int)blockDim.x) {
                const int e = first + (int)threadIdx.x;
                vector held[MOE_HELD];
                int64_t place = -1;

                moe_hold(held, from, (int)threadIdx.x, count);
                if (e < a.n.local)
                    place = place_for(a, p, row, e);
                share_targets(&targets, place >= 0 ? (char *)(to + place * a.n.hidden) : 0);
                write_targets(targets, held, from, count);
            }
        }
        row -= rows;
    }
}

/* Rows of this call to (expert, rank) order: into x, or dy on the way back. */
template <typename T> CUDA_DEVICE void sort_own(const moe_call_t &a)
{
    T *to = (T *)(a.label == MOE_DISPATCH ? a.x : a.dy);

    MOE_BY_WIDTH(a.n.vectors, T, sort_rows, a, to);
}
MOE_KERNEL(sort, sort_own, moe_call_t, MOE_ROW_BOUNDS)

/* One block: each rank sent what is expected. After dispatch that is known on both sides. */
extern "C" __global__ void __launch_bounds__(MOE_SCAN_THREADS) moe_cuda_due(const moe_call_t a)
{
    const bool out = a.label == MOE_COMBINE_BACKWARD;

    for (int p = (int)threadIdx.x; p < a.n.ranks; p += (int)blockDim.x) {
        const int heads = out ? a.in_heads[p] : a.out_heads[p];
        const int rows = out ? a.in_counts[p] : MOE_LIST_ROWS(heads, a.n.row_bytes) + heads;

        if (a.arrived_counts[p] != rows || believed(a, p) != heads)
            moe_fault(a, MOE_FAULT_STEP, p, 0);
    }
}

/* ---- back at the owner ---- */

/* Where the row of (token, choice) `at` lies among those that came back; whatever was received
 * first when it is not of this call. *weight_out: of its head. */
CUDA_DEVICE const char *returned(const moe_call_t &a, int64_t at, double *weight_out)
{
    const int p = a.replica[at] / a.n.local, i = a.place[at] - a.out_first[p];

    *weight_out = 0;
    if (i >= 0 && i < believed(a, p)) {
        *weight_out = heads_of(arrived_list(a, p))[i].weight;
        return arrived_row(a, p, arrived_list(a, p)->heads, i);
    }
    moe_fault(a, MOE_FAULT_STEP, p, 0);
    return a.arrived;
}

enum { HELD = 16 }; /* choices whose addresses a block keeps at hand */

/* The addresses of a token's next choices, for the block; any row's where one is missing. */
CUDA_DEVICE int hold_rows(const moe_call_t &a, int64_t at, int left, const char **held)
{
    const int count = left < HELD ? left : HELD;

    __syncthreads();
    for (int j = (int)threadIdx.x; j < count; j += (int)blockDim.x) {
        double weight;

        held[j] = returned(a, at + j, &weight);
        if (a.label == MOE_DISPATCH_BACKWARD)
            a.dweights[at + j] = weight;
    }
    __syncthreads();
    return count;
}

/* sum += rows of one token, in the order in which they were chosen. */
template <typename T, int W>
CUDA_DEVICE void add_rows(moe_vector<cuda_sum_t<T>, W> *sum, const char *const *held, int count, int i)
{
    typedef moe_vector<T, W> vector;
    int j = 0;

    for (; j + 4 <= count; j += 4) { /* four loads at once */
        vector v[4];

#pragma unroll
        for (int l = 0; l < 4; l++)
            v[l] = ((const vector *)held[j + l])[i];
#pragma unroll
        for (int l = 0; l < 4; l++)
#pragma unroll
            for (int c = 0; c < W; c++)
                sum->at[c] += cuda_float(v[l].at[c]);
    }
    for (; j < count; j++) {
        const vector v = ((const vector *)held[j])[i];

#pragma unroll
        for (int c = 0; c < W; c++)
            sum->at[c] += cuda_float(v.at[c]);
    }
}

/* y = h + shared + rows, rounded once. Forward's rows come with their weights applied. */
template <typename T, int W> CUDA_DEVICE void combine_rows(const moe_call_t &a)
{
    typedef moe_vector<T, W> vector;
    typedef moe_vector<cuda_sum_t<T>, W> sums;
    __shared__ const char *held[HELD];

    for (int t = (int)blockIdx.x; t < a.n.tokens; t += (int)gridDim.x) {
        const int64_t at = (int64_t)t * a.n.hidden, choice = (int64_t)t * a.n.top_k;
        const vector *h = (const vector *)((const T *)a.h + at);
        const sums *own = (const sums *)((const cuda_sum_t<T> *)a.own + at);
        vector *y = (vector *)((T *)a.y + at);
        const int most = hold_rows(a, choice, a.n.top_k, held);

        for (int i = (int)threadIdx.x; i < a.n.hidden / W; i += (int)blockDim.x) {
            const vector x = h[i];
            sums sum;
            vector out;

#pragma unroll
            for (int c = 0; c < W; c++)
                sum.at[c] = cuda_float(x.at[c]);
            if (a.n.shared > 0) {
                const sums o = own[i];

#pragma unroll
                for (int c = 0; c < W; c++)
                    sum.at[c] += o.at[c];
            }
            add_rows<T, W>(&sum, held, most, i);
            for (int j = most; j < a.n.top_k; j++) { /* more choices than are kept at hand */
                double unused;
                const char *row = returned(a, choice + j, &unused);

                add_rows<T, W>(&sum, &row, 1, i);
            }
#pragma unroll
            for (int c = 0; c < W; c++)
                out.at[c] = cuda_from_float<T>(sum.at[c]);
            y[i] = out;
        }
    }
}

template <typename T> CUDA_DEVICE void combine(const moe_call_t &a)
{
    MOE_BY_WIDTH(a.n.vectors, T, combine_rows, a);
}
MOE_KERNEL(combine, combine, moe_call_t, 256)

/* Gradient of n: the shared experts' (already there) + rows; and the gradients of the weights. */
template <typename T, int W> CUDA_DEVICE void gather_rows(const moe_call_t &a)
{
    typedef moe_vector<cuda_sum_t<T>, W> sums;
    __shared__ const char *held[HELD];

    for (int t = (int)blockIdx.x; t < a.n.tokens; t += (int)gridDim.x) {
        const int64_t choice = (int64_t)t * a.n.top_k;
        sums *own = (sums *)((cuda_sum_t<T> *)a.own + (int64_t)t * a.n.hidden);

        for (int j = 0; j < a.n.top_k; j += HELD) {
            const int count = hold_rows(a, choice + j, a.n.top_k - j, held);

            for (int i = (int)threadIdx.x; i < a.n.hidden / W; i += (int)blockDim.x) {
                sums sum;

                if (j > 0 || a.n.shared > 0) {
                    sum = own[i];
                } else {
#pragma unroll
                    for (int c = 0; c < W; c++)
                        sum.at[c] = 0;
                }
                add_rows<T, W>(&sum, held, count, i);
                own[i] = sum;
            }
        }
    }
}

template <typename T> CUDA_DEVICE void gather_own(const moe_call_t &a)
{
    MOE_BY_WIDTH(a.n.vectors, T, gather_rows, a);
}
MOE_KERNEL(gather, gather_own, moe_call_t, 256)

/* ---- activations: a block per row ---- */

template <typename S> CUDA_DEVICE S sigmoid(S x)
{
    const S e = (S)exp((double)(x < 0 ? x : -x));

    return (x < 0 ? e : 1) / (1 + e);
}

template <> CUDA_DEVICE float sigmoid<float>(float x)
{
    const float e = expf(x < 0 ? x : -x);

    return (x < 0 ? e : 1) / (1 + e);
}

CUDA_DEVICE int rows_of_glu(const moe_glu_t &a)
{
    return a.sent != 0 ? a.first[a.ranks - 1] + a.heads[a.ranks - 1] : a.rows;
}

/* Completes a row on its way back, but for what the product writes. */
CUDA_DEVICE void label_row(const moe_glu_t &a, int r, int64_t data_bytes, double weight)
{
    const int p = a.source[r];

    if (p < 0)
        return;
    moe_list_t *list = list_at(a.sent, a.row_bytes, a.offsets[p]);
    const int row = a.back[r] - a.offsets[p] - MOE_LIST_ROWS(a.heads[p], a.row_bytes);
    const moe_head_t head = {0, row, weight};

    heads_of(list)[row] = head;
    pad_row(a.sent + a.back[r] * a.row_bytes, a.row_bytes, data_bytes);
}

/* act = weight * silu(gate) * up */
template <typename T, int W> CUDA_DEVICE void activate_rows(const moe_glu_t &a, int rows)
{
    typedef moe_vector<T, W> vector;
    typedef cuda_sum_t<T> sum_t;

    if (a.sent != 0)
        write_lists(a.sent, a.row_bytes, a.offsets, a.heads, a.ranks, a.label);
    for (int r = (int)blockIdx.x; r < rows; r += (int)gridDim.x) {
        const int64_t at = (int64_t)r * a.width;
        const vector *gate = (const vector *)((const T *)a.gate + at), *up = (const vector *)((const T *)a.up + at);
        vector *act = (vector *)((T *)a.act + at);
        const sum_t weight = a.weights != 0 ? ((const sum_t *)a.weights)[r] : 1;

        if (threadIdx.x == 0 && a.sent != 0)
            label_row(a, r, (int64_t)a.hidden * (int64_t)sizeof(T), 0);
        for (int i = (int)threadIdx.x; i < a.width / W; i += (int)blockDim.x) {
            const vector g = gate[i], u = up[i];
            vector out;

#pragma unroll
            for (int c = 0; c < W; c++) {
                const sum_t x = cuda_float(g.at[c]);

                out.at[c] = cuda_from_float<T>(x * sigmoid<sum_t>(x) * cuda_float(u.at[c]) * weight);
            }
            act[i] = out;
        }
    }
}

template <typename T> CUDA_DEVICE void activate(const moe_glu_t &a)
{
    MOE_BY_WIDTH(a.vectors, T, activate_rows, a, rows_of_glu(a));
}
MOE_KERNEL(activate, activate, moe_glu_t, 256)

/*
 * act holds da, the gradient of weight * silu(gate) * up without the weight: the weight's own
 * gradient is silu(gate) * up . da, which costs no product. gate and up become their gradients, act
 * what the gradient of w_down multiplies.
 */
template <typename T, int W> CUDA_DEVICE void activate_backward_rows(const moe_glu_t &a, int rows)
{
    typedef moe_vector<T, W> vector;
    typedef cuda_sum_t<T> sum_t;
    __shared__ moe_wide_t<T> room[32];

    if (a.sent != 0)
        write_lists(a.sent, a.row_bytes, a.offsets, a.heads, a.ranks, a.label);
    for (int r = (int)blockIdx.x; r < rows; r += (int)gridDim.x) {
        const int64_t at = (int64_t)r * a.width;
        vector *gate = (vector *)((T *)a.gate + at), *up = (vector *)((T *)a.up + at),
               *act = (vector *)((T *)a.act + at);
        const sum_t weight = a.weights != 0 ? ((const sum_t *)a.weights)[r] : 1;
        moe_wide_t<T> dweight = 0;

        for (int i = (int)threadIdx.x; i < a.width / W; i += (int)blockDim.x) {
            vector g = gate[i], u = up[i], d = act[i];

#pragma unroll
            for (int c = 0; c < W; c++) {
                const sum_t x = cuda_float(g.at[c]), y = cuda_float(u.at[c]), da = cuda_float(d.at[c]);
                const sum_t s = sigmoid<sum_t>(x), silu = x * s;

                dweight += (moe_wide_t<T>)(silu * y) * (moe_wide_t<T>)da;
                g.at[c] = cuda_from_float<T>(weight * da * y * (s * (1 + x * (1 - s))));
                u.at[c] = cuda_from_float<T>(weight * da * silu);
                d.at[c] = cuda_from_float<T>(silu * y * weight);
            }
            gate[i] = g;
            up[i] = u;
            act[i] = d;
        }
        if (a.sent == 0) /* the same for the whole launch */
            continue;
        dweight = cuda_block_sum(dweight, room);
        if (threadIdx.x == 0)
            label_row(a, r, (int64_t)a.hidden * (int64_t)sizeof(T), (double)dweight);
    }
}

template <typename T> CUDA_DEVICE void activate_backward(const moe_glu_t &a)
{
    MOE_BY_WIDTH(a.vectors, T, activate_backward_rows, a, rows_of_glu(a));
}
MOE_KERNEL(activate_backward, activate_backward, moe_glu_t, 256)
