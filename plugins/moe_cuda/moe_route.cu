/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_route.cu: RMSNorm, gate, choice of experts and auxiliary loss, forwards and backwards. */
#include "moe_real.cuh"

/* Added to sums of scores that something is divided by, so that sigmoids that are all 0 give 0. */
#define MOE_TINY 1e-20

CUDA_DEVICE float root(float x)
{
    return sqrtf(x);
}

CUDA_DEVICE double root(double x)
{
    return sqrt(x);
}

CUDA_DEVICE float exponential(float x)
{
    return expf(x);
}

CUDA_DEVICE double exponential(double x)
{
    return exp(x);
}

/* ---- norm: a block per token ---- */

/* held: the row's first vectors, and all there are when `all`. */
template <typename T, int W>
CUDA_DEVICE void normalize_held(const moe_call_t &a, int64_t at, cuda_sum_t<T> rstd, moe_vector<T, W> (&held)[MOE_HELD],
                                bool all)
{
    typedef moe_vector<T, W> vector;
    const vector *h = (const vector *)((const T *)a.h + at), *gain = (const vector *)a.norm;
    vector *out = (vector *)((T *)a.normed + at);
    const int count = a.n.hidden / W, step = (int)blockDim.x;

    for (int i = (int)threadIdx.x; i < count; i += MOE_HELD * step) {
        if (!all)
            moe_hold(held, h, i, count); /* what it wrote itself */
#pragma unroll
        for (int l = 0; l < MOE_HELD; l++) {
            if (i + l * step >= count)
                continue;

            const vector g = gain[i + l * step];

#pragma unroll
            for (int j = 0; j < W; j++)
                held[l].at[j] = cuda_from_float<T>(cuda_float(held[l].at[j]) * rstd * cuda_float(g.at[j]));
            out[i + l * step] = held[l];
        }
    }
}

template <typename T, int W> CUDA_DEVICE void norm_rows(const moe_call_t &a)
{
    typedef moe_vector<T, W> vector;
    typedef moe_wide_t<T> wide;
    const int count = a.n.hidden / W, step = (int)blockDim.x;
    __shared__ wide room[32];

    for (int t = (int)blockIdx.x; t < a.n.tokens; t += (int)gridDim.x) {
        const int64_t at = (int64_t)t * a.n.hidden;
        vector *h = (vector *)((T *)a.h + at), held[MOE_HELD];
        wide square = 0;
        cuda_sum_t<T> rstd;

        for (int i = (int)threadIdx.x; i < count; i += MOE_HELD * step) {
            moe_hold(held, (const vector *)((const T *)a.input + at), i, count);
#pragma unroll
            for (int l = 0; l < MOE_HELD; l++) {
                if (i + l * step >= count)
                    continue;
#pragma unroll
                for (int j = 0; j < W; j++)
                    square += (wide)cuda_float(held[l].at[j]) * (wide)cuda_float(held[l].at[j]);
                h[i + l * step] = held[l];
            }
        }
        square = cuda_block_sum(square, room);
        rstd = (cuda_sum_t<T>)(1 / root(square / (wide)a.n.hidden + (wide)a.n.norm_eps));
        if (threadIdx.x == 0)
            ((cuda_sum_t<T> *)a.rstd)[t] = rstd;
        normalize_held<T, W>(a, at, rstd, held, count <= MOE_HELD * step);
    }
}

/* input -> h, rstd, normed */
template <typename T> CUDA_DEVICE void norm(const moe_call_t &a)
{
    MOE_BY_WIDTH(a.n.vectors, T, norm_rows, a);
}
MOE_KERNEL(norm, norm, moe_call_t, MOE_ROW_BOUNDS)

template <typename T, int W> CUDA_DEVICE void normalize_row(const moe_call_t &a, int64_t at, cuda_sum_t<T> rstd)
{
    moe_vector<T, W> held[MOE_HELD];

    normalize_held<T, W>(a, at, rstd, held, false);
}

/* h, rstd -> normed, once more */
template <typename T> CUDA_DEVICE void norm_again(const moe_call_t &a)
{
    for (int t = (int)blockIdx.x; t < a.n.tokens; t += (int)gridDim.x) {
        const int64_t at = (int64_t)t * a.n.hidden;
        const cuda_sum_t<T> rstd = ((const cuda_sum_t<T> *)a.rstd)[t];

        MOE_BY_WIDTH(a.n.vectors, T, normalize_row, a, at, rstd);
    }
}
MOE_KERNEL(norm_again, norm_again, moe_call_t, MOE_ROW_BOUNDS)

