#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_circles.sh: no two files of the core need each other, directly or through others. What counts is what the built
# objects define and use, not what their text looks like.
set -eu

cd "$DP_TEST_BUILDDIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

$NM -A -g $DP_TEST_OBJECTS | sed -n 's/^\([^:]*\)\.o:[0-9a-f ]* \([A-Z]\) \([^@ ]*\)$/\1 \2 \3/p' >"$work/symbols"
awk '
    $2 == "U" { uses[++n] = $1 " " $3; next }
    { owner[$3] = $1 }
    END {
        for (i = 1; i <= n; i++) {
            split(uses[i], u, " ")
            if (u[2] in owner && owner[u[2]] != u[1])
                print u[1], owner[u[2]]
        }
    }' "$work/symbols" | sort -u >"$work/needs"
test "$(wc -l <"$work/needs")" -gt 50 || { echo "nm says nothing about the objects of the core"; exit 1; }

if ! tsort "$work/needs" >/dev/null 2>"$work/circles"; then
    sed 's/^tsort: //' "$work/circles"
    echo "^ files that need each other: move what closes the circle into a file below both"
    exit 1
fi
echo "$(wc -l <"$work/needs") uses between files of the core, no circle"
