/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * options.c: one table says each option's name, limits, default and help; the rest of this file
 * reads the table. */
#include "options.h"
#include "tools/io/options.h"

#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LOSSES (1 << 28) /* of a step, in all: they are numbered by int32_t */
/* Rows of the table; members are those of options_t. */
#define AT(member) .at = offsetof(options_t, member)
#define INTEGER(n, member, lowest, highest, def, v)                                                                    \
    .name = n, .kind = OPTION_INT64, AT(member), .least = lowest, .most = highest, .start = def, .value = v
#define NUMBER(n, member, lowest, highest, def, v)                                                                     \
    .name = n, .kind = OPTION_REAL, AT(member), .least = lowest, .most = highest, .start = def, .value = v
#define TEXT(n, member, v, def) .name = n, .kind = OPTION_TEXT, AT(member), .value = v, .start = def
#define WORD(n, member, v, def, choice)                                                                                \
    .name = n, .kind = OPTION_WORD, AT(member), .value = v, .start = def, .words = choice
#define FLAG(n, member) .name = n, .kind = OPTION_FLAG, AT(member)

static int read_file_name(const command_t *command, const option_row_t *row, void *into, const char *value)
{
    options_t *options = into;

    (void)command, (void)row;
    options->files[options->nfiles++] = (char *)value;
    return CMD_OK;
}