/* ---- scores and choice: a warp per token, lane l has experts l, l + 32, ... ---- */

/* Where expert e of value v stands: the larger value, then the lower expert; NaN is last. */
typedef struct candidate {
    unsigned long long key;
    int expert;
} candidate;

CUDA_DEVICE candidate candidate_of(double value, int expert)
{
    const unsigned long long bits = (unsigned long long)__double_as_longlong(value + 0.0);
    candidate c = {0, expert};

    if (value == value)
        c.key = bits >> 63 ? ~bits : bits | 1ull << 63;
    return c;
}

CUDA_DEVICE bool before(const candidate &a, const candidate &b)
{
    return a.key != b.key ? a.key > b.key : a.expert < b.expert;
}

CUDA_DEVICE candidate first_of_warp(candidate best)
{
    for (int step = CUDA_WARP / 2; step > 0; step /= 2) {
        const candidate other = {__shfl_xor_sync(CUDA_FULL_MASK, best.key, step),
                                 __shfl_xor_sync(CUDA_FULL_MASK, best.expert, step)};

        if (before(other, best))
            best = other;
    }
    return best;
}

template <typename W, typename S> CUDA_DEVICE void scores_of(const moe_dims_t &n, S *row, int lane)
{
    W most = -INFINITY, sum = 0;

    if (!n.softmax) {
        for (int e = lane; e < n.experts; e += CUDA_WARP)
            row[e] = (S)(1 / (1 + exponential(-(W)row[e])));
        return;
    }
    for (int e = lane; e < n.experts; e += CUDA_WARP)
        most = (W)row[e] > most ? (W)row[e] : most;
    most = cuda_warp_max(most);
    for (int e = lane; e < n.experts; e += CUDA_WARP)
        sum += exponential((W)row[e] - most);
    sum = cuda_warp_sum(sum);
    for (int e = lane; e < n.experts; e += CUDA_WARP)
        row[e] = (S)(exponential((W)row[e] - most) / sum);
}

/* What an expert is chosen by. */
template <typename T> CUDA_DEVICE double value_of_score(const moe_call_t &a, const cuda_sum_t<T> *row, int e)
{
    return (double)((moe_wide_t<T>)row[e] + (moe_wide_t<T>)cuda_float(((const T *)a.bias)[e]));
}

/* The last of the groups that a token may choose from: those before it are the others. */
template <typename T>
CUDA_DEVICE candidate last_group(const moe_call_t &a, const cuda_sum_t<T> *row, double *sums, int lane)
{
    const int size = a.n.group_experts;
    candidate last;

    for (int g = 0; g < a.n.groups; g++) {
        double sum = 0;

        last = {~0ull, -1};
        for (int j = 0; j < a.n.group_top; j++) {
            candidate best = {0, a.n.experts};

            for (int e = g * size + lane; e < (g + 1) * size; e += CUDA_WARP) {
                const candidate c = candidate_of(value_of_score<T>(a, row, e), e);

                if (before(last, c) && before(c, best))
                    best = c;
            }
            last = first_of_warp(best);
            sum += value_of_score<T>(a, row, last.expert);
        }
        if (lane == 0)
            sums[g] = sum;
    }
    __syncwarp(); /* sums are seen by all lanes */
    last = {~0ull, -1};
    for (int j = 0; j < a.n.limit; j++) {
        candidate best = {0, a.n.groups};

        for (int g = lane; g < a.n.groups; g += CUDA_WARP) {
            const candidate c = candidate_of(sums[g], g);

            if (before(last, c) && before(c, best))
                best = c;
        }
        last = first_of_warp(best);
    }
    return last;
}

/* The j-th is the first behind the one before: k different experts, whatever the numbers. */
template <typename T>
CUDA_DEVICE void choose_best(const moe_call_t &a, const cuda_sum_t<T> *row, double *sums, int *chosen, int lane)
{
    candidate last = {~0ull, -1}, group = last;

    if (a.n.groups > 0)
        group = last_group<T>(a, row, sums, lane);
    for (int j = 0; j < a.n.top_k; j++) {
        candidate best = {0, a.n.experts};

        for (int e = lane; e < a.n.experts; e += CUDA_WARP) {
            const candidate c = candidate_of(value_of_score<T>(a, row, e), e);

            if (a.n.groups > 0) {
                const int g = e / a.n.group_experts;

                if (before(group, candidate_of(sums[g], g)))
                    continue;
            }
            if (before(last, c) && before(c, best))
                best = c;
        }
        last = first_of_warp(best);
        if (lane == 0)
            chosen[j] = last.expert;
    }
}

