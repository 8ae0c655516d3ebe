/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_attention_cudnn.c: attention_cudnn beyond the contract (test_conform_attention_cudnn), on a
 * GPU or with the fake driver and the interpreter that stands in for cuDNN: the shapes that models
 * have, any length, and what it refuses. */
#include "gpu.h"

#include <dlfcn.h>

#include "conform/kernel.h"
#include "tests/support/debug.h"

static void shapes_of_models(conform_t *t)
{
    static const uint32_t sizes[][7] = {
        /* batch, sequence, hidden, heads, kv_heads, head_dim, value_dim */
        {1, 128, 64, 2, 2, 64, 64}, {2, 256, 64, 4, 4, 128, 128}, {1, 256, 96, 2, 2, 192, 128},
        {2, 192, 64, 8, 2, 64, 64}, {1, 200, 64, 4, 1, 128, 128}, {1, 77, 40, 2, 2, 64, 64},
    };
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (uint32_t i = 0; i < 12; i++) {
        const uint32_t *s = sizes[i / 2];
        const layer_t layer = {.dtype = DP_BF16,
                               .batch = s[0],
                               .sequence = s[1],
                               .hidden = s[2],
                               .heads = s[3],
                               .kv_heads = s[4],
                               .head_dim = s[5],
                               .value_dim = s[6]};
        block_t b = {.deterministic = i % 2};
        pass_t p, *all = &p;

        EXPECT(t, conform_block_open(&b, &lab, &layer, 3), "%s", conform_last_error());
        if (!conform_pass_open(&p, &b, 0) || !conform_pass_run(&p, FORWARD, WEIGHT) ||
            !conform_pass_output_is_right(&p) || (i % 2 == 0 && !conform_gradients_are_right(&b, &all, 1, false)) ||
            !conform_pass_close(&p) || !conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

/* One token, and a last sequence that is cut off, empty, or short by one; kinds: deterministic or
 * not. */
static void micro_batches_of_any_length(conform_t *t)
{
    static const uint32_t tokens[] = {1, 47, 48, 49, 95};
    const layer_t layer = {.dtype = DP_BF16,
                           .batch = 2,
                           .sequence = 48,
                           .hidden = 40,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 64,
                           .value_dim = 64};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    for (uint32_t i = 0; i < 2; i++) {
        block_t b = {.deterministic = i};

        EXPECT(t, conform_block_open(&b, &lab, &layer, 3), "%s", conform_last_error());
        for (uint32_t k = 0; k < 5; k++) {
            b.layer.tokens = tokens[k];
            if (!conform_block_is_right(&b, false))
                return;
        }
        if (!conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

/* Rounds of all calls of one instance: the same bits, whatever lies about. */
static void deterministic_is_the_same_bits(conform_t *t)
{
    const layer_t layer = {.dtype = DP_BF16,
                           .batch = 2,
                           .sequence = 256,
                           .hidden = 64,
                           .heads = 4,
                           .kv_heads = 4,
                           .head_dim = 128,
                           .value_dim = 128};
    unsigned char *first[2] = {NULL, NULL}, *again;
    block_t b = {.deterministic = 1};
    lab_t lab;

    if (!conform_lab_open(&lab, t))
        return;
    EXPECT(t, conform_block_open(&b, &lab, &layer, 3), "%s", conform_last_error());
    for (int i = 0; i < 10; i++) {
        pass_t p;

        if (!conform_area_write(&lab, &b.grads, b.before) || !conform_pass_open(&p, &b, 0) ||
            !conform_pass_run(&p, FORWARD, WEIGHT))
            return;
        for (int k = 0; k < 2; k++) {
            const area_t *area = k == 0 ? &p.dx : &b.grads;

            again = conform_area_bytes(&lab, area);
            EXPECT(t, again != NULL && (i == 0 || memcmp(first[k], again, area->bytes) == 0),
                   "round %d has other bits of %s", i, k == 0 ? "dx" : "gradients");
            free(i == 0 ? NULL : again);
            first[k] = i == 0 ? again : first[k];
        }
        if (!conform_pass_close(&p))
            return;
    }
    free(first[0]);
    free(first[1]);
    if (!conform_block_close(&b))
        return;
    conform_lab_close(&lab);
}

static bool refused(lab_t *lab, dp_dtype_t dtype, uint32_t head_dim, const char *text)
{
    block_t b = {.lab = lab, .kind = conform_kernel_kind(lab->t)};

    b.layer = (layer_t){
        .dtype = dtype, .batch = 1, .sequence = 16, .hidden = 16, .heads = 2, .kv_heads = 2, .head_dim = head_dim};
    conform_forget_error();
    CHECK(lab->t, b.kind->open(&b) == DP_ERR_UNSUPPORTED && strstr(conform_last_error(), text) != NULL,
          "\"%s\": it has to be DP_ERR_UNSUPPORTED and to speak of %s", conform_last_error(), text);
    return true;
}

static void refusals_name_the_setting(conform_t *t)
{
    lab_t lab;

    if (!conform_lab_open(&lab, t) || !refused(&lab, DP_F32, 64, "DP_F32") ||
        !refused(&lab, DP_BF16, 12, "head_dim is 12") || !refused(&lab, DP_BF16, 264, "head_dim is 264"))
        return;
    debug_set("lib.cudnn", "/nowhere/libcudnn.so.9");
    if (!refused(&lab, DP_BF16, 64, "lib.cudnn"))
        return;
    conform_lab_close(&lab);
}

/* What NVIDIA's frontend passes over or works around. Only the stand-in can be told which version
 * it is. */
static void versions_known_to_be_wrong(conform_t *t)
{
    static const struct {
        const char *version, *text;
    } wrong[] = {
        {"90799", "cuDNN 90799 is too old"},
        {"91000", "cuDNN 91000 has a wrong backward"},
        {"91001", "cuDNN 91001 has a wrong backward"},
        {"91500", "cuDNN 91500: shape.sequence is 16"},
    };
    lab_t lab;

    if (!gpu_is_fake())
        return;
    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 4; i++) {
        setenv("DP_FAKE_CUDNN_VERSION", wrong[i].version, 1);
        if (!refused(&lab, DP_BF16, 64, wrong[i].text))
            return;
    }
    for (int i = 0; i < 2; i++) {
        const layer_t layer = {.dtype = DP_BF16,
                               .batch = 1,
                               .sequence = i == 0 ? 128 : 16,
                               .hidden = 16,
                               .heads = 2,
                               .kv_heads = 2,
                               .head_dim = 64};
        block_t b = {.deterministic = 1};

        setenv("DP_FAKE_CUDNN_VERSION", i == 0 ? "91002" : "91501", 1);
        EXPECT(t, conform_block_open(&b, &lab, &layer, 3), "%s", conform_last_error());
        if (!conform_block_close(&b))
            return;
    }
    conform_lab_close(&lab);
}

/* cuDNN makes 16 streams for each handle and priority, which take places in the hardware queues. */
static void instances_share_a_handle(conform_t *t)
{
    static const layer_t layer = {
        .dtype = DP_BF16, .batch = 1, .sequence = 16, .hidden = 16, .heads = 2, .kv_heads = 2, .head_dim = 64};
    void *library = gpu_is_fake() ? dlopen(debug_entry("lib.cudnn"), RTLD_NOW) : NULL;
    block_t blocks[3] = {{.deterministic = 1}, {.deterministic = 1}, {.deterministic = 1}};
    int (*streams)(void) = NULL;
    lab_t lab;

    if (library == NULL) {
        conform_skip(t, "only the fake cuDNN says how many streams it has");
        return;
    }
    *(void **)&streams = dlsym(library, "fake_cudnn_streams");
    if (!conform_lab_open(&lab, t))
        return;
    for (int i = 0; i < 3; i++) {
        EXPECT(t, conform_block_open(&blocks[i], &lab, &layer, 3), "%s", conform_last_error());
        if (!conform_block_is_right(&blocks[i], false))
            return;
        EXPECT(t, streams() == 16, "%d instances have %d streams of cuDNN", i + 1, streams());
    }
    for (int i = 0; i < 3; i++) {
        EXPECT(t, streams() == 16, "with %d instances closed there are %d streams of cuDNN", i, streams());
        if (!conform_block_is_right(&blocks[2], false) || !conform_block_close(&blocks[i]))
            return;
    }
    EXPECT(t, streams() == 0, "%d streams of cuDNN are left", streams());
    dlclose(library);
    conform_lab_close(&lab);
}

static const conform_case_t cases[] = {
    {CONFORM_CASE(refusals_name_the_setting, 0, "Messages name the setting.")},
    {CONFORM_CASE(versions_known_to_be_wrong, 0, "Versions that are wrong for a shape are refused.")},
    {CONFORM_CASE(instances_share_a_handle, 0, "Instances of a rank share a handle of cuDNN and its streams.")},
    {CONFORM_CASE(micro_batches_of_any_length, 0, "Fewer tokens than the shape says come to the formula.")},
    {0},
};
/* Left out in a hurry. */
static const conform_case_t long_cases[] = {
    {CONFORM_CASE(shapes_of_models, 0, "The shapes of models come to the formula, deterministic or not.")},
    {CONFORM_CASE(deterministic_is_the_same_bits, 0, "Round after round gives the same bits.")},
    {0},
};

int main(int argc, char **argv)
{
    static const conform_case_t *const more[] = {long_cases, NULL};
    const conform_suite_t suite = {.name = "attention_cudnn",
                                   .interface = DP_IFACE_ATTENTION,
                                   .plugin = "attention_cudnn",
                                   .table_bytes = DP_ATTENTION_VT_MIN,
                                   .needs = CONFORM_NEEDS_DEVICE,
                                   .cases = cases,
                                   .more = gpu_is_hurried() ? NULL : more};
    const conform_suite_t *const suites[] = {&suite, NULL};

    gpu_or_skip(argv[0]);
    return conform_main(suites, NULL, argc + 2, gpu_suite_arguments(argc, argv));
}
