/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * options.c: see options.h. */
#include "options.h"

#include <dualpipe/group.h>
#include <dualpipe/schedule.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_ROWS = 128, FIRST_ROW = 1000, COLUMNS = 80, HELP_AT = 24 };

static const option_row_t help_row = {.name = "help", .kind = OPTION_FLAG, .help = "show this", .letter = 'h'};

/* ---- the table ---- */

/* All rows of a command, help behind them. */
static size_t list_rows(const command_t *command, const option_row_t *rows[MOST_ROWS])
{
    size_t n = 0;

    for (size_t t = 0; command->tables[t] != NULL; t++)
        for (const option_row_t *row = command->tables[t]; row->kind != OPTION_END && n + 1 < MOST_ROWS; row++)
            rows[n++] = row;
    rows[n++] = &help_row;
    return n;
}

/* Which of `words` it is; -1: none. */
static int find_word(const char *words, const char *word)
{
    size_t length = strlen(word);
    int index = 0;

    for (const char *at = words; *at != 0; index++) {
        size_t n = strcspn(at, " ");

        if (n == length && strncmp(at, word, n) == 0)
            return index;
        at += n + strspn(at + n, " ");
    }
    return -1;
}

/* ---- messages ---- */

#define PROGRAM(command)                                                                                               \
    (command)->program != NULL ? "" : "dualpipe ", (command)->program != NULL ? (command)->program : (command)->name

int command_usage(const command_t *command, const char *fmt, ...)
{
    va_list list;

    fprintf(stderr, "%s%s: ", PROGRAM(command));
    va_start(list, fmt);
    vfprintf(stderr, fmt, list);
    va_end(list);
    fprintf(stderr, "\n%s%s --help shows how it is used\n", PROGRAM(command));
    return CMD_USAGE;
}

int command_failed(const command_t *command, dp_status_t status)
{
    const char *message = dp_last_error(), *name = command->name;

    if (strncmp(message, name, strlen(name)) == 0 && strncmp(message + strlen(name), ": ", 2) == 0)
        message += strlen(name) + 2; /* the room has the command's name */
    fprintf(stderr, "%s%s: %s\n", PROGRAM(command), message);
    return status == DP_ERR_REJECTED ? CMD_REJECTED : status == DP_ERR_INVALID ? CMD_USAGE : CMD_FAILED;
}

/* ---- values ---- */

/* Before the work: a file that is there may be written to, else its folder. In a job rank 0
 * writes. */
static int check_output(const command_t *command, const char *path)
{
    dp_group_environment_t job = {.struct_size = sizeof(job)};
    char folder[4096];
    int length = (int)strlen(path);

    if (dp_group_environment(&job) >= 0 && job.rank > 0)
        return CMD_OK;
    while (length > 1 && path[length - 1] == '/')
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    snprintf(folder, sizeof(folder), "%.*s.", length, path);
    if (access(path, W_OK) == 0 || (errno == ENOENT && access(folder, W_OK) == 0))
        return CMD_OK;
    return command_failed(command, dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno)));
}

static int read_integer(const command_t *command, const option_row_t *row, void *member, const char *text)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end != 0 || errno != 0 || (double)value < row->least || (double)value > row->most)
        return command_usage(command, "--%s %s: a whole number from %.0f to %.0f is expected", row->name, text,
                             row->least, row->most);
    if (row->kind == OPTION_INT32)
        *(int32_t *)member = (int32_t)value;
    else
        *(int64_t *)member = value;
    return CMD_OK;
}

static int read_real(const command_t *command, const option_row_t *row, void *member, const char *text)
{
    char *end;
    double value;

    errno = 0;
    value = strtod(text, &end);
    if (end != text && *end == 0 && errno == 0 && isfinite(value) && value >= row->least && value <= row->most) {
        *(double *)member = value;
        return CMD_OK;
    }
    if (row->most == INFINITY)
        return command_usage(command, "--%s %s: a number of %g or more is expected", row->name, text, row->least);
    return command_usage(command, "--%s %s: a number from %g to %g is expected", row->name, text, row->least,
                         row->most);
}

static int read_choice(const command_t *command, const option_row_t *row, void *member, const char *text)
{
    int word = find_word(row->words, text);

    if (word < 0)
        return command_usage(command, "--%s %s: there are %s", row->name, text, row->words);
    if (row->kind == OPTION_WORD)
        *(const char **)member = text;
    else
        *(int32_t *)member = word;
    return CMD_OK;
}

int option_take(const command_t *command, const option_row_t *row, void *into, const char *value)
{
    void *member = (char *)into + row->at;

    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)member = true;
        return CMD_OK;
    case OPTION_TEXT:
        *(const char **)member = value;
        return strcmp(row->name, "output") == 0 ? check_output(command, value) : CMD_OK;
    case OPTION_INT32:
    case OPTION_INT64:
        return read_integer(command, row, member, value);
    case OPTION_REAL:
        return read_real(command, row, member, value);
    case OPTION_CHOICE:
    case OPTION_WORD:
        return read_choice(command, row, member, value);
    case OPTION_READ:
        return row->read(command, row, into, value);
    default:
        return CMD_USAGE;
    }
}

