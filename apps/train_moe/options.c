/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * options.c: one table says each option's name, limits, default and help; the rest of this file
 * reads the table. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { HEADING, INTEGER, NUMBER, TEXT, FLAG, FILES, HELP } kind_t;

enum { LOCAL, SHARED }; /* may differ between ranks; must be the same */

typedef struct option_row {
    const char *name;
    kind_t kind;
    int shared;
    size_t at; /* of the member in options_t */
    double least, most;
    const char *start; /* default */
    const char *value, *help;
} option_row_t;

#define MOST_LOSSES (1 << 28) /* of a step, in all: they are numbered by int32_t */
#define AT(member)  offsetof(options_t, member)
#define SIZES       1, 1 << 20

static const option_row_t table[] = {
    {"Model", HEADING, 0, 0, 0, 0, "", "", ""},
    {"layers", INTEGER, SHARED, AT(layers), SIZES, "8", "N", "attention + MoE layers, at least one per stage"},
    {"hidden", INTEGER, SHARED, AT(hidden), SIZES, "64", "N", "width of the residual stream, a multiple of 4"},
    {"heads", INTEGER, SHARED, AT(heads), SIZES, "4", "N", "query heads"},
    {"kv-heads", INTEGER, SHARED, AT(kv_heads), SIZES, "2", "N", "key/value heads, a divisor of --heads"},
    {"head-dim", INTEGER, SHARED, AT(head_dim), 0, 1 << 20, "0", "N",
     "of queries, keys, values; even; 0: hidden / heads"},
    {"attention-kind", TEXT, SHARED, AT(attention_kind), 0, 0, "gqa", "NAME",
     "gqa: query heads in groups share key/value heads; mla: multi-head latent attention"},
    {"q-rank", INTEGER, SHARED, AT(q_rank), 0, 1 << 20, "0", "N",
     "mla: width of the queries' latent; 0: they have none"},
    {"kv-rank", INTEGER, SHARED, AT(kv_rank), 0, 1 << 20, "0", "N",
     "mla: width of the latent of keys and values; 0: 4 * --head-dim"},
    {"rope-dim", INTEGER, SHARED, AT(rope_dim), 0, 1 << 20, "0", "N",
     "mla: rotated elements of a query or key, beside --head-dim others; even; 0: about half as many"},
    {"experts", INTEGER, SHARED, AT(experts), SIZES, "8", "N", "routed experts per layer, a multiple of --ep"},
    {"top-k", INTEGER, SHARED, AT(top_k), SIZES, "2", "N", "experts chosen for a token"},
    {"route-groups", INTEGER, SHARED, AT(route_groups), 0, 1 << 20, "0", "N",
     "experts are in N groups of neighbours, of which a token uses --route-limit; 0: no groups"},
    {"route-limit", INTEGER, SHARED, AT(route_limit), 0, 1 << 20, "0", "N",
     "groups that a token's experts may be of; 0: half of --route-groups"},
    {"expert-hidden", INTEGER, SHARED, AT(expert_hidden), SIZES, "64", "N", "inner width of an expert"},
    {"shared-experts", INTEGER, SHARED, AT(shared_experts), 0, 1 << 20, "1", "N", "experts that see every token"},
    {"gate", TEXT, SHARED, AT(gate), 0, 0, "sigmoid", "NAME", "of the router: sigmoid or softmax"},
    {"aux-alpha", NUMBER, SHARED, AT(aux_alpha), 0, 1e3, "0", "X", "weight of the auxiliary balance loss; 0: none"},
    {"skew", NUMBER, SHARED, AT(skew), -1e3, 1e3, "0", "X",
     "start with the first experts preferred (X < 0: the last): bias X to -X; --bias-rate 0 keeps it"},
    {"bias-rate", NUMBER, SHARED, AT(bias_rate), 0, 1e3, "0.002", "X", "step of the balancing bias; 0: no bias"},
    {"tie-embeddings", FLAG, SHARED, AT(tie), 0, 0, "", "", "the head's matrix is the embedding's table"},
    {"dtype", TEXT, SHARED, AT(dtype_name), 0, 0, "f32", "NAME",
     "of parameters and activations: f32, f64, or on GPUs bf16"},

    {"Data", HEADING, 0, 0, 0, 0, "", "", ""},
    {"data", FILES, LOCAL, 0, 0, 0, "", "FILE...", "text to learn from; without it: the machine's licence texts"},
    {"seq", INTEGER, SHARED, AT(seq), SIZES, "64", "N", "bytes in a sequence"},
    {"batch", INTEGER, SHARED, AT(batch), SIZES, "4", "N", "sequences in a micro-batch"},
    {"varlen", FLAG, SHARED, AT(varlen), 0, 0, "", "",
     "micro-batches of different length: a quarter to all of --batch * --seq bytes"},
    {"documents", FLAG, SHARED, AT(documents), 0, 0, "", "",
     "micro-batches are packed with documents, an eighth to all of --seq bytes, that do not attend to each other"},
    {"microbatches", INTEGER, SHARED, AT(microbatches), 0, DP_MAX_MICROBATCHES, "0", "M",
     "per step and pipeline; 0: 8, or twice its ranks"},
    {"seed", INTEGER, SHARED, AT(seed), 0, 9e15, "1", "N", "of parameters, data and sampling"},

    {"Optimizer", HEADING, 0, 0, 0, 0, "", "", ""},
    {"steps", INTEGER, SHARED, AT(steps), 1, 1e9, "600", "N", "training steps"},
    {"accumulate", INTEGER, SHARED, AT(accumulate), 1, 1 << 16, "1", "N",
     "rounds of --microbatches whose gradients are added up for a training step"},
    {"lr", NUMBER, SHARED, AT(lr), 0, 1e3, "0.004", "X", "learning rate after warm-up"},
    {"min-lr", NUMBER, SHARED, AT(min_lr), 0, 1e3, "0", "X", "where the cosine decay ends"},
    {"warmup", INTEGER, SHARED, AT(warmup), 0, 1e9, "20", "N", "steps of linear warm-up"},
    {"beta1", NUMBER, SHARED, AT(beta1), 0, 0.999999999, "0.9", "X", "AdamW: decay of the mean"},
    {"beta2", NUMBER, SHARED, AT(beta2), 0, 0.999999999, "0.95", "X", "AdamW: decay of the squares"},
    {"epsilon", NUMBER, SHARED, AT(epsilon), 1e-30, 1, "1e-8", "X", "AdamW: added to the divisor"},
    {"weight-decay", NUMBER, SHARED, AT(weight_decay), 0, 1e3, "0.05", "X", "AdamW: of matrices, not of norms"},
    {"clip", NUMBER, SHARED, AT(clip), 0, 1e30, "1", "X", "largest norm of the gradient; 0: any"},

    {"Layout and plugins", HEADING, 0, 0, 0, 0, "", "", ""},
    {"pp", INTEGER, SHARED, AT(pp), 0, DP_MAX_RANKS, "0", "N", "pipeline ranks; 0: all ranks / (ep * dp)"},
    {"ep", INTEGER, SHARED, AT(ep), 1, DP_MAX_RANKS, "1", "N", "ranks that share the experts of a layer"},
    {"dp", INTEGER, SHARED, AT(dp), 1, DP_MAX_RANKS, "1", "N", "copies of all that"},
    {"schedule", TEXT, SHARED, AT(schedule), 0, 0, "auto", "NAME",
     "auto: dualpipe, dualpipev for an odd --pp, 1f1b for 1"},
    {"chunks", INTEGER, SHARED, AT(chunks), 0, DP_MAX_CHUNKS, "0", "N",
     "per rank, of interleaved schedules; 0: default"},
    {"overlap", TEXT, SHARED, AT(overlap), 0, 0, "canonical", "HOW",
     "what runs beside what: canonical: the schedule's pairs; none: nothing; planned: what a few steps' costs make "
     "best"},
    {"partition", TEXT, SHARED, AT(partition), 0, 0, "even", "HOW",
     "layers of the stages: even; auto: what a few steps' costs make best; or listed, 3,2,2,1 (see dualpipe partition)"},
    {"recompute", TEXT, SHARED, AT(recompute_name), 0, 0, "none", "WHAT",
     "compute once more for the backward instead of keeping: none; cheap: norms and activation functions; mlp: the "
     "products into experts' inner width too; full: all within a segment. Same bits, less memory"},
    {"zero", INTEGER, SHARED, AT(zero), 0, 1, "0", "0|1",
     "1: each rank that holds a parameter keeps AdamW's state of its shard alone (ZeRO-1). Same bits, less memory"},
    {"one-accumulator", FLAG, SHARED, AT(one_accumulator), 0, 0, "", "",
     "sum a step's gradients in one accumulator, not in one for each half: less memory, other last bits than dualpipe"},
    {"slots", INTEGER, SHARED, AT(slots), 0, 1 << 16, "0", "K", "messages in flight per channel; 0: 2"},
    {"eplb", INTEGER, SHARED, AT(eplb), 0, 1e9, "0", "EVERY",
     "replicate experts by load and place them anew every EVERY steps; 0: not"},
    {"replicas", INTEGER, SHARED, AT(replicas), 0, 1 << 16, "0", "R",
     "of experts per layer, a multiple of --ep; 0: with --eplb one or more to spare on each rank"},
    {"eplb-threshold", NUMBER, SHARED, AT(eplb_threshold), 0, 1e6, "1.05", "X",
     "a layer whose fullest rank has at most X times the mean load stays as it is"},
    {"eplb-bound", NUMBER, SHARED, AT(eplb_bound), 0, 1e6, "0", "X",
     "move as few replicas as bring it to X; 0: as the full plan does"},
    {"eplb-search", INTEGER, SHARED, AT(eplb_search), 0, 1e9, "0", "N", "improvements to try per layer and plan"},
    {"threads", INTEGER, LOCAL, AT(threads), 0, MOST_THREADS, "0", "N", "N ranks as threads of this process"},
    {"device", TEXT, LOCAL, AT(device), 0, 0, "cpu", "NAME", "device plugin: cpu or cuda"},
    {"comm-sms", TEXT, SHARED, AT(comm_sms_text), 0, 0, "0", "N|auto",
     "SMs (cores) kept for communication; auto: a few are tried, the fastest stays; 0: shared"},
    {"comm", TEXT, LOCAL, AT(comm), 0, 0, "", "NAME",
     "transport plugin, by name or path; NEAR+FAR: within hosts and between them; default: auto, what fits the job"},
    {"attention", TEXT, LOCAL, AT(attention), 0, 0, "", "NAME",
     "attention plugin; default: that of the device; cudnn may be faster on GPUs for bf16"},
    {"moe", TEXT, LOCAL, AT(moe), 0, 0, "", "NAME", "MoE plugin; default: that of the device"},
    {"ep-plugin", TEXT, LOCAL, AT(ep_plugin), 0, 0, "", "NAME",
     "does dispatch and combine, for example exchange; default: the MoE plugin's own exchanges"},
    {"check-finite", FLAG, SHARED, AT(check_finite), 0, 0, "", "",
     "end with rank, stage, micro-batch and parameter of the first NaN or overflow"},
    {"graph", FLAG, SHARED, AT(graph), 0, 0, "", "",
     "on GPUs: capture a step and replay it, one launch a step; experimental with several ranks"},
    {"deterministic", INTEGER, SHARED, AT(deterministic), 0, 1, "1", "0|1",
     "1: the same run gives the same bits; 0: attention may be faster"},

    {"Checkpoints", HEADING, 0, 0, 0, 0, "", "", ""},
    {"checkpoint", TEXT, LOCAL, AT(checkpoint), 0, 0, "", "FOLDER",
     "save the whole run there now and then and at its end, while it goes on"},
    {"every", INTEGER, SHARED, AT(every), 1, 1e9, "100", "N", "steps between checkpoints"},
    {"keep", INTEGER, SHARED, AT(keep), 0, 1e9, "2", "K", "checkpoints to leave; 0: all"},
    {"resume", FLAG, SHARED, AT(resume), 0, 0, "", "",
     "go on after the newest checkpoint in the folder, in any layout; begin where there is none"},

    {"Output", HEADING, 0, 0, 0, 0, "", "", ""},
    {"out", TEXT, LOCAL, AT(out), 0, 0, "", "FOLDER",
     "put trace.json, its page, curve, report.txt, costs.txt, losses.txt there"},
    {"trace", TEXT, LOCAL, AT(trace), 0, 0, "", "FILE",
     "Chrome trace of the last training steps; FILE.json: FILE.html beside it"},
    {"trace-steps", INTEGER, SHARED, AT(trace_steps), 1, 64, "8", "N", "how many steps the trace and report look at"},
    {"curve", TEXT, LOCAL, AT(curve), 0, 0, "", "FILE", "picture of the loss: .svg, or .png where cairo was found"},
    {"report", TEXT, LOCAL, AT(report), 0, 0, "", "FILE", "the closing report as a file"},
    {"costs-out", TEXT, LOCAL, AT(costs_out), 0, 0, "", "FILE",
     "what passes and segments took, for dualpipe simulate --costs"},
    {"losses", TEXT, LOCAL, AT(losses), 0, 0, "", "FILE", "every loss and norm, in hexadecimal to the last bit"},
    {"log-every", INTEGER, LOCAL, AT(log_every), 1, 1e9, "20", "N", "steps between progress lines"},
    {"val-every", INTEGER, SHARED, AT(valid_every), 0, 1e9, "100", "N", "steps between validations; 0: none"},
    {"sample", INTEGER, SHARED, AT(sample), 0, 1e6, "120", "N", "bytes of text to write at the end; 0: none"},
    {"sample-seconds", NUMBER, LOCAL, AT(sample_seconds), 0, 1e6, "12", "X", "stop writing after so long"},
    {"temperature", NUMBER, SHARED, AT(temperature), 0, 1e3, "0.7", "X", "of the sample; 0: always the likeliest byte"},
    {"verify", FLAG, SHARED, AT(verify), 0, 0, "", "",
     "compare a step (with --eplb several) with a serial run of the model, then end"},
    {"quiet", FLAG, LOCAL, AT(quiet), 0, 0, "", "", "no progress lines and no report on standard output"},
    {"help", HELP, LOCAL, 0, 0, 0, "", "", "this text"},
};
enum {
    ROWS = sizeof(table) / sizeof(table[0]),
    FIRST_ROW = 1000 /* clear of the characters getopt returns */
};

