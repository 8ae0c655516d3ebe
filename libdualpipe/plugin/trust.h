/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trust.h: who could have changed this file or folder? Asked before code from there is mapped. */
#ifndef DP_PLUGIN_TRUST_H
#define DP_PLUGIN_TRUST_H

#include <sys/stat.h>

/* NULL when nobody but root and us can change what is at `st`, else the reason ("is writable by
 * others"). A sticky folder (/tmp) protects its entries; so does write permission for a group of
 * our own, which Ubuntu gives by default. */
const char *dp__distrust(const struct stat *st);

#endif
