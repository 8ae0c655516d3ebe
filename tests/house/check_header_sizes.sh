#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_header_sizes.sh: no header of the core or of a plugin has more than 250 lines or 30 prototypes. One that grows past that is split by
# what owns its parts.
set -eu

cd "${DP_TEST_SRCDIR:-$(dirname "$0")/../..}"
find libdualpipe plugins -name '*.h' | sort | xargs awk '
    function check() {
        if (lines > 250 || prototypes > 30) {
            print file ": " lines " lines (250), " prototypes " prototypes (30)"
            bad = 1
        }
    }
    FNR == 1 { check(); file = FILENAME; lines = prototypes = 0 }
    { lines++ }
    /^[a-z][A-Za-z_0-9 *]*[ *][a-z][a-z_0-9]*\(/ && !/^(static|typedef)/ { prototypes++; all++ }
    END { check(); if (all < 700) { print "only " all + 0 " prototypes found"; bad = 1 } exit bad }'