static const option_row_t rows[] = {
    {.kind = OPTION_HEADING, .name = "Model"},
    {INTEGER("layers", layers, 1, 1 << 20, "8", "N"), .help = "attention + MoE layers, at least one per stage"},
    {INTEGER("hidden", hidden, 1, 1 << 20, "64", "N"), .help = "width of the residual stream, a multiple of 4"},
    {INTEGER("heads", heads, 1, 1 << 20, "4", "N"), .help = "query heads"},
    {INTEGER("kv-heads", kv_heads, 1, 1 << 20, "2", "N"), .help = "key/value heads, a divisor of --heads"},
    {INTEGER("head-dim", head_dim, 0, 1 << 20, "0", "N"), .help = "of queries, keys, values; even; 0: hidden / heads"},
    {WORD("attention-kind", attention_kind, "NAME", "gqa", "gqa mla"),
     .help = "gqa: query heads in groups share key/value heads; mla: multi-head latent attention"},
    {INTEGER("q-rank", q_rank, 0, 1 << 20, "0", "N"), .help = "mla: width of the queries' latent; 0: they have none"},
    {INTEGER("kv-rank", kv_rank, 0, 1 << 20, "0", "N"),
     .help = "mla: width of the latent of keys and values; 0: 4 * --head-dim"},
    {INTEGER("rope-dim", rope_dim, 0, 1 << 20, "0", "N"),
     .help = "mla: rotated elements of a query or key, beside --head-dim others; even; 0: about half as many"},
    {INTEGER("experts", experts, 1, 1 << 20, "8", "N"), .help = "routed experts per layer, a multiple of --ep"},
    {INTEGER("top-k", top_k, 1, 1 << 20, "2", "N"), .help = "experts chosen for a token"},
    {INTEGER("route-groups", route_groups, 0, 1 << 20, "0", "N"),
     .help = "experts are in N groups of neighbours, of which a token uses --route-limit; 0: no groups"},
    {INTEGER("route-limit", route_limit, 0, 1 << 20, "0", "N"),
     .help = "groups that a token's experts may be of; 0: half of --route-groups"},
    {INTEGER("expert-hidden", expert_hidden, 1, 1 << 20, "64", "N"), .help = "inner width of an expert"},
    {INTEGER("shared-experts", shared_experts, 0, 1 << 20, "1", "N"), .help = "experts that see every token"},
    {WORD("gate", gate, "NAME", "sigmoid", "sigmoid softmax"), .help = "of the router: sigmoid or softmax"},
    {NUMBER("aux-alpha", aux_alpha, 0, 1e3, "0", "X"), .help = "weight of the auxiliary balance loss; 0: none"},
    {NUMBER("skew", skew, -1e3, 1e3, "0", "X"),
     .help = "start with the first experts preferred (X < 0: the last): bias X to -X; --bias-rate 0 keeps it"},
    {NUMBER("bias-rate", bias_rate, 0, 1e3, "0.002", "X"), .help = "step of the balancing bias; 0: no bias"},
    {FLAG("tie-embeddings", tie), .help = "the head's matrix is the embedding's table"},
    {WORD("dtype", dtype_name, "NAME", "f32", "f32 f64 bf16"),
     .help = "of parameters and activations: f32, f64, or on GPUs bf16"},

    {.kind = OPTION_HEADING, .name = "Data"},
    {.name = "data",
     .value = "FILE...",
     .kind = OPTION_READ,
     .read = read_file_name,
     .help = "text to learn from; without it: the machine's licence texts"},
    {INTEGER("seq", seq, 1, 1 << 20, "64", "N"), .help = "bytes in a sequence"},
    {INTEGER("batch", batch, 1, 1 << 20, "4", "N"), .help = "sequences in a micro-batch"},
    {FLAG("varlen", varlen), .help = "micro-batches of different length: a quarter to all of --batch * --seq bytes"},
    {FLAG("documents", documents),
     .help =
         "micro-batches are packed with documents, an eighth to all of --seq bytes, that do not attend to each other"},
    {INTEGER("microbatches", microbatches, 0, DP_MAX_MICROBATCHES, "0", "M"),
     .help = "per step and pipeline; 0: 8, or twice its ranks; --resume: as before"},
    {INTEGER("seed", seed, 0, 9e15, "1", "N"), .help = "of parameters, data and sampling"},

    {.kind = OPTION_HEADING, .name = "Optimizer"},
    {INTEGER("steps", steps, 1, 1e9, "600", "N"), .help = "training steps"},
    {INTEGER("accumulate", accumulate, 1, 1 << 16, "1", "N"),
     .help = "rounds of --microbatches whose gradients are added up for a training step"},
    {NUMBER("lr", lr, 0, 1e3, "0.004", "X"), .help = "learning rate after warm-up"},
    {NUMBER("min-lr", min_lr, 0, 1e3, "0", "X"), .help = "where the cosine decay ends"},
    {INTEGER("warmup", warmup, 0, 1e9, "20", "N"), .help = "steps of linear warm-up"},
    {NUMBER("beta1", beta1, 0, 0.999999999, "0.9", "X"), .help = "AdamW: decay of the mean"},
    {NUMBER("beta2", beta2, 0, 0.999999999, "0.95", "X"), .help = "AdamW: decay of the squares"},
    {NUMBER("epsilon", epsilon, 1e-30, 1, "1e-8", "X"), .help = "AdamW: added to the divisor"},
    {NUMBER("weight-decay", weight_decay, 0, 1e3, "0.05", "X"), .help = "AdamW: of matrices, not of norms"},
    {NUMBER("clip", clip, 0, 1e30, "1", "X"), .help = "largest norm of the gradient; 0: any"},

    {.kind = OPTION_HEADING, .name = "Layout and plugins"},
    {INTEGER("pp", pp, 0, DP_MAX_RANKS, "0", "N"), .help = "pipeline ranks; 0: all ranks / (ep * dp)"},
    {INTEGER("ep", ep, 1, DP_MAX_RANKS, "1", "N"), .help = "ranks that share the experts of a layer"},
    {INTEGER("dp", dp, 1, DP_MAX_RANKS, "1", "N"), .help = "copies of all that"},
    {TEXT("schedule", schedule, "NAME", "auto"), .help = "auto: dualpipe, dualpipev for an odd --pp, 1f1b for 1"},
    {INTEGER("chunks", chunks, 0, DP_MAX_CHUNKS, "0", "N"), .help = "per rank, of interleaved schedules; 0: default"},
    {INTEGER("microbatch-group", microbatch_group, 0, DP_MAX_MICROBATCHES, "0", "G"),
     .help = "micro-batches that pass the chunks of a rank together, of interleaved schedules; 0: as many as ranks"},
    {WORD("overlap", overlap, "HOW", "canonical", "canonical none planned"),
     .help =
         "what runs beside what: canonical: the schedule's pairs; none: nothing; planned: what a few steps' costs make "
         "best"},
    {WORD("segments", segments, "HOW", "whole", "whole fine posted"),
     .help =
         "of a layer: whole: attention, dispatch, mlp, combine; fine: attention in two, shared experts and the sum "
         "apart as well, so that these run beside the all-to-all; posted: fine, and the all-to-all is issued and awaited "
         "on the compute lane. Same bits"},
    {TEXT("partition", partition, "HOW", "even"),
     .help =
         "layers of the stages: even; auto: what a few steps' costs make best; or listed, 3,2,2,1 (see dualpipe partition)"},
    {WORD("recompute", recompute_name, "WHAT", "none", "none cheap mlp full"),
     .help =
         "compute once more for the backward instead of keeping: none; cheap: norms and activation functions; mlp: the "
         "products into experts' inner width too; full: all within a segment. Same bits, less memory"},
    {INTEGER("zero", zero, 0, 1, "0", "0|1"),
     .help =
         "1: each rank that holds a parameter keeps AdamW's state of its shard alone (ZeRO-1). Same bits, less memory"},
    {INTEGER("buddy", buddy, 0, 1, "1", "0|1"),
     .help =
         "1: with dualpipe run --respawn, ranks whose state no other rank has copy it into memory that outlives them"},
    {FLAG("one-accumulator", one_accumulator),
     .help =
         "sum a step's gradients in one accumulator, not in one for each half: less memory, other last bits than dualpipe"},
    {INTEGER("slots", slots, 0, 1 << 16, "0", "K"),
     .help = "messages in flight per channel; 0: 2, or as many as the schedule needs"},
    {INTEGER("eplb", eplb, 0, 1e9, "0", "EVERY"),
     .help = "replicate experts by load and place them anew every EVERY steps; 0: not"},
    {INTEGER("replicas", replicas, 0, 1 << 16, "0", "R"),
     .help = "of experts per layer, a multiple of --ep; 0: with --eplb one or more to spare on each rank"},
    {NUMBER("eplb-threshold", eplb_threshold, 0, 1e6, "1.05", "X"),
     .help = "a layer whose fullest rank has at most X times the mean load stays as it is"},
    {NUMBER("eplb-bound", eplb_bound, 0, 1e6, "0", "X"),
     .help = "move as few replicas as bring it to X; 0: as the full plan does"},
    {INTEGER("eplb-search", eplb_search, 0, 1e9, "0", "N"), .help = "improvements to try per layer and plan"},
    {INTEGER("threads", threads, 0, MOST_THREADS, "0", "N"), .help = "N ranks as threads of this process"},
    {TEXT("device", device, "NAME", "cpu"), .help = "device plugin: cpu or cuda"},
    {TEXT("comm-sms", comm_sms_text, "N|auto", "0"),
     .help = "SMs (cores) kept for communication; auto: a few are tried, the fastest stays; 0: shared"},
    {TEXT("comm", comm, "NAME", ""),
     .help =
         "transport plugin, by name or path; NEAR+FAR: within hosts and between them; default: auto, what fits the job"},
    {TEXT("attention", attention, "NAME", ""),
     .help = "attention plugin; default: that of the device; cudnn may be faster on GPUs for bf16"},
    {TEXT("attention-settings", attention_settings, "TEXT", ""),
     .help = "settings of the attention plugin, in its own words: window=128"},
    {TEXT("moe", moe, "NAME", ""), .help = "MoE plugin; default: that of the device"},
    {TEXT("ep-plugin", ep_plugin, "NAME", ""),
     .help = "does dispatch and combine, for example exchange; default: the MoE plugin's own exchanges"},
    {FLAG("check-finite", check_finite),
     .help = "end with rank, stage, micro-batch and parameter of the first NaN or overflow"},
    {INTEGER("check-bits", check_bits, 0, 1e9, "0", "N"),
     .help = "every N steps: find memory that has changed by itself, where ranks hold copies of it; 0: never"},
    {FLAG("graph", graph),
     .help = "on GPUs: capture a step and replay it, one launch a step; experimental with several ranks"},
    {INTEGER("deterministic", deterministic, 0, 1, "1", "0|1"),
     .help = "1: the same run gives the same bits; 0: attention may be faster"},

    {.kind = OPTION_HEADING, .name = "Checkpoints"},
    {TEXT("checkpoint", checkpoint, "FOLDER", ""),
     .help = "save the whole run there now and then and at its end, while it goes on"},
    {INTEGER("every", every, 1, 1e9, "100", "N"), .help = "steps between checkpoints"},
    {INTEGER("keep", keep, 0, 1e9, "2", "K"), .help = "checkpoints to leave; 0: all"},
    {FLAG("resume", resume),
     .help =
         "go on after the newest checkpoint in the folder, in any layout, maybe with more --steps; begin where there is none"},

    {.kind = OPTION_HEADING, .name = "Output"},
    {TEXT("out", out, "FOLDER", ""),
     .help = "put trace.json, its page, curve, report.txt, costs.txt, losses.txt there"},
    {TEXT("trace", trace, "FILE", ""),
     .help = "Chrome trace of the last training steps; FILE.json: FILE.html beside it"},
    {INTEGER("trace-steps", trace_steps, 1, 64, "8", "N"), .help = "how many steps the trace and report look at"},
    {TEXT("curve", curve, "FILE", ""), .help = "picture of the loss, as SVG"},
    {TEXT("report", report, "FILE", ""), .help = "the closing report as a file"},
    {TEXT("costs-out", costs_out, "FILE", ""), .help = "what passes and segments took, for dualpipe simulate --costs"},
    {TEXT("losses", losses, "FILE", ""), .help = "every loss and norm, in hexadecimal to the last bit"},
    {INTEGER("log-every", log_every, 1, 1e9, "20", "N"), .help = "steps between progress lines"},
    {INTEGER("val-every", valid_every, 0, 1e9, "100", "N"), .help = "steps between validations; 0: none"},
    {INTEGER("sample", sample, 0, 1e6, "120", "N"), .help = "bytes of text to write at the end; 0: none"},
    {INTEGER("sample-cache", sample_cache, 0, 1, "1", "0|1"),
     .help = "1: the CPU keeps keys and values while it writes; 0: it computes each text anew for every byte"},
    {NUMBER("sample-seconds", sample_seconds, 0, 1e6, "12", "X"), .help = "stop writing after so long"},
    {NUMBER("temperature", temperature, 0, 1e3, "0.7", "X"), .help = "of the sample; 0: always the likeliest byte"},
    {FLAG("verify", verify),
     .help = "compare a step (with --eplb several) with a serial run of the model, then end: no file is written"},
    {FLAG("quiet", quiet), .help = "no progress lines and no report on standard output"},
    {.kind = OPTION_END},
};

