/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * guard.h: fences and counters: memory that ends where a page begins that must not be touched, and
 * what a plugin's own code asks for while nobody may allocate. */
#ifndef CONFORM_GUARD_H
#define CONFORM_GUARD_H

#include "conform.h"

/* Host memory that ends at a fence: whoever touches `end` or what is behind it ends the process. */
typedef struct guard {
    unsigned char *base, *end;
    size_t mapped;
} guard_t;

bool conform_guard_open(guard_t *guard, size_t bytes);
void conform_guard_close(guard_t *guard);

/* From now on calls of malloc and its kin made by the module that has the code at `code` are
 * counted. Only ELF modules of 64 bits can be watched; false otherwise. */
bool conform_watch_module(const void *code);
/* Counting goes on between the two, for all threads; returns the calls so far. */
void conform_watch_begin(void);
int64_t conform_watch_end(const char **name_out); /* the first function that was called, or NULL */

#endif
