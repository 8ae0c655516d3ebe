/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * model.h: which layout and which schedule for a model: parameters, bytes of a rank, steps.
 *
 *     dp_model_t model = {.struct_size = sizeof(model)};
 *     dp_gpu_t gpu = {.struct_size = sizeof(gpu)};
 *     dp_model_read("config.json", text, bytes, &model);   // as Hugging Face's hub has it
 *     dp_gpu_find("h100", &gpu);
 *     dp_layout_request_t request = {.struct_size = sizeof(request), .model = &model, .gpu = &gpu,
 *                                    .gpus = 64, .batch = 1024};
 *     dp_layouts_find(&request, &layouts);
 *     dp_layout_t best = {.struct_size = sizeof(best)};
 *     dp_layouts_row(layouts, 0, &best);                   // the fastest that fits
 *     dp_layouts_free(layouts);
 *
 * Parameters are exact. Bytes and times are estimates; docs/plan.md says how they are made and how
 * near they are. All functions here return DP_ERR_INVALID for wrong arguments and DP_ERR_NOMEM.
 * Each names its other errors. Results do not change: several threads may use them.
 *
 * Since 0.2. */
#ifndef DUALPIPE_MODEL_H
#define DUALPIPE_MODEL_H

#include <dualpipe/block.h>
#include <dualpipe/simulate.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a transformer is made of, in numbers of its config.json. A part whose member is 0 is not
 * there. The caller sets struct_size. */
typedef struct dp_model {
    uint32_t struct_size;
    int32_t tied;  /* 1: the head is the embedding */
    int32_t gated; /* 1: an MLP has a gate */
    /* 1: biases of these */
    int32_t qkv_bias, o_bias, mlp_bias, norm_bias, router_bias, expert_bias;
    /* 1: norms of queries and keys; a sink for each head; a gate of the shared experts */
    int32_t qk_norm, sinks, shared_gate;
    char type[32]; /* model_type: "deepseek_v3" */
    int64_t hidden, layers, vocab;
    int64_t positions; /* learned ones, as rows of a table */
    int64_t heads, kv_heads, head_dim;
    /* latent attention: ranks of queries and of keys and values, and the part of a head with
     * positions; head_dim is both parts together */
    int64_t q_rank, kv_rank, rope_dim;
    int64_t value_dim; /* of a head */
    int64_t ffn;       /* width of a dense layer's MLP */
    int64_t experts, top_k, expert_ffn, shared_ffn;
    int64_t dense_first; /* layers before the first with experts */
    int64_t moe_every;   /* from then on, each how many-th has experts; 0 is 1 */
    int64_t node_limit;  /* most groups of experts that a token chooses from */
    int64_t sequence;    /* longest */
} dp_model_t;
enum { DP_MODEL_MIN = DP_SIZE_TO(dp_model_t, sequence) };

/** Reads the text of a config.json of Hugging Face's transformers. Where that does not begin with
 * {: a TOML file of torchtitan, whose [model] names a flavor that is known here, or arguments of
 * Megatron-LM: words as in a script (--num-layers 61), or YAML (num_layers: 61). Of those,
 * arguments that shape no model are passed over, and vocab_size has to be there. name: what
 * messages call it. DP_ERR_INVALID: a kind of model or a number that is not known here. [any] */
DP_API DP_CHECKED dp_status_t dp_model_read(const char *name, const char *text, size_t bytes, dp_model_t *model_out);
/** The kinds of models that dp_model_read() knows, with commas between. Static. [any] */
DP_API const char *dp_model_types(void);
/** All parameters, and those that a token meets. Either may be NULL. [any] */
DP_API DP_CHECKED dp_status_t dp_model_parameters(const dp_model_t *model, double *all_out, double *active_out);

/** A kind of GPU, and what is assumed of it. Rates are of one GPU in one direction. The caller sets
 * struct_size. */
typedef struct dp_gpu {
    uint32_t struct_size;
    int32_t host;     /* how many a host has */
    double tflops;    /* 10^12 operations a second, dense bf16, of the data sheet */
    double memory;    /* bytes */
    double near, far; /* GB/s to others of the host, and to those of other hosts */
    /* shares of those rates that are reached: products, attention's core, transfers */
    double products, core, links;
    double latency; /* us of a transfer */
    double reserve; /* bytes that others take: context, libraries, fragments */
} dp_gpu_t;
enum { DP_GPU_MIN = DP_SIZE_TO(dp_gpu_t, reserve) };

/** A kind that is known, with the assumptions that go with it. DP_ERR_INVALID: there is none of
 * that name. [any] */
DP_API DP_CHECKED dp_status_t dp_gpu_find(const char *name, dp_gpu_t *gpu_out);
/** Their names, with blanks between: "a100 h100 ...". Static. [any] */
DP_API const char *dp_gpu_names(void);