/* "  --steps N             training steps [600]", the text broken into lines of 80 columns. */
static void print_row(const option_row_t *row)
{
    enum { HELP_AT = 24, COLUMNS = 80 };
    char left[64], text[512], *word = text;
    int at;

    snprintf(left, sizeof(left), "  --%s %s", row->name, row->value);
    snprintf(text, sizeof(text), "%s%s%s%s", row->help, *row->start ? " [" : "", row->start, *row->start ? "]" : "");
    at = printf("%-*s", HELP_AT - 1, left);
    for (char *end; word != NULL; word = end) {
        end = strchr(word, ' ');
        if (end != NULL)
            *end++ = '\0';
        if (at + 1 + (int)strlen(word) > COLUMNS)
            at = printf("\n%*s", HELP_AT - 1, "") - 1;
        at += printf(" %s", word);
    }
    putchar('\n');
}

static void print_help(void)
{
    puts("usage: train_moe [OPTIONS]\n"
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
         "own.");
    for (int i = 0; i < ROWS; i++) {
        if (table[i].kind == HEADING)
            printf("\n%s:\n", table[i].name);
        else
            print_row(&table[i]);
    }
    puts("\nExit status: 0; 1 --verify found a difference, or another failure; 2 bad\n"
         "options; 10 ranks started differently; 11 plugin; 12 ranks did not meet; 13 a\n"
         "rank died; 14 no progress; 15 protocol; 16 not a number; 17 no living rank has\n"
         "what a dead one had; 18 memory; 19 security; 20 schedule rejected; 130 or 143\n"
         "interrupted.");
}

