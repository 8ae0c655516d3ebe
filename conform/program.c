/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * program.c: what others call: the list of cases, a suite run with options, and a whole program
 * around it. */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 256

/* ---- names of cases ---- */

int32_t dp_conform_list(const char *interface_id, dp_conform_case_fn tell, void *user)
{
    const conform_case_t *c;
    int32_t count = 0;

    for (const conform_suite_t *const *suite = conform_suites; *suite != NULL; suite++)
        for (int i = 0; (c = conform_case_at(*suite, i)) != NULL; i++)
            if (interface_id == NULL || strcmp(interface_id, (*suite)->interface) == 0) {
                tell(user, (*suite)->interface, c->name, c->sentence);
                count++;
            }
    return count;
}

/* How many letters have to be put in, taken out or changed. */
static int distance(const char *a, const char *b)
{
    int row[128], n = (int)strlen(b) < 127 ? (int)strlen(b) : 127;

    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (; *a != '\0'; a++) {
        int corner = row[0]++;

        for (int j = 1; j <= n; j++) {
            int best = corner + (*a != b[j - 1]);

            corner = row[j];
            best = corner + 1 < best ? corner + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[n];
}

typedef struct near {
    const char *name;
    int distance;
} near_t;

/* Keeps the three nearest; a name that holds the wanted text is nearer than any other. */
static void keep_nearest(near_t best[3], const char *name, const char *wanted)
{
    near_t one = {name, strstr(name, wanted) != NULL ? 0 : distance(wanted, name)};

    for (int i = 0; i < 3; i++)
        if (best[i].name == NULL || one.distance < best[i].distance) {
            near_t out = best[i];

            best[i] = one;
            one = out;
            if (one.name == NULL)
                return;
        }
}

static dp_status_t check_names(const conform_suite_t *const *suites, const char *const *names)
{
    for (; names != NULL && *names != NULL; names++) {
        near_t best[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
        const conform_case_t *c;
        bool found = false;

        for (const conform_suite_t *const *suite = suites; *suite != NULL; suite++)
            for (int i = 0; (c = conform_case_at(*suite, i)) != NULL; i++) {
                found = found || strcmp(c->name, *names) == 0;
                keep_nearest(best, c->name, *names);
            }
        if (!found)
            return dp_fail(DP_ERR_INVALID, "there is no case %s; the nearest are %s%s%s%s%s (--list shows all)", *names,
                           best[0].name != NULL ? best[0].name : "", best[1].name != NULL ? ", " : "",
                           best[1].name != NULL ? best[1].name : "", best[2].name != NULL ? ", " : "",
                           best[2].name != NULL ? best[2].name : "");
    }
    return DP_OK;
}

/* ---- a suite ---- */

dp_status_t dp_conform_run(const char *interface_id, const dp_conform_options_t *options,
                           dp_conform_result_t *result_out)
{
    const conform_suite_t *suites[2] = {conform_suite_of(interface_id), NULL};
    dp_conform_options_t own = {.struct_size = sizeof(own)};
    dp_conform_result_t result = {.struct_size = sizeof(result)};
    dp_status_t status;

    if (suites[0] == NULL)
        return dp_fail(DP_ERR_INVALID, "there is no suite for %s", interface_id);
    if (result_out->struct_size < DP_CONFORM_RESULT_MIN)
        return dp_fail(DP_ERR_INVALID,
                       "struct_size is %u, at least %u is needed: set it to sizeof(dp_conform_result_t)",
                       result_out->struct_size, (unsigned)DP_CONFORM_RESULT_MIN);
    if (options != NULL && options->struct_size < DP_CONFORM_OPTIONS_MIN)
        return dp_fail(DP_ERR_INVALID, "struct_size is %u: set it to sizeof(dp_conform_options_t)",
                       options->struct_size);
    if (options != NULL && dp_sized_take(&own, sizeof(own), options) != 0)
        return dp_fail(DP_ERR_UNSUPPORTED, "options ask for what this suite (" DP_VERSION ") does not know");
    status = check_names(suites, own.cases);
    if (status == DP_OK)
        status = conform_run(suites[0], &own, &result);
    if (status < 0)
        return status;
    dp_sized_put(result_out, &result);
    return DP_OK;
}

/* ---- a program ---- */

typedef struct request {
    dp_conform_options_t options;
    const char *cases[NAMES_MAX + 1];
    const char *rank_of;
    bool list;
} request_t;

static bool usage(const char *program, const char *problem, const char *what)
{
    fprintf(stderr, "%s: %s%s\n", program, problem, what);
    return false;
}

static bool parse(int argc, char **argv, request_t *r)
{
    int ncases = 0;

    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (name[0] != '-') {
            if (ncases == NAMES_MAX)
                return usage(argv[0], "too many cases", "");
            r->cases[ncases++] = name;
            continue;
        }
        if (strcmp(name, "--list") == 0) {
            r->list = true;
            continue;
        }
        if (value == NULL)
            return usage(argv[0], "no value, or no such option: ", name);
        i++;
        if (strcmp(name, "--plugin") == 0)
            r->options.plugin = value;
        else if (strcmp(name, "--device") == 0)
            r->options.device = value;
        else if (strcmp(name, "--comm") == 0)
            r->options.comm = value;
        else if (strcmp(name, "--launch") == 0)
            r->options.launch = value;
        else if (strcmp(name, "--settings") == 0)
            r->options.settings = value;
        else if (strcmp(name, "--rank-of") == 0)
            r->rank_of = value;
        else if (strcmp(name, "--mode") != 0)
            return usage(argv[0], "no such option: ", name);
        else if (strcmp(value, "threads") == 0 || strcmp(value, "processes") == 0)
            r->options.modes = value[0] == 't' ? DP_CONFORM_THREADS : DP_CONFORM_PROCESSES;
        else
            return usage(argv[0], "--mode is threads or processes, not ", value);
    }
    if (ncases > 0)
        r->options.cases = r->cases;
    return true;
}

static int show_cases(const conform_suite_t *const *suites)
{
    const conform_case_t *c;

    for (; *suites != NULL; suites++) {
        printf("%s\n", (*suites)->interface);
        for (int i = 0; (c = conform_case_at(*suites, i)) != NULL; i++)
            printf("  %-42s %s\n", c->name, c->sentence);
    }
    return 0;
}

static bool has_wanted(const conform_suite_t *suite, const request_t *r)
{
    const conform_case_t *c;

    for (int k = 0; (c = conform_case_at(suite, k)) != NULL; k++)
        for (int i = 0; r->cases[i] != NULL; i++)
            if (strcmp(r->cases[i], c->name) == 0)
                return true;
    return r->cases[0] == NULL;
}

static int run_suites(const conform_suite_t *const *suites, const char *program, const request_t *r)
{
    int code = 0;

    if (check_names(suites, r->cases) < 0) {
        fprintf(stderr, "%s: %s\n", program, dp_last_error());
        return 2;
    }
    for (; *suites != NULL; suites++) {
        dp_conform_result_t result = {.struct_size = sizeof(result)};

        if (!has_wanted(*suites, r))
            continue;
        if (conform_run(*suites, &r->options, &result) < 0) {
            fprintf(stderr, "%s: %s\n", program, dp_last_error());
            return 1;
        }
        printf("%s: %s: %d passed, %d failed, %d skipped\n", (*suites)->name,
               r->options.plugin != NULL ? r->options.plugin : (*suites)->plugin, result.passed, result.failed,
               result.skipped);
        code |= result.failed > 0 || result.passed == 0;
    }
    return code;
}

static int run_request(const conform_suite_t *const *suites, const char *program, const request_t *r)
{
    return r->rank_of != NULL ? conform_rank(suites, r->rank_of)
           : r->list          ? show_cases(suites)
                              : run_suites(suites, program, r);
}

int conform_main(const conform_suite_t *const *suites, const char *plugin, int argc, char **argv)
{
    request_t r = {.options = {.struct_size = sizeof(r.options), .plugin = plugin}};

    return parse(argc, argv, &r) ? run_request(suites, argv[0], &r) : 2;
}

/* The suites of what a plugin offers. */
static bool find_suites(const char *program, const char *plugin, const conform_suite_t **suites)
{
    conform_probe_t probe;
    int count = 0;

    conform_probe(plugin, &probe);
    if (probe.status < 0)
        return usage(program, probe.error, "");
    for (int i = 0; i < CONFORM_INTERFACES; i++) {
        const conform_suite_t *suite = conform_suite_of(conform_interfaces[i]);

        if (probe.interface[i].offered && probe.interface[i].error[0] != '\0')
            return usage(program, probe.interface[i].error, "");
        if (probe.interface[i].offered && suite != NULL)
            suites[count++] = suite;
    }
    suites[count] = NULL;
    return count > 0 || usage(program, plugin, " offers no interface that there is a suite for");
}

int dp_conform_main(const char *interface_id, const char *plugin, int argc, char **argv)
{
    request_t r = {.options = {.struct_size = sizeof(r.options), .plugin = plugin}};
    const conform_suite_t *suites[CONFORM_INTERFACES + 1] = {NULL};

    if (!parse(argc, argv, &r))
        return 2;
    if (interface_id != NULL)
        suites[0] = conform_suite_of(interface_id);
    if (interface_id != NULL && suites[0] == NULL) {
        usage(argv[0], "there is no suite for ", interface_id);
        return 2;
    }
    if (interface_id != NULL)
        return run_request(suites, argv[0], &r);
    if (r.rank_of != NULL || (r.list && r.options.plugin == NULL))
        return run_request(conform_suites, argv[0], &r);
    if (r.options.plugin == NULL) {
        usage(argv[0], "which plugin? (--help)", "");
        return 2;
    }
    return find_suites(argv[0], r.options.plugin, suites) ? run_request(suites, argv[0], &r) : 1;
}