static const option_row_t *const tables[] = {rows, NULL};

static const command_t program = {
    .name = "train_moe",
    .program = "train_moe",
    .tables = tables,
    .usage = "usage: train_moe [OPTIONS]\n"
             "       dualpipe run -n RANKS -- train_moe [OPTIONS]\n"
             "\n"
             "Trains a byte-level language model, a mixture-of-experts transformer, on plain\n"
             "text.\n"
             "\n"
             "Examples:\n"
             "  train_moe --threads 4 --out run\n"
             "      four pipeline ranks as threads of one process; everything it writes goes\n"
             "      to the folder run\n"
             "  dualpipe run -n 8 -- train_moe --ep 2 --out run\n"
             "      DualPipe over 4 ranks, experts spread over 2: eight processes\n"
             "  dualpipe run -n 4 -- train_moe --schedule dualpipev --data book.txt \\\n"
             "    --steps 1000 --hidden 128\n"
             "      another schedule, your text, a wider model\n"
             "  dualpipe run -n 8 -- train_moe --ep 2 --verify --dtype f64 --seq 16 --batch 2\n"
             "      is the pipeline's step the same as that of one process? Losses and\n"
             "      gradients are compared\n"
             "  dualpipe run -n 4 -- train_moe --ep 4 --skew 0.3 --bias-rate 0 --eplb 20\n"
             "      uneven routing, and experts placed by their load every 20 steps while it\n"
             "      runs\n"
             "  train_moe --threads 2 --device cuda --dtype bf16 --hidden 1024 \\\n"
             "    --heads 16 --seq 1024\n"
             "      two pipeline ranks on one GPU, each on its own part of it\n"
             "\n"
             "World rank = (d * ep + e) * pp + p. Every (d, e) trains on micro-batches of its\n"
             "own.",
    .notes = "\nExit status: 0 all that was asked for is on the disk; 1 --verify found a\n"
             "difference, the last save failed, an output is missing or cut, or another\n"
             "failure; 2 bad options; 10 ranks started differently; 11 plugin; 12 ranks did\n"
             "not meet; 13 a rank died; 14 no progress; 15 protocol; 16 not a number; 17 no\n"
             "living rank has what a dead one had; 18 memory; 19 security; 20 schedule\n"
             "rejected; 21 changed bits; 75 SIGTERM: saved, --resume goes on; 130 or 143\n"
             "interrupted.",
};

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* What may differ between ranks. */
static bool is_local(const char *name)
{
    static const char *const names[] = {"data",      "threads",    "device",    "comm",           "attention", "moe",
                                        "ep-plugin", "checkpoint", "out",       "trace",          "curve",     "report",
                                        "costs-out", "losses",     "log-every", "sample-seconds", "quiet"};

    return is_one_of(name, names, sizeof(names) / sizeof(names[0]));
}

