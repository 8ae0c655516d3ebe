/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * segment.c: which segment and pass of a layer an annotation stands for. */
#include "trace/segment.h"

#include <string.h>
#include <strings.h>

#include "trace/classify.h"

typedef struct word {
    const char *text;
    int value;
} word_t;

static const word_t segments[] = {
    {"self_attention", 0}, {"self_attn", 0}, {"attention", 0}, {"attn", 0}, {"dispatch", 1}, {"experts", 2},
    {"expert", 2},         {"mlp", 2},       {"moe", 2},       {"ffn", 2},  {"combine", 3},  {NULL, 0}};
static const word_t passes[] = {{"F", 0},        {"fwd", 0},   {"forward", 0}, {"B", 1},     {"I", 1},      {"bwd", 1},
                                {"backward", 1}, {"dgrad", 1}, {"W", 2},       {"wgrad", 2}, {"weight", 2}, {NULL, 0}};

static bool is_sign(char c)
{
    return c != 0 && strchr(" _.-:()[]/", c) != NULL;
}

/* The pass, when the text is one word of it with signs around. */
static int pass_of(const char *text)
{
    size_t length;

    while (is_sign(*text))
        text++;
    length = strlen(text);
    while (length > 0 && is_sign(text[length - 1]))
        length--;
    for (const word_t *pass = passes; pass->text != NULL; pass++)
        if (strlen(pass->text) == length && strncasecmp(pass->text, text, length) == 0)
            return pass->value;
    return -1;
}

int dp__trace_key_of(const char *name, size_t length)
{
    static const char *const names[DP_SEGMENT_COSTS] = {"attention", "dispatch", "mlp", "combine"};

    for (int s = 0; s < DP_SEGMENT_COSTS; s++) {
        const size_t n = strlen(names[s]);
        const char *pass = length == n + 2 && memcmp(name, names[s], n) == 0 && name[n] == '.' && name[n + 1] != 0
                               ? strchr("FIW", name[n + 1])
                               : NULL;

        if (pass != NULL)
            return 3 * s + (int)(*pass == 'I') + 2 * (int)(*pass == 'W');
    }
    return -1;
}

dp_status_t dp__trace_rule(const char *text, dp__trace_rule_t *rule_out)
{
    const size_t length = strcspn(text, "=");

    rule_out->key = dp__trace_key_of(text, length);
    if (rule_out->key < 0 || text[length] == 0)
        return dp_fail(DP_ERR_INVALID,
                       "annotation \"%.80s\": attention.F=REGEX is required, or another of the segments' names", text);
    return dp__trace_regex(text + length + 1, &rule_out->regex);
}

int dp__trace_segment_of(const char *name, const dp__trace_rule_t *rules, int nrules)
{
    for (int r = 0; r < nrules; r++)
        if (regexec(&rules[r].regex, name, 0, NULL, 0) == 0)
            return rules[r].key;
    for (const word_t *segment = segments; segment->text != NULL; segment++) {
        size_t length = strlen(segment->text);

        if (strncasecmp(name, segment->text, length) == 0 && is_sign(name[length])) {
            int pass = pass_of(name + length);

            return pass >= 0 ? 3 * segment->value + pass : -1;
        }
    }
    return -1;
}
