/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_sums.c: dp.comm/1: sums over the group, and everything at once. */
#include "comm_rig.h"
#include "guard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Element i on rank r: magnitudes far apart, so that the order of additions shows in the bits. */
static double element(int32_t rank, size_t i)
{
    uint64_t state = (uint64_t)rank * 1000003 + i;
    uint64_t bits = conform_random(&state);
    double value = (double)(int64_t)bits / 9e18;

    return value * (double)(UINT64_C(1) << (bits % 40));
}

/* Of 60 bits: a double does not hold it. */
static int64_t wide_integer(double value)
{
    int64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits / 16;
}

static void set_element(void *data, size_t i, dp_dtype_t dtype, double value)
{
    if (dtype == DP_F32)
        ((float *)data)[i] = (float)value;
    else if (dtype == DP_F64)
        ((double *)data)[i] = value;
    else
        ((int64_t *)data)[i] = wide_integer(value);
}

/* sum = sum + the element of `rank`, in the arithmetic of the dtype. */
static void add_element(void *sum, size_t i, dp_dtype_t dtype, int32_t rank)
{
    union {
        float f32;
        double f64;
        int64_t i64;
    } x;

    set_element(&x, 0, dtype, element(rank, i));
    if (dtype == DP_F32)
        ((float *)sum)[i] += x.f32;
    else if (dtype == DP_F64)
        ((double *)sum)[i] += x.f64;
    else
        ((int64_t *)sum)[i] += x.i64;
}

static const char *const names[] = {"f32", "f64", "bf16", "i64"};

static void sums_have_the_bits_of_a_serial_sum(conform_t *t)
{
    static const size_t counts[] = {1, 2, 3, 5, 64, 1000, 4097, 65537, 300001};
    static const dp_dtype_t dtypes[] = {DP_F32, DP_F64, DP_I64};
    /* kernels may be emulated: less for them */
    bool launches = (t->device->caps & DP_DEVICE_CAP_LAUNCH) != 0;
    const size_t staging[] = {launches ? 0 : 300000, 1, launches ? 20000 : 40000};
    unsigned char *data = malloc(300001 * 8 + 16), *expected = malloc(300001 * 8), *there;

    for (int k = 0; k < 3; k++) {
        /* with the least of staging there are many blocks */
        size_t most = k == 1 ? 4097 : launches ? 300001 : 20001;
        const char *const instances[] = {"sums0", "sums1", "sums2"};
        rig_t rig;

        if (!conform_rig_open(&rig, t, instances[k], staging[k]) ||
            (there = conform_room(&rig, 300001 * 8 + 16)) == NULL)
            return;
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]) && (c == 0 || counts[c - 1] < most); c++)
            for (int d = 0; d < 3; d++) {
                size_t count = counts[c] < most ? counts[c] : most, bytes = count * dp_dtype_bytes(dtypes[d]);

                for (size_t i = 0; i < count; i++) {
                    set_element(data, i, dtypes[d], element(t->rank, i));
                    set_element(expected, i, dtypes[d], element(0, i));
                    for (int32_t r = 1; r < t->size; r++)
                        add_element(expected, i, dtypes[d], r);
                }
                memset(data + bytes, 0xa5, 16);
                EXPECT_OK(t, conform_move(&rig, there, data, bytes + 16));
                EXPECT_OK(t, rig.vt->all_reduce(rig.comm, there, count, dtypes[d], rig.streams[DP_LANE_REDUCE]));
                EXPECT_OK(t, conform_synchronize_all(&rig));
                EXPECT_OK(t, conform_move(&rig, data, there, bytes + 16));
                EXPECT(
                    t, memcmp(data, expected, bytes) == 0,
                    "the sum of %zu elements of %s over %d ranks (reduce_bytes %zu) has not the bits of adding rank 0, 1, ...",
                    count, names[dtypes[d]], t->size, staging[k]);
                for (int i = 0; i < 16; i++)
                    EXPECT(t, data[bytes + (size_t)i] == 0xa5, "a sum of %zu elements of %s has written behind the end",
                           count, names[dtypes[d]]);
            }
        EXPECT_STATUS(t, rig.vt->all_reduce(rig.comm, there, 0, DP_F32, rig.streams[DP_LANE_REDUCE]), DP_OK,
                      "a sum of no elements");
        EXPECT_OK(t, conform_synchronize_all(&rig));
        conform_rig_close(&rig);
    }
    free(data);
    free(expected);
}

