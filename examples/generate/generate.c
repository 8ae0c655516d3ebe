/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * generate.c: answers prompts by a model that train_moe has saved. Tokens are bytes.
 *
 *     dualpipe run -n 4 -- generate CHECKPOINT --ep 2 "The pipeline" "A rank"
 *
 * Four ranks and --ep 2 are two pipelines of two stages. A pipeline is a server with its own
 * prompts. Experts are spread over the servers, so all take their steps together. A step computes
 * what is new: prompts of requests that begin, the last byte of all others. Whoever draws a byte
 * adds it to a sum over the job, by which all ranks know all texts. docs/inference.md has the
 * rules. */
#include "balance.h"

#include <dualpipe/number.h>
#include <dualpipe/run.h>
#include <dualpipe/schedule.h>

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 256, MOST_LAYERS = 256, MOST_CONTEXT = 8192 };
enum { MOST_TEXTS = 1024, MOST_SLOTS = 64, MOST_MICROBATCHES = 32 };

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const dp_status_t tried = (call);                                                                              \
        if (tried < 0)                                                                                                 \
            return tried;                                                                                              \
    } while (0)

static const char *folder, *prompts; /* of checkpoints; a file */
static int ep = 1, answer_bytes = 64, slots = 8, order = DP_FORWARDS_DECODE, eplb;
static double temperature;

/* ---- the model: embedding, layers of attention and experts, head ---- */

static uint32_t layers, tied;
static dp_block_shape_t shape = {.struct_size = sizeof(shape), .batch = 1};
static dp_attention_config_t attention = {.struct_size = sizeof(attention), .shape = &shape, .apart = 1};
static dp_moe_config_t moe = {.struct_size = sizeof(moe), .shape = &shape, .apart = 1};

static const struct {
    const char *name;
    uint32_t *value;
} sizes[] = {{"layers", &layers},
             {"tie-embeddings", &tied},
             {"seq", &shape.sequence},
             {"hidden", &shape.hidden},
             {"heads", &attention.heads},
             {"kv-heads", &attention.kv_heads},
             {"head-dim", &attention.value_dim},
             {"q-rank", &attention.q_rank},
             {"kv-rank", &attention.kv_rank},
             {"rope-dim", &attention.rope_dim},
             {"experts", &moe.experts},
             {"top-k", &moe.top_k},
             {"expert-hidden", &moe.expert_hidden},
             {"shared-experts", &moe.shared_experts},
             {"route-groups", &moe.route_groups},
             {"route-limit", &moe.route_limit}};

/* Of lines "--name=value"; "" where there is none. */
static const char *find_setting(const char *settings, const char *name)
{
    const size_t n = strlen(name);

    for (const char *at = settings; *at != '\0'; at += strcspn(at, "\n"), at += *at == '\n')
        if (strncmp(at, "--", 2) == 0 && strncmp(at + 2, name, n) == 0 && at[n + 2] == '=')
            return at + n + 3;
    return "";
}

static dp_status_t read_settings(void)
{
    static dp_checkpoint_t *checkpoint;
    dp_checkpoint_tensor_t tensor = {.struct_size = sizeof(tensor)};
    static char settings[1 << 14];
    dp_status_t found;
    uint64_t step;
    int64_t at;

    TRY(found = dp_checkpoint_newest(folder, UINT64_MAX, &step));
    if (found == DP_PENDING)
        return dp_fail(DP_ERR_INVALID, "%s: there is no checkpoint: train_moe --checkpoint saves some", folder);
    TRY(dp_checkpoint_open(folder, step, &checkpoint));
    at = dp_checkpoint_find(checkpoint, "run.settings");
    if (at < 0)
        return dp_fail(DP_ERR_INVALID, "%s: there is no run.settings: train_moe did not save it", folder);
    TRY(dp_checkpoint_tensor(checkpoint, (uint32_t)at, &tensor));
    memset(settings, 0, sizeof(settings));
    TRY(dp_checkpoint_read(checkpoint, (uint32_t)at, settings, tensor.count < sizeof(settings) ? tensor.count : 0));
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        *sizes[i].value = (uint32_t)strtoul(find_setting(settings, sizes[i].name), NULL, 10);
    attention.head_dim = attention.value_dim + attention.rope_dim;
    if (attention.kv_rank > 0)
        attention.kv_heads = 0;
    moe.normalize = moe.top_k > 1;
    moe.posted = order == DP_FORWARDS_DECODE; /* single bytes: a lane for exchanges costs more */
    moe.gate = strncmp(find_setting(settings, "gate"), "softmax", 7) == 0 ? DP_GATE_SOFTMAX : DP_GATE_SIGMOID;
    if (strncmp(find_setting(settings, "dtype"), "bf16", 4) == 0)
        return dp_fail(DP_ERR_UNSUPPORTED, "%s: a model of bf16, which is for GPUs: f32 and f64 are served", folder);
    shape.dtype = strncmp(find_setting(settings, "dtype"), "f64", 3) == 0 ? DP_F64 : DP_F32;
    dp_checkpoint_close(checkpoint);
    return DP_OK;
}