template <typename S> CUDA_DEVICE void add_slices(const moe_call_t &a, int t, S *row, int lane)
{
    const int64_t slice = (int64_t)a.n.tokens * a.n.experts;
    const S *strips = (const S *)a.strips + (int64_t)t * a.n.experts;

    for (int e = lane; e < a.n.experts && a.slices > 0; e += CUDA_WARP) {
        S sum = strips[e];

#pragma unroll 3
        for (int s = 1; s < a.slices; s++)
            sum += strips[s * slice + e];
        row[e] = sum;
    }
}

template <typename W, typename S> CUDA_DEVICE W chosen_sum(const moe_dims_t &n, const S *row, const int *chosen)
{
    W sum = (W)MOE_TINY;

    for (int j = 0; j < n.top_k; j++)
        sum += (W)row[chosen[j]];
    return sum;
}

/* logits -> scores, chosen, weights */
template <typename T> CUDA_DEVICE void choices(const moe_call_t &a)
{
    typedef moe_wide_t<T> wide;
    typedef cuda_sum_t<T> sum_t;
    const int lane = (int)threadIdx.x % CUDA_WARP, warps = (int)blockDim.x / CUDA_WARP;

    for (int t = (int)blockIdx.x * warps + (int)threadIdx.x / CUDA_WARP; t < a.n.tokens; t += (int)gridDim.x * warps) {
        sum_t *row = (sum_t *)a.scores + (int64_t)t * a.n.experts,
              *weights = (sum_t *)a.weights + (int64_t)t * a.n.top_k;
        int *chosen = a.chosen + (int64_t)t * a.n.top_k;
        wide factor;

        add_slices(a, t, row, lane);
        scores_of<wide>(a.n, row, lane);
        choose_best<T>(a, row, a.group_sums + (int64_t)t * a.n.groups, chosen, lane);
        __syncwarp(); /* scores and chosen are seen by all lanes */
        factor = (wide)a.n.scale;
        if (a.n.normalize)
            factor /= chosen_sum<wide>(a.n, row, chosen);
        for (int j = lane; j < a.n.top_k; j += CUDA_WARP)
            weights[j] = (sum_t)(factor * (wide)row[chosen[j]]);
    }
}
MOE_KERNEL(choices, choices, moe_call_t, MOE_TOKEN_BOUNDS)

/* ---- places: a stable sort of the choices by expert, in chunks, a thread for each expert ---- */

typedef moe_vector<int, 4> four;

/* Behind the last choice there is no expert. Returns how many fours there are. */
CUDA_DEVICE int load_chunk(const moe_call_t &a, four *experts, int *count_out)
{
    const int64_t all = (int64_t)a.n.tokens * a.n.top_k, first = (int64_t)blockIdx.x * MOE_CHUNK;
    const int count = all - first < MOE_CHUNK ? (int)(all - first) : MOE_CHUNK, fours = (count + 3) / 4;

    for (int i = (int)threadIdx.x; i < fours * 4; i += (int)blockDim.x)
        experts[i / 4].at[i % 4] = i < count ? a.chosen[first + i] : -1;
    __syncthreads();
    *count_out = count;
    return fours;
}

/* How often each expert is chosen in each chunk. */
extern "C" __global__ void __launch_bounds__(256) moe_cuda_count(const moe_call_t a)
{
    __shared__ four experts[MOE_CHUNK / 4];
    int count;
    const int fours = load_chunk(a, experts, &count);

    for (int e = (int)threadIdx.x; e < a.n.experts; e += (int)blockDim.x) {
        int found = 0;

#pragma unroll 4
        for (int i = 0; i < fours; i++) {
            const four at = experts[i];

            found += (at.at[0] == e) + (at.at[1] == e) + (at.at[2] == e) + (at.at[3] == e);
        }
        a.histogram[(int64_t)blockIdx.x * a.n.experts + e] = found;
    }
}