static int refuse_option(const char *name, const char *value, const char *why)
{
    fprintf(stderr, "train_moe: --%s %s: %s (train_moe --help)\n", name, value, why);
    return 2;
}

static int set_number(const option_row_t *row, options_t *options, const char *value)
{
    char why[96], *end;
    double x;

    errno = 0;
    x = row->kind == INTEGER ? (double)strtoll(value, &end, 10) : strtod(value, &end);
    if (end == value || *end != '\0' || errno != 0 || !isfinite(x))
        return refuse_option(row->name, value, row->kind == INTEGER ? "not a whole number" : "not a number");
    if (x < row->least || x > row->most) {
        snprintf(why, sizeof(why), "must be from %.10g to %.10g", row->least, row->most);
        return refuse_option(row->name, value, why);
    }
    if (row->kind == INTEGER)
        *(int64_t *)((char *)options + row->at) = (int64_t)x;
    else
        *(double *)((char *)options + row->at) = x;
    return OPTIONS_RUN;
}

static int set(const option_row_t *row, options_t *options, char *value)
{
    switch (row->kind) {
    case INTEGER:
    case NUMBER:
        return set_number(row, options, value);
    case TEXT:
        *(const char **)((char *)options + row->at) = value;
        return OPTIONS_RUN;
    case FLAG:
        *(int *)((char *)options + row->at) = 1;
        return OPTIONS_RUN;
    case FILES:
        options->files[options->nfiles++] = value;
        return OPTIONS_RUN;
    case HELP:
        print_help();
        return 0;
    case HEADING:
        break;
    }
    return 2;
}