static dp_status_t embed(void *self, const dp_segment_call_t *c)
{
    const size_t row = shape.hidden * dp_dtype_bytes(shape.dtype);
    const uint8_t *bytes = c->input;

    (void)self;
    for (size_t t = 0; t < c->tokens; t++)
        memcpy((char *)c->y + t * row, (const char *)c->params + bytes[t] * row, row);
    return DP_OK;
}

/* Logits of the last token of each document: nobody asks for others. */
static dp_status_t predict(void *self, const dp_segment_call_t *c)
{
    const size_t d = shape.hidden, of_dim = tied ? 1 : BYTES, of_byte = tied ? d : 1;
    double(*logits)[BYTES] = c->output;

    (void)self;
    for (uint32_t i = 0; i < c->documents; i++) {
        const size_t x = (c->document_ends[i] - 1) * d;
        double squares = 0;

        memset(logits[i], 0, sizeof(logits[i]));
        for (size_t k = 0; k < d; k++)
            squares += pow(dp_number_get(shape.dtype, c->x, x + k), 2);
        for (size_t k = 0; k < d; k++) {
            const double unit = dp_number_get(shape.dtype, c->x, x + k) / sqrt(squares / (double)d + 1e-6);
            const double gained = unit * dp_number_get(shape.dtype, c->params, k);

            for (size_t b = 0; b < BYTES; b++)
                logits[i][b] += gained * dp_number_get(shape.dtype, c->params, d + k * of_dim + b * of_byte);
        }
    }
    return DP_OK;
}

static dp_status_t refuse_backward(void *self, const dp_segment_call_t *c)
{
    (void)self, (void)c;
    return dp_fail(DP_ERR_UNSUPPORTED, "generate has forwards alone");
}

static dp_build_context_t ranks;
static dp_moe_block_t *block;
static dp_stage_t *made;
static dp_schedule_t *forwards;

/* Parameters are called as those of train_moe. */
static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                         dp_stage_t **stage_out)
{
    const size_t d = shape.hidden;
    const char *shared = tied ? "embedding.table" : NULL;
    const dp_param_t params[] = {{.name = "table", .count = BYTES * d, .shared = shared},
                                 {.name = "norm", .count = d},
                                 {.name = "w", .offset = d, .count = BYTES * d, .shared = shared}};
    const dp_block_sizes_t needs[] = {{.struct_size = sizeof(needs[0]), .param_count = BYTES * d, .nparams = 1},
                                      {.struct_size = sizeof(needs[0]), .param_count = (BYTES + 1) * d, .nparams = 2}};
    dp_segment_t segments[2] = {{.name = "embed", .host_forward = embed}, {.name = "predict", .host_forward = predict}};
    const dp_moe_block_options_t plugins = {
        .struct_size = sizeof(plugins), .attention_config = &attention, .moe_config = &moe};
    const int32_t all = (int32_t)layers, first = stage * all / stages, end = (stage + 1) * all / stages;
    static dp_part_t parts[MOST_LAYERS + 2];
    static char prefixes[MOST_LAYERS][24];
    dp_moe_layer_t *made_layer;
    dp_part_t *part = parts;

    (void)user;
    ranks = *context;
    if (all < stages)
        return dp_fail(DP_ERR_INVALID, "a model of %d layers is too small for pipelines of %d ranks", all, stages);
    TRY(dp_moe_block_open(context, &plugins, &block));
    for (int i = 0; i < 2; i++) {
        segments[i].struct_size = sizeof(segments[i]);
        segments[i].host_backward_input = refuse_backward;
    }
    if (stage == 0)
        *part++ =
            (dp_part_t){.segments = &segments[0], .sizes = &needs[0], .param_list = &params[0], .prefix = "embedding."};
    for (int32_t layer = first; layer < end; layer++, part++) {
        part->struct_size = sizeof(*part);
        TRY(dp_moe_block_part(block, NULL, &made_layer, part));
        if (eplb > 0)
            balance_watch(layer, made_layer);
        snprintf(prefixes[layer], sizeof(prefixes[layer]), "layer%d.", layer);
        part->prefix = prefixes[layer];
    }
    if (stage == stages - 1)
        *part++ =
            (dp_part_t){.segments = &segments[1], .sizes = &needs[1], .param_list = &params[1], .prefix = "head."};
    for (dp_part_t *p = parts; p < part; p++) {
        p->struct_size = sizeof(*p);
        p->nsegments = p->nsegments > 0 ? p->nsegments : 1;
    }
    TRY(dp_stage_create(parts, (int32_t)(part - parts), shape.sequence * d * dp_dtype_bytes(shape.dtype), shape.dtype,
                        &made));
    *stage_out = made;
    return DP_OK;
}

