/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_no_entry.c: a shared object that is no plugin. */
int mock_something_else = 1;
