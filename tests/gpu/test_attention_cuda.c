/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_attention_cuda.c: attention_cuda beyond the contract (test_conform_attention_cuda), on a
 * CUDA device or the fake one: blocks of scores of any size, lengths and documents that end
 * anywhere in them, products that are looked for at open alone, what it refuses and how it says
 * so. */
#include "gpu.h"

#include "conform/kernel.h"
#include "tests/fake_cuda/cublaslt_fake.h"
#include "tests/support/debug.h"

#include <dlfcn.h>
#include <math.h>

static const dp_dtype_t dtypes[] = {DP_F64, DP_F32, DP_BF16};

static layer_t small(dp_dtype_t dtype)
{
    return (layer_t){.dtype = dtype,
                     .batch = 2,
                     .sequence = 21,
                     .hidden = 12,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = 6,
                     .value_dim = 4};
}

static bool begin(block_t *b, lab_t *lab, const layer_t *layer, pass_t *p)
{
    memset(b, 0, sizeof(*b));
    CHECK(lab->t, conform_block_open(b, lab, layer, 5) || conform_failed(lab->t), "%s", conform_last_error());
    return !conform_failed(lab->t) && conform_pass_open(p, b, 0);
}

/* More queries than one block of scores holds, and fewer heads at a time than there are; wide
 * heads. */
