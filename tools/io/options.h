/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * options.h: what a command understands, as a table: it reads the command line, makes --help and
 * completion, and the manual is checked against it. */
#ifndef DP_TOOLS_OPTIONS_H
#define DP_TOOLS_OPTIONS_H

#include <dualpipe/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "exit.h"

typedef struct command command_t;
typedef struct option_row option_row_t;

typedef enum option_kind {
    OPTION_END,
    OPTION_FLAG,  /* bool: true */
    OPTION_TEXT,  /* const char *, borrowed */
    OPTION_INT32, /* int32_t, int64_t, double from least to most */
    OPTION_INT64,
    OPTION_REAL,
    OPTION_CHOICE,  /* int32_t: which of the words */
    OPTION_WORD,    /* const char *, borrowed: one of the words */
    OPTION_HEADING, /* none: `name` is a line of the help */
    OPTION_READ     /* read() */
} option_kind_t;

/* CMD_OK, or an exit code when it has said what is wrong. */
typedef int (*option_read_fn)(const command_t *command, const option_row_t *row, void *into, const char *value);

struct option_row {
    const char *name;  /* "ranks" */
    const char *value; /* "P"; NULL: it takes none */
    const char *help;
    option_kind_t kind;
    size_t at; /* of the member that gets the value */
    double least, most;
    /* values there are, with blanks between; METHOD_WORDS: the built-in schedules */
    const char *words;
    const char *actions; /* those of command_t that take it; NULL: all */
    option_read_fn read;
    char letter; /* 'n' of -n; 0: none */
    /* for completion: values that are there when it is asked, a line each */
    void (*list)(FILE *to);
    /* the default, as help shows it and options_defaults takes it; NULL: none */
    const char *start;
};
#define METHOD_WORDS "@methods"

struct command {
    const char *name; /* "schedule" */
    /* "train_moe": it is a program; NULL: a command of dualpipe */
    const char *program;
    const char *usage;                 /* help above the options; a line is wrapped */
    const option_row_t *const *tables; /* ends with NULL; each ends with OPTION_END */
    const char *notes;                 /* help below them */
    const char *actions;               /* "overlap costs"; NULL: none */
    bool stops;                        /* what follows the first operand is not ours */
    bool lists_methods;                /* help ends with the built-in schedules */
    unsigned needs;                    /* for the command's own use */
    /* for completion: what the action is about, a line each; NULL: files */
    void (*list)(const char *action, FILE *to);
};

/* Reads the command line; the operands begin at argv[optind]. action: one of command->actions, or
 * NULL. false: *exit_out is what to exit with: help was shown, or it was said what is wrong. */
bool options_read(const command_t *command, const char *action, int argc, char **argv, void *into, int *exit_out);

/* Gives every option its default. */
int options_defaults(const command_t *command, void *into);

/* What one option does. */
int option_take(const command_t *command, const option_row_t *row, void *into, const char *value);

/* "dualpipe COMMAND: ..." on stderr, with a hint at --help; returns CMD_USAGE. */
int command_usage(const command_t *command, const char *fmt, ...) DP_PRINTF(2, 3);
/* dp_last_error() on stderr; returns the exit code that goes with the status. */
int command_failed(const command_t *command, dp_status_t status);

/* How far a word is from one that there is, in letters added, left out, changed or swapped with
 * their neighbour; above DID_YOU_MEAN for words that are no slip of it. */
enum { DID_YOU_MEAN = 2 };
int options_slips(const char *word, const char *right);

void options_help(const command_t *command, FILE *to);
/* What may stand on a command line, a line each: options and actions; behind `word`, the values of
 * the option "--format", what the action "check" is about. */
void options_words(const command_t *command, const char *word, FILE *to);

#endif