/* Another value makes another run: other parameters, other data, or another function of them. */
static bool makes_run(const char *name)
{
    static const char *const names[] = {"layers",
                                        "hidden",
                                        "heads",
                                        "kv-heads",
                                        "head-dim",
                                        "attention-kind",
                                        "attention-settings",
                                        "q-rank",
                                        "kv-rank",
                                        "rope-dim",
                                        "experts",
                                        "top-k",
                                        "route-groups",
                                        "route-limit",
                                        "expert-hidden",
                                        "shared-experts",
                                        "gate",
                                        "aux-alpha",
                                        "dtype",
                                        "tie-embeddings",
                                        "seq",
                                        "batch",
                                        "varlen",
                                        "documents",
                                        "microbatches",
                                        "accumulate",
                                        "seed",
                                        "steps",
                                        "data"};

    return is_one_of(name, names, sizeof(names) / sizeof(names[0]));
}

/* What neither makes a run nor changes its losses: its layout, its outputs. */
static bool is_beside_run(const char *name)
{
    static const char *const names[] = {"lr",        "min-lr",          "warmup",       "beta1",
                                        "beta2",     "epsilon",         "weight-decay", "clip",
                                        "bias-rate", "one-accumulator", "deterministic"};

    return !makes_run(name) && !is_one_of(name, names, sizeof(names) / sizeof(names[0]));
}

