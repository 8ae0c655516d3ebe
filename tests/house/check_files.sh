#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_files.sh: every file of the repository is named by a Makefile, or it would be in no release archive. make dist says so too,
# later.
set -eu
cd "$DP_TEST_SRCDIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files | grep -v '^\.git' >"$work/files" 2>/dev/null || { echo "skipped: no git here"; exit 77; }
# What the Makefiles name, as paths from the top; a program by its source without .c; a folder for all that is in it.
grep -E '/?(Makefile\.am|[a-z_0-9]*\.inc|configure\.m4)$' "$work/files" | xargs awk '
    FNR == 1 { folder = FILENAME; if (!sub(/\/[^\/]*$/, "", folder)) folder = "."; c = /^\/\*/ }
    c { next }
    { sub(/(^| )#.*/, "") }
    { gsub(/%D%/, folder); gsub(/[,()]/, " "); for (i = 1; i <= NF; i++) print $i }' | sed 's|^\./||' | sort -u >"$work/named"
awk 'FNR == NR { named[$0] = 1; next }
    {
        stem = folder = $0
        sub(/\.c$/, "", stem)
        found = $0 in named || stem in named || stem ".la" in named
        while (!found && sub(/\/[^\/]*$/, "", folder))
            found = folder in named
        if (!found) print
    }' "$work/named" "$work/files" | grep -v -x -E '(Makefile\.am|configure\.ac|(dualpipe(-conform)?|dualplan)\.pc\.in)' >"$work/lost" || exit 0 # those are automake's
sed 's/$/: is in no Makefile.inc/' "$work/lost"
exit 1