static void unbuild(void *user)
{
    (void)user;
    dp_moe_block_close(block);
}

/* ---- requests ---- */

typedef struct text {
    uint8_t bytes[MOST_CONTEXT + 1]; /* a prompt and the answer behind it */
    uint32_t prompt, length, most;   /* bytes: given; so far; at the end */
    uint32_t kept;                   /* of them in the caches of this server */
} text_t;

static text_t texts[MOST_TEXTS]; /* number i is one of server i mod ep */
static size_t ntexts, next;
static text_t *of_slot[MOST_SLOTS]; /* NULL: it is free */

/* A step: its micro-batches, and which part of which request is where. */
static int32_t M;
static struct {
    uint8_t input[MOST_CONTEXT];
    uint32_t ends[MOST_SLOTS], slots[MOST_SLOTS], past[MOST_SLOTS];
    double logits[MOST_SLOTS][BYTES];
} data[MOST_MICROBATCHES];
static const void *inputs[MOST_MICROBATCHES];
static void *outputs[MOST_MICROBATCHES];
static dp_documents_t documents[MOST_MICROBATCHES];
static dp_requests_t requests[MOST_MICROBATCHES];
static dp_request_part_t parts[MOST_SLOTS + MOST_MICROBATCHES];
static uint32_t nparts;

/* Summed over the job: bytes of prompts that a step read; bytes that it wrote; tokens of no
 * request; all tokens; for each text 1 + the byte that it gets, or 0. */
enum { READ, WRITTEN, IDLE, TOKENS, FIGURES };
static double sums[FIGURES + MOST_TEXTS];

static void add_document(int32_t m, const uint8_t *bytes, uint32_t count, uint32_t slot, uint32_t past)
{
    const uint32_t at = documents[m].count++, before = at > 0 ? data[m].ends[at - 1] : 0;

    memcpy(data[m].input + before, bytes, count);
    data[m].ends[at] = before + count;
    data[m].slots[at] = slot;
    data[m].past[at] = past;
}

/* Prompts that wait begin in free slots. Each request gets a token, and in the order of slots as
 * many more as the step has room for. */
static dp_status_t fill_step(void)
{
    const uint32_t nslots = (uint32_t)slots, wide = attention.heads * attention.head_dim;
    /* what a token costs beside attention, in keys that it could attend to */
    const uint32_t cost = shape.hidden * (2 + 3 * moe.expert_hidden * (moe.top_k + moe.shared_experts) / wide);
    uint32_t room = (uint32_t)M * shape.sequence - nslots, had[MOST_SLOTS] = {0}, fresh[MOST_SLOTS] = {0};

    for (uint32_t s = 0; s < nslots; s++) {
        if (of_slot[s] == NULL && next < ntexts) {
            of_slot[s] = &texts[next];
            next += (size_t)ep;
        }
        if (of_slot[s] != NULL) {
            const uint32_t more = of_slot[s]->length - of_slot[s]->kept - 1;

            had[s] = of_slot[s]->kept;
            fresh[s] = 1 + (more < room ? more : room);
            room -= fresh[s] - 1;
        }
    }
    TRY(dp_divide_requests(had, fresh, nslots, cost, M, shape.sequence, parts, &nparts));
    for (int32_t m = 0; m < M; m++)
        documents[m].count = 0;
    for (const dp_request_part_t *p = parts; p < parts + nparts; p++)
        add_document(p->microbatch, of_slot[p->request]->bytes + p->past, p->count, p->request, p->past);
    for (int32_t m = 0; m < M; m++)
        if (documents[m].count == 0) /* all servers run it: its experts may have tokens of others */
            add_document(m, (const uint8_t *)"", 1, DP_NO_SLOT, 0);
    return DP_OK;
}

