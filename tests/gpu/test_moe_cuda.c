/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_moe_cuda.c: moe_cuda beyond the contract (test_conform_moe_cuda): moe_cases.h, each way of
 * multiplying, any length of a micro-batch, room for rows by the capacity, calls as graphs. */
#include "gpu.h"

#include "moe_cuda/cutlass/products.h"
#include "tests/support/debug.h"
#include "tests/unit/moe/moe_cases.h"

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

static const dp_dtype_t dtypes[] = {DP_F64, DP_F32, DP_BF16};
static const char *const ways[] = {"grouped", "plain", "cutlass"};

/* moe_cuda_cutlass.so as this build made it; NULL: CUTLASS was not there. */
static const char *cutlass_module(void)
{
    static char path[4096];

    snprintf(path, sizeof(path), "%s/.libs/moe_cuda_cutlass.so", getenv("DP_TEST_BUILDDIR"));
    return access(path, R_OK) == 0 ? path : NULL;
}

/* The last is there where its module is. */
static int count_ways(void)
{
    return debug_entry("lib.cutlass") != NULL || cutlass_module() != NULL ? 3 : 2;
}

/* ---- ways of multiplying ---- */

/* Chooses a way. False: this machine lacks what it needs, which its refusal has to name; any other
 * refusal fails the test. The ways that are left out are counted by NAME_is_here below. */
static bool way_is_here(lab_t *lab, int way)
{
    static const char *const lacks[] = {NULL, NULL, "need compute capability 9.0"};
    const layer_t layer = moe_layer(DP_BF16, 8, 16, 2, 1, 8, 0);
    block_t b = {0};

    debug_set("moe_cuda.products", ways[way]);
    if (conform_block_open(&b, lab, &layer, 83))
        return conform_block_close(&b);
    if (conform_failed(lab->t) || lacks[way] == NULL || strstr(conform_last_error(), lacks[way]) == NULL)
        conform_fail(lab->t, __FILE__, __LINE__, "%s does not open: %s", ways[way], conform_last_error());
    return false;
}

static void cutlass_is_here(conform_t *t)
{
    lab_t lab;

    if (count_ways() < 3)
        conform_skip(t, "this build had no CUTLASS");
    else if (conform_lab_open(&lab, t)) {
        if (!way_is_here(&lab, 2) && !conform_failed(t))
            conform_skip(t, "%s", conform_last_error());
        else
            conform_lab_close(&lab);
    }
}

/* Opens a block by the way that was chosen, which is here. */
static bool opens(lab_t *lab, block_t *b, const layer_t *layer)
{
    if (conform_block_open(b, lab, layer, 83))
        return true;
    if (!conform_failed(lab->t))
        conform_fail(lab->t, __FILE__, __LINE__, "%s", conform_last_error());
    return false;
}

/* Sizes that are no multiple of anything, whole vectors of rows, several tiles and stages and ends
 * inside of them, all rows for one expert and for all. CUTLASS's products are for bf16 alone; some
 * of the sizes do not fit them. */
static void each_way_of_multiplying(conform_t *t)
{
    static const uint32_t sizes[][6] = {
        /* T, d, E, k, f, shared */
        {1, 1, 1, 1, 1, 0},
        {37, 21, 8, 3, 13, 2},
        {33, 16, 8, 2, 24, 1},
        {9, 16, 20, 20, 8, 0},
    };
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int way = 0; way < count_ways() && !conform_failed(t); way++) {
        if (!way_is_here(&lab, way))
            continue;
        for (int i = 0; i < 3 * 4; i++) {
            const uint32_t *s = sizes[i % 4];
            const layer_t layer = moe_layer(dtypes[i / 4], s[0], s[1], s[2], s[3], s[4], s[5]);
            block_t b = {0};

            if (way >= 2 && i / 4 < 2)
                continue;
            if (!opens(&lab, &b, &layer) || !moe_layer_is_right(&b, false))
                return;
        }
    }
    conform_lab_close(&lab);
}