int options_defaults(const command_t *command, void *into)
{
    int code = CMD_OK;

    for (size_t t = 0; command->tables[t] != NULL; t++)
        for (const option_row_t *row = command->tables[t]; row->kind != OPTION_END && code == CMD_OK; row++)
            if (row->start != NULL)
                code = option_take(command, row, into, row->start);
    return code;
}

/* ---- the command line ---- */

enum { MOST_LETTERS = 32 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Restricted Damerau-Levenshtein distance, row by row. */
int options_slips(const char *word, const char *right)
{
    int rows[3][MOST_LETTERS + 1];
    int *before = rows[0], *last = rows[1], *now = rows[2];
    const int n = (int)strlen(word), m = (int)strlen(right);

    if (n > MOST_LETTERS || m > MOST_LETTERS || n < 3)
        return DID_YOU_MEAN + 1;
    for (int j = 0; j <= m; j++)
        before[j] = last[j] = j;
    for (int i = 1; i <= n; i++) {
        int *spare = before;

        now[0] = i;
        for (int j = 1; j <= m; j++) {
            const bool same = word[i - 1] == right[j - 1];

            now[j] = least(least(last[j] + 1, now[j - 1] + 1), last[j - 1] + !same);
            if (i > 1 && j > 1 && word[i - 1] == right[j - 2] && word[i - 2] == right[j - 1])
                now[j] = least(now[j], before[j - 2] + 1);
        }
        before = last;
        last = now;
        now = spare;
    }
    return last[m];
}

static const char *nearest_option(const option_row_t *const *rows, size_t n, const char *word)
{
    const char *nearest = NULL;
    char name[MOST_LETTERS + 2];
    int slips = DID_YOU_MEAN + 1;

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
    for (size_t r = 0; r < n && strncmp(word, "--", 2) == 0; r++)
        if (rows[r]->kind != OPTION_HEADING && options_slips(name + 2, rows[r]->name) < slips) {
            slips = options_slips(name + 2, rows[r]->name);
            nearest = rows[r]->name;
        }
    return nearest;
}

static int bad_option(const command_t *command, const option_row_t *const *rows, size_t n, char **argv, int option)
{
    const char *word = argv[optind - 1], *nearest = nearest_option(rows, n, word);

    if (option == ':')
        return command_usage(command, "%s: a value is missing", word);
    if (optopt >= FIRST_ROW)
        return command_usage(command, "%s: the option takes no value", word);
    if (optopt != 0)
        return command_usage(command, "unknown option -%c", optopt);
    return nearest != NULL ? command_usage(command, "unknown option %s; did you mean --%s?", word, nearest)
                           : command_usage(command, "unknown option %s", word);
}

bool options_read(const command_t *command, const char *action, int argc, char **argv, void *into, int *exit_out)
{
    const option_row_t *rows[MOST_ROWS];
    struct option longs[MOST_ROWS + 1] = {{0}};
    char shorts[2 + 2 * MOST_ROWS] = "+:";
    size_t n = list_rows(command, rows), at = command->stops ? 2 : 1;
    struct option *next = longs;
    int found;

    shorts[0] = command->stops ? '+' : ':';
    for (size_t r = 0; r < n; r++) {
        if (rows[r]->kind != OPTION_HEADING)
            *next++ = (struct option){rows[r]->name, rows[r]->value != NULL ? required_argument : no_argument, NULL,
                                      FIRST_ROW + (int)r};
        if (rows[r]->letter != 0)
            shorts[at++] = rows[r]->letter;
        if (rows[r]->letter != 0 && rows[r]->value != NULL)
            shorts[at++] = ':';
    }
    shorts[at] = 0;
    optind = 0; /* getopt's state may be of another command line */
    opterr = 0;
    while ((found = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        size_t r = found >= FIRST_ROW ? (size_t)(found - FIRST_ROW) : 0;

        if (found == '?' || found == ':') {
            *exit_out = bad_option(command, rows, n, argv, found);
            return false;
        }
        while (found < FIRST_ROW && rows[r]->letter != found)
            r++;
        if (rows[r] == &help_row) {
            options_help(command, stdout);
            *exit_out = CMD_OK;
            return false;
        }
        *exit_out = action != NULL && rows[r]->actions != NULL && find_word(rows[r]->actions, action) < 0
                        ? command_usage(command, "%s does not take --%s", action, rows[r]->name)
                        : option_take(command, rows[r], into, optarg);
        if (*exit_out != CMD_OK)
            return false;
    }
    return true;
}

/* ---- help ---- */

/* Text from column `column` on, continued at column `indent`; a command is continued behind a
 * backslash. */
static void put_wrapped(FILE *to, const char *text, size_t length, int column, int indent, bool is_command)
{
    const int most = COLUMNS - (is_command ? 2 : 0);
    const char *end = text + length;
    bool first = true;

    while (text < end) {
        size_t word = 0;

        while (text + word < end && (text[word] != ' ' || (is_command && text[word + 1] != '-')))
            word++; /* of a command an option with its value */
        if (!first && column + 1 + (int)word > most) {
            fprintf(to, "%s\n%*s", is_command ? " \\" : "", indent, "");
            column = indent;
        } else if (!first) {
            fputc(' ', to);
            column++;
        }
        fprintf(to, "%.*s", (int)word, text);
        column += (int)word;
        first = false;
        text += word;
        text += strspn(text, " ") < (size_t)(end - text) ? strspn(text, " ") : (size_t)(end - text);
    }
    fputc('\n', to);
}

/* Lines as they are; long ones wrapped below themselves. */
static void put_lines(FILE *to, const char *text)
{
    while (*text != 0) {
        size_t length = strcspn(text, "\n"), blanks = strspn(text, " ");
        bool is_command = blanks == 2 && length > 2, is_usage = strncmp(text, "usage:", 6) == 0;

        if (length <= COLUMNS)
            fprintf(to, "%.*s\n", (int)length, text);
        else {
            fprintf(to, "%*s", (int)blanks, "");
            put_wrapped(to, text + blanks, length - blanks, (int)blanks,
                        is_usage || blanks == 7 ? 11 : (int)blanks + (is_command ? 2 : 0), is_command);
        }
        text += length + (text[length] == '\n');
    }
}

static void put_option(FILE *to, const option_row_t *row)
{
    char letter[8] = "", left[64], text[1024];
    int used;

    if (row->kind == OPTION_HEADING) {
        fprintf(to, "\n%s:\n", row->name);
        return;
    }
    if (row->letter != 0)
        snprintf(letter, sizeof(letter), "-%c, ", row->letter);
    snprintf(left, sizeof(left), "  %s--%s%s%s", letter, row->name, row->value != NULL ? " " : "",
             row->value != NULL ? row->value : "");
    used = snprintf(text, sizeof(text), "%s", row->help);
    if (row->start != NULL && row->start[0] != '\0')
        used += snprintf(text + used, sizeof(text) - (size_t)used, " [%s]", row->start);
    if (row->actions != NULL)
        snprintf(text + used, sizeof(text) - (size_t)used, " (%s)", row->actions);
    if (strlen(left) > HELP_AT - 2)
        fprintf(to, "%s\n%*s", left, HELP_AT, "");
    else
        fprintf(to, "%-*s", HELP_AT, left);
    put_wrapped(to, text, strlen(text), HELP_AT, HELP_AT, false);
}

void options_help(const command_t *command, FILE *to)
{
    const option_row_t *rows[MOST_ROWS];
    size_t n = list_rows(command, rows), count;
    const dp_method_t *methods = dp_schedule_methods(&count);

    put_lines(to, command->usage);
    for (size_t r = 0; r < n; r++)
        put_option(to, rows[r]);
    put_lines(to, command->notes);
    if (!command->lists_methods)
        return;
    fputs("\nmethods:\n", to);
    for (size_t m = 0; m < count; m++) {
        char text[1024];

        fprintf(to, "  %-21s ", methods[m].name);
        put_wrapped(to, methods[m].summary, strlen(methods[m].summary), HELP_AT, HELP_AT, false);
        snprintf(text, sizeof(text), "%s; limits: %s", methods[m].source, methods[m].limits);
        fprintf(to, "%*s", HELP_AT, "");
        put_wrapped(to, text, strlen(text), HELP_AT, HELP_AT, false);
    }
}

/* ---- completion ---- */

static void put_words(FILE *to, const char *words)
{
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);

    for (size_t m = 0; m < count && strcmp(words, METHOD_WORDS) == 0; m++)
        fprintf(to, "%s\n", methods[m].name);
    for (const char *at = strcmp(words, METHOD_WORDS) == 0 ? "" : words; *at != 0; at += strspn(at, " ")) {
        fprintf(to, "%.*s\n", (int)strcspn(at, " "), at);
        at += strcspn(at, " ");
    }
}

void options_words(const command_t *command, const char *word, FILE *to)
{
    const option_row_t *rows[MOST_ROWS];
    size_t n = list_rows(command, rows);

    if (word == NULL && command->actions != NULL)
        put_words(to, command->actions);
    for (size_t r = 0; r < n; r++)
        if (word == NULL && rows[r]->kind != OPTION_HEADING)
            fprintf(to, "--%s\n", rows[r]->name);
        else if (word != NULL && strncmp(word, "--", 2) == 0 && strcmp(word + 2, rows[r]->name) == 0) {
            if (rows[r]->words != NULL)
                put_words(to, rows[r]->words);
            if (rows[r]->list != NULL)
                rows[r]->list(to);
        }
    if (word != NULL && word[0] != '-' && command->list != NULL)
        command->list(word, to);
}
