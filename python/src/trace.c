/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace.c: for Python, what `dualpipe trace costs` writes and what `--costs FILE` reads. A trace's bytes and the text
 * go through functions of the caller. */
#include <stdlib.h>

#include "tools/io/cost_keys.h"
#include "tools/trace/trace_costs.h"

static dp_status_t add_rule(trace_args_t *args, const char *key, const char *pattern)
{
    trace_rule_t rule = {.key = cost_keys_find(key, strlen(key))};
    char why[128];
    int failed;

    if (rule.key < COST_KEY_SEGMENTS)
        return dp_fail(DP_ERR_INVALID,
                       "annotation of \"%s\": the segments are attention.F, attention.I, ..., combine.W", key);
    if (args->nrules == TRACE_RULES)
        return dp_fail(DP_ERR_INVALID, "%d annotations at most", TRACE_RULES);
    failed = regcomp(&rule.regex, pattern, REG_EXTENDED | REG_NOSUB);
    if (failed != 0) {
        regerror(failed, &rule.regex, why, sizeof(why));
        return dp_fail(DP_ERR_INVALID, "annotation %s=%s: %s", key, pattern, why);
    }
    args->rules[args->nrules++] = rule;
    return DP_OK;
}

/* The text in memory, then all of it at once. */
static dp_status_t put(const trace_t *trace, const trace_args_t *args, const char *title, dp_write_fn write, void *user)
{
    char *text = NULL;
    size_t bytes = 0;
    output_t output = {.file = open_memstream(&text, &bytes), .path = title};
    dp_status_t status;

    if (output.file == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the costs");
    status = trace_costs_put(trace, args, title, &output);
    if (fclose(output.file) != 0 && status == DP_OK)
        status = dp_fail(DP_ERR_NOMEM, "no memory for the costs");
    if (status == DP_OK)
        status = write(user, text, bytes);
    free(text);
    return status;
}

DP_API dp_status_t dp_python_trace_costs(json_read_fn read, const char *title, int32_t layers, const char *const *keys,
                                         const char *const *patterns, int32_t nrules, dp_write_fn write, void *user);
DP_API dp_status_t dp_python_costs_read(const char *path, dp_costs_t *costs, double *scales, int32_t *nscales);

dp_status_t dp_python_trace_costs(json_read_fn read, const char *title, int32_t layers, const char *const *keys,
                                  const char *const *patterns, int32_t nrules, dp_write_fn write, void *user)
{
    const trace_options_t options = {.annotations = true};
    trace_args_t args = {.layers = layers};
    trace_t trace = {.nrecords = 0};
    dp_status_t status = DP_OK;

    for (int32_t k = 0; k < nrules && status == DP_OK; k++)
        status = add_rule(&args, keys[k], patterns[k]);
    if (status == DP_OK)
        status = trace_load_from(read, NULL, &options, &trace);
    if (status == DP_OK)
        status = put(&trace, &args, title, write, user);
    trace_clear(&trace);
    for (int k = 0; k < args.nrules; k++)
        regfree(&args.rules[k].regex);
    return status;
}

/* scales: room for *nscales, or NULL to ask how many there are. */
dp_status_t dp_python_costs_read(const char *path, dp_costs_t *costs, double *scales, int32_t *nscales)
{
    cost_keys_t keys = {.nscales = 0};
    dp_pair_figures_t pair = {.struct_size = sizeof(pair)};
    dp_status_t status = cost_keys_read(path, &keys);

    if (status == DP_OK)
        status = cost_keys_resolve(&keys, costs, &pair);
    for (int32_t k = 0; scales != NULL && k < keys.nscales && k < *nscales; k++)
        scales[k] = keys.stage_scale[k];
    *nscales = keys.nscales;
    cost_keys_clear(&keys);
    return status;
}