static void larger_products(conform_t *t)
{
    const struct {
        int way;
        layer_t layer;
    } products[] = {
        {0, moe_layer(DP_BF16, 150, 72, 4, 2, 136, 0)}, {0, moe_layer(DP_BF16, 40, 136, 2, 1, 264, 1)},
        {1, moe_layer(DP_F32, 150, 72, 4, 2, 136, 0)},  {2, moe_layer(DP_BF16, 40, 136, 2, 1, 264, 1)},
        {2, moe_layer(DP_BF16, 150, 72, 8, 2, 136, 1)},
    };
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 5 && !conform_failed(t); i++) {
        block_t b = {0};

        if (products[i].way >= count_ways() || !way_is_here(&lab, products[i].way))
            continue;
        if (!opens(&lab, &b, &products[i].layer) || !moe_layer_is_right(&b, false))
            return;
    }
    conform_lab_close(&lab);
}

/* By elements and by vectors; the router's products in several slices. */
static void rows_are_longer_than_a_block_holds(conform_t *t)
{
    const layer_t layers[] = {moe_layer(DP_F32, 5, 1031, 3, 2, 7, 1), moe_layer(DP_BF16, 5, 8200, 8, 2, 8, 0)};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 2 && !conform_failed(t); i++) {
        block_t b = {0};

        if (!way_is_here(&lab, 0))
            return;
        if (!opens(&lab, &b, &layers[i]) || !moe_layer_is_right(&b, false))
            return;
    }
    conform_lab_close(&lab);
}

/* One token, the ends of tiles and of strips, all tokens. */
static void each_way_takes_any_length(conform_t *t)
{
    static const uint32_t tokens[] = {1, 63, 65, 69, 70};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int way = 0; way < count_ways() && !conform_failed(t); way++) {
        if (!way_is_here(&lab, way))
            continue;
        for (int i = 0; i < 5; i++) {
            layer_t layer = moe_layer(DP_BF16, 70, 16, 8, 2, 24, 1);
            block_t b = {0};

            layer.tokens = tokens[i];
            if (!opens(&lab, &b, &layer) || !moe_layer_is_right(&b, false))
                return;
        }
    }
    conform_lab_close(&lab);
}

/* y, dx and gradients of one micro-batch; captured: each call on the compute lane as a graph of its
 * own. */
static bool results(lab_t *lab, const layer_t *layer, bool captured, double *out[3], size_t counts[3])
{
    const dp_device_vt_t *vt = lab->vt;
    block_t b = {0};
    pass_t p;

    if (!opens(lab, &b, layer) || !conform_pass_open(&p, &b, 0))
        return false;
    for (int i = 0; i < b.kind->nsteps; i++) {
        dp_graph_t *graph;

        if (!captured || b.kind->steps[i].lane == 1) { /* the suite's exchanges wait on the host */
            if (!conform_pass_step(&p, i))
                return false;
            continue;
        }
        CHECK_OK(lab->t, vt->capture_begin(lab->lanes[0]), "capture_begin");
        CHECK_OK(lab->t, conform_pass_call(&p, i), "%s while its stream is captured", b.kind->steps[i].name);
        CHECK_OK(lab->t, vt->capture_end(lab->lanes[0], &graph), "capture_end");
        CHECK_OK(lab->t, vt->graph_launch(graph, lab->lanes[0]), "graph_launch");
        if (!conform_lab_wait(lab, 0, b.kind->steps[i].name))
            return false;
        vt->graph_close(graph);
    }
    for (int i = 0; i < 3; i++) {
        const area_t *area = i == 0 ? &p.y : i == 1 ? &p.dx : &b.grads;

        out[i] = conform_area_read(lab, area);
        counts[i] = conform_area_count(area);
    }
    return conform_pass_close(&p) && conform_block_close(&b);
}

static void calls_can_be_captured(conform_t *t)
{
    const layer_t layer = moe_layer(DP_BF16, 21, 16, 8, 2, 24, 1);
    double *plain[3], *captured[3];
    size_t counts[3];
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int way = 0; way < count_ways() && !conform_failed(t); way++) {
        if (!way_is_here(&lab, way))
            continue;
        if (!results(&lab, &layer, false, plain, counts) || !results(&lab, &layer, true, captured, counts))
            return;
        for (int i = 0; i < 3; i++) {
            EXPECT(t, memcmp(plain[i], captured[i], counts[i] * sizeof(double)) == 0,
                   "%s: calls as graphs give other bits", ways[way]);
            free(plain[i]);
            free(captured[i]);
        }
    }
    conform_lab_close(&lab);
}

