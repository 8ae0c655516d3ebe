#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_prose.sh: pages and public headers have sentences of at most 20 words on average, and nine of ten have at most 30.
# build-aux/prose measures. check_width.sh looks at their lines.
set -eu

cd "$DP_TEST_SRCDIR"
# Not rewritten yet. A file leaves this list when it passes, and none joins it.
exceptions=""
build-aux/prose README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs/*.md tests/README.md include/dualpipe/*.h $(find include -path '*/draft/*.h') |
    awk -v exceptions="$exceptions" '
    BEGIN { count = split(exceptions, names, /[ \n]+/); for (i = 1; i <= count; i++) if (names[i] != "") listed[names[i]] = 1 }
    NR == 1 { next }
    {
        bad = $1 > 20 || $2 > 30
        if (bad && !($5 in listed)) {
            print $5 ": " $1 " words a sentence (at most 20), a tenth over " $2 " (at most 30)"
            failed = 1
        }
        if (!bad && $5 in listed) { print $5 " passes: take it off the list in check_prose.sh"; failed = 1 }
        files++
    }
    END {
        if (files < 40) { print "only " files + 0 " files were measured"; failed = 1 }
        exit failed
    }'
