/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cost_keys.c: costs by name, from command lines and files. */
#include "cost_keys.h"

#include "input.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define LARGEST_FILE ((size_t)64 << 20) /* the scales of all stages there can be take less */

enum { F, I, W, B, FB, HOP, BYTES, BANDWIDTH, BARRIER, LAYERS };

static const char *const names[COST_KEYS] = {
    "F",          "I",          "W",         "B",           "FB",          "HOP",         "BYTES",
    "BANDWIDTH",  "BARRIER",    "LAYERS",    "attention.F", "attention.I", "attention.W", "dispatch.F",
    "dispatch.I", "dispatch.W", "mlp.F",     "mlp.I",       "mlp.W",       "combine.F",   "combine.I",
    "combine.W",  "project.F",  "project.I", "project.W",   "shared.F",    "shared.I",    "shared.W",
    "sum.F",      "sum.I",      "sum.W",     "R",           "attention.R", "mlp.R"};

int cost_keys_find(const char *name, size_t length)
{
    for (int k = 0; k < COST_KEYS; k++)
        if (strlen(names[k]) == length && strncmp(names[k], name, length) == 0)
            return k;
    return -1;
}

const char *cost_keys_number(const char *text, double *value_out)
{
    char *end;

    errno = 0;
    *value_out = strtod(text, &end);
    return end != text && errno == 0 && isfinite(*value_out) && *value_out >= 0.0 ? end : NULL;
}