/* Parts of `count` elements, of which `unit` stay together: nothing for rank 0 in way 0, all for
 * the last rank in way 1, else about the same for each. */
static void set_bounds(size_t *bounds, int32_t size, size_t count, size_t unit, int way)
{
    bounds[0] = 0;
    for (int32_t r = 1; r < size; r++)
        bounds[r] = way == 0   ? count / (size_t)size * (size_t)(r - 1) / unit * unit
                    : way == 1 ? 0
                               : count / (size_t)size * (size_t)r / unit * unit;
    bounds[size] = count;
}

/* Between them a sum of all, which may use the same staging. */
static void parts_have_the_bits_of_a_sum(conform_t *t)
{
    enum { MOST = 70001 };
    static const size_t counts[] = {1, 3, 64, 1000, 4097, MOST};
    static const dp_dtype_t dtypes[] = {DP_F32, DP_F64, DP_I64};
    /* kernels may be emulated */
    const size_t most = (t->device->caps & DP_DEVICE_CAP_LAUNCH) != 0 ? MOST : 4097;
    unsigned char *data = malloc(MOST * 8), *expected = malloc(MOST * 8), *there;
    double one = 1, *sum;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "parts", 4096) || (there = conform_room(&rig, MOST * 8)) == NULL ||
        (sum = conform_room(&rig, sizeof(*sum))) == NULL)
        return;
    if (rig.vt->reduce_scatter == NULL) {
        conform_rig_close(&rig);
        conform_skip(t, "no reduce_scatter: the host has it made of all_reduce");
        free(data);
        free(expected);
        return;
    }
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]) && counts[c] <= most; c++)
        for (int k = 0; k < 9; k++) {
            const dp_dtype_t dtype = dtypes[k % 3];
            size_t bounds[CONFORM_RANKS_MAX + 1], size = dp_dtype_bytes(dtype), begin, end;

            for (size_t i = 0; i < counts[c]; i++) {
                set_element(data, i, dtype, element(t->rank, i));
                set_element(expected, i, dtype, element(0, i));
                for (int32_t r = 1; r < t->size; r++)
                    add_element(expected, i, dtype, r);
            }
            set_bounds(bounds, t->size, counts[c], 1, k / 3);
            EXPECT_OK(t, conform_move(&rig, there, data, counts[c] * size));
            EXPECT_OK(t, conform_move(&rig, sum, &one, sizeof(one)));
            EXPECT_OK(t, rig.vt->reduce_scatter(rig.comm, there, bounds, dtype, rig.streams[DP_LANE_REDUCE]));
            EXPECT_OK(t, rig.vt->all_reduce(rig.comm, sum, 1, DP_F64, rig.streams[DP_LANE_REDUCE]));
            EXPECT_OK(t, conform_synchronize_all(&rig));
            EXPECT_OK(t, conform_move(&rig, data, there, counts[c] * size));
            EXPECT_OK(t, conform_move(&rig, &one, sum, sizeof(one)));
            begin = bounds[t->rank] * size, end = bounds[t->rank + 1] * size;
            EXPECT(t, memcmp(data + begin, expected + begin, end - begin) == 0,
                   "elements %zu to %zu of a sum of %zu elements of %s have not the bits of adding rank 0, 1, ...",
                   bounds[t->rank], bounds[t->rank + 1], counts[c], names[dtype]);
            EXPECT(t, one == t->size, "a sum of ones behind reduce_scatter came to %g", one);
            one = 1;
        }
    conform_rig_close(&rig);
    free(data);
    free(expected);
}

static unsigned char byte_of(int32_t rank, size_t i)
{
    return (unsigned char)((size_t)(rank + 1) * 37 + i * 11 + (i >> 8));
}