/* Replicas of e are list[list_first[e]] ... list[list_first[e + 1] - 1], ascending. */
CUDA_DEVICE void list_replicas(const moe_call_t &a, int *room)
{
    const int experts = a.n.experts, strip = (experts + (int)blockDim.x - 1) / (int)blockDim.x;
    const int begin = (int)threadIdx.x * strip, end = begin + strip < experts ? begin + strip : experts;
    int sum = 0, at, all;

    for (int e = begin; e < end; e++) {
        int found = a.placement == 0;

        for (int r = 0; r < a.n.replicas && a.placement != 0; r++)
            found += a.placement[r] == e;
        if (found == 0)
            moe_fault(a, MOE_FAULT_PLACEMENT, e, 0);
        sum += found;
    }
    at = moe_scan(sum, room, &all);
    for (int e = begin; e < end; e++) {
        a.list_first[e] = at;
        if (a.placement == 0)
            a.list[at++] = e;
        for (int r = 0; r < a.n.replicas && a.placement != 0; r++)
            if (a.placement[r] == e)
                a.list[at++] = r;
    }
    if (threadIdx.x == 0)
        a.list_first[experts] = all;
}

/* Row i of an expert goes to its replica (i + begin) mod c. */
CUDA_DEVICE int turn_of(const moe_call_t &a, int c)
{
    return (int)(((unsigned)a.n.rank + (unsigned)a.microbatch) % (unsigned)c);
}

/* An expert's numbers in all chunks become what there is of it before each; their sum. */
CUDA_DEVICE int add_chunks(const moe_call_t &a, int e, int chunks)
{
    enum { AT_ONCE = 8 };
    int found = 0, here[AT_ONCE];

    for (int chunk = 0; chunk < chunks; chunk += AT_ONCE) {
        int *at = a.histogram + (int64_t)chunk * a.n.experts + e;

#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            here[i] = chunk + i < chunks ? at[(int64_t)i * a.n.experts] : 0;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (chunk + i < chunks)
                at[(int64_t)i * a.n.experts] = found;
            found += here[i];
        }
    }
    return found;
}

/* One block: which replicas experts have; counts of the experts; the histogram becomes places
 * within the expert; starts[r]: first place of a replica; heads for each rank. The replicas of a
 * rank are consecutive, so sorting by replica sorts by destination as well. */
extern "C" __global__ void __launch_bounds__(MOE_ALONE_THREADS, 1) moe_cuda_starts(const moe_call_t a)
{
    __shared__ int room[32];
    const int all = a.n.tokens * a.n.top_k, chunks = (all + MOE_CHUNK - 1) / MOE_CHUNK;
    const int experts = a.n.experts, threads = (int)blockDim.x;
    const int replicas = a.n.replicas, strip = (replicas + threads - 1) / threads;
    const int begin = (int)threadIdx.x * strip, end = begin + strip < replicas ? begin + strip : replicas;
    const int few = (a.n.ranks + threads - 1) / threads, rank = (int)threadIdx.x * few;
    const int last = rank + few < a.n.ranks ? rank + few : a.n.ranks;
    int sum = 0, start, lists = 0, unused;

    list_replicas(a, room);
    for (int r = (int)threadIdx.x; r < replicas; r += threads)
        a.starts[r] = 0; /* of replicas of no expert there is */
    __syncthreads();
    for (int e = (int)threadIdx.x; e < experts; e += threads) {
        const int c = a.list_first[e + 1] - a.list_first[e], found = add_chunks(a, e, chunks);

        a.counts[e] = found;
        for (int q = 0; q < c; q++) { /* rows i of `found` with (i + turn) mod c == q */
            const int first = (q - turn_of(a, c) + c) % c;

            a.starts[a.list[a.list_first[e] + q]] = found > first ? (found - first + c - 1) / c : 0;
        }
    }
    __syncthreads();
    for (int r = begin; r < end; r++)
        sum += a.starts[r];
    start = moe_scan(sum, room, &unused);
    for (int r = begin; r < end; r++) {
        const int here = a.starts[r];

        a.starts[r] = start;
        start += here;
    }
    __syncthreads(); /* starts are seen by the whole block */
    for (int p = rank; p < last; p++) {
        const int first = a.starts[p * a.n.local], next = (p + 1) * a.n.local;
        const int heads = (next < replicas ? a.starts[next] : all) - first;

        a.out_first[p] = first;
        a.out_heads[p] = heads;
        lists += MOE_LIST_ROWS(heads, a.n.row_bytes);
        if (heads > a.n.pair_rows)
            moe_fault(a, MOE_FAULT_SENT, p, heads);
    }
    lists = moe_scan(lists, room, &unused);
    for (int p = rank; p < last; p++) {
        a.out_offsets[p] = a.out_first[p] + lists; /* room for a row for each head */
        lists += MOE_LIST_ROWS(a.out_heads[p], a.n.row_bytes);
    }
}

