#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_check_bits.sh: train_moe --check-bits finds nothing in runs whose memory is as it should be, and changes no bit of them,
# in all layouts and with all that is summed or kept in its own way.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

common="--steps 6 --val-every 0 --sample 0 --quiet --check-bits 1"
for layout in '4' '4 --dp 2 --schedule 1f1b' '4 --ep 2 --tie-embeddings --accumulate 2' '4 --dp 2 --zero 1' \
    '4 --ep 2 --zero 1 --tie-embeddings --schedule dualpipev' '8 --dp 2 --ep 2 --varlen --one-accumulator' '4 --ep 2 --eplb 2 --skew 0.3'; do
    set -- $layout
    n=$1
    shift
    rm -rf "$work/ck"
    threads "$n" $common --losses "$work/checked" --checkpoint "$work/ck" --every 2 "$@"
    [ "$status" -eq 0 ] || complain "$layout: exit status $status"
    grep -q 'check_bits' "$work/err" && complain "$layout: a warning"
    threads "$n" $common --losses "$work/plain" "$@" --check-bits 0
    cmp -s "$work/plain" "$work/checked" || complain "$layout: other losses with --check-bits"
done
threads 2 $common --schedule 1f1b
expect 0 err 'check_bits: nothing is checked: in this placement there is one copy of each stage' "no copies"
finish