static int refuse_option(const char *name, const char *value, const char *why)
{
    return command_usage(&program, "--%s %s: %s", name, value, why);
}

static int set_comm_sms(options_t *o)
{
    char *end;

    if (strcmp(o->comm_sms_text, "auto") == 0) {
        o->comm_sms = COMM_SMS_AUTO;
        return OPTIONS_RUN;
    }
    o->comm_sms = strtoll(o->comm_sms_text, &end, 10);
    if (end == o->comm_sms_text || *end != '\0' || o->comm_sms < 0 || o->comm_sms > 1 << 16)
        return refuse_option("comm-sms", o->comm_sms_text, "must be auto, or a number from 0 to 65536");
    return OPTIONS_RUN;
}

#define REFUSE_IF(wrong, option, number, ...)                                                                          \
    if (wrong) {                                                                                                       \
        char why[128], value[24];                                                                                      \
        snprintf(why, sizeof(why), __VA_ARGS__);                                                                       \
        snprintf(value, sizeof(value), "%lld", (long long)(number));                                                   \
        return refuse_option(option, value, why);                                                                      \
    }

static int settle_words(options_t *o)
{
    o->latent = strcmp(o->attention_kind, "mla") == 0;
    o->dtype = strcmp(o->dtype_name, "f64") == 0 ? DP_F64 : strcmp(o->dtype_name, "bf16") == 0 ? DP_BF16 : DP_F32;
    o->recompute = *o->recompute_name == 'n'   ? DP_RECOMPUTE_NONE
                   : *o->recompute_name == 'c' ? DP_RECOMPUTE_CHEAP
                   : *o->recompute_name == 'm' ? DP_RECOMPUTE_MLP
                                               : DP_RECOMPUTE_FULL;
    o->gate_kind = strcmp(o->gate, "softmax") == 0 ? DP_GATE_SOFTMAX : DP_GATE_SIGMOID;
    return OPTIONS_RUN;
}

