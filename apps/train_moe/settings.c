/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * settings.c: "name=value" lines of what makes a run, as its checkpoints have them: a job that goes
 * on with the run is held against them. */
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *find_value(const char *settings, const char *name, size_t length)
{
    for (const char *line = settings; *line != '\0'; line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, name, length) == 0 && line[length] == '=')
            return line + length + 1;
    return NULL;
}

/* More steps than planned may be asked for. */
static bool may_change(const char *name, const char *here, const char *there)
{
    return strncmp(name, "--steps=", 8) == 0 ? atoll(here) >= atoll(there) : !options_make_run(name);
}

dp_status_t settings_compare(const char *here, const char *there, const char *folder, bool tell)
{
    for (const char *line = here; *line != '\0'; line += strcspn(line, "\n"), line += *line == '\n') {
        const int name = (int)strcspn(line, "=");
        const char *now = line + name + 1, *was = find_value(there, line, (size_t)name);
        const int n = (int)strcspn(now, "\n"), m = was != NULL ? (int)strcspn(was, "\n") : 0;

        if (was == NULL || (n == m && memcmp(now, was, (size_t)n) == 0))
            continue; /* an earlier version did not have it */
        if (!may_change(line, now, was))
            return dp_fail(DP_ERR_INVALID,
                           "--resume: %.*s is %.*s, that of the run in %s was %.*s: it would not be the same run", name,
                           line, n, now, folder, m, was);
        if (tell)
            fprintf(stderr, "train_moe: %.*s is %.*s from now on, in the run in %s it was %.*s\n", name, line, n, now,
                    folder, m, was);
    }
    return DP_OK;
}

char *settings_read(dp_checkpoint_t *checkpoint)
{
    dp_checkpoint_tensor_t tensor = {.struct_size = sizeof(tensor)};
    const int64_t i = dp_checkpoint_find(checkpoint, SETTINGS_NAME);
    char *settings;

    if (i < 0 || dp_checkpoint_tensor(checkpoint, (uint32_t)i, &tensor) < 0 || tensor.dtype != DP_U8)
        return NULL;
    settings = calloc(tensor.count + 1, 1);
    if (settings != NULL && dp_checkpoint_read(checkpoint, (uint32_t)i, settings, tensor.count) == DP_OK)
        return settings;
    free(settings);
    return NULL;
}

int64_t settings_number(const char *settings, const char *name)
{
    const char *value = find_value(settings, name, strlen(name));

    return value != NULL ? atoll(value) : 0;
}