extern "C" __global__ void __launch_bounds__(256) moe_cuda_places(const moe_call_t a)
{
    __shared__ four experts[MOE_CHUNK / 4];
    __shared__ int places[MOE_CHUNK];
    const int64_t first = (int64_t)blockIdx.x * MOE_CHUNK;
    int count;
    const int fours = load_chunk(a, experts, &count);

    for (int e = (int)threadIdx.x; e < a.n.experts; e += (int)blockDim.x) {
        int next = a.histogram[(int64_t)blockIdx.x * a.n.experts + e];

#pragma unroll 4
        for (int i = 0; i < fours; i++) {
            const four at = experts[i];

#pragma unroll
            for (int j = 0; j < 4; j++)
                if (at.at[j] == e)
                    places[4 * i + j] = next++;
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
        const int e = experts[i / 4].at[i % 4], from = a.list_first[e], c = a.list_first[e + 1] - from;
        int r = 0, place = 0;

        if (c > 0) { /* else a fault was found */
            r = a.list[from + (c > 1 ? (places[i] + turn_of(a, c)) % c : 0)];
            place = a.starts[r] + places[i] / c;
        }
        a.replica[first + i] = r;
        a.place[first + i] = place;
    }
}

/* A block for each rank: numbers the tokens that go to it, a thread takes one. */
extern "C" __global__ void __launch_bounds__(MOE_ALONE_THREADS) moe_cuda_tokens(const moe_call_t a)
{
    __shared__ int room[32];
    const int p = (int)blockIdx.x, k = a.n.top_k, first = p * a.n.local, end = first + a.n.local;
    int before = 0;

    for (int start = 0; start < a.n.tokens; start += (int)blockDim.x) { /* all threads alike */
        const int t = start + (int)threadIdx.x, choices = t < a.n.tokens ? k : 0;
        const int *replica = a.replica + (int64_t)t * k;
        int goes = 0, at, here;

#pragma unroll 8
        for (int j = 0; j < choices; j++)
            goes |= replica[j] >= first && replica[j] < end;
        at = before + moe_scan(goes, room, &here);
        before += here;
        for (int j = 0; j < choices && goes; j++)
            if (replica[j] >= first && replica[j] < end)
                a.row[(int64_t)t * k + j] = at;
    }
    if (threadIdx.x == 0)
        a.out_counts[p] = MOE_LIST_ROWS(a.out_heads[p], a.n.row_bytes) + before;
}

/* ---- auxiliary loss ---- */

template <typename W, typename S> CUDA_DEVICE W score_sum(const moe_dims_t &n, const S *row, int lane)
{
    W sum = 0;

    if (n.softmax)
        return 1;
    for (int e = lane; e < n.experts; e += CUDA_WARP)
        sum += (W)row[e];
    return (W)MOE_TINY + cuda_warp_sum(sum);
}

/* sum_e count_e p_te of each token */
template <typename T> CUDA_DEVICE void aux_tokens(const moe_call_t &a)
{
    const int lane = (int)threadIdx.x % CUDA_WARP, warps = (int)blockDim.x / CUDA_WARP;

    for (int t = (int)blockIdx.x * warps + (int)threadIdx.x / CUDA_WARP; t < a.n.tokens; t += (int)gridDim.x * warps) {
        const cuda_sum_t<T> *row = (const cuda_sum_t<T> *)a.scores + (int64_t)t * a.n.experts;
        double dotted = 0;

        for (int e = lane; e < a.n.experts; e += CUDA_WARP)
            dotted += a.counts[e] * (double)row[e];
        dotted = cuda_warp_sum(dotted) / score_sum<double>(a.n, row, lane);
        if (lane == 0)
            a.partial[t] = dotted;
    }
}
MOE_KERNEL(aux_tokens, aux_tokens, moe_call_t, MOE_TOKEN_THREADS)

/* One block, always the same order of additions. */
extern "C" __global__ void __launch_bounds__(MOE_SCAN_THREADS) moe_cuda_aux_sum(const moe_call_t a)
{
    __shared__ double room[32];
    double sum = 0;

    for (int t = (int)threadIdx.x; t < a.n.tokens; t += (int)blockDim.x)
        sum += a.partial[t];
    sum = cuda_block_sum(sum, room);
    if (threadIdx.x == 0)
        *a.aux_loss += a.n.aux * sum;
}

/* ---- backward ---- */

/* A token's gradients of its scores, one at a time. */
template <typename W> struct gradient_of_scores {
    const int *counts, *chosen;
    const double *dweights;
    int top_k;
    W aux, aux_mean, aux_sum; /* auxiliary loss: aux * (count - mean) / sum */
    W scale, mean, sum;       /* chosen: scale * (dweight - mean) / sum */

    CUDA_DEVICE W of(int e) const
    {
        W d = aux != 0 ? aux * ((W)counts[e] - aux_mean) / aux_sum : 0;

        for (int j = 0; j < top_k; j++)
            if (chosen[j] == e)
                d += scale * ((W)dweights[j] - mean) / sum;
        return d;
    }
};

template <typename T>
CUDA_DEVICE gradient_of_scores<moe_wide_t<T>> gradient_of_token(const moe_call_t &a, int t, const cuda_sum_t<T> *row,
                                                                int lane)
{
    typedef moe_wide_t<T> wide;
    gradient_of_scores<wide> g = {a.counts, a.chosen + (int64_t)t * a.n.top_k, a.dweights + (int64_t)t * a.n.top_k,
                                  a.n.top_k};

    g.aux = (wide)(a.aux_scale * a.n.aux);
    g.aux_mean = 0;
    g.aux_sum = score_sum<wide>(a.n, row, lane);
    if (!a.n.softmax) {
        for (int e = lane; e < a.n.experts; e += CUDA_WARP)
            g.aux_mean += (wide)a.counts[e] * (wide)row[e];
        g.aux_mean = cuda_warp_sum(g.aux_mean) / g.aux_sum;
    }
    g.scale = (wide)a.n.scale;
    g.mean = 0;
    g.sum = 1;
    if (a.n.normalize) {
        g.sum = chosen_sum<wide>(a.n, row, g.chosen);
        for (int j = 0; j < a.n.top_k; j++)
            g.mean += (wide)g.dweights[j] * (wide)row[g.chosen[j]];
        g.mean /= g.sum;
    }
    return g;
}

/* bf16: a gradient of the logits as the sum of two bf16, [2,T,E], for products. */
template <typename T> CUDA_DEVICE void split_logit(const moe_call_t &, int64_t, cuda_sum_t<T>)
{
}

template <> CUDA_DEVICE void split_logit<cuda_bf16>(const moe_call_t &a, int64_t i, float x)
{
    cuda_bf16 *high = (cuda_bf16 *)a.strips, *low = high + (int64_t)a.n.tokens * a.n.experts;
    const cuda_bf16 rounded = cuda_from_float<cuda_bf16>(x);

    high[i] = rounded;
    low[i] = cuda_from_float<cuda_bf16>(x - cuda_float(rounded));
}

/* dweights, scores -> gradients of the logits, in place and split */
template <typename T> CUDA_DEVICE void logits_backward(const moe_call_t &a)
{
    typedef moe_wide_t<T> wide;
    const int lane = (int)threadIdx.x % CUDA_WARP, warps = (int)blockDim.x / CUDA_WARP;

    for (int t = (int)blockIdx.x * warps + (int)threadIdx.x / CUDA_WARP; t < a.n.tokens; t += (int)gridDim.x * warps) {
        cuda_sum_t<T> *row = (cuda_sum_t<T> *)a.scores + (int64_t)t * a.n.experts;
        const gradient_of_scores<wide> g = gradient_of_token<T>(a, t, row, lane);
        wide mean = 0;

        for (int e = lane; e < a.n.experts && a.n.softmax; e += CUDA_WARP)
            mean += g.of(e) * (wide)row[e];
        mean = cuda_warp_sum(mean);
        __syncwarp(); /* every lane is done with the others' scores */
        for (int e = lane; e < a.n.experts; e += CUDA_WARP) {
            const wide s = (wide)row[e], d = g.of(e);

            row[e] = (cuda_sum_t<T>)(a.n.softmax ? (d - mean) * s : d * s * (1 - s));
            split_logit<T>(a, (int64_t)t * a.n.experts + e, row[e]);
        }
    }
}
MOE_KERNEL(logits_backward, logits_backward, moe_call_t, MOE_TOKEN_BOUNDS)

/* The same of those that are there. */
extern "C" __global__ void __launch_bounds__(256) moe_cuda_split(const moe_call_t a)
{
    const int64_t count = (int64_t)a.n.tokens * a.n.experts, step = (int64_t)gridDim.x * blockDim.x;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        split_logit<cuda_bf16>(a, i, ((const float *)a.scores)[i]);
}

template <typename T, int W> CUDA_DEVICE void norm_backward_rows(const moe_call_t &a)
{
    typedef moe_vector<T, W> vector;
    typedef moe_vector<cuda_sum_t<T>, W> sums;
    typedef moe_wide_t<T> wide;
    __shared__ wide room[32];
    const vector *gain = (const vector *)a.norm;

    for (int t = (int)blockIdx.x; t < a.n.tokens; t += (int)gridDim.x) {
        const int64_t at = (int64_t)t * a.n.hidden;
        const vector *h = (const vector *)((const T *)a.h + at), *dy = (const vector *)((const T *)a.own_dy + at);
        const sums *dn = (const sums *)((const cuda_sum_t<T> *)a.own + at);
        vector *dx = (vector *)((T *)a.dx + at);
        const cuda_sum_t<T> rstd = ((const cuda_sum_t<T> *)a.rstd)[t];
        wide dotted = 0;
        cuda_sum_t<T> mean;

        for (int i = (int)threadIdx.x; i < a.n.hidden / W; i += (int)blockDim.x) {
            const vector v = h[i], g = gain[i];
            const sums d = dn[i];

#pragma unroll
            for (int j = 0; j < W; j++)
                dotted += (wide)(d.at[j] * cuda_float(g.at[j])) * (wide)cuda_float(v.at[j]);
        }
        dotted = cuda_block_sum(dotted, room);
        mean = (cuda_sum_t<T>)(dotted / (wide)a.n.hidden * (wide)rstd * (wide)rstd);
        for (int i = (int)threadIdx.x; i < a.n.hidden / W; i += (int)blockDim.x) {
            const vector v = h[i], g = gain[i];
            const sums d = dn[i];
            vector out = dy[i];

#pragma unroll
            for (int j = 0; j < W; j++)
                out.at[j] = cuda_from_float<T>(cuda_float(out.at[j]) +
                                               rstd * (d.at[j] * cuda_float(g.at[j]) - cuda_float(v.at[j]) * mean));
            dx[i] = out;
        }
    }
}

/* gradient of n -> gradient of h */
template <typename T> CUDA_DEVICE void norm_backward(const moe_call_t &a)
{
    MOE_BY_WIDTH(a.n.vectors, T, norm_backward_rows, a);
}
MOE_KERNEL(norm_backward, norm_backward, moe_call_t, 256)

/* The same and the gradient of the gain, where a block holds a row: of a strip of tokens, so that
 * each row is read once. */
template <typename T, int W> CUDA_DEVICE void norm_strip(const moe_call_t &a)
{
    typedef moe_vector<T, W> vector;
    typedef moe_vector<cuda_sum_t<T>, W> sums;
    typedef moe_wide_t<T> wide;
    __shared__ wide room[32];
    __shared__ sums gains[MOE_HELD * 256]; /* each thread has its own */
    const vector *gain = (const vector *)a.norm;
    const int count = a.n.hidden / W, me = (int)threadIdx.x, step = (int)blockDim.x;
    const int first = (int)blockIdx.x * MOE_STRIP,
              end = first + MOE_STRIP < a.n.tokens ? first + MOE_STRIP : a.n.tokens;
    sums *strip = (sums *)((cuda_sum_t<T> *)a.strips + (int64_t)blockIdx.x * a.n.hidden);

    for (int i = me; i < count; i += step)
        gains[i] = {};
    for (int t = first; t < end; t++) {
        const int64_t at = (int64_t)t * a.n.hidden;
        vector *dx = (vector *)((T *)a.dx + at), v[MOE_HELD], out[MOE_HELD];
        const cuda_sum_t<T> rstd = ((const cuda_sum_t<T> *)a.rstd)[t];
        sums d[MOE_HELD];
        wide dotted = 0;
        cuda_sum_t<T> mean;

        moe_hold(d, (const sums *)((const cuda_sum_t<T> *)a.own + at), me, count);
        moe_hold(v, (const vector *)((const T *)a.h + at), me, count);
        moe_hold(out, (const vector *)((const T *)a.own_dy + at), me, count);
#pragma unroll
        for (int l = 0; l < MOE_HELD; l++) {
            if (me + l * step >= count)
                continue;

            const vector g = gain[me + l * step];
            sums sum = gains[me + l * step];

#pragma unroll
            for (int j = 0; j < W; j++) {
                const cuda_sum_t<T> x = cuda_float(v[l].at[j]);

                sum.at[j] += d[l].at[j] * x * rstd;
                d[l].at[j] *= cuda_float(g.at[j]);
                dotted += (wide)d[l].at[j] * (wide)x;
            }
            gains[me + l * step] = sum;
        }
        dotted = cuda_block_sum(dotted, room);
        mean = (cuda_sum_t<T>)(dotted / (wide)a.n.hidden * (wide)rstd * (wide)rstd);
#pragma unroll
        for (int l = 0; l < MOE_HELD; l++) {
            if (me + l * step >= count)
                continue;
#pragma unroll
            for (int j = 0; j < W; j++)
                out[l].at[j] =
                    cuda_from_float<T>(cuda_float(out[l].at[j]) + rstd * (d[l].at[j] - cuda_float(v[l].at[j]) * mean));
            dx[me + l * step] = out[l];
        }
    }
    for (int i = me; i < count; i += step)
        strip[i] = gains[i];
}

template <typename T> CUDA_DEVICE void norm_strips(const moe_call_t &a)
{
    MOE_BY_WIDTH(a.n.vectors, T, norm_strip, a);
}
MOE_KERNEL(norm_strips, norm_strips, moe_call_t, MOE_STRIP_BOUNDS)

/* Gradient of the gain by strips of tokens: y numbers the strip, a thread has one element. */
template <typename T> CUDA_DEVICE void gain_strips(const moe_call_t &a)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), first = (int)blockIdx.y * MOE_STRIP;
    const int end = first + MOE_STRIP < a.n.tokens ? first + MOE_STRIP : a.n.tokens;
    cuda_sum_t<T> sum = 0;

    if (i >= a.n.hidden)
        return;
    for (int t = first; t < end; t++) {
        const int64_t at = (int64_t)t * a.n.hidden + i;

        sum +=
            ((const cuda_sum_t<T> *)a.own)[at] * cuda_float(((const T *)a.h)[at]) * ((const cuda_sum_t<T> *)a.rstd)[t];
    }
    ((cuda_sum_t<T> *)a.strips)[(int64_t)blockIdx.y * a.n.hidden + i] = sum;
}
MOE_KERNEL(gain_strips, gain_strips, moe_call_t, 256)

