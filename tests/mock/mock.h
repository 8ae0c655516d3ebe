/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock.h: a plugin that is right in everything, but for what the file that includes it defines
 * otherwise. */
#include <dualpipe/plugin.h>
#include <stdlib.h>
#include <string.h>

#ifndef MOCK_STRUCT_SIZE
#define MOCK_STRUCT_SIZE sizeof(dp_plugin_t)
#endif
#ifndef MOCK_ABI_MAJOR
#define MOCK_ABI_MAJOR DP_ABI_MAJOR
#endif
#ifndef MOCK_ABI_MINOR
#define MOCK_ABI_MINOR DP_ABI_MINOR
#endif
#ifndef MOCK_NAME
#define MOCK_NAME "mock"
#endif
#ifndef MOCK_GET_INTERFACE
#define MOCK_GET_INTERFACE mock_get_interface
#endif

/* "test.mock/1" */
typedef struct mock_vt {
    uint32_t struct_size;
    int (*answer)(void);
} mock_vt_t;

static int mock_answer(void)
{
    return 42;
}

static inline const void *mock_get_interface(const char *id)
{
    static const mock_vt_t whole = {sizeof(whole), mock_answer};
    static const uint32_t head_only = sizeof(head_only);

    if (strcmp(id, "test.mock/1") == 0)
        return &whole;
    return strcmp(id, "test.short/1") == 0 ? &head_only : NULL;
}

/* Tells whether any code of a refused file has run. */
__attribute__((constructor)) static void mock_constructed(void)
{
    setenv("DP_MOCK_CONSTRUCTED", "1", 1);
}

DP_PLUGIN_DEFINE(mock) = {
    .struct_size = MOCK_STRUCT_SIZE,
    .abi_major = MOCK_ABI_MAJOR,
    .abi_minor = MOCK_ABI_MINOR,
    .name = MOCK_NAME,
    .version = "1.2.3",
    .summary = "a mock",
    .get_interface = MOCK_GET_INTERFACE,
};