/* They round the same numbers in the same places; only the order of their sums differs. */
static void tensor_cores_are_plain_products(conform_t *t)
{
    static const char *const names[] = {"y", "dx", "the gradients"};
    const layer_t layer = moe_layer(DP_BF16, 290, 264, 8, 1, 136, 1);
    double *plain[3], *tensor[3];
    size_t counts[3];
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    debug_set("moe_cuda.products", "plain");
    if (!results(&lab, &layer, false, plain, counts))
        return;
    for (int way = 0; way < count_ways() && !conform_failed(t); way += way == 0 ? 2 : 1) {
        if (!way_is_here(&lab, way))
            continue;
        if (!results(&lab, &layer, false, tensor, counts))
            return;
        for (int i = 0; i < 3; i++) {
            double most = 0, off = 0;

            for (size_t k = 0; k < counts[i]; k++) {
                most = fmax(most, fabs(plain[i][k]));
                off = fmax(off, fabs(plain[i][k] - tensor[i][k]));
            }
            EXPECT(t, off <= most / 256, "%s: %s are off by %g of %g", ways[way], names[i], off, most);
            free(tensor[i]);
        }
    }
    for (int i = 0; i < 3; i++)
        free(plain[i]);
    conform_lab_close(&lab);
}

/* ---- room ---- */

static void room_follows_the_capacity(conform_t *t)
{
    static const struct {
        uint32_t top_k;
        float capacity;
        uint32_t rows;
    } cases[] = {{8, 1, 14}, {2, 1, 4}, {2, 2, 7}, {2, 1.5F, 6}, {2, 100, 14}, {1, 0.125F, 1}};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const layer_t layer = moe_layer(DP_F64, 7, 5, 8, cases[i].top_k, 3, 0);
        block_t b = {.rank = 1, .ranks = 4, .capacity = cases[i].capacity};
        const uint32_t list = (16 + 16 * cases[i].rows + 127) / 128;

        if (!moe_try(&lab, &b, &layer))
            return;
        for (int way = 0; way < 2; way++) { /* out: no more than the tokens there are */
            const uint32_t due = (way == 0 && cases[i].rows > 7 ? 7 : cases[i].rows) + list;

            EXPECT(t, conform_exchanges_config(b.comm, way)->capacity_rows == due,
                   "capacity %g with top_k %u makes room for %u rows, not %u", (double)cases[i].capacity,
                   cases[i].top_k, conform_exchanges_config(b.comm, way)->capacity_rows, due);
        }
        if (!conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

static void less_room_takes_less_memory(conform_t *t)
{
    const layer_t layer = moe_layer(DP_BF16, 64, 64, 16, 4, 32, 1);
    block_t all = {.ranks = 4}, less = {.ranks = 4, .capacity = 1.25F};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    if (!moe_try(&lab, &all, &layer) || !moe_try(&lab, &less, &layer))
        return;
    EXPECT(t, less.sizes.saved_bytes < all.sizes.saved_bytes / 2, "%zu bytes of %zu with a capacity of 1.25",
           less.sizes.saved_bytes, all.sizes.saved_bytes);
    if (!conform_block_close(&all) || !conform_block_close(&less))
        return;
    conform_lab_close(&lab);
}

/* Twice an even share is enough here; what is not there is not missed. */
static void less_room_is_enough(conform_t *t)
{
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 6; i++) {
        const layer_t layer = moe_layer(dtypes[i % 3], 64, 16, 8, 2, 8, 1);
        block_t b = {.rank = t->rank, .ranks = t->size, .capacity = 2};

        if (conform_meet(t) && t->rank == 0)
            debug_set("moe_cuda.products", ways[i / 3]);
        if (!conform_meet(t) || !moe_try(&lab, &b, &layer) || !moe_layer_is_right(&b, false))
            return;
    }
    conform_lab_close(&lab);
}

/* A rank that sends more than there is room for, whatever the exchange says of it. */
static void three_times_as_many(const dp_exchange_config_t *config, unsigned char *rows, int32_t *counts,
                                uint32_t round)
{
    (void)rows, (void)round;
    counts[0] = 3 * (int32_t)config->capacity_rows;
}

/* All tokens choose both experts of rank 0: one row is sent for each, but there is no room for the
 * experts' rows. */
static void too_many_rows_for_a_rank(conform_t *t)
{
    const layer_t layer = moe_layer(DP_BF16, 16, 8, 4, 2, 8, 0);
    block_t b = {.rank = t->rank, .ranks = t->size, .capacity = 1.5F};
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !moe_try(&lab, &b, &layer))
        return;
    for (size_t e = 0; e < 2; e++)
        b.values[b.list[BIAS].offset + e] = 1000;
    if (moe_write_params(&b))
        (void)moe_fails(&b, ROUTE, DP_ERR_OVERFLOW, "32 rows are for rank 0, there is room for 24");
}