static int settle_attention(options_t *o)
{
    REFUSE_IF(o->hidden % 4 != 0, "hidden", o->hidden, "must be a multiple of 4");
    REFUSE_IF(!o->latent && o->heads % o->kv_heads != 0, "kv-heads", o->kv_heads, "must divide --heads %d",
              (int)o->heads);
    REFUSE_IF(o->head_dim == 0 && o->hidden % o->heads != 0, "heads", o->heads,
              "must divide --hidden %d unless --head-dim is given", (int)o->hidden);
    if (o->head_dim == 0)
        o->head_dim = o->hidden / o->heads;
    REFUSE_IF(o->head_dim % 2 != 0, "head-dim", o->head_dim, "must be even");
    REFUSE_IF(!o->latent && o->q_rank != 0, "q-rank", o->q_rank, "goes with --attention-kind mla");
    REFUSE_IF(!o->latent && o->kv_rank != 0, "kv-rank", o->kv_rank, "goes with --attention-kind mla");
    REFUSE_IF(!o->latent && o->rope_dim != 0, "rope-dim", o->rope_dim, "goes with --attention-kind mla");
    REFUSE_IF(o->rope_dim % 2 != 0, "rope-dim", o->rope_dim, "must be even");
    if (o->latent) {
        o->kv_heads = o->heads;
        o->kv_rank = o->kv_rank != 0 ? o->kv_rank : 4 * o->head_dim;
        o->rope_dim = o->rope_dim != 0 ? o->rope_dim : (o->head_dim + 2) / 4 * 2;
    }
    return OPTIONS_RUN;
}

static int settle_routing(options_t *o)
{
    REFUSE_IF(o->top_k > o->experts, "top-k", o->top_k, "there are only %d experts", (int)o->experts);
    REFUSE_IF(o->route_groups == 0 && o->route_limit != 0, "route-limit", o->route_limit, "goes with --route-groups");
    if (o->route_groups == 0)
        return OPTIONS_RUN;
    REFUSE_IF(o->experts % o->route_groups != 0, "route-groups", o->route_groups, "must divide --experts %d",
              (int)o->experts);
    o->route_limit = o->route_limit != 0 ? o->route_limit : (o->route_groups + 1) / 2;
    REFUSE_IF(o->route_limit > o->route_groups, "route-limit", o->route_limit, "there are only %d groups",
              (int)o->route_groups);
    REFUSE_IF(o->top_k > o->route_limit * (o->experts / o->route_groups), "top-k", o->top_k,
              "%d groups have only %d experts", (int)o->route_limit,
              (int)(o->route_limit * (o->experts / o->route_groups)));
    return OPTIONS_RUN;
}

static int settle_replicas(options_t *o)
{
    if (o->eplb > 0 && o->replicas == 0)
        o->replicas = (o->experts + 2 * o->ep - 1) / o->ep * o->ep;
    REFUSE_IF(o->replicas == 0 && o->experts % o->ep != 0, "experts", o->experts,
              "must be a multiple of --ep %d, or replicated (--replicas)", (int)o->ep);
    REFUSE_IF(o->replicas != 0 && o->replicas < o->experts, "replicas", o->replicas, "there are %d experts",
              (int)o->experts);
    REFUSE_IF(o->replicas % o->ep != 0, "replicas", o->replicas, "must be a multiple of --ep %d", (int)o->ep);
    REFUSE_IF(o->zero != 0 && o->replicas != 0, "zero", o->zero,
              "does not go with --replicas and --eplb: replicas of experts take their state along");
    return OPTIONS_RUN;
}

static int check_run(options_t *o)
{
    char value[24];

    REFUSE_IF(o->seq * o->batch > INT_MAX / o->hidden, "batch", o->batch, "a micro-batch would not fit into memory");
    if (o->min_lr > o->lr) {
        snprintf(value, sizeof(value), "%g", o->min_lr);
        return refuse_option("min-lr", value, "must not be above --lr");
    }
    if (o->graph && (o->varlen || o->documents))
        return command_usage(&program, "--graph: a captured step has neither --varlen nor --documents");
    if (o->resume && *o->checkpoint == '\0')
        return command_usage(&program, "--resume goes with --checkpoint FOLDER");
    if (strlen(o->curve) > 4 && strcmp(o->curve + strlen(o->curve) - 4, ".png") == 0)
        return refuse_option("curve", o->curve, "the curve is drawn as SVG; name an .svg file");
    return OPTIONS_RUN;
}

/* What one option alone cannot tell. */
static int check_together(options_t *o)
{
    static int (*const steps[])(options_t *) = {settle_words,   set_comm_sms,    settle_attention,
                                                settle_routing, settle_replicas, check_run};
    int code = OPTIONS_RUN;

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && code == OPTIONS_RUN; i++)
        code = steps[i](o);
    return code;
}

