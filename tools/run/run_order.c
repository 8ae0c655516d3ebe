/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_order.c: what the agent of a host is told before its ranks start (run_talk.h). */
#include "run_order.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static void put_number(talk_out_t *out, const char *word, int number)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", number);
    talk_put(out, "", word, text);
}

/* Settings of the library and of OpenMP are the same everywhere, but for what belongs to another
 * job. */
static bool is_exported(const char *variable)
{
    static const char *const kept[] = {"DUALPIPE_LAUNCH=", "DUALPIPE_SECRET_FILE="};

    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (strncmp(variable, kept[i], strlen(kept[i])) == 0)
            return false;
    return strncmp(variable, "DUALPIPE_", 9) == 0 || strncmp(variable, "OMP_", 4) == 0;
}

static void put_variable(talk_out_t *out, const char *name, const char *value)
{
    const size_t bytes = strlen(name) + strlen(value) + 2;
    char *text = malloc(bytes);

    if (text == NULL) {
        out->broken = true;
        return;
    }
    snprintf(text, bytes, "%s=%s", name, value);
    talk_put(out, "", "env", text);
    free(text);
}

static void put_environment(talk_out_t *out, const run_options_t *options)
{
    for (char **v = environ; *v != NULL; v++)
        if (is_exported(*v))
            talk_put(out, "", "env", *v);
    for (int i = 0; i < options->export_count; i++) {
        const char *name = options->exported[i], *value = getenv(name);

        if (strchr(name, '=') != NULL)
            talk_put(out, "", "env", name);
        else if (value != NULL)
            put_variable(out, name, value);
    }
}

/* What the first host's name means here; it says whether that is its own address. */
static void put_address(talk_out_t *out, const run_options_t *options)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char text[64];

    if (options->address != NULL) {
        talk_put(out, "", "address", options->address);
    } else if (options->host_count == 1) {
        talk_put(out, "", "address", "127.0.0.1");
    } else if (getaddrinfo(options->hosts[0], NULL, &hints, &found) == 0) {
        if (getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST) == 0)
            talk_put(out, "", "hint", text);
        freeaddrinfo(found);
    }
    talk_put(out, "", "listen", "");
}

/* false: the folder that we are in has no path, which was said. */
static bool put_folder(talk_out_t *out, const run_options_t *options)
{
    char *here;

    if (options->wdir != NULL) {
        talk_put(out, "", "wdir", options->wdir);
        return true;
    }
    here = getcwd(NULL, 0);
    if (here == NULL) {
        run_say("the folder that we are in has no path (%s): go to another, or name one by --wdir", strerror(errno));
        return false;
    }
    talk_put(out, "", "wdir", here);
    free(here);
    return true;
}

bool run_order(talk_out_t *out, const run_options_t *options, const run_site_t *site)
{
    char secret[2 * RUN_SECRET_BYTES + 1];

    if (!put_folder(out, options))
        return false;
    for (int i = 0; i < RUN_SECRET_BYTES; i++)
        snprintf(secret + 2 * i, 3, "%02x", site->secret[i]);
    talk_put(out, "", "name", site->name);
    talk_put(out, "", "secret", secret);
    put_number(out, "first", site->first);
    put_number(out, "count", site->count);
    put_number(out, "world", site->world);
    put_number(out, "respawn", site->respawn);
    put_number(out, "begun", site->begun);
    put_number(out, "prefix", options->prefix != RUN_PREFIX_NEVER);
    put_environment(out, options);
    for (char **word = options->program; *word != NULL; word++)
        talk_put(out, "", "arg", *word);
    if (site->first == 0)
        put_address(out, options);
    talk_put(out, "", "ordered", "");
    explicit_bzero(secret, sizeof(secret));
    return true;
}