static void too_many_rows_from_a_rank(conform_t *t)
{
    const layer_t layer = moe_layer(DP_BF16, 16, 8, 4, 1, 8, 0);
    block_t b = {0};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    lab.tamper = three_times_as_many;
    if (moe_try(&lab, &b, &layer))
        moe_fails(&b, DISPATCH, DP_ERR_OVERFLOW, "57 rows arrived from rank 0, there is room for 16");
}

static unsigned long cutlass_launches(unsigned long (*launches)(const char *kernel))
{
    return launches("fake_cutlass_nn") + launches("fake_cutlass_nt") + launches("fake_cutlass_nt_pair") +
           launches("fake_cutlass_tn");
}

/* As many, and it is refused where its module is not. */
static void cutlass_makes_the_products_of_experts(conform_t *t)
{
    const layer_t layer = moe_layer(DP_BF16, 16, 8, 8, 2, 24, 1);
    block_t b = {.kind = conform_kernel_kind(t), .layer = layer};
    void *driver = gpu_is_fake() ? dlopen(debug_entry("lib.cuda"), RTLD_NOW) : NULL;
    unsigned long (*launches)(const char *kernel) = NULL, before;
    double *out[3];
    size_t counts[3];
    lab_t lab;

    if (driver == NULL) {
        conform_skip(t, "only the fake driver counts kernels");
        return;
    }
    *(void **)&launches = dlsym(driver, "fake_launches");
    if (!conform_lab_open(&lab, t))
        return;
    debug_set("moe_cuda.products", NULL);
    before = cutlass_launches(launches);
    if (!results(&lab, &layer, false, out, counts))
        return;
    EXPECT(t, cutlass_launches(launches) - before == 2 * 6, "%lu products of groups at open and in a micro-batch",
           cutlass_launches(launches) - before);
    for (int i = 0; i < 3; i++)
        free(out[i]);
    b.lab = &lab;
    b.layer = moe_layer(DP_BF16, 2048, 8, 4, 4, 8, 0);
    before = launches("fake_cutlass_nn_two") + launches("fake_cutlass_nt_two") + launches("fake_cutlass_nt_pair_two");
    EXPECT_OK(t, b.kind->open(&b));
    b.kind->close(&b);
    EXPECT(t,
           launches("fake_cutlass_nn_two") + launches("fake_cutlass_nt_two") + launches("fake_cutlass_nt_pair_two") -
                   before ==
               4,
           "2048 rows for each expert are not multiplied by clusters");
    b.layer = layer;
    debug_set("lib.cutlass", "/nowhere/moe_cuda_cutlass.so");
    EXPECT_OK(t, b.kind->open(&b));
    b.kind->close(&b);
    debug_set("moe_cuda.products", "cutlass");
    EXPECT_STATUS(t, b.kind->open(&b), DP_ERR_UNSUPPORTED, "open without the module of CUTLASS");
    EXPECT(t, strstr(conform_last_error(), "name its file in DUALPIPE_DEBUG=lib.cutlass=") != NULL, "%s",
           conform_last_error());
    conform_lab_close(&lab);
}

static CUresult refuse(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                       const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                       const cuuint32_t *element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    (void)map, (void)type, (void)rank, (void)address, (void)sizes, (void)strides, (void)box, (void)element_strides;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    return CUDA_ERROR_INVALID_VALUE;
}