int options_parse(int argc, char **argv, options_t *options_out)
{
    options_t options = {0};
    int code;

    options.files = calloc((size_t)argc + 1, sizeof(*options.files));
    if (options.files == NULL) {
        fputs("train_moe: no memory\n", stderr);
        return 18;
    }
    code = options_defaults(&program, &options);
    if (code == CMD_OK && options_read(&program, NULL, argc, argv, &options, &code))
        code = OPTIONS_RUN;
    /* "--data a b c": what follows the first file. */
    if (code == OPTIONS_RUN && optind < argc && options.nfiles == 0)
        code = command_usage(&program, "\"%s\" is not an option; files to learn from follow --data", argv[optind]);
    while (code == OPTIONS_RUN && optind < argc)
        options.files[options.nfiles++] = argv[optind++];
    if (code == OPTIONS_RUN)
        code = check_together(&options);
    if (code != OPTIONS_RUN)
        options_free(&options);
    *options_out = options;
    return code;
}

void options_free(options_t *options)
{
    free(options->files);
    options->files = NULL;
}

dp_status_t options_fit(options_t *o, int32_t size)
{
    const int64_t copies = o->ep * o->dp;

    if (o->pp == 0)
        o->pp = size / copies;
    if (o->pp * copies != size || o->pp == 0)
        return dp_fail(DP_ERR_INVALID, "--pp %d * --ep %d * --dp %d is %d ranks, but %d were started", (int)o->pp,
                       (int)o->ep, (int)o->dp, (int)(o->pp * copies), size);
    if (o->microbatches == 0)
        o->microbatches = o->of_checkpoint;
    if (strcmp(o->schedule, "auto") == 0 && o->of_checkpoint != 0 &&
        (o->microbatches < 2 * o->pp || (o->microbatches % 2 != 0 && o->pp % 2 == 0)))
        o->schedule = "1f1b"; /* which any number goes with */
    if (strcmp(o->schedule, "auto") == 0)
        o->schedule = o->pp == 1 ? "1f1b" : o->pp % 2 == 0 ? "dualpipe" : "dualpipev";
    if (o->microbatches == 0)
        o->microbatches = o->pp > 4 ? 2 * o->pp : 8;
    if (o->accumulate * o->microbatches * copies > MOST_LOSSES)
        return dp_fail(DP_ERR_INVALID,
                       "--accumulate %d: with %d micro-batches for each of %d replicas, a step has more than %d losses",
                       (int)o->accumulate, (int)o->microbatches, (int)copies, MOST_LOSSES);
    return DP_OK;
}

const char *options_plugin(const char *name)
{
    return *name != '\0' ? name : NULL;
}

int32_t options_local_experts(const options_t *o)
{
    return (int32_t)((o->replicas > 0 ? o->replicas : o->experts) / o->ep);
}

static void list_options(FILE *to, const options_t *options, bool (*leave_out)(const char *name))
{
    for (const option_row_t *row = rows; row->kind != OPTION_END; row++) {
        const void *at = (const char *)options + row->at;

        if (leave_out(row->name))
            continue;
        if (row->kind == OPTION_INT64)
            fprintf(to, "--%s=%lld\n", row->name, (long long)*(const int64_t *)at);
        else if (row->kind == OPTION_REAL)
            fprintf(to, "--%s=%.17g\n", row->name, *(const double *)at);
        else if (row->kind == OPTION_TEXT || row->kind == OPTION_WORD)
            fprintf(to, "--%s=%s\n", row->name, *(const char *const *)at);
        else if (row->kind == OPTION_FLAG)
            fprintf(to, "--%s=%d\n", row->name, *(const bool *)at);
    }
}

static char *list_settings(const options_t *options, uint64_t text_hash, bool run)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);

    if (to == NULL)
        return NULL;
    list_options(to, options, run ? is_beside_run : is_local);
    if (run)
        fprintf(to, "--ep * --dp=%lld\n", (long long)(options->ep * options->dp));
    fprintf(to, "--data=%016llx (hash of the text)\n", (unsigned long long)text_hash);
    if (fclose(to) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

char *options_settings(const options_t *options, uint64_t text_hash)
{
    return list_settings(options, text_hash, false);
}

char *options_run(const options_t *options, uint64_t text_hash)
{
    return list_settings(options, text_hash, true);
}

bool options_make_run(const char *line)
{
    char name[32];

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(line + 2, "="), line + 2);
    return makes_run(name);
}