dp_status_t cost_keys_scales(cost_keys_t *keys, const char *text)
{
    int32_t n = 1;

    for (const char *at = text; *at != 0; at++)
        n += *at == ',';
    free(keys->stage_scale);
    keys->stage_scale = calloc((size_t)n, sizeof(*keys->stage_scale));
    if (keys->stage_scale == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d stage scales", n);
    keys->nscales = n;
    for (int32_t s = 0; s < n; s++) {
        const char *end = cost_keys_number(text, &keys->stage_scale[s]);

        if (end == NULL || *end != (s + 1 < n ? ',' : 0))
            return dp_fail(DP_ERR_INVALID, "at \"%.40s\": numbers of 0 or more, with commas between them, are expected",
                           text);
        text = end + 1;
    }
    return DP_OK;
}

dp_status_t cost_keys_ranks(const char *text, double **scale_out, int32_t *named_out)
{
    double *scales = *scale_out = calloc(DP_MAX_RANKS, sizeof(*scales));

    *named_out = 0;
    if (scales == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the factors of %d ranks", DP_MAX_RANKS);
    do {
        char *end = NULL;
        const long rank = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : -1;
        double scale = 0.0;
        const char *rest = rank >= 0 && *end == ':' ? cost_keys_number(end + 1, &scale) : NULL;

        if (rest == NULL || (*rest != ',' && *rest != 0) || scale == 0.0 || rank >= DP_MAX_RANKS || scales[rank] != 0.0)
            return dp_fail(DP_ERR_INVALID,
                           "at \"%.40s\": a rank and a factor above 0 are expected, each rank at most once, as in "
                           "3:1.2,5:1.1",
                           text);
        scales[rank] = scale;
        *named_out = rank >= *named_out ? (int32_t)rank + 1 : *named_out;
        text = rest;
    } while (*text++ == ',');
    for (int32_t r = 0; r < DP_MAX_RANKS; r++)
        scales[r] = scales[r] == 0.0 ? 1.0 : scales[r];
    return DP_OK;
}

/* ---- files ---- */

/* The line without its comment and the blanks around it. */
static char *trim(char *line)
{
    char *end;

    line[strcspn(line, "#\n")] = 0;
    line += strspn(line, " \t\r");
    end = line + strlen(line);
    while (end > line && strchr(" \t\r", end[-1]) != NULL)
        *--end = 0;
    return line;
}

static dp_status_t read_pair(cost_keys_t *keys, const char *name, size_t length, const char *value)
{
    int key = cost_keys_find(name, length);
    const char *end;

    if (length == 11 && strncmp(name, "STAGE_SCALE", length) == 0)
        return keys->stage_scale != NULL ? dp_fail(DP_ERR_INVALID, "STAGE_SCALE is there twice")
                                         : cost_keys_scales(keys, value);
    if (key < 0)
        return dp_fail(DP_ERR_INVALID, "\"%.*s\" is not the name of a cost", length < 40 ? (int)length : 40, name);
    if (keys->given[key])
        return dp_fail(DP_ERR_INVALID, "%s is there twice", names[key]);
    keys->given[key] = true;
    end = cost_keys_number(value, &keys->value[key]);
    if (end == NULL || *end != 0)
        return dp_fail(DP_ERR_INVALID, "%s=%.40s: a number of 0 or more is expected", names[key], value);
    return DP_OK;
}

static dp_status_t read_line(void *keys, char *line)
{
    char *at = trim(line), *equals = strchr(at, '=');
    size_t length;

    if (*at == 0)
        return DP_OK;
    if (equals == NULL)
        return dp_fail(DP_ERR_INVALID, "\"%.40s\": NAME=VALUE is expected, as in F=1.5", at);
    length = (size_t)(equals - at);
    while (length > 0 && strchr(" \t", at[length - 1]) != NULL)
        length--;
    return read_pair(keys, at, length, equals + 1 + strspn(equals + 1, " \t"));
}

dp_status_t cost_keys_read(const char *path, cost_keys_t *keys)
{
    return input_lines(path, LARGEST_FILE, read_line, keys);
}

dp_status_t cost_keys_parse(const char *name, char *text, size_t bytes, cost_keys_t *keys)
{
    return input_split(name, text, bytes, read_line, keys);
}

/* ---- together ---- */

void cost_keys_merge(cost_keys_t *keys, cost_keys_t *from)
{
    for (int k = 0; k < COST_KEYS; k++)
        if (!keys->given[k] && from->given[k]) {
            keys->value[k] = from->value[k];
            keys->given[k] = true;
        }
    if (keys->stage_scale != NULL)
        return;
    keys->stage_scale = from->stage_scale;
    keys->nscales = from->nscales;
    from->stage_scale = NULL;
}

dp_status_t cost_keys_segments(const cost_keys_t *keys, dp_segment_costs_t *segments_out)
{
    dp_segment_costs_t segments = {.struct_size = sizeof(segments)};
    const double *value = keys->value + COST_KEY_SEGMENTS;
    double layers = keys->given[LAYERS] ? keys->value[LAYERS] : 1.0;

    if (layers != floor(layers) || layers < 1.0 || layers > DP_SEGMENT_LAYERS)
        return dp_fail(DP_ERR_INVALID, "LAYERS=%g: a whole number from 1 to %d is expected", layers, DP_SEGMENT_LAYERS);
    segments.layers = (int32_t)layers;
    for (int s = 0; s < DP_SEGMENT_COSTS; s++) {
        segments.f[s] = value[3 * s];
        segments.i[s] = value[3 * s + 1];
        segments.w[s] = value[3 * s + 2];
    }
    for (int s = 0; s < DP_SEGMENT_FINE; s++) {
        const double *fine = keys->value + COST_KEY_FINE + 3 * s;

        segments.fine_f[s] = fine[0];
        segments.fine_i[s] = fine[1];
        segments.fine_w[s] = fine[2];
    }
    segments.r[DP_ROLE_ATTENTION - 1] = keys->value[COST_KEY_R + 1];
    segments.r[DP_ROLE_MLP - 1] = keys->value[COST_KEY_R + 2];
    *segments_out = segments;
    return DP_OK;
}

static dp_status_t resolve_segments(const cost_keys_t *keys, dp_costs_t *costs, dp_pair_figures_t *pair_out)
{
    dp_segment_costs_t segments;
    dp_status_t status = cost_keys_segments(keys, &segments);

    pair_out->struct_size = sizeof(*pair_out);
    return status < 0 ? status : dp_costs_from_segments(&segments, costs, pair_out);
}

/* What segments make of I, B and FB has R in it; what was given of them has not. */
static void add_recomputed(const cost_keys_t *keys, dp_costs_t *costs)
{
    const double *value = keys->value, layers = keys->given[LAYERS] ? value[LAYERS] : 1.0;
    const double r =
        keys->given[COST_KEY_R] ? value[COST_KEY_R] : layers * (value[COST_KEY_R + 1] + value[COST_KEY_R + 2]);

    costs->i += keys->given[I] ? r : 0.0;
    if (r > 0.0 && keys->given[B])
        costs->b = fmax(costs->b, 0.0) + r;
    if (r > 0.0 && keys->given[FB])
        costs->fb = fmax(costs->fb, 0.0) + r;
}

/* What says nothing without costs of segments. */
static dp_status_t refuse_parts(const cost_keys_t *keys)
{
    static const struct {
        int key;
        const char *goes_with;
    } parts[] = {{LAYERS, "attention.F"}, {COST_KEY_R + 1, "attention.F"}, {COST_KEY_R + 2, "mlp.F"}};

    for (size_t k = 0; k < sizeof(parts) / sizeof(parts[0]); k++)
        if (keys->given[parts[k].key])
            return dp_fail(DP_ERR_INVALID, "%s goes with costs of segments, such as %s", names[parts[k].key],
                           parts[k].goes_with);
    return DP_OK;
}

dp_status_t cost_keys_resolve(const cost_keys_t *keys, dp_costs_t *costs, dp_pair_figures_t *pair_out)
{
    double *const targets[LAYERS] = {&costs->f,   &costs->i,     &costs->w,         &costs->b,      &costs->fb,
                                     &costs->hop, &costs->bytes, &costs->bandwidth, &costs->barrier};
    bool segments = false;
    dp_status_t status = DP_OK;

    *pair_out = (dp_pair_figures_t){.struct_size = 0};
    for (int k = COST_KEY_SEGMENTS; k < COST_KEY_R; k++)
        segments = segments || keys->given[k];
    if (!segments)
        status = refuse_parts(keys);
    else
        status = resolve_segments(keys, costs, pair_out);
    if (status != DP_OK)
        return status;
    for (int k = 0; k < LAYERS; k++)
        if (keys->given[k]) /* who writes B=0 means it, where dp_costs_t takes 0 for the sum */
            *targets[k] = (k == B || k == FB) && keys->value[k] == 0.0 ? -1.0 : keys->value[k];
    if (segments)
        add_recomputed(keys, costs);
    else
        costs->r = keys->value[COST_KEY_R];
    return DP_OK;
}

void cost_keys_clear(cost_keys_t *keys)
{
    free(keys->stage_scale);
    *keys = (cost_keys_t){.nscales = 0};
}

void costs_text(const dp_costs_t *costs, char *text, size_t bytes)
{
    int used = snprintf(text, bytes, "F=%g,I=%g,W=%g,B=%g,FB=%g,HOP=%g", costs->f, costs->i, costs->w,
                        dp_costs_backward(costs), dp_costs_pair(costs), costs->hop);

    if (costs->r > 0.0 && used > 0 && (size_t)used < bytes)
        used += snprintf(text + used, bytes - (size_t)used, ",R=%g", costs->r);
    if (costs->bandwidth > 0.0 && used > 0 && (size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, ",BYTES=%g,BANDWIDTH=%g", costs->bytes, costs->bandwidth);
}