static void parts_are_gathered(conform_t *t)
{
    enum { MOST = 400000 };
    static const size_t counts[] = {8, 64, 4096, 20008, MOST};
    const size_t most = (t->device->caps & DP_DEVICE_CAP_LAUNCH) != 0 ? MOST : 20008;
    unsigned char *data = malloc(MOST + 8), *there;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "gather", 4096) || (there = conform_room(&rig, MOST + 8)) == NULL)
        return;
    if (rig.vt->all_gather == NULL) {
        conform_rig_close(&rig);
        conform_skip(t, "no all_gather: the host has it made of all_reduce");
        free(data);
        return;
    }
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]) && counts[c] <= most; c++)
        for (int way = 0; way < 3; way++) {
            size_t bounds[CONFORM_RANKS_MAX + 1];

            set_bounds(bounds, t->size, counts[c], 8, way);
            memset(data, 0xa5, counts[c] + 8);
            for (size_t i = bounds[t->rank]; i < bounds[t->rank + 1]; i++)
                data[i] = byte_of(t->rank, i);
            EXPECT_OK(t, conform_move(&rig, there, data, counts[c] + 8));
            EXPECT_OK(t, rig.vt->all_gather(rig.comm, there, bounds, rig.streams[DP_LANE_REDUCE]));
            EXPECT_OK(t, conform_synchronize_all(&rig));
            EXPECT_OK(t, conform_move(&rig, data, there, counts[c] + 8));
            for (int32_t r = 0; r < t->size; r++)
                for (size_t i = bounds[r]; i < bounds[r + 1]; i++)
                    EXPECT(t, data[i] == byte_of(r, i), "byte %zu of %zu, of rank %d, is %d instead of %d", i,
                           counts[c], r, data[i], byte_of(r, i));
            for (size_t i = 0; i < 8; i++)
                EXPECT(t, data[counts[c] + i] == 0xa5, "all_gather of %zu bytes has written behind the end", counts[c]);
        }
    conform_rig_close(&rig);
    free(data);
}

static void parts_that_differ_are_found_out(conform_t *t)
{
    const size_t bounds[3] = {0, t->rank == 0 ? 20 : 16, 40}, falling[3] = {0, 40, 32};
    double *data;
    dp_status_t status;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "apart", 0) || (data = conform_room(&rig, 40 * sizeof(double))) == NULL)
        return;
    if (rig.vt->reduce_scatter == NULL) {
        conform_rig_close(&rig);
        conform_skip(t, "no reduce_scatter: the host has it made of all_reduce");
        return;
    }
    EXPECT_STATUS(t, rig.vt->reduce_scatter(rig.comm, data, falling, DP_F64, rig.streams[DP_LANE_REDUCE]),
                  DP_ERR_INVALID, "parts that begin behind their end");
    conform_forget_error();
    status = rig.vt->reduce_scatter(rig.comm, data, bounds, DP_F64, rig.streams[DP_LANE_REDUCE]);
    if (status == DP_OK)
        status = conform_synchronize_all(&rig);
    EXPECT(
        t, status == DP_ERR_PROTOCOL || (status < 0 && dp_group_health(t->group) < 0),
        "parts of 20 elements on rank 0 and of 16 on rank 1 have to end with DP_ERR_PROTOCOL, they ended with %s: %s",
        dp_status_name(status), conform_last_error());
    conform_abort(t, DP_ERR_PROTOCOL, "parts that differ");
    conform_rig_close(&rig);
}

/* The sum of negative zeros is a negative zero: it begins with rank 0's element, not with 0. */
static void a_sum_begins_with_rank_0(conform_t *t)
{
    double doubles[3] = {-0.0, -0.0, 1}, *doubles_there;
    float singles[3] = {-0.0f, -0.0f, 1}, *singles_there;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "zeros", 0) || (doubles_there = conform_room(&rig, sizeof(doubles))) == NULL ||
        (singles_there = conform_room(&rig, sizeof(singles))) == NULL)
        return;
    EXPECT_OK(t, conform_move(&rig, doubles_there, doubles, sizeof(doubles)));
    EXPECT_OK(t, conform_move(&rig, singles_there, singles, sizeof(singles)));
    EXPECT_OK(t, rig.vt->all_reduce(rig.comm, doubles_there, 3, DP_F64, rig.streams[DP_LANE_REDUCE]));
    EXPECT_OK(t, rig.vt->all_reduce(rig.comm, singles_there, 3, DP_F32, rig.streams[DP_LANE_REDUCE]));
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_OK(t, conform_move(&rig, doubles, doubles_there, sizeof(doubles)));
    EXPECT_OK(t, conform_move(&rig, singles, singles_there, sizeof(singles)));
    EXPECT(t, doubles[2] == t->size && singles[2] == (float)t->size, "the sum of ones over %d ranks came to %g and %g",
           t->size, doubles[2], (double)singles[2]);
    for (int i = 0; i < 2; i++)
        EXPECT(t, signbit(doubles[i]) && signbit(singles[i]),
               "the sum of -0 over all ranks came to +0: it has to begin with the element of rank 0, not with 0");
    conform_rig_close(&rig);
}

