/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_late.c: a descriptor of another major that only code fills in: the file says nothing of
 * it. */
#include <dualpipe/plugin.h>

static const void *get_interface(const char *id)
{
    (void)id;
    return NULL;
}

extern DP_PLUGIN_EXPORT dp_plugin_t dp_plugin_entry;
DP_PLUGIN_EXPORT dp_plugin_t dp_plugin_entry;

__attribute__((constructor)) static void fill_in(void)
{
    dp_plugin_entry = (dp_plugin_t){
        .struct_size = sizeof(dp_plugin_t), .abi_major = 3, .name = "mock_late", .get_interface = get_interface};
}