/* A warp takes every eighth strip of 32 elements; the eight sums are added in their order. */
template <typename T> CUDA_DEVICE void gain_sum(const moe_call_t &a)
{
    const int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    const int i = (int)blockIdx.x * CUDA_WARP + lane, strips = (a.n.tokens + MOE_STRIP - 1) / MOE_STRIP;
    __shared__ cuda_sum_t<T> room[8][CUDA_WARP];
    cuda_sum_t<T> sum = 0;

#pragma unroll 8
    for (int s = warp; s < strips && i < a.n.hidden; s += 8)
        sum += ((const cuda_sum_t<T> *)a.strips)[(int64_t)s * a.n.hidden + i];
    room[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || i >= a.n.hidden)
        return;
    for (int w = 1; w < 8; w++)
        sum += room[w][lane];
    ((cuda_sum_t<T> *)a.dnorm)[i] = sum;
}
MOE_KERNEL(gain_sum, gain_sum, moe_call_t, 256)

/* Adds to the gradients of norm and bias, and of the router what slices have. */
template <typename T> CUDA_DEVICE void vectors_backward(const moe_call_t &a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, router = (int64_t)a.n.hidden * a.n.experts;
    const float *strips = (const float *)a.strips + (int64_t)a.n.tokens * a.n.experts + i;

    if (a.slices > 0 && i < router) {
        float sum = strips[0];

#pragma unroll 3
        for (int s = 1; s < a.slices; s++)
            sum += strips[s * router];
        ((float *)a.grad_router)[i] += sum;
    }
    if (i < a.n.hidden)
        ((cuda_sum_t<T> *)a.grad_norm)[i] += ((const cuda_sum_t<T> *)a.dnorm)[i];
    if (i < a.n.experts)
        ((cuda_sum_t<T> *)a.grad_bias)[i] += (cuda_sum_t<T>)a.counts[i];
}
MOE_KERNEL(vectors_backward, vectors_backward, moe_call_t, 256)