/** What is asked. What it points to is borrowed during the call. */
typedef struct dp_layout_request {
    uint32_t struct_size;
    int32_t gpus; /* tp * pp * dp of every layout */
    const dp_model_t *model;
    const dp_gpu_t *gpu;
    int64_t batch;       /* sequences of a step */
    int64_t sequence;    /* tokens of one; 0: 4096, or the most that the model takes */
    int32_t micro_batch; /* sequences of a micro-batch; 0: 1 */
    /* ranks of a pipeline, ranks that the experts are spread over, pipelines; 0: all that go */
    int32_t pp, ep, dp;
    int32_t tp;              /* ranks that share each matrix, on one host; 0: 1 */
    int32_t recompute;       /* 0: the least with which a layout fits; else 1 + dp_recompute_t */
    const char *method;      /* NULL: all */
    int32_t whole_optimizer; /* 1: ranks with the same parameters do not share its state (ZeRO-1) */
    /* NULL, or milliseconds that segments of one layer took for one micro-batch: of a layer with
     * experts where the model has such. They take the place of what is estimated; a segment whose
     * times are all 0 is estimated. Times of dispatch and combine go with one `ep` alone, which has
     * to be given. `layers`, `list` and fine segments are not taken */
    const dp_segment_costs_t *measured;
    /* milliseconds of a message between stages, and bytes of it a millisecond; 0: estimated. With
     * hop alone that is the whole of it */
    double hop, bandwidth;
} dp_layout_request_t;
enum { DP_LAYOUT_REQUEST_MIN = DP_SIZE_TO(dp_layout_request_t, bandwidth) };

/** A layout. Bytes are those of the rank that holds most. The caller sets struct_size. */
typedef struct dp_layout {
    uint32_t struct_size;
    int32_t tp, pp, ep, dp;
    int32_t microbatches;
    const dp_method_t *method; /* static */
    int32_t chunks;            /* of the request for a schedule; 0: the method's own number */
    int32_t recompute;         /* dp_recompute_t */
    int32_t fits;              /* 1: into the memory of the GPU */
    int32_t timed;             /* 1: it was simulated; 0: the figures of time are 0 */
    int32_t copies;            /* of the weights */
    double weights, gradients, optimizer, activations, logits, transfers;
    double expert_weights;    /* of the weights, those of routed experts */
    double total;             /* the GPU's reserve included */
    double step_time;         /* seconds */
    double reduce_time;       /* of which gradients take that are summed */
    double useful;            /* share of a step that a rank would compute alone */
    double gain;              /* over 1f1b on the same ranks, whether that fits or not */
    double tokens_per_second; /* all GPUs */
    double mfu;               /* share of tflops */
    char reason[160];         /* why its messages cannot be sent; "" otherwise */
} dp_layout_t;
enum { DP_LAYOUT_MIN = DP_SIZE_TO(dp_layout_t, reason) };

/** What was found. The caller sets struct_size; `advice` is borrowed until dp_layouts_free(). */
typedef struct dp_layouts_about_t {
    uint32_t struct_size;
    int32_t count;      /* rows */
    int32_t timed;      /* the first ones: those that fit and were simulated, the fastest first */
    int32_t tried;      /* numbers of ranks that were looked at */
    int32_t uneven;     /* of them, those among whose ranks the batch cannot be dealt evenly */
    const char *advice; /* one sentence */
} dp_layouts_about_t;
enum { DP_LAYOUTS_ABOUT_MIN = DP_SIZE_TO(dp_layouts_about_t, advice) };

typedef struct dp_layouts dp_layouts_t;

/** Goes through numbers of ranks and schedules, with the least recomputation with which each fits,
 * and simulates those that fit unless their computation alone takes longer than others take in all.
 * That none fits is no error. The caller frees *layouts_out, which is NULL after a failure.
 * DP_ERR_OVERFLOW: too many layouts. [any] */
DP_API DP_CHECKED dp_status_t dp_layouts_find(const dp_layout_request_t *request, dp_layouts_t **layouts_out);
/** How many there are, and the advice. [any] */
DP_API DP_CHECKED dp_status_t dp_layouts_about(const dp_layouts_t *layouts, dp_layouts_about_t *about_out);
/** Row 0 is the best. Behind those that were timed are the others, by what they hold. [any] */
DP_API DP_CHECKED dp_status_t dp_layouts_row(const dp_layouts_t *layouts, int32_t row, dp_layout_t *layout_out);
/** Milliseconds of a layer's segments (the first with experts, where there are such) as they are
 * estimated for a row, whatever was measured. Sets f, i and w. [any] */
DP_API DP_CHECKED dp_status_t dp_layouts_segments(const dp_layouts_t *layouts, int32_t row,
                                                  dp_segment_costs_t *estimated_out);
/** A row with the bytes of one rank of its pipeline, 0 to pp - 1, and `fits` of that rank. [any] */
DP_API DP_CHECKED dp_status_t dp_layouts_rank(const dp_layouts_t *layouts, int32_t row, int32_t rank,
                                              dp_layout_t *layout_out);
/** A step of a row, simulated with a timeline in milliseconds: of `microbatches`, 0 for all of a
 * pipeline's. Sums of gradients are not in it. The caller frees the schedule, and clears the
 * simulation with dp_simulation_clear(). After a failure there is neither. DP_ERR_REJECTED: its
 * messages cannot be sent. [any] */
DP_API DP_CHECKED dp_status_t dp_layouts_simulate(const dp_layouts_t *layouts, int32_t row, int32_t microbatches,
                                                  dp_schedule_t **schedule_out, dp_simulation_t *simulation_out);
/** May be NULL. [any] */
DP_API void dp_layouts_free(dp_layouts_t *layouts);

#ifdef __cplusplus
}
#endif
#endif