static int set_defaults(options_t *options)
{
    int code = OPTIONS_RUN;

    for (int i = 0; i < ROWS && code == OPTIONS_RUN; i++)
        if (table[i].kind == INTEGER || table[i].kind == NUMBER || table[i].kind == TEXT)
            code = set(&table[i], options, (char *)table[i].start);
    return code;
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

/* What one option alone cannot tell. */
static int check_together(options_t *o)
{
    char why[128] = "", value[24];

    if (strcmp(o->dtype_name, "f32") != 0 && strcmp(o->dtype_name, "f64") != 0 && strcmp(o->dtype_name, "bf16") != 0)
        return refuse_option("dtype", o->dtype_name, "must be f32, f64 or bf16");
    if (strcmp(o->gate, "softmax") != 0 && strcmp(o->gate, "sigmoid") != 0)
        return refuse_option("gate", o->gate, "must be softmax or sigmoid");
    if (strcmp(o->attention_kind, "gqa") != 0 && strcmp(o->attention_kind, "mla") != 0)
        return refuse_option("attention-kind", o->attention_kind, "must be gqa or mla");
    o->latent = strcmp(o->attention_kind, "mla") == 0;
    o->dtype = strcmp(o->dtype_name, "f64") == 0 ? DP_F64 : strcmp(o->dtype_name, "bf16") == 0 ? DP_BF16 : DP_F32;
    if (set_comm_sms(o) != OPTIONS_RUN)
        return 2;
    if (strcmp(o->recompute_name, "none") != 0 && strcmp(o->recompute_name, "cheap") != 0 &&
        strcmp(o->recompute_name, "mlp") != 0 && strcmp(o->recompute_name, "full") != 0)
        return refuse_option("recompute", o->recompute_name, "must be none, cheap, mlp or full");
    o->recompute = *o->recompute_name == 'n'   ? DP_RECOMPUTE_NONE
                   : *o->recompute_name == 'c' ? DP_RECOMPUTE_CHEAP
                   : *o->recompute_name == 'm' ? DP_RECOMPUTE_MLP
                                               : DP_RECOMPUTE_FULL;
    o->gate_kind = strcmp(o->gate, "softmax") == 0 ? DP_GATE_SOFTMAX : DP_GATE_SIGMOID;
#define REFUSE_IF(wrong, option, number, ...)                                                                          \
    if (wrong) {                                                                                                       \
        snprintf(why, sizeof(why), __VA_ARGS__);                                                                       \
        snprintf(value, sizeof(value), "%lld", (long long)(number));                                                   \
        return refuse_option(option, value, why);                                                                      \
    }
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
    REFUSE_IF(o->top_k > o->experts, "top-k", o->top_k, "there are only %d experts", (int)o->experts);
    REFUSE_IF(o->route_groups == 0 && o->route_limit != 0, "route-limit", o->route_limit, "goes with --route-groups");
    if (o->route_groups > 0) {
        REFUSE_IF(o->experts % o->route_groups != 0, "route-groups", o->route_groups, "must divide --experts %d",
                  (int)o->experts);
        o->route_limit = o->route_limit != 0 ? o->route_limit : (o->route_groups + 1) / 2;
        REFUSE_IF(o->route_limit > o->route_groups, "route-limit", o->route_limit, "there are only %d groups",
                  (int)o->route_groups);
        REFUSE_IF(o->top_k > o->route_limit * (o->experts / o->route_groups), "top-k", o->top_k,
                  "%d groups have only %d experts", (int)o->route_limit,
                  (int)(o->route_limit * (o->experts / o->route_groups)));
    }
    if (o->eplb > 0 && o->replicas == 0)
        o->replicas = (o->experts + 2 * o->ep - 1) / o->ep * o->ep;
    REFUSE_IF(o->replicas == 0 && o->experts % o->ep != 0, "experts", o->experts,
              "must be a multiple of --ep %d, or replicated (--replicas)", (int)o->ep);
    REFUSE_IF(o->replicas != 0 && o->replicas < o->experts, "replicas", o->replicas, "there are %d experts",
              (int)o->experts);
    REFUSE_IF(o->replicas % o->ep != 0, "replicas", o->replicas, "must be a multiple of --ep %d", (int)o->ep);
    REFUSE_IF(o->zero != 0 && o->replicas != 0, "zero", o->zero,
              "does not go with --replicas and --eplb: replicas of experts take their state along");
    REFUSE_IF(o->seq * o->batch > INT_MAX / o->hidden, "batch", o->batch, "a micro-batch would not fit into memory");
#undef REFUSE_IF
    if (o->min_lr > o->lr) {
        snprintf(value, sizeof(value), "%g", o->min_lr);
        return refuse_option("min-lr", value, "must not be above --lr");
    }
    if (strcmp(o->overlap, "canonical") != 0 && strcmp(o->overlap, "none") != 0 && strcmp(o->overlap, "planned") != 0)
        return refuse_option("overlap", o->overlap, "there are canonical, none and planned");
    if (o->graph && (o->varlen || o->documents))
        return refuse_option("graph", "", "a captured step has neither --varlen nor --documents");
    if (o->resume && *o->checkpoint == '\0')
        return refuse_option("resume", "", "goes with --checkpoint FOLDER");
#ifndef HAVE_CAIRO
    if (strlen(o->curve) > 4 && strcmp(o->curve + strlen(o->curve) - 4, ".png") == 0)
        return refuse_option("curve", o->curve, "this build has no cairo to draw PNG with; name an .svg file");
#endif
    return OPTIONS_RUN;
}

int options_parse(int argc, char **argv, options_t *options_out)
{
    struct option longs[ROWS + 1] = {{0}};
    options_t options = {0};
    int code, row, n = 0;

    for (int i = 0; i < ROWS; i++)
        if (table[i].kind != HEADING)
            longs[n++] =
                (struct option){table[i].name, *table[i].value ? required_argument : no_argument, NULL, FIRST_ROW + i};
    options.files = calloc((size_t)argc + 1, sizeof(*options.files));
    if (options.files == NULL) {
        fputs("train_moe: no memory\n", stderr);
        return 18;
    }
    code = set_defaults(&options);
    opterr = 0;
    while (code == OPTIONS_RUN && (row = getopt_long(argc, argv, ":h", longs, NULL)) != -1) {
        if (row == '?' || row == ':') {
            fprintf(stderr, "train_moe: %s %s (train_moe --help)\n", argv[optind - 1],
                    row == '?' ? "is no option, or not a whole one" : "wants a value");
            code = 2;
        } else if (row == 'h') {
            print_help();
            code = 0;
        } else {
            code = set(&table[row - FIRST_ROW], &options, optarg);
        }
    }
    /* "--data a b c": what follows the first file. */
    for (; code == OPTIONS_RUN && optind < argc; optind++) {
        if (options.nfiles == 0) {
            fprintf(stderr, "train_moe: \"%s\" is not an option; files to learn from follow --data\n", argv[optind]);
            code = 2;
        } else {
            options.files[options.nfiles++] = argv[optind];
        }
    }
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

char *options_settings(const options_t *options, uint64_t text_hash)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);

    if (to == NULL)
        return NULL;
    for (int i = 0; i < ROWS; i++) {
        const void *at = (const char *)options + table[i].at;
        if (table[i].shared == LOCAL)
            continue;
        if (table[i].kind == INTEGER)
            fprintf(to, "--%s=%lld\n", table[i].name, (long long)*(const int64_t *)at);
        else if (table[i].kind == NUMBER)
            fprintf(to, "--%s=%.17g\n", table[i].name, *(const double *)at);
        else if (table[i].kind == TEXT)
            fprintf(to, "--%s=%s\n", table[i].name, *(const char *const *)at);
        else if (table[i].kind == FLAG)
            fprintf(to, "--%s=%d\n", table[i].name, *(const int *)at);
    }
    fprintf(to, "--data=%016llx (hash of the text)\n", (unsigned long long)text_hash);
    if (fclose(to) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