/* A backend may sum bf16 or refuse it. */
static void other_types_are_summed_or_refused(conform_t *t)
{
    uint16_t values[4] = {0x3f80, 0x4000, 0x0000, 0xbf80}, *there; /* 1, 2, 0, -1 */
    dp_status_t status;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "types", 0) || (there = conform_room(&rig, sizeof(values))) == NULL)
        return;
    EXPECT_OK(t, conform_move(&rig, there, values, sizeof(values)));
    conform_forget_error();
    status = rig.vt->all_reduce(rig.comm, there, 4, DP_BF16, rig.streams[DP_LANE_REDUCE]);
    EXPECT(t, status == DP_OK || status == DP_ERR_UNSUPPORTED,
           "a sum of bf16 has to be DP_OK or DP_ERR_UNSUPPORTED, it is %s: %s", dp_status_name(status),
           conform_last_error());
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_OK(t, conform_move(&rig, values, there, sizeof(values)));
    EXPECT(t, status != DP_OK || t->size != 2 || (values[0] == 0x4000 && values[1] == 0x4080 && values[3] == 0xc000),
           "the sum of 1, 2, -1 in bf16 over two ranks has the bits %04x, %04x, %04x", values[0], values[1], values[3]);
    conform_rig_close(&rig);
}

static void sums_follow_each_other(conform_t *t)
{
    enum { COUNT = 777, SUMS = 60 };
    double(*data)[COUNT] = malloc(sizeof(double[SUMS][COUNT])), (*there)[COUNT];
    rig_t rig;

    if (!conform_rig_open(&rig, t, "many", 4096) || (there = conform_room(&rig, sizeof(double[SUMS][COUNT]))) == NULL)
        return;
    for (int k = 0; k < SUMS; k++)
        for (int i = 0; i < COUNT; i++)
            data[k][i] = (double)((t->rank + 1) * (i + k));
    EXPECT_OK(t, conform_move(&rig, there, data, sizeof(double[SUMS][COUNT])));
    for (int k = 0; k < SUMS; k++) {
        EXPECT_OK(t, conform_nap_now_and_then(&rig, rig.streams[DP_LANE_REDUCE]));
        EXPECT_OK(t, rig.vt->all_reduce(rig.comm, there[k], COUNT, DP_F64, rig.streams[DP_LANE_REDUCE]));
    }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_OK(t, conform_move(&rig, data, there, sizeof(double[SUMS][COUNT])));
    for (int k = 0; k < SUMS; k++)
        for (int i = 0; i < COUNT; i++)
            EXPECT(t, data[k][i] == (double)(t->size * (t->size + 1) / 2 * (i + k)),
                   "element %d of sum %d of %d that followed each other is %g, not %d", i, k, SUMS, data[k][i],
                   t->size * (t->size + 1) / 2 * (i + k));
    conform_rig_close(&rig);
    free(data);
}

/* Two instances of the same ranks sum at the same time, each on its own stream. */
static void instances_sum_side_by_side(conform_t *t)
{
    enum { COUNT = 3000, SUMS = 30 };
    double *data = malloc(COUNT * sizeof(double)), *there[2][SUMS];
    dp_comm_t *comms[2];
    rig_t rig;

    if (!conform_rig_open(&rig, t, "left", 4096))
        return;
    comms[0] = rig.comm;
    EXPECT_OK(t, conform_rig_open_comm(&rig, "right", t->rank, t->size, NULL, 4096));
    comms[1] = rig.comm;
    for (int c = 0; c < 2; c++) {
        double *all = conform_room(&rig, sizeof(double[SUMS][COUNT]));

        if (all == NULL)
            return;
        for (int k = 0; k < SUMS; k++) {
            there[c][k] = all + (size_t)k * COUNT;
            for (int i = 0; i < COUNT; i++)
                data[i] = (double)((t->rank + 1) * (i + k)) * (c == 0 ? 1 : -3);
            EXPECT_OK(t, conform_move(&rig, there[c][k], data, COUNT * sizeof(double)));
        }
    }
    for (int k = 0; k < SUMS; k++)
        for (int c = 0; c < 2; c++)
            EXPECT_OK(t, rig.vt->all_reduce(comms[c], there[c][k], COUNT, DP_F64,
                                            rig.streams[c == 0 ? DP_LANE_REDUCE : DP_LANE_P2P]));
    EXPECT_OK(t, conform_synchronize_all(&rig));
    for (int c = 0; c < 2; c++)
        for (int k = 0; k < SUMS; k++) {
            EXPECT_OK(t, conform_move(&rig, data, there[c][k], COUNT * sizeof(double)));
            for (int i = 0; i < COUNT; i++) {
                double right = (double)(t->size * (t->size + 1) / 2 * (i + k)) * (c == 0 ? 1 : -3);

                EXPECT(t, data[i] == right,
                       "two instances summed at once on separate streams: element %d of sum %d of one is %g, not %g", i,
                       k, data[i], right);
            }
        }
    rig.vt->close(comms[1]);
    rig.comm = comms[0];
    conform_rig_close(&rig);
    free(data);
}

