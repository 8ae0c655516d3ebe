#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_format.sh: the sources are laid out as .clang-format says. Skipped where clang-format 14 is not installed.
exec "$DP_TEST_SRCDIR/build-aux/format" --check