static bool holds(const void *params, size_t bytes, const void *value, size_t value_bytes)
{
    return memmem(params, bytes, value, value_bytes) != NULL;
}

/* Whatever the groups: what the driver is told of them is what it takes, and the parameter has
 * every address and fits into a launch, as the block does onto a multiprocessor. */
static void module_describes(conform_t *t, const moe_cutlass_products_t *products, moe_cutlass_encode_fn encode,
                             int kind, int32_t groups, uint32_t blocks)
{
    const float beta = 0.7F;
    _Alignas(64) unsigned char params[4096], again[4096];
    moe_cutlass_launch_t launch;
    moe_cutlass_groups_t g = {.groups = groups, .sizes = (int32_t *)0x7f0011223300, .blocks = blocks};

    g.workspace = (void *)0x7f5566778800;
    g.second = (moe_cutlass_second_t *)0x7f0044556600;
    for (int i = 0; i < 3; i++) {
        g.at[i] = (void **)(uintptr_t)(0x7f1000000100 + i * 0x100100);
        g.ld[i] = (int64_t *)(uintptr_t)(0x7f2000000100 + i * 0x100100);
    }
    products->describe(kind, blocks, &launch);
    EXPECT(t, launch.params_bytes <= sizeof(params) && launch.shared_bytes <= 227 << 10 && launch.threads == 384,
           "%s has %zu bytes of parameters, %u of shared memory, %u threads", launch.kernel, launch.params_bytes,
           launch.shared_bytes, launch.threads);
    EXPECT(t, launch.workspace_bytes >= (size_t)blocks * 2 * sizeof(CUtensorMap),
           "%s wants %zu bytes of workspace for %u blocks", launch.kernel, launch.workspace_bytes, blocks);
    EXPECT(t, products->fill(kind, &g, beta, refuse, params) == CUDA_ERROR_INVALID_VALUE,
           "%s does not say what the driver refused", launch.kernel);
    memset(params, 0, sizeof(params));
    EXPECT(t, products->fill(kind, &g, beta, encode, params) == CUDA_SUCCESS, "%s is refused by the driver",
           launch.kernel);
    memset(again, 0xff, sizeof(again));
    EXPECT(t, products->fill(kind, &g, 0, encode, again) == CUDA_SUCCESS, "%s is refused without beta", launch.kernel);
    EXPECT(t, holds(params, launch.params_bytes, &beta, 4) && !holds(again, launch.params_bytes, &beta, 4),
           "%s does not know what C is multiplied by", launch.kernel);
    for (int i = 0; i < 3; i++)
        EXPECT(t,
               holds(params, launch.params_bytes, &g.at[i], 8) && holds(params, launch.params_bytes, &g.ld[i], 8) &&
                   holds(params, launch.params_bytes, &g.sizes, 8),
               "%s does not know where matrix %d is", launch.kernel, i);
    EXPECT(t,
           (kind != MOE_CUTLASS_NT_PAIR && kind != MOE_CUTLASS_NT_PAIR_TWO) ||
               holds(params, launch.params_bytes, &g.second, 8),
           "%s does not know where its second product is", launch.kernel);
}

static void cutlass_describes_its_kernels(conform_t *t)
{
    static const int32_t groups[] = {1, 8, 257};
    static const uint32_t blocks[] = {1, 112, 132};
    void *module = cutlass_module() != NULL ? dlopen(cutlass_module(), RTLD_NOW) : NULL;
    const moe_cutlass_products_t *products = module != NULL ? dlsym(module, MOE_CUTLASS_SYMBOL) : NULL;
    const cuda_driver_t *cu;
    lab_t lab;

    if (cutlass_module() == NULL) {
        conform_skip(t, "configure found no CUTLASS");
        return;
    }
    EXPECT(t, products != NULL && products->abi == MOE_CUTLASS_ABI, "%s cannot be loaded", cutlass_module());
    if (products == NULL || !conform_lab_open(&lab, t))
        return;
    EXPECT_OK(t, cuda_driver(t->host, &cu));
    for (int kind = 0; kind < MOE_CUTLASS_KINDS; kind++)
        for (int i = 0; i < 9; i++)
            module_describes(t, products, cu->cuTensorMapEncodeTiled, kind, groups[i % 3], blocks[i / 3]);
    conform_lab_close(&lab);
}