/* Data are summed as they are when the stream gets there, and read no further than they go. */
static void a_sum_keeps_to_its_data(conform_t *t)
{
    static const size_t counts[] = {1, 7, 1000, 3001};
    double *plain;
    guard_t guard;
    gate_t gate;
    rig_t rig;

    if (strcmp(t->device->kind, "cpu") != 0) {
        conform_skip(t, "memory of a %s device cannot be fenced", t->device->kind);
        return;
    }
    if (!conform_rig_open(&rig, t, "fenced", 4096) || (plain = conform_room(&rig, sizeof(double))) == NULL)
        return;
    EXPECT(t, conform_guard_open(&guard, 3001 * sizeof(double)), "no memory for a fence");
    EXPECT(t, conform_gate_make(&gate, rig.device_vt, rig.device, t->host) == DP_OK,
           "nothing holds a stream of this device");
    for (int k = 0; k < 4; k++) {
        double *data = (double *)(void *)guard.end - counts[k];

        for (size_t i = 0; i < counts[k]; i++)
            data[i] = (double)i;
        EXPECT_OK(t, rig.vt->all_reduce(rig.comm, data, counts[k], DP_F64, rig.streams[DP_LANE_REDUCE]));
        EXPECT_OK(t, conform_synchronize_all(&rig));
        for (size_t i = 0; i < counts[k]; i++)
            EXPECT(t, data[i] == (double)i * t->size, "element %zu of a sum of %zu is %g", i, counts[k], data[i]);
    }
    EXPECT_OK(t, conform_gate_hold(&gate, rig.streams[DP_LANE_REDUCE]));
    EXPECT_OK(t, rig.vt->all_reduce(rig.comm, plain, 1, DP_F64, rig.streams[DP_LANE_REDUCE]));
    plain[0] = 1; /* before the stream gets there */
    conform_gate_open(&gate);
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT(t, plain[0] == t->size, "ones written after the call and before its stream got there were summed to %g",
           plain[0]);
    conform_gate_free(&gate);
    conform_rig_close(&rig);
    conform_guard_close(&guard);
}

/* A rank that hears of it ends the job, as an engine would; that may be one of them or both. */
static void sums_of_different_things_are_found_out(conform_t *t)
{
    double *data;
    dp_status_t status;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "unlike", 0) || (data = conform_room(&rig, 40 * sizeof(double))) == NULL)
        return;
    conform_forget_error();
    status = rig.vt->all_reduce(rig.comm, data, t->rank == 0 ? 40 : 39, DP_F64, rig.streams[DP_LANE_REDUCE]);
    if (status == DP_OK)
        status = conform_synchronize_all(&rig);
    EXPECT(t, status == DP_ERR_PROTOCOL || (status < 0 && dp_group_health(t->group) < 0),
           "a sum of 40 elements on rank 0 and of 39 on rank 1 has to end with DP_ERR_PROTOCOL, it ended with %s: %s",
           dp_status_name(status), conform_last_error());
    conform_abort(t, DP_ERR_PROTOCOL, "sums of different things");
    conform_rig_close(&rig);
}

/* ---- everything at once ---- */

