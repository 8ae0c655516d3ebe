/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * sample.c: writes text with the trained model: every forward-only step adds one byte to each
 * sequence of each micro-batch. The rank with the last stage draws the byte, a sum over the job
 * brings it to the rank with the first.
 *
 * A text is seen through a window of --seq bytes, whose positions count from its begin. When it is
 * full it moves on and keeps its second half. Each sequence is a request with a slot in the caches
 * of the stages: a step computes the bytes that are new in the window, its half or one. Without
 * caches it computes the whole window. */
#include "train_moe.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

enum { SHOWN = 4 };

typedef struct writer {
    trainer_t *t;
    int64_t sequences;            /* M * batch */
    int64_t prompt, room, length; /* bytes: given; at most; so far */
    int64_t from, kept;           /* where the window begins; bytes of it that caches hold */
    uint8_t *text;                /* [sequences][room] */
    char *logits;                 /* [M][T, VOCAB], for host and device */
    /* [M] into logits, NULL where the micro-batch does not end here */
    void **outputs;
    double *drawn; /* [sequences] of replica 0, then 1: rank 0 has had enough */
    /* with caches, the same for all micro-batches but for slots */
    dp_documents_t *documents; /* [M] */
    dp_requests_t *requests;   /* [M] */
    uint32_t *ends, *past;     /* [batch] */
    uint32_t *slots;           /* [sequences] */
} writer_t;

