/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernel.h: a block (an attention or a MoE) on trial: one instance with its parameters, and
 * micro-batches whose calls are made one by one, each with the pointers that the header grants it
 * and no others.
 *
 * All memory lies between guards and begins as NaN. Before a call scratch is NaN again; after it
 * what the header says is not needed any more is NaN, the guards are looked at, and inputs must be
 * what they were. While a call runs the host gives out no memory. So a plugin that reads what it
 * may not read shows NaN in its results. */
#ifndef DP_CONFORM_KERNEL_H
#define DP_CONFORM_KERNEL_H

#include "conform.h"
#include "reference.h"

/* As EXPECT and EXPECT_OK, in functions that return whether the case goes on. */
#define CHECK(t, condition, ...)                                                                                       \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            conform_fail((t), __FILE__, __LINE__, __VA_ARGS__);                                                        \
            return false;                                                                                              \
        }                                                                                                              \
    } while (0)
#define CHECK_OK(t, call, ...)                                                                                         \
    do {                                                                                                               \
        dp_status_t check_status;                                                                                      \
                                                                                                                       \
        conform_forget_error();                                                                                        \
        check_status = (call);                                                                                         \
        if (check_status != DP_OK) {                                                                                   \
            conform_unexpected((t), __FILE__, __LINE__, #call, check_status, DP_OK, __VA_ARGS__);                      \
            return false;                                                                                              \
        }                                                                                                              \
    } while (0)

/* ---- a device to work on, and memory between guards ---- */

typedef struct lab {
    conform_t *t;
    const dp_device_vt_t *vt;
    dp_device_t *device;
    dp_stream_t *lanes[2]; /* compute, all-to-all */
    const dp_host_t *host; /* for the plugin: the case's, and conform_lab_refuse */
    /* a stream has failed, as was wanted: nothing is looked at when things are closed */
    bool broken;
    /* For exchanges.c: what opening and exchanging return unless DP_OK; sees what arrived before
     * the receiver does, round counts all exchanges of a comm. */
    dp_status_t refuse;
    void (*tamper)(const dp_exchange_config_t *config, unsigned char *rows, int32_t *counts, uint32_t round);
} lab_t;

bool conform_lab_open(lab_t *lab, conform_t *t);
void conform_lab_close(lab_t *lab);
bool conform_lab_wait(lab_t *lab, int lane, const char *what);
/* The host's nth allocation from now fails. Ends that; whether one did. */
void conform_lab_refuse(lab_t *lab, int nth);
bool conform_lab_refused(lab_t *lab);

typedef struct area {
    const char *name;
    unsigned char *start; /* of the first guard */
    size_t bytes, shift;  /* shift: how far the memory is off its alignment */
    dp_dtype_t dtype;
} area_t;

bool conform_area_open(lab_t *lab, area_t *area, const char *name, dp_dtype_t dtype, size_t bytes, size_t shift);
void conform_area_close(lab_t *lab, area_t *area);
void *conform_area_memory(const area_t *area);
size_t conform_area_count(const area_t *area);
bool conform_area_put(lab_t *lab, const area_t *area, const void *bytes);
bool conform_area_poison(lab_t *lab, const area_t *area);
bool conform_area_write(lab_t *lab, const area_t *area, const double *values);
/* NULL: the case has failed. To be freed. */
double *conform_area_read(lab_t *lab, const area_t *area);
unsigned char *conform_area_bytes(lab_t *lab, const area_t *area);
/* Whether the guards are whole; `after`: the call to blame. */
bool conform_area_whole(lab_t *lab, const area_t *area, const char *after);

/* ---- blocks ---- */

typedef enum phase { FORWARD, BACKWARD, WEIGHT, PHASES } phase_t;

typedef struct block block_t;
typedef struct pass pass_t;

/* One call of a kind of block, and the boundary tensors it is given. */
typedef struct step {
    const char *name;
    phase_t phase;
    int lane;
    bool x, y, dy, dx;
} step_t;

/* A setting that open() has to refuse. */
typedef struct wrong {
    const char *what;
    size_t offset; /* in the config, or in the shape */
    bool in_shape, pointer;
    uint32_t bits; /* a pointer becomes NULL */
} wrong_t;

/* A parameter as the header has it. */
typedef struct expected {
    const char *name;
    dp_param_kind_t kind;
    size_t count, fan_in;
    float start;
    bool sharded;
    int32_t expert;
} expected_t;

typedef struct kind {
    const step_t *steps;
    int nsteps;
    const layer_t *layers; /* ends with batch 0; each gradient by itself */
    const layer_t *larger; /* ends with batch 0; gradients along random directions */
    /* ends with batch 0; micro-batches of fewer tokens, or with documents */
    const layer_t *shorter;
    const wrong_t *wrongs;          /* ends with what NULL */
    uint32_t config_min, outer_min; /* outer: of the struct around dp_io_t, 0: there is none */
    dp_status_t (*open)(block_t *b);
    void (*close)(block_t *b);
    void (*close_nothing)(const conform_t *t); /* NULL */
    dp_status_t (*sizes)(const block_t *b, dp_block_sizes_t *out);
    dp_status_t (*params)(const block_t *b, dp_param_t *out);
    dp_status_t (*call)(pass_t *p, int step, const dp_io_t *io);
    /* Before the first call of a backward, where sizes.recomputes says so. */
    dp_status_t (*recompute)(pass_t *p, const dp_io_t *io);
    /* Parameters of the whole layer; where element i of ours is in it. */
    size_t (*whole)(const layer_t *layer);
    size_t (*index)(const block_t *b, size_t i);
    size_t (*common)(const layer_t *layer); /* elements that are the same on all ranks */
    /* Adds up the gradients of replicas; NULL: nothing to do. */
    bool (*gather)(block_t *b, double *gradients);
    double (*reference)(const layer_t *layer, const double *params, const double *x, double *y, int *chosen,
                        bool fixed);
    double (*margin)(const layer_t *layer, const double *params, const double *x);
    /* Whether the descriptors are those of the header. */
    bool (*list_is_right)(const block_t *b);
} kind_t;

struct block {
    lab_t *lab;
    const kind_t *kind;
    layer_t layer;
    /* May be set before block_open. */
    uint32_t deterministic;
    /* elements by which parameters and gradients are off alignment, as layers lay them */
    size_t shift;
    uint32_t config_bytes; /* struct_size of the config, of the shape and of io; 0: theirs */
    uint32_t shape_bytes, io_bytes, outer_bytes;
    unsigned char tail; /* what all bytes behind the structs are */
    const wrong_t *wrong;
    int32_t rank, ranks; /* in the expert group; ranks 0: alone */
    uint32_t replicas;
    dp_recompute_t recompute;
    uint32_t apart;           /* calls are made apart */
    uint64_t cache_slots;     /* of sequences */
    int64_t *loads;           /* NULL: route counts nothing */
    uint64_t posted;          /* what is sent is posted: all calls are on the compute lane */
    const int32_t *placement; /* [replicas] */
    const void *ep_vt;        /* does dispatch and combine; NULL: the plugin */
    float capacity;
    uint32_t tokens[CONFORM_RANKS_MAX]; /* of the micro-batches of each rank; 0: the layer's */
    /* The rest is block_open's. */
    void *instance;
    dp_comm_t *comm;
    dp_block_sizes_t sizes;
    dp_param_t *list;
    area_t params, grads, scratch[2], places;
    uint32_t *ends; /* layer.ends, where host and device reach them, and room for slots and past */
    double *values; /* the whole layer's parameters */
    double *before; /* what the gradients began with */
};

/* A micro-batch. Work of forward and backward are different memory, as in a pipeline. */
struct pass {
    block_t *block;
    int32_t microbatch;
    area_t x, y, dy, dx, saved, work[2];
    area_t backward_buffers[2], aux; /* in forward, and from backward on */
    bool without_dx, without_aux;
    /* of every rank: inputs and output gradients, and the experts that the reference chose */
    double *xs[CONFORM_RANKS_MAX], *dys[CONFORM_RANKS_MAX];
    int *chosen[CONFORM_RANKS_MAX];
};

#define KERNEL_TAIL       64  /* by so many bytes structs grow */
#define KERNEL_AUX_SCALE  3.0 /* of the auxiliary loss in what is differentiated */
#define KERNEL_AUX_BEGINS 0.5 /* the loss is added to this */

/* Opens an instance with random parameters; gradients begin with random numbers. False without a
 * failure: the plugin does not support such a layer, and said so. */
bool conform_block_open(block_t *b, lab_t *lab, const layer_t *layer, uint64_t seed);
/* With the first layer and type that the plugin supports; closes the lab and skips the case when
 * there is none. */
bool conform_block_open_any(block_t *b, lab_t *lab, uint64_t seed);
bool conform_block_close(block_t *b);
/* Whether the plugin has calls apart, or posts; false: it does not and the case is skipped, or
 * failed. */
bool conform_block_takes_apart(lab_t *lab);
bool conform_block_takes_posted(lab_t *lab);
/* Gradients minus what they began with; to be freed. */
double *conform_block_gradients(block_t *b);

/* For kinds. The shape for b's layer, and behind it what is not zero; makes one setting wrong where
 * b asks for it; compares descriptors. */
void conform_kernel_shape(const block_t *b, void *shape, size_t bytes);
void conform_kernel_wrong(const block_t *b, void *config, dp_block_shape_t *shape);
bool conform_kernel_list_is_right(const block_t *b, const expected_t *expected, uint32_t count);
/* latent: variety 1 */
extern const kind_t conform_kernel_attention, conform_kernel_latent, conform_kernel_moe;
const kind_t *conform_kernel_kind(const conform_t *t);

bool conform_pass_open(pass_t *p, block_t *b, int32_t microbatch);
bool conform_pass_close(pass_t *p);
/* Makes call number `step` and waits for it. */
bool conform_pass_step(pass_t *p, int step);
bool conform_pass_run(pass_t *p, phase_t first, phase_t last);
/* Where call number `step` of b is made: 0, the compute lane, or 1. */
int conform_pass_lane(const block_t *b, int step);
/* The call itself, whatever it returns; dp_io_t with what it is given. */
dp_status_t conform_pass_call(pass_t *p, int step);
dp_io_t conform_pass_io(const pass_t *p, int step);

/* Largest difference over the largest value, that of the outputs and of every gradient; what the
 * reference makes. */
typedef struct tolerance {
    double output, gradient;
} tolerance_t;
tolerance_t conform_kernel_tolerance(dp_dtype_t dtype);
bool conform_pass_output_is_right(pass_t *p);
/* Gradients of these micro-batches, dx and all parameters, by differences of the reference; each
 * element, or the sum along random directions. */
bool conform_gradients_are_right(block_t *b, pass_t *const *passes, int count, bool each);
/* One micro-batch, from gradients as they were at first. */
bool conform_block_is_right(block_t *b, bool each);

/* ---- cases for every kind of block ---- */

void conform_kernel_params_are_those_of_the_header(conform_t *t);
void conform_kernel_outputs_f64(conform_t *t);
void conform_kernel_outputs_f32(conform_t *t);
void conform_kernel_outputs_bf16(conform_t *t);
void conform_kernel_gradients_f64(conform_t *t);
void conform_kernel_gradients_f32(conform_t *t);
void conform_kernel_gradients_bf16(conform_t *t);
void conform_kernel_gradients_are_those_of_its_own_loss(conform_t *t);
void conform_kernel_weight_gradients_may_come_late(conform_t *t);
void conform_kernel_microbatches_in_flight_do_not_meet(conform_t *t);
void conform_kernel_instances_do_not_meet(conform_t *t);
void conform_kernel_first_stage_needs_no_dx(conform_t *t);
void conform_kernel_microbatches_may_be_shorter(conform_t *t);
void conform_kernel_recomputation_changes_no_bit(conform_t *t);
void conform_kernel_same_input_same_bits(conform_t *t);
void conform_kernel_calls_are_enqueued(conform_t *t);
void conform_kernel_pointers_that_are_missing_are_named(conform_t *t);
void conform_kernel_structs_may_grow(conform_t *t);
void conform_kernel_what_is_not_known_is_refused(conform_t *t);
void conform_kernel_short_structs_are_refused(conform_t *t);
void conform_kernel_sizes_writes_what_the_caller_has(conform_t *t);
void conform_kernel_wrong_settings_are_refused(conform_t *t);
void conform_kernel_memory_that_runs_out_leaves_nothing(conform_t *t);
void conform_kernel_nothing_is_left_behind(conform_t *t);

#define KERNEL_CASE(function, text)                                                                                    \
    {                                                                                                                  \
        .name = #function, .sentence = (text), .run = conform_kernel_##function                                        \
    }
#define KERNEL_FORMULA(function, text)                                                                                 \
    {                                                                                                                  \
        .name = #function, .sentence = (text), .run = conform_kernel_##function, .flags = CONFORM_FORMULA              \
    }
#define KERNEL_CASES                                                                                                   \
    KERNEL_CASE(params_are_those_of_the_header,                                                                        \
                "The parameters are those of the header: names, order, sizes, kinds, first values, and "               \
                "which are sharded."),                                                                                 \
        KERNEL_FORMULA(outputs_f64, "Outputs in f64 are those of the formula, to 1e-11 of the largest."),              \
        KERNEL_FORMULA(outputs_f32, "Outputs in f32 are those of the formula, to 2e-5 of the largest."),               \
        KERNEL_FORMULA(outputs_bf16, "Outputs in bf16 are those of the formula, to 1/32 of the largest."),             \
        KERNEL_FORMULA(gradients_f64,                                                                                  \
                       "dx and the gradient of every parameter in f64 are those of differences of the formula, "       \
                       "to 1e-7; they are added to what stood there, over several micro-batches."),                    \
        KERNEL_FORMULA(gradients_f32, "As gradients_f64, in f32 to 2e-4."),                                            \
        KERNEL_FORMULA(gradients_bf16, "As gradients_f64, in bf16 to 1/16; gradients of parameters are f32."),         \
        KERNEL_CASE(gradients_are_those_of_its_own_loss,                                                               \
                    "Gradients in f64 are those of differences of the plugin's own outputs."),                         \
        KERNEL_FORMULA(weight_gradients_may_come_late,                                                                 \
                       "backward_weight may come long after, in any order of micro-batches, when x, y, dy, dx, "       \
                       "work and scratch are gone."),                                                                  \
        KERNEL_FORMULA(microbatches_in_flight_do_not_meet,                                                             \
                       "Calls of several micro-batches may interleave: what is kept between calls is in saved "        \
                       "and work alone."),                                                                             \
        KERNEL_FORMULA(instances_do_not_meet,                                                                          \
                       "Two instances of different layers work side by side, and one goes on when the other is "       \
                       "closed."),                                                                                     \
        KERNEL_CASE(recomputation_changes_no_bit,                                                                      \
                    "Every level of recompute gives the outputs and gradients of none to the last bit, "               \
                    "keeps no more than the level before it, and needs nothing of forward's backward buffer."),        \
        KERNEL_FORMULA(microbatches_may_be_shorter,                                                                    \
                       "With variable_tokens micro-batches may have fewer tokens than the shape says, with "           \
                       "documents, documents: outputs and gradients are those of the formula, and "                    \
                       "nothing behind the last token is read or written."),                                           \
        KERNEL_FORMULA(first_stage_needs_no_dx, "dx may be NULL; the parameters' gradients are the same."),            \
        KERNEL_CASE(same_input_same_bits,                                                                              \
                    "The same input gives the same bits, in another instance and in memory elsewhere. "                \
                    "(Attention: where it opens with `deterministic`.)"),                                              \
        KERNEL_FORMULA(calls_are_enqueued,                                                                             \
                       "Calls put their work on the stream and return: they do not wait for what is on it, nor "       \
                       "look at memory before their turn."),                                                           \
        KERNEL_CASE(pointers_that_are_missing_are_named,                                                               \
                    "A call without a pointer that it needs is refused with DP_ERR_INVALID and names it; "             \
                    "nothing is put on the stream."),                                                                  \
        KERNEL_FORMULA(structs_may_grow,                                                                               \
                       "Configs, shapes and ios of a later version, which are longer, and the shortest of "            \
                       "this ABI work alike."),                                                                        \
        KERNEL_CASE(what_is_not_known_is_refused,                                                                      \
                    "A byte that is set behind what a config, shape or io of this version has is "                     \
                    "DP_ERR_UNSUPPORTED with a sentence, never dropped."),                                             \
        KERNEL_CASE(short_structs_are_refused,                                                                         \
                    "Configs, shapes and ios that are too short are refused with DP_ERR_INVALID and a "                \
                    "sentence."),                                                                                      \
        KERNEL_CASE(sizes_writes_what_the_caller_has,                                                                  \
                    "sizes writes no byte behind the caller's struct, and not its struct_size."),                      \
        KERNEL_CASE(wrong_settings_are_refused,                                                                        \
                    "Settings that make no sense are refused with DP_ERR_INVALID and a sentence, and no "              \
                    "instance is given."),                                                                             \
        KERNEL_CASE(memory_that_runs_out_leaves_nothing,                                                               \
                    "When the host has no memory, open says so with DP_ERR_NOMEM and keeps nothing."),                 \
        KERNEL_CASE(nothing_is_left_behind,                                                                            \
                    "close gives back memory, threads and descriptors; closing NULL does nothing.")

#endif
