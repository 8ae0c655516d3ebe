#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_prose.sh: pages and public headers have sentences of at most 20 words on average and lines of prose of at most
# 100 columns; in pages nine sentences of ten have at most 30 words. build-aux/prose measures.
set -eu

cd "$DP_TEST_SRCDIR"
# Not rewritten yet. A file leaves this list when it passes, and none joins it.
exceptions="
docs/plugin-abi.md
docs/words.md include/dualpipe/attention.h
include/dualpipe/block.h include/dualpipe/checkpoint.h include/dualpipe/comm.h include/dualpipe/conform.h
include/dualpipe/device.h include/dualpipe/dualpipe.h include/dualpipe/ep.h include/dualpipe/eplb.h
include/dualpipe/group.h include/dualpipe/moe.h include/dualpipe/moe_block.h include/dualpipe/number.h
include/dualpipe/overlap.h include/dualpipe/pipeline.h include/dualpipe/plugin.h include/dualpipe/profiler.h
include/dualpipe/program.h include/dualpipe/recover.h include/dualpipe/replicas.h include/dualpipe/schedule.h
include/dualpipe/search.h include/dualpipe/simulate.h include/dualpipe/stage.h include/dualpipe/state.h
include/dualpipe/status.h include/dualpipe/timeline.h include/dualpipe/trace.h include/dualpipe/types.h
"
build-aux/prose README.md CONTRIBUTING.md CHANGELOG.md docs/*.md tests/README.md include/dualpipe/*.h $(find include -path '*/draft/*.h') |
    awk -v exceptions="$exceptions" '
    BEGIN { count = split(exceptions, names, /[ \n]+/); for (i = 1; i <= count; i++) if (names[i] != "") listed[names[i]] = 1 }
    NR == 1 { next }
    {
        page = $5 ~ /\.md$/
        bad = $1 > 20 || $4 > 0 || (page && $2 > 30)
        if (bad && !($5 in listed)) {
            print $5 ": " $1 " words a sentence (20), a tenth over " $2 (page ? " (30)" : "") ", " $4 " lines over 100 columns"
            failed = 1
        }
        if (!bad && $5 in listed) { print $5 " passes: take it off the list in check_prose.sh"; failed = 1 }
        files++
    }
    END {
        if (files < 40) { print "only " files + 0 " files were measured"; failed = 1 }
        exit failed
    }'
