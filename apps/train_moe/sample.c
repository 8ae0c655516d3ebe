/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * sample.c: writes text with the trained model: every forward-only step adds one byte to each
 * sequence of each micro-batch. The rank with the last stage draws the byte, a sum over the job
 * brings it to the rank with the first. */
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
    uint8_t *text;                /* [sequences][room] */
    char *logits;                 /* [M][T, VOCAB], for host and device */
    /* [M] into logits, NULL where the micro-batch does not end here */
    void **outputs;
    double *drawn; /* [sequences] of replica 0, then 1: rank 0 has had enough */
} writer_t;

static dp_status_t start_sample(writer_t *w)
{
    dp_status_t status;
    const options_t *o = w->t->options;
    const size_t M = (size_t)w->t->microbatches,
                 block = w->t->tokens * VOCAB * dp_dtype_bytes(dp_dtype_accumulator(o->dtype));

    w->sequences = (int64_t)M * o->batch;
    w->prompt = o->seq / 2;
    w->room = w->prompt + o->sample;
    w->length = w->prompt;
    w->text = calloc((size_t)w->sequences, (size_t)w->room);
    w->outputs = calloc(M, sizeof(*w->outputs));
    w->drawn = calloc((size_t)w->sequences + 1, sizeof(*w->drawn));
    if (w->text == NULL || w->outputs == NULL || w->drawn == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a sample of %lld sequences", (long long)w->sequences);
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
}

/* The last `seq` bytes of each sequence, or all of them; causal attention ignores what follows
 * them. */
static void fill_windows(writer_t *w)
{
    const int64_t seq = w->t->options->seq, used = w->length < seq ? w->length : seq;

    for (int64_t s = 0; s < w->sequences; s++)
        memcpy(w->t->token_memory + s * seq, w->text + s * w->room + w->length - used, (size_t)used);
}

static double logit(const writer_t *w, int64_t sequence, int64_t position, int byte)
{
    const int64_t at = (sequence * w->t->options->seq + position) * VOCAB + byte;

    return dp_number_get(dp_dtype_accumulator(w->t->options->dtype), w->logits, (size_t)at);
}

static int draw_byte(const writer_t *w, int64_t sequence)
{
    const options_t *o = w->t->options;
    const int64_t position = (w->length < o->seq ? w->length : o->seq) - 1;
    const uint64_t key = random_key(random_key((uint64_t)o->seed, 0x73616d706c65u), (uint64_t)sequence);
    double share[VOCAB], sum = 0, left;
    int best = 0;

    for (int b = 1; b < VOCAB; b++)
        if (logit(w, sequence, position, b) > logit(w, sequence, position, best))
            best = b;
    if (o->temperature <= 0)
        return best;
    for (int b = 0; b < VOCAB; b++)
        sum += share[b] = exp((logit(w, sequence, position, b) - logit(w, sequence, position, best)) / o->temperature);
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

static void print_samples(const writer_t *w, FILE *to)
{
    const int64_t shown = w->sequences < SHOWN ? w->sequences : SHOWN;

    fprintf(to, "\nWritten by the model, after [held-out beginnings]:\n");
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
    const double deadline = now_seconds() + trainer->options->sample_seconds;
    dp_status_t status = start_sample(&w);
    int enough = 0;

    while (status == DP_OK && !enough)
        status = add_byte(&w, deadline, &enough);
    if (status == DP_OK && dp_group_rank(trainer->group) == 0)
        print_samples(&w, to);
    finish_sample(&w);
    return status;
}
