/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * text.h: the bytes to learn from. The last twentieth of every file is held out for validation. */
#ifndef TRAIN_MOE_TEXT_H
#define TRAIN_MOE_TEXT_H

#include <dualpipe/status.h>

#define TEXT_DEFAULT_FOLDER "/usr/share/common-licenses"

typedef struct text {
    uint8_t *train, *valid;
    size_t train_bytes, valid_bytes;
    int files;
    uint64_t hash; /* of all bytes, so that ranks that read different files notice */
} text_t;

/* nfiles 0: the licence texts every Debian machine carries. sequence: length that must fit. */
dp_status_t text_load(char *const *files, int nfiles, uint32_t sequence, text_t *text_out);
void text_free(text_t *text);

/* Loss in nats per byte of always guessing bytes by their frequency in the training text. */
double text_frequency_loss(const text_t *text);

/* Copies a training sequence and, one byte on, its targets. The place depends on the arguments
 * alone. */
void text_sample(const text_t *text, uint64_t seed, uint64_t step, uint64_t replica, uint64_t microbatch,
                 uint64_t sequence_number, uint32_t sequence, uint8_t *tokens, uint8_t *targets);
/* The same from the validation text: sequence `number` of `count`, evenly spread. */
void text_valid(const text_t *text, uint64_t number, uint64_t count, uint32_t sequence, uint8_t *tokens,
                uint8_t *targets);

#endif