static void all_traffic_at_once(conform_t *t)
{
    enum { BYTES = 2000, TIMES = 30 };
    int32_t next = (t->rank + 1) % t->size, previous = (t->rank + t->size - 1) % t->size;
    float sums[TIMES], *sums_there;
    const dp_lane_t lanes[2] = {DP_LANE_ALL_TO_ALL, DP_LANE_COMPUTE};
    dp_exchange_t *x[2] = {NULL, NULL};
    line_t to, from;
    rows_t out[2], in;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "all", 0) || !conform_rows_open(&rig, 64, &out[0]) ||
        !conform_rows_open(&rig, 48, &out[1]) || (sums_there = conform_room(&rig, sizeof(sums))) == NULL)
        return;
    for (int32_t i = 0; i < TIMES; i++)
        sums[i] = (float)(t->rank + i);
    EXPECT_OK(t, conform_move(&rig, sums_there, sums, sizeof(sums)));
    EXPECT_OK(t, conform_line_open(&rig, 0, next, true, 2, BYTES, &to));
    EXPECT_OK(t, conform_line_open(&rig, 0, previous, false, 2, BYTES, &from));
    for (uint32_t k = 0; k < 2; k++)
        if (conform_rig_exchange(&rig, k, out[k].row_bytes, 2, &x[k]) == DP_ERR_UNSUPPORTED)
            x[k] = NULL;
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t i = 0; i < TIMES; i++) {
        for (int k = 0; k < 2 && x[k] != NULL; k++) {
            dp_stream_t *s = rig.streams[lanes[k]];

            EXPECT_OK(t, conform_exchange_rows(&rig, x[k], &out[k], i, s, &in));
            EXPECT_OK(t, conform_look_at_rows(&rig, &in, s));
            EXPECT_OK(t, rig.vt->exchange_release(x[k], i, s));
        }
        EXPECT_OK(t, conform_send_message(&to, i, BYTES));
        EXPECT_OK(t, conform_receive_message(&from, i, BYTES));
        EXPECT_OK(t, rig.vt->all_reduce(rig.comm, &sums_there[i], 1, DP_F32, rig.streams[DP_LANE_REDUCE]));
    }
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_OK(t, conform_move(&rig, sums, sums_there, sizeof(sums)));
    EXPECT(t, rig.wrong == 0,
           "messages, exchanges and sums at once: %llu bytes and counts are not those that were sent",
           (unsigned long long)rig.wrong);
    for (int32_t i = 0; i < TIMES; i++)
        EXPECT(t, sums[i] == (float)(t->size * (t->size - 1) / 2 + t->size * i),
               "messages, exchanges and sums at once: sum %d is %g", i, (double)sums[i]);
    conform_rig_close(&rig);
}

/* Ranks {0, 2} and {1, 3} form groups; several instances live side by side, and messages name ranks
 * of the job. */
static void groups_of_some_ranks(conform_t *t)
{
    int32_t world[2] = {t->rank % 2, t->rank % 2 + 2}, rank = t->rank / 2;
    dp_message_tag_t sent = conform_tag_of(0, 8), wanted = conform_tag_of(0, 4);
    dp_comm_t *whole;
    double one[2] = {1, 1}, *there;
    const void *data;
    char peer[16];
    line_t line;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "whole", 0) || (there = conform_room(&rig, sizeof(one))) == NULL)
        return;
    EXPECT_OK(t, conform_move(&rig, there, one, sizeof(one)));
    whole = rig.comm;
    EXPECT_OK(t, conform_rig_open_comm(&rig, t->rank % 2 == 0 ? "even" : "odd", rank, 2, world, 0));
    EXPECT_OK(t, conform_line_open(&rig, 0, 1 - rank, rank == 0, 1, 8, &line));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    EXPECT_OK(t, rig.vt->all_reduce(whole, &there[0], 1, DP_F64, rig.streams[DP_LANE_REDUCE]));
    EXPECT_OK(t, rig.vt->all_reduce(rig.comm, &there[1], 1, DP_F64, rig.streams[DP_LANE_REDUCE]));
    EXPECT_OK(t, conform_synchronize_all(&rig));
    EXPECT_OK(t, conform_move(&rig, one, there, sizeof(one)));
    EXPECT(t, one[0] == 4 && one[1] == 2, "ones summed over 4 ranks came to %g, over two of them to %g", one[0],
           one[1]);
    EXPECT(t, conform_meet(t), "another rank failed");
    EXPECT_OK(t, conform_begin_bundle(&rig, line.way));
    if (rank == 0)
        EXPECT_OK(t, rig.vt->send(line.end, there, &sent, line.way));
    else
        EXPECT_OK(t, rig.vt->recv(line.end, &wanted, &data, line.way));
    EXPECT_OK(t, conform_end_bundle(&rig, line.way));
    if (t->rank == 3) { /* the first cause is the job's: one of the two pairs is enough */
        EXPECT_STATUS(t, rig.device_vt->synchronize(line.way, -1), DP_ERR_PROTOCOL,
                      "a message of 8 bytes where 4 were expected");
        snprintf(peer, sizeof(peer), "rank %d", world[0]);
        EXPECT(t, strstr(conform_last_error(), peer) != NULL,
               "the message of DP_ERR_PROTOCOL has to name the peer by its number in the job (%s), it is: %s", peer,
               conform_last_error());
    }
    EXPECT(t, conform_meet(t), "another rank failed");
    conform_abort(t, DP_ERR_PROTOCOL, "a wrong message");
    (void)conform_synchronize_all(&rig);
    rig.vt->close(rig.comm);
    rig.comm = whole;
    conform_rig_close(&rig);
}

