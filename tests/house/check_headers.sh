#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_headers.sh: no header of the core has more than 250 lines or declares more than 30 functions: a larger one is
# split by owner.
set -eu
cd "${DP_TEST_SRCDIR:-$(dirname "$0")/../..}"
find libdualpipe -name '*.h' | sort | xargs awk '
    function finish() {
        if (lines > 250 || functions > 30) {
            print file ": " lines " lines, " functions " functions"
            bad = 1
        }
    }
    FNR == 1 { if (file != "") finish(); file = FILENAME; functions = 0 }
    { lines = FNR }
    /^[a-zA-Z_].*\(/ && !/^(typedef|static|#|extern "C")/ { functions++ }
    END { finish(); exit bad }'
