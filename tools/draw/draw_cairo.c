/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_cairo.c: loads cairo. */
#include "draw_cairo.h"

#include <dlfcn.h>
#include <stddef.h>

draw_cairo_t cairo;

dp_status_t draw_cairo_load(void)
{
#define SYMBOL(result, name, arguments) {"cairo_" #name, offsetof(draw_cairo_t, name)},
    static const struct {
        const char *name;
        size_t at;
    } symbols[] = {DRAW_CAIRO_FUNCTIONS(SYMBOL)};
    void *library = cairo.create == NULL ? dlopen("libcairo.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL;
    draw_cairo_t found;

    if (cairo.create != NULL)
        return DP_OK;
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *function = library != NULL ? dlsym(library, symbols[i].name) : NULL;

        if (function == NULL)
            return dp_fail(DP_ERR_UNSUPPORTED,
                           "pictures need the library cairo (Debian: libcairo2 fonts-dejavu-core): %s", dlerror());
        *(void **)(void *)((char *)&found + symbols[i].at) = function;
    }
    cairo = found;
    return DP_OK;
}