/* As it opens, it writes nothing: gradients of this size would not fit into its memory. */
static void a_library_opens_for_large_products(conform_t *t)
{
    block_t b = {.kind = conform_kernel_kind(t), .layer = moe_layer(DP_BF16, 1, 2944, 1, 1, 2944, 0)};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    b.lab = &lab;
    for (int way = 2; way < count_ways() && !conform_failed(t); way++) {
        if (!way_is_here(&lab, way))
            continue;
        EXPECT_OK(t, b.kind->open(&b));
        b.kind->close(&b);
    }
    conform_lab_close(&lab);
}

static void a_way_that_is_none_is_refused(conform_t *t)
{
    block_t b = {.kind = conform_kernel_kind(t), .layer = moe_layer(DP_F32, 7, 5, 8, 2, 3, 1)};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    b.lab = &lab;
    debug_set("moe_cuda.products", "magic");
    EXPECT_STATUS(t, b.kind->open(&b), DP_ERR_INVALID, "open with DUALPIPE_DEBUG=moe_cuda.products=magic");
    EXPECT(t, strstr(conform_last_error(), "moe_cuda.products=magic") != NULL, "%s", conform_last_error());
    conform_lab_close(&lab);
}

static const conform_case_t cases[] = {
    MOE_CASES,
    {CONFORM_CASE(cutlass_is_here, 0, "Where CUTLASS is left out, this build or the device has none.")},
    {CONFORM_CASE(each_way_of_multiplying, 0, "Each way comes to the formula.")},
    {CONFORM_CASE(calls_can_be_captured, 0, "Each call on the compute lane may become a graph.")},
    {CONFORM_CASE(room_follows_the_capacity, 0, "Exchanges have room for so many times an even share.")},
    {CONFORM_CASE(less_room_takes_less_memory, 0, "Saved memory follows the room.")},
    {CONFORM_CASE(less_room_is_enough, 2, "Less room changes nothing where it is enough."),
     .flags = CONFORM_ONLY_THREADS},
    {CONFORM_CASE(too_many_rows_for_a_rank, 2, "So are more of one rank's for another."),
     .flags = CONFORM_ONLY_THREADS},
    {CONFORM_CASE(too_many_rows_from_a_rank, 0, "More rows from a rank than there is room for are an error.")},
    {CONFORM_CASE(cutlass_makes_the_products_of_experts, 0,
                  "CUTLASS makes the products of experts where it can, unless another way is named.")},
    {CONFORM_CASE(cutlass_describes_its_kernels, 0, "What CUTLASS tells the driver is what it takes.")},
    {CONFORM_CASE(a_library_opens_for_large_products, 0, "CUTLASS writes nothing when it is opened.")},
    {CONFORM_CASE(a_way_that_is_none_is_refused, 0, "A way of multiplying that is none is refused.")},
    {0},
};
/* Left out in a hurry. */
static const conform_case_t long_cases[] = {
    MOE_LONG_CASES,
    {CONFORM_CASE(each_way_takes_any_length, 0, "Each way of multiplying takes fewer tokens than the shape says.")},
    {CONFORM_CASE(larger_products, 0, "So does each way with several tiles.")},
    {CONFORM_CASE(rows_are_longer_than_a_block_holds, 0, "Rows may be longer than a block holds at once.")},
    {CONFORM_CASE(tensor_cores_are_plain_products, 0, "Tensor cores and plain tiles round alike.")},
    {0},
};

int main(int argc, char **argv)
{
    static const conform_case_t *const more[] = {long_cases, NULL};
    const conform_suite_t suite = {.name = "moe_cuda",
                                   .interface = DP_IFACE_MOE,
                                   .plugin = "moe_cuda",
                                   .table_bytes = DP_MOE_VT_MIN,
                                   .needs = CONFORM_NEEDS_DEVICE,
                                   .cases = cases,
                                   .more = gpu_is_hurried() ? NULL : more};
    const conform_suite_t *const suites[] = {&suite, NULL};

    gpu_or_skip(argv[0]);
    return conform_main(suites, NULL, argc + 2, gpu_suite_arguments(argc, argv));
}