static int draw_byte(const double *logits)
{
    double share[BYTES], left = 0;
    int best = 0;

    for (int b = 1; b < BYTES; b++)
        best = logits[b] > logits[best] ? b : best;
    for (int b = 0; b < BYTES && temperature > 0; b++)
        left += share[b] = exp((logits[b] - logits[best]) / temperature);
    left *= drand48();
    for (int b = 0; b < BYTES && temperature > 0; b++)
        if ((left -= share[b]) < 0)
            return b;
    return best;
}

/* What this rank adds to the sums: figures where it has the first stage, bytes where the last. */
static void note_step(void)
{
    const int first = ranks.pipeline_rank == 0, last = ranks.pipeline_rank == ranks.pipeline_size - 1;
    uint32_t seen[MOST_MICROBATCHES] = {0};

    memset(sums, 0, sizeof(sums));
    for (int32_t m = 0; m < M && first; m++) {
        sums[IDLE] += data[m].slots[0] == DP_NO_SLOT;
        sums[TOKENS] += data[m].ends[documents[m].count - 1];
    }
    for (const dp_request_part_t *p = parts; p < parts + nparts; p++) {
        text_t *t = of_slot[p->request];
        const double *logits = data[p->microbatch].logits[seen[p->microbatch]++];

        t->kept = p->past + p->count;
        sums[READ] += first && p->past < t->prompt ? p->count : 0;
        if (last && t->kept == t->length) {
            sums[FIGURES + (t - texts)] = 1 + draw_byte(logits);
            sums[WRITTEN]++;
        }
    }
}

/* *left_out: texts that lack bytes. */
static dp_status_t take_step(dp_pipeline_t *pipeline, size_t *left_out)
{
    dp_step_t step = {.struct_size = sizeof(step),
                      .inputs = inputs,
                      .outputs = outputs,
                      .documents = documents,
                      .requests = requests,
                      .forward_only = 1};

    TRY(fill_step());
    TRY(dp_pipeline_step(pipeline, &step));
    note_step();
    TRY(dp_pipeline_sum(pipeline, sums, FIGURES + ntexts));
    *left_out = 0;
    for (size_t i = 0; i < ntexts; i++) {
        if (sums[FIGURES + i] > 0)
            texts[i].bytes[texts[i].length++] = (uint8_t)(sums[FIGURES + i] - 1);
        *left_out += texts[i].length < texts[i].most;
    }
    for (int s = 0; s < MOST_SLOTS; s++)
        if (of_slot[s] != NULL && of_slot[s]->length == of_slot[s]->most)
            of_slot[s] = NULL;
    return DP_OK;
}