/* Ten round trips: a wait ends when what it waits for is there, not at the next look of some
 * clock. */
static void waits_end_at_once(conform_t *t)
{
    enum { TRIPS = 10 };
    int64_t begin, took;
    line_t to, from;
    rig_t rig;

    if (!conform_rig_open(&rig, t, "trips", 0))
        return;
    EXPECT_OK(t, conform_line_open(&rig, 0, 1 - t->rank, true, 2, 64, &to));
    EXPECT_OK(t, conform_line_open(&rig, 0, 1 - t->rank, false, 2, 64, &from));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    EXPECT(t, conform_meet(t), "the other rank failed");
    begin = t->host->now_ns(t->host);
    for (uint32_t i = 0; i < TRIPS; i++) {
        if (t->rank == 0)
            EXPECT_OK(t, conform_send_message(&to, i, 64));
        EXPECT_OK(t, conform_receive_message(&from, i, 64));
        EXPECT_OK(t, conform_synchronize_all(&rig));
        if (t->rank == 1)
            EXPECT_OK(t, conform_send_message(&to, i, 64));
        EXPECT_OK(t, conform_synchronize_all(&rig));
        took = t->host->now_ns(t->host) - begin;
        EXPECT(t, took < conform_scaled_ns(3),
               "%u round trips of 64 bytes took %.1f s: a wait has to end when what it waits "
               "for is there",
               i + 1, (double)took * 1e-9);
    }
    conform_rig_close(&rig);
}

const conform_case_t conform_comm_sums[] = {
    {CONFORM_CASE(
         sums_have_the_bits_of_a_serial_sum, 5,
         "Sums of f32, f64 and i64 have the bits of adding rank 0, 1, 2, ... and touch nothing behind the end."),
     .flags = CONFORM_ALL_SIZES},
    {CONFORM_CASE(parts_have_the_bits_of_a_sum, 3,
                  "reduce_scatter gives each rank its part of a sum, empty parts included, with the bits of that sum."),
     .flags = CONFORM_ALL_SIZES},
    {CONFORM_CASE(parts_are_gathered, 3, "all_gather gives each rank the parts of all, and touches nothing behind."),
     .flags = CONFORM_ALL_SIZES},
    {CONFORM_CASE(parts_that_differ_are_found_out, 2,
                  "Parts of reduce_scatter that differ between ranks are DP_ERR_PROTOCOL where it is found out.")},
    {CONFORM_CASE(a_sum_begins_with_rank_0, 3, "A sum begins with rank 0's element: that of -0 is -0.")},
    {CONFORM_CASE(other_types_are_summed_or_refused, 2, "A sum of bf16 is right or DP_ERR_UNSUPPORTED.")},
    {CONFORM_CASE(sums_follow_each_other, 3, "Sums put on a stream one after the other do not mix.")},
    {CONFORM_CASE(instances_sum_side_by_side, 3, "Two instances of a process sum at the same time and do not mix.")},
    {CONFORM_CASE(a_sum_keeps_to_its_data, 2,
                  "A sum reads its data when its stream gets there, and reads and writes no byte more.")},
    {CONFORM_CASE(sums_of_different_things_are_found_out, 2,
                  "A sum of 40 elements on one rank and 39 on another is DP_ERR_PROTOCOL where it is found out.")},
    {CONFORM_CASE(all_traffic_at_once, 4,
                  "Messages, exchanges and sums at the same time on separate streams do not disturb each other.")},
    {CONFORM_CASE(groups_of_some_ranks, 4,
                  "Instances over some of the ranks live side by side, and messages name ranks of the job.")},
    {CONFORM_CASE(waits_end_at_once, 2, "Ten round trips of a small message take less than three seconds.")},
    {0},
};