static dp_status_t start_requests(writer_t *w)
{
    const size_t M = (size_t)w->t->microbatches, batch = (size_t)w->t->options->batch;

    w->documents = calloc(M, sizeof(*w->documents));
    w->requests = calloc(M, sizeof(*w->requests));
    w->ends = calloc(batch, 2 * sizeof(*w->ends));
    w->slots = calloc((size_t)w->sequences, sizeof(*w->slots));
    if (w->documents == NULL || w->requests == NULL || w->ends == NULL || w->slots == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a list of %lld sequences", (long long)w->sequences);
    w->past = w->ends + batch;
    for (size_t m = 0; m < M; m++) {
        w->documents[m] = (dp_documents_t){w->ends, (uint32_t)batch};
        w->requests[m] = (dp_requests_t){w->slots + m * batch, w->past};
    }
    for (int64_t s = 0; s < w->sequences; s++)
        w->slots[s] = (uint32_t)s;
    return DP_OK;
}

static dp_status_t start_sample(writer_t *w)
{
    dp_status_t status;
    const options_t *o = w->t->options;
    const size_t M = (size_t)w->t->microbatches,
                 block = w->t->tokens * VOCAB * dp_dtype_bytes(dp_dtype_accumulator(o->dtype));

    w->sequences = (int64_t)M * o->batch;
    w->prompt = (o->seq + 1) / 2;
    w->room = w->prompt + o->sample;
    w->length = w->prompt;
    w->text = calloc((size_t)w->sequences, (size_t)w->room);
    w->outputs = calloc(M, sizeof(*w->outputs));
    w->drawn = calloc((size_t)w->sequences + 1, sizeof(*w->drawn));
    if (w->text == NULL || w->outputs == NULL || w->drawn == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a sample of %lld sequences", (long long)w->sequences);
    status = start_requests(w);
    if (status == DP_OK)
        status = device_memory_allocate_shared(&w->t->memory, M * block, (void **)&w->logits);
    if (status < 0)
        return status;
    for (size_t microbatch = 0; microbatch < M; microbatch++)
        w->outputs[microbatch] = w->t->targets[microbatch] != NULL ? w->logits + microbatch * block : NULL;
    for (int64_t s = 0; s < w->sequences; s++)
        memcpy(w->text + s * w->room,
               w->t->text->valid + (w->t->text->valid_bytes - (size_t)o->seq) / (size_t)w->sequences * (size_t)s,
               (size_t)w->prompt);
    return DP_OK;
}

static void finish_sample(writer_t *w)
{
    free(w->text);
    device_memory_free_shared(&w->t->memory, w->logits);
    free(w->outputs);
    free(w->drawn);
    free(w->documents);
    free(w->requests);
    free(w->ends);
    free(w->slots);
}

/* Bytes of a sequence that a step computes. */
static int64_t fresh_bytes(const writer_t *w)
{
    return w->length - w->from - w->kept;
}

/* Moves the window if it is full, and puts into each micro-batch what is to be computed of its
 * sequences: with caches one document after the other, else one whole --seq after the other, of
 * which causal attention ignores the end. */
static void fill_windows(writer_t *w)
{
    const options_t *o = w->t->options;
    const bool cached = trainer_caches(o);
    int64_t fresh, stride;

    if (w->length - w->from > o->seq) {
        w->from = w->length - (o->seq + 1) / 2;
        w->kept = 0;
    }
    fresh = fresh_bytes(w);
    stride = cached ? fresh : o->seq;
    for (int64_t s = 0; s < w->sequences; s++)
        memcpy(w->t->token_memory + s / o->batch * (int64_t)w->t->tokens + s % o->batch * stride,
               w->text + s * w->room + w->from + w->kept, (size_t)fresh);
    for (int64_t b = 0; b < o->batch; b++) {
        w->ends[b] = (uint32_t)((b + 1) * fresh);
        w->past[b] = (uint32_t)w->kept;
    }
}

/* Of the byte that comes next. */
static double logit(const writer_t *w, int64_t sequence, int byte)
{
    const options_t *o = w->t->options;
    const int64_t fresh = fresh_bytes(w), stride = trainer_caches(o) ? fresh : o->seq;
    const int64_t row = sequence / o->batch * (int64_t)w->t->tokens + sequence % o->batch * stride + fresh - 1;

    return dp_number_get(dp_dtype_accumulator(o->dtype), w->logits, (size_t)(row * VOCAB + byte));
}

static int draw_byte(const writer_t *w, int64_t sequence)
{
    const options_t *o = w->t->options;
    const uint64_t key = random_key(random_key((uint64_t)o->seed, 0x73616d706c65u), (uint64_t)sequence);
    double share[VOCAB], sum = 0, left;
    int best = 0;

    for (int b = 1; b < VOCAB; b++)
        if (logit(w, sequence, b) > logit(w, sequence, best))
            best = b;
    if (o->temperature <= 0)
        return best;
    for (int b = 0; b < VOCAB; b++)
        sum += share[b] = exp((logit(w, sequence, b) - logit(w, sequence, best)) / o->temperature);
    left = sum * random_uniform(key, (uint64_t)w->length);
    for (int b = 0; b < VOCAB; b++)
        if ((left -= share[b]) < 0)
            return b;
    return best;
}

/* One more byte for every sequence. *enough_out: the same on every rank. */
static dp_status_t add_byte(writer_t *w, double deadline, int *enough_out)
{
    trainer_t *t = w->t;
    dp_step_t step = {
        .struct_size = sizeof(step),
        .inputs = t->inputs,
        .targets = t->targets,
        .outputs = w->outputs,
        .forward_only = 1,
    };
    dp_status_t status;

    fill_windows(w);
    if (trainer_caches(t->options)) {
        step.documents = w->documents;
        step.requests = w->requests;
    }
    status = dp_pipeline_step(t->pipeline, &step);
    if (status < 0)
        return status;
    memset(w->drawn, 0, ((size_t)w->sequences + 1) * sizeof(*w->drawn));
    for (int64_t s = 0; s < w->sequences; s++)
        if (t->replica == 0 && w->outputs[s / t->options->batch] != NULL)
            w->drawn[s] = draw_byte(w, s);
    w->drawn[w->sequences] = dp_group_rank(t->group) == 0 && now_seconds() > deadline;
    status = dp_pipeline_sum(t->pipeline, w->drawn, (size_t)w->sequences + 1);
    if (status < 0)
        return status;
    for (int64_t s = 0; s < w->sequences; s++)
        w->text[s * w->room + w->length] = (uint8_t)w->drawn[s];
    if (trainer_caches(t->options))
        w->kept = w->length - w->from;
    w->length++;
    *enough_out = w->length == w->room || w->drawn[w->sequences] > 0;
    return DP_OK;
}

/* From column *at on; what a terminal's line does not hold goes on in the next. */
static void print_bytes(FILE *to, const uint8_t *bytes, int64_t count, int *at)
{
    for (int64_t i = 0; i < count; i++) {
        if (bytes[i] == '\n' || *at == 79)
            *at = fprintf(to, "\n    ") - 1;
        if (bytes[i] != '\n')
            *at += fprintf(to, "%c", isprint(bytes[i]) ? bytes[i] : '?');
    }
}

static void print_samples(const writer_t *w, double seconds, FILE *to)
{
    const int64_t shown = w->sequences < SHOWN ? w->sequences : SHOWN;

    fprintf(to, "\nWritten by the model, after [held-out beginnings], %.0f bytes a second:\n",
            (double)(w->sequences * (w->length - w->prompt)) / seconds);
    for (int64_t i = 0; i < shown; i++) {
        const uint8_t *text = w->text + i * (w->sequences / shown) * w->room;
        int at = fprintf(to, "\n  - [") - 1;

        print_bytes(to, text, w->prompt, &at);
        at += fprintf(to, "]");
        print_bytes(to, text + w->prompt, w->length - w->prompt, &at);
        fputs("\n", to);
    }
}

dp_status_t sample_write(trainer_t *trainer, FILE *to)
{
    writer_t w = {.t = trainer};
    const double begin = now_seconds(), deadline = begin + trainer->options->sample_seconds;
    dp_status_t status = start_sample(&w);
    int enough = 0;

    while (status == DP_OK && !enough)
        status = add_byte(&w, deadline, &enough);
    if (status == DP_OK && dp_group_rank(trainer->group) == 0)
        print_samples(&w, now_seconds() - begin, to);
    finish_sample(&w);
    return status;
}
