/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * interfaces.h: what the library knows of the tables of plugins: which functions they must have and
 * what stands in for those they may leave out. */
#ifndef DP_PLUGIN_INTERFACES_H
#define DP_PLUGIN_INTERFACES_H

#include <dualpipe/plugin.h>

#include <stdbool.h>

/* Whether `id` is an interface of these headers. */
bool dp__interface_known(const char *id);
/* Judges a plugin's own table of a known interface (DP_ERR_PLUGIN: too short, or a function is
 * missing) and replaces it by a completed copy: as long as this library's type, defaults in the
 * optional functions, zeros behind what the plugin knows. Copies are made once for each table and
 * never freed, as plugins are never unmapped. */
dp_status_t dp__interface_complete(const dp_plugin_t *plugin, const char *id, const void **table);
/* All that the plugin offers, so that nothing is allocated when it is asked for. What is wrong is
 * told then. */
void dp__interfaces_prepare(const dp_plugin_t *plugin);

#endif