static dp_status_t answer_all(dp_pipeline_t *pipeline)
{
    double total[FIGURES] = {0}, decoded = 0;
    double seconds[2] = {0}; /* of steps with prompts, and without */
    int steps = 0;

    next = (size_t)ranks.expert_rank;
    for (int32_t m = 0; m < M; m++) {
        inputs[m] = data[m].input;
        outputs[m] = data[m].logits;
        documents[m].ends = data[m].ends;
        requests[m] = (dp_requests_t){.slots = data[m].slots, .past = data[m].past};
    }
    for (size_t left = ntexts; left > 0;) {
        struct timespec begin, end;

        clock_gettime(CLOCK_MONOTONIC, &begin);
        TRY(take_step(pipeline, &left));
        clock_gettime(CLOCK_MONOTONIC, &end);
        steps++;
        seconds[sums[READ] == 0] += difftime(end.tv_sec, begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
        decoded += sums[READ] == 0 ? sums[WRITTEN] : 0;
        for (int i = 0; i < FIGURES; i++)
            total[i] += sums[i];
        if (eplb > 0 && left > 0)
            TRY(balance_step(pipeline, steps % eplb == 0, sums[READ] > 0,
                             ranks.pipeline_rank + ranks.expert_rank == 0));
    }
    if (ranks.pipeline_rank + ranks.expert_rank == 0)
        fprintf(stderr, "generate: prefill %.0f bytes, %.0f a second; decode %.0f bytes, %.0f a second; %.1f %% idle\n",
                total[READ], total[READ] / seconds[0], decoded, decoded > 0 ? decoded / seconds[1] : 0,
                100 * total[IDLE] / total[TOKENS]);
    return DP_OK;
}

/* ---- prompts and answers ---- */

static dp_status_t add_prompt(const char *bytes, size_t count)
{
    const size_t most = count + (size_t)answer_bytes;
    text_t *t = &texts[ntexts];

    if (++ntexts > MOST_TEXTS)
        return dp_fail(DP_ERR_INVALID, "more than %d prompts", MOST_TEXTS);
    if (count == 0 || count > shape.sequence)
        return dp_fail(DP_ERR_INVALID, "prompt %zu has %zu bytes: 1 to %u are answered (--seq of the model's run)",
                       ntexts, count, shape.sequence);
    memcpy(t->bytes, bytes, count);
    t->prompt = t->length = (uint32_t)count;
    /* nobody reads the last byte: it may stand behind the context */
    t->most = most <= shape.sequence ? (uint32_t)most : shape.sequence + 1;
    return DP_OK;
}

static dp_status_t read_prompts(void)
{
    FILE *from = fopen(prompts, "r");
    static char *line;
    size_t room = 0;

    if (from == NULL)
        return dp_fail(DP_ERR_IO, "--prompts %s cannot be opened", prompts);
    for (ssize_t n; (n = getline(&line, &room, from)) >= 0;)
        TRY(add_prompt(line, (size_t)n - (line[n - 1] == '\n')));
    fclose(from);
    return DP_OK;
}

/* A line for each text: [prompt]answer, which printf %b understands. */
static void print_texts(void)
{
    for (const text_t *t = texts; t < texts + ntexts; t++) {
        for (uint32_t i = 0; i < t->length; i++) {
            if (i == 0 || i == t->prompt)
                putchar(i == 0 ? '[' : ']');
            printf(isprint(t->bytes[i]) && t->bytes[i] != '\\' ? "%c" : "\\0%03o", t->bytes[i]);
        }
        putchar('\n');
        if (t->length < t->prompt + (uint32_t)answer_bytes)
            fprintf(stderr, "generate: answer %td ends after %u bytes: the context of %u is full\n", t - texts + 1,
                    t->length - t->prompt, shape.sequence);
    }
}

/* ---- the job ---- */

static int parse(int argc, char **argv)
{
    static const struct option options[] = {{"ep", 1, NULL, 'e'},
                                            {"slots", 1, NULL, 's'},
                                            {"temperature", 1, NULL, 't'},
                                            {"prompts", 1, NULL, 'p'},
                                            {"order", 1, NULL, 'o'},
                                            {"eplb", 1, NULL, 'b'},
                                            {0}};
    static const char *const orders[] = {"serial", "turns", "prefill", "decode"};
    int option;

    while ((option = getopt_long(argc, argv, "n:", options, NULL)) != -1)
        if (option == 'e')
            ep = atoi(optarg);
        else if (option == 'n')
            answer_bytes = atoi(optarg);
        else if (option == 's')
            slots = atoi(optarg);
        else if (option == 'b')
            eplb = atoi(optarg);
        else if (option == 't')
            temperature = atof(optarg);
        else if (option == 'p')
            prompts = optarg;
        else if (option == 'o')
            for (order = DP_FORWARDS_DECODE; order >= 0 && strcmp(optarg, orders[order]) != 0;)
                order--; /* a dp_forwards_t, or -1 */
        else
            order = -1;
    folder = argv[optind++];
    if (order >= 0 && optind <= argc && (optind < argc) == (prompts == NULL) && ep > 0 && answer_bytes > 0 &&
        slots > 0 && slots <= MOST_SLOTS && temperature >= 0 && eplb >= 0)
        return 1;
    fprintf(stderr,
            "usage: dualpipe run -n RANKS -- generate CHECKPOINT [--ep N] [-n BYTES] [--temperature X]\n"
            "           [--slots 1-%d] [--order decode|prefill|turns|serial]\n"
            "           [--eplb STEPS] PROMPT... | --prompts FILE\n",
            MOST_SLOTS);
    return 0;
}

/* With a replica more than experts on each server, so that there is something to place. */
static dp_status_t open_balance(dp_group_t *group)
{
    enum { NAME = 64 };
    static char names[4096][NAME];
    char mine[NAME] = "";
    int32_t hosts = 1;

    if (ep == 1 || dp_group_size(group) > (int32_t)(sizeof(names) / NAME))
        return dp_fail(DP_ERR_INVALID, "--eplb: there are 2 to %zu ranks and --ep 2 or more", sizeof(names) / NAME);
    moe.replicas = moe.experts + (uint32_t)ep;
    if (gethostname(mine, NAME - 1) != 0)
        return dp_fail(DP_ERR_IO, "--eplb: this host has no name: %s", strerror(errno));
    TRY(dp_group_all_gather(group, mine, NAME, names));
    for (int32_t r = 1; r < dp_group_size(group); r++)
        hosts += strcmp(names[r], names[r - 1]) != 0;
    return balance_open(&moe, (int32_t)layers, dp_group_size(group) / ep, ep, hosts);
}

static dp_status_t serve(dp_group_t *group, dp_pipeline_t **pipeline_out, int nprompts, char **prompt)
{
    const int32_t stages = dp_group_size(group) / ep;
    dp_pipeline_options_t options = {
        .struct_size = sizeof(options), .group = group, .ep = ep, .microbatches = 2 * stages};
    const dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = "1f1b", .ranks = stages, .microbatches = 2 * stages};
    dp_schedule_t *training;
    uint64_t step;

    M = 2 * stages;
    TRY(read_settings());
    if (M < 2 || M > MOST_MICROBATCHES || layers > MOST_LAYERS || shape.sequence > MOST_CONTEXT)
        return dp_fail(
            DP_ERR_INVALID,
            "--ep %d of %d ranks, %u layers, --seq %u: pipelines have 1 to %d ranks, models at most %d layers "
            "and --seq %d",
            ep, dp_group_size(group), layers, shape.sequence, MOST_MICROBATCHES / 2, MOST_LAYERS, MOST_CONTEXT);
    if (slots > (int)shape.sequence) /* a step has a token for each */
        slots = (int)shape.sequence;
    for (int i = 0; i < nprompts; i++)
        TRY(add_prompt(prompt[i], strlen(prompt[i])));
    if (prompts != NULL)
        TRY(read_prompts());
    if (eplb > 0)
        TRY(open_balance(group));
    TRY(dp_schedule_generate(&request, &training));
    TRY(dp_schedule_forwards(training, order, &forwards));
    dp_schedule_free(training);
    options.schedule = forwards;
    options.boundary_bytes = shape.sequence * shape.hidden * dp_dtype_bytes(shape.dtype);
    options.dtype = shape.dtype;
    options.tokens = options.cache_tokens = shape.sequence;
    options.documents = options.cache_slots = (uint32_t)slots;
    options.build = build;
    options.unbuild = unbuild;
    TRY(dp_pipeline_open(&options, pipeline_out));
    TRY(dp_pipeline_load(*pipeline_out, folder, &step));
    TRY(answer_all(*pipeline_out));
    if (dp_group_rank(group) == 0)
        print_texts();
    if (fflush(stdout) != 0 || ferror(stdout))
        return dp_fail(DP_ERR_IO, "the answers could not be written: %s", strerror(errno));
    return DP_OK;
}

int main(int argc, char **argv)
{
    dp_group_t *group = NULL;
    dp_pipeline_t *pipeline = NULL;
    dp_status_t status;

    if (!parse(argc, argv))
        return 2;
    status = dp_group_join(NULL, &group);
    if (status == DP_OK)
        status = serve(group, &pipeline, argc - optind, argv + optind);
    if (status < 0)
        fprintf(stderr, "generate: %s\n", dp_last_error());
    dp_pipeline_close(pipeline);
    dp_schedule_free(forwards);
    dp_stage_free(made);
    dp_group_leave(group);
    balance_close();
    return status < 0;
}