static void blocks_of_scores_add_up(conform_t *t)
{
    static const char *const budgets[] = {"1", "100000", "1000000000"};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 9; i++) {
        const layer_t layer = {.dtype = dtypes[i / 3],
                               .batch = 1,
                               .sequence = 300,
                               .hidden = 12,
                               .heads = 6,
                               .kv_heads = 3,
                               .head_dim = 4,
                               .value_dim = 6};
        block_t b = {0};

        debug_set("attention_cuda.score_bytes", budgets[i % 3]);
        EXPECT(t, conform_block_open(&b, &lab, &layer, 5), "%s", conform_last_error());
        if (!conform_block_is_right(&b, false) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

static void heads_of_many_widths(conform_t *t)
{
    /* batch, sequence, hidden, heads, kv_heads, head_dim, value_dim */
    static const uint32_t sizes[][7] = {
        {2, 33, 40, 8, 2, 10, 7}, {1, 64, 33, 4, 1, 16, 8}, {1, 50, 16, 2, 2, 192, 128}};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 9; i++) {
        const uint32_t *s = sizes[i % 3];
        const layer_t layer = {.dtype = dtypes[i / 3],
                               .batch = s[0],
                               .sequence = s[1],
                               .hidden = s[2],
                               .heads = s[3],
                               .kv_heads = s[4],
                               .head_dim = s[5],
                               .value_dim = s[6]};
        block_t b = {0};

        EXPECT(t, conform_block_open(&b, &lab, &layer, 5), "%s", conform_last_error());
        if (!conform_block_is_right(&b, false) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

/* Rows and heads of whole vectors of 16 bytes, and such as are read one by one, also where they lie
 * in wider rows; more heads than a block takes at once; rows longer than a block holds. */
static void rows_of_any_width(conform_t *t)
{
    static const layer_t layers[] = {
        {.sequence = 5, .hidden = 64, .heads = 3, .head_dim = 24, .q_rank = 24, .kv_rank = 16, .rope_dim = 16},
        {.sequence = 5, .hidden = 61, .heads = 3, .head_dim = 24, .q_rank = 23, .kv_rank = 15, .rope_dim = 14},
        {.sequence = 3, .hidden = 8, .heads = 43, .head_dim = 192, .value_dim = 16, .kv_rank = 16, .rope_dim = 64},
        {.sequence = 3, .hidden = 8, .heads = 43, .kv_heads = 43, .head_dim = 192, .value_dim = 16},
        {.sequence = 2, .hidden = 8200, .heads = 1, .kv_heads = 1, .head_dim = 2},
        {.sequence = 2, .hidden = 8201, .heads = 1, .kv_heads = 1, .head_dim = 2},
    };
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (size_t i = 0; i < 3 * sizeof(layers) / sizeof(layers[0]); i++) {
        layer_t layer = layers[i / 3];
        block_t b = {0};

        layer.dtype = dtypes[i % 3];
        layer.batch = 1;
        EXPECT(t, conform_block_open(&b, &lab, &layer, 5), "%s", conform_last_error());
        if (!conform_block_is_right(&b, false) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

/* Tokens and documents that end at and beside the ends of blocks of 16 queries, of the lengths that
 * products are prepared for, and of sequences. */
static const struct {
    uint32_t tokens, documents, ends[4];
} lengths[] = {
    {1, 0, {0}},          {15, 0, {0}},          {16, 0, {0}},          {17, 0, {0}},
    {41, 0, {0}},         {79, 0, {0}},          {80, 0, {0}},          {1, 1, {1}},
    {4, 4, {1, 2, 3, 4}}, {80, 2, {40, 80}},     {80, 3, {1, 41, 80}},  {57, 4, {15, 16, 17, 57}},
    {79, 2, {39, 79}},    {33, 3, {16, 32, 33}}, {75, 3, {31, 71, 75}},
};
enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]) };

/* Plain heads in all types, with their forward once more, and latent ones. */
static layer_t of_kind(int kind)
{
    layer_t l = small(dtypes[kind % 3]);

    l.sequence = 40;
    if (kind >= 4) {
        l.kv_heads = 0;
        l.kv_rank = 5;
        l.q_rank = kind == 4 ? 7 : 0;
        l.rope_dim = 2;
    }
    return l;
}

static void set_length(block_t *b, int i)
{
    b->layer.tokens = lengths[i].tokens;
    b->layer.documents = lengths[i].documents;
    memcpy(b->layer.ends, lengths[i].ends, sizeof(b->layer.ends));
    memcpy(b->ends, lengths[i].ends, sizeof(b->layer.ends));
}

static bool every_length_is_right(block_t *b)
{
    for (int i = 0; i < LENGTHS; i++) {
        set_length(b, i);
        if (!conform_block_is_right(b, false))
            return false;
    }
    return true;
}

static void lengths_and_documents_end_anywhere(conform_t *t)
{
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int kind = 0; kind < 6; kind++) {
        const layer_t layer = of_kind(kind);
        block_t b = {.recompute = kind >= 3 ? DP_RECOMPUTE_FULL : DP_RECOMPUTE_NONE};

        debug_set("attention_cuda.score_bytes", kind % 3 == 2 ? "1000000000" : "1");
        EXPECT(t, conform_block_open(&b, &lab, &layer, 5), "%s", conform_last_error());
        if (!every_length_is_right(&b) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

static const void *share_of_112(const dp_host_t *h, const char *id)
{
    static const dp_host_sm_t share = {.struct_size = sizeof(share), .compute_sms = 112};

    (void)h;
    return strcmp(id, DP_HOST_SM) == 0 ? &share : NULL;
}

/* Products keep to the share and are looked for at open; the fake library counts. */
static void a_step_searches_for_nothing(conform_t *t)
{
    void *library = gpu_is_fake() ? dlopen(debug_entry("lib.cublaslt"), RTLD_NOW) : NULL;
    unsigned long (*searches)(void) = NULL, before;
    int (*sms)(void) = NULL;
    lab_t lab;

    if (library == NULL) {
        conform_skip(t, "only the fake cuBLASLt counts");
        return;
    }
    *(void **)&searches = dlsym(library, "fake_cublaslt_searches");
    *(void **)&sms = dlsym(library, "fake_cublaslt_last_sms");
    if (!conform_lab_open(&lab, t))
        return;
    ((dp_host_t *)lab.host)->get_service = share_of_112;
    debug_set("attention_cuda.score_bytes", "1");
    for (int kind = 0; kind < 5; kind++) {
        const layer_t layer = of_kind(kind);
        block_t b = {0};

        EXPECT(t, conform_block_open(&b, &lab, &layer, 5), "%s", conform_last_error());
        for (int i = -1; i < LENGTHS; i++) {
            pass_t p;

            if (i >= 0)
                set_length(&b, i);
            if (!conform_pass_open(&p, &b, 0))
                return;
            before = searches();
            if (!conform_pass_run(&p, FORWARD, WEIGHT))
                return;
            EXPECT(t, searches() == before, "a step of %u tokens and %u documents searched %lu times", b.layer.tokens,
                   b.layer.documents, searches() - before);
            EXPECT(t, sms() == 112, "a product was found for %d multiprocessors, the share is 112", sms());
            if (!conform_pass_close(&p))
                return;
        }
        if (!conform_block_close(&b))
            return;
    }
    dlclose(library);
    conform_lab_close(&lab);
}

/* NaN is for the engine to find, not for a kernel to hide. */
static void nan_shows_from_its_token_on(conform_t *t)
{
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 3; i++) {
        const layer_t layer = small(dtypes[i]);
        double *y;
        block_t b;
        pass_t p;

        if (!begin(&b, &lab, &layer, &p))
            return;
        p.xs[0][9 * 12 + 2] = NAN;
        if (!conform_area_write(&lab, &p.x, p.xs[0]))
            return;
        EXPECT_OK(t, conform_pass_call(&p, 0));
        if (!conform_lab_wait(&lab, 0, "forward") || (y = conform_area_read(&lab, &p.y)) == NULL)
            return;
        for (size_t k = 9 * 12; k < 42 * 12; k++)
            EXPECT(t, isnan(y[k]) == (k < 21 * 12), "token 9 has a NaN, the output of token %zu of %d is %g", k / 12,
                   42, y[k]);
        free(y);
        if (!conform_pass_close(&p) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

static bool refused(lab_t *lab, const layer_t *layer, dp_status_t status, const char *text)
{
    block_t b = {.lab = lab, .kind = conform_kernel_kind(lab->t), .layer = *layer};
    dp_status_t came;

    conform_forget_error();
    came = b.kind->open(&b);
    CHECK(lab->t, came == status && strstr(conform_last_error(), text) != NULL,
          "open returned %s, \"%s\": it has to be %s and to speak of %s", dp_status_name(came), conform_last_error(),
          dp_status_name(status), text);
    return true;
}

static void refusals_name_the_setting(conform_t *t)
{
    const layer_t good = small(DP_F32);
    dp_device_vt_t other;
    layer_t l;
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
#define REFUSED(change, status, text)                                                                                  \
    do {                                                                                                               \
        l = good;                                                                                                      \
        change;                                                                                                        \
        if (!refused(&lab, &l, status, text))                                                                          \
            return;                                                                                                    \
    } while (0)
    REFUSED(l.dtype = DP_I64, DP_ERR_UNSUPPORTED, "shape.dtype");
    REFUSED(l.batch = 0, DP_ERR_INVALID, "shape.batch");
    REFUSED(l.kv_heads = 3, DP_ERR_INVALID, "kv_heads = 3");
    REFUSED(l.head_dim = 7, DP_ERR_INVALID, "head_dim is 7");
    REFUSED(l.heads = 1u << 30, DP_ERR_INVALID, "heads * head_dim");
    REFUSED(l.norm_eps = -1, DP_ERR_INVALID, "norm_eps");
    REFUSED(l.theta = (float)NAN, DP_ERR_INVALID, "rope_theta");
    other = *lab.vt;
    other.kind = "cpu";
    lab.vt = &other;
    REFUSED((void)0, DP_ERR_UNSUPPORTED, "device");
    lab.vt = t->device;
    debug_set("attention_cuda.score_bytes", "many");
    REFUSED((void)0, DP_ERR_INVALID, "attention_cuda.score_bytes");
    debug_set("attention_cuda.score_bytes", NULL);
    debug_set("lib.cublaslt", "/nowhere/libcublasLt.so.13");
    REFUSED((void)0, DP_ERR_UNSUPPORTED, "lib.cublaslt");
    conform_lab_close(&lab);
}

static const conform_case_t cases[] = {
    {CONFORM_CASE(heads_of_many_widths, 0, "Heads may have any width.")},
    {CONFORM_CASE(rows_of_any_width, 0, "Rows may have any width.")},
    {CONFORM_CASE(nan_shows_from_its_token_on, 0, "NaN is not hidden, and stays in its sequence.")},
    {CONFORM_CASE(refusals_name_the_setting, 0, "Messages name the setting.")},
    {0},
};
/* Left out in a hurry. */
static const conform_case_t long_cases[] = {
    {CONFORM_CASE(blocks_of_scores_add_up, 0, "Any budget of scores comes to the formula.")},
    {CONFORM_CASE(lengths_and_documents_end_anywhere, 0, "A micro-batch has any length, and any documents.")},
    {CONFORM_CASE(a_step_searches_for_nothing, 0, "Products are looked for at open.")},
    {0},
};

int main(int argc, char **argv)
{
    static const conform_case_t *const more[] = {long_cases, NULL};
    const conform_suite_t suite = {.name = "attention_cuda",
                                   .interface = DP_IFACE_ATTENTION,
                                   .plugin = "attention_cuda",
                                   .table_bytes = DP_ATTENTION_VT_MIN,
                                   .needs = CONFORM_NEEDS_DEVICE,
                                   .cases = cases,
                                   .more = gpu_is_hurried() ? NULL : more};
    const conform_suite_t *const suites[] = {&suite, NULL};

    gpu_or_skip(argv[0]);
    return conform_main(suites, NULL, argc + 2, gpu_suite_arguments(argc, argv));
}
