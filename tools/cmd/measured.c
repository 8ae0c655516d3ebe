/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * measured.c: reads files of costs and traces. */
#include "measured.h"

#include "tools/io/cost_keys.h"
#include "tools/trace/trace_file.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ends_in(const char *path, const char *end)
{
    const size_t length = strlen(path), bytes = strlen(end);

    return length >= bytes && strcmp(path + length - bytes, end) == 0;
}

static dp_status_t put(void *file, const char *text, size_t bytes)
{
    return fwrite(text, 1, bytes, file) == bytes ? DP_OK : dp_fail(DP_ERR_NOMEM, "no memory for the costs of a trace");
}

static dp_status_t read_trace(const char *path, cost_keys_t *keys)
{
    const dp_trace_options_t options = {.struct_size = sizeof(options), .annotations = 1};
    const dp_trace_costs_t request = {.struct_size = sizeof(request), .title = path};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    dp_trace_t *trace = NULL;
    dp_status_t status =
        file != NULL ? trace_load(path, &options, &trace) : dp_fail(DP_ERR_NOMEM, "%s: no memory for its costs", path);

    if (status >= 0)
        status = dp_trace_costs_write(trace, &request, put, file);
    if (file != NULL && fclose(file) != 0 && status >= 0)
        status = dp_fail(DP_ERR_NOMEM, "%s: no memory for its costs", path);
    if (status >= 0)
        status = cost_keys_parse(path, text, bytes, keys);
    dp_trace_free(trace);
    free(text);
    return status;
}

dp_status_t measured_read(const char *path, dp_segment_costs_t *segments_out, double *hop_out, double *bandwidth_out)
{
    cost_keys_t keys = {.nscales = 0};
    dp_costs_t costs = {.struct_size = sizeof(costs)};
    dp_pair_figures_t pair;
    dp_status_t status =
        ends_in(path, ".json") || ends_in(path, ".gz") ? read_trace(path, &keys) : cost_keys_read(path, &keys);

    if (status >= 0)
        status = cost_keys_resolve(&keys, &costs, &pair);
    if (status >= 0 && pair.struct_size == 0)
        status = dp_fail(DP_ERR_INVALID,
                         "%s: no times of segments such as attention.F and mlp.F: those of whole "
                         "passes are of another cut of the model",
                         path);
    if (status >= 0)
        status = cost_keys_segments(&keys, segments_out);
    *hop_out = costs.hop;
    *bandwidth_out = costs.bandwidth;
    cost_keys_clear(&keys);
    return status;
}
