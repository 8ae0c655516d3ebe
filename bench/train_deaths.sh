#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# train_deaths.sh: train_moe itself dies, over 4 ranks with a checkpoint after each step: at POINTS places from its start to its exit,
# evenly spread over the calls of libc and looks at the clock that a rank makes. In each of these layouts
#
#   one     one rank dies (each in turn)
#   end     one rank dies in the last tenth of its calls: behind the last step, in the last save, while it leaves
#   all     all ranks die at once
#   hang    one rank stands still for good (SIGSTOP), once all have joined
#
# and how many jobs were tried; ended with the losses of an undisturbed one to the last bit; ended otherwise with a sentence (allowed
# behind the last step alone, where the others are done: "end"); and how many did not do what is promised, each with its number.
# Run in the build folder, after `make check TESTS=`:   ../bench/train_deaths.sh [POINTS [LAYOUT...]]
# Exit status 1 when one of the last kind was seen.
set -u

points=${1:-16}
[ $# -eq 0 ] || shift
DUALPIPE_PLUGIN_PATH=$PWD/.libs
OPENBLAS_NUM_THREADS=1
DUALPIPE_TIMEOUT_SCALE=${DUALPIPE_TIMEOUT_SCALE:-0.2} # a rank that hangs is known after 6 s
export DUALPIPE_PLUGIN_PATH OPENBLAS_NUM_THREADS DUALPIPE_TIMEOUT_SCALE
library=$PWD/tests/fault/.libs/failing_calls.so
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
model="--layers 8 --hidden 8 --heads 2 --kv-heads 1 --experts 4 --expert-hidden 8 --seq 8 --batch 1 --microbatches 8 --warmup 2
    --steps 6 --val-every 6 --sample 0 --data $(dirname "$0")/../README.md"

job() { # VARIABLE=VALUE...: leaves $status and $seconds
    rm -rf "$work/saved" "$work/losses"
    head -c 4096 /dev/zero >"$work/tally"
    begun=$(date +%s%N)
    status=0
    # shellcheck disable=SC2086
    timeout 60 env "$@" DP_FAIL_TALLY="$work/tally" DP_FAIL_CALL=any LD_PRELOAD="$library" DUALPIPE_HANG_TRACE= \
        ./dualpipe run -n 4 --respawn 6 --grace 2 -- apps/train_moe/train_moe $model $layout --losses "$work/losses" \
        --checkpoint "$work/saved" --every 1 >"$work/out" 2>"$work/err" </dev/null || status=$?
    seconds=$((($(date +%s%N) - begun) / 1000000))
}
calls() {
    od -A n -t u8 -j 4088 -N 8 "$work/tally" | tr -d ' '
}
judge() { # KIND CALL
    tried=$((tried + 1))
    [ "$seconds" -le "$worst" ] || worst=$seconds
    left=$(pgrep -f "$work/saved" | wc -l)
    if [ "$status" -eq 0 ] && [ "$left" -eq 0 ] && cmp -s "$work/reference" "$work/losses"; then
        same=$((same + 1))
    elif [ "$1" = end ] && [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && [ "$left" -eq 0 ] && [ -s "$work/err" ] &&
        cmp -s "$work/reference" "$work/losses"; then
        ended=$((ended + 1))
    else
        bad=1 broken=$((broken + 1))
        echo "    $1 $who at call $2: status $status, $left processes left, $(cmp -s "$work/reference" "$work/losses" && echo same || echo other) losses: $(grep -v 'started again' "$work/err" | tail -n 1 | cut -c 1-200)"
    fi
}
sweep() { # KIND FIRST COUNT VARIABLES...
    kind=$1 first=$2 count=$3
    shift 3
    tried=0 same=0 ended=0 broken=0 worst=0
    for i in $(seq 0 $((count - 1))); do
        who=$((i % 4))
        at=$((first + (total - first) * i / count))
        [ "$kind" != all ] || who=ranks at=$((4 * at))
        job DP_FAIL_WHO="$who" DP_FAIL_AT="$at" "$@"
        judge "$kind" "$at"
    done
    printf '%-40s %-5s %4d tried %4d same bits %4d ended %4d broken, worst %5.1f s\n' "$layout" "$kind" "$tried" "$same" "$ended" \
        "$broken" "$(awk "BEGIN { print $worst / 1000 }")"
}

[ $# -gt 0 ] || set -- '--schedule dualpipe' '--schedule dualpipe --overlap none' '--schedule dualpipev' '--schedule 1f1b' \
    '--schedule zb1p' '--schedule interleaved' '--zero 1' '--dp 2' '--dp 2 --zero 1' '--ep 2' '--ep 2 --eplb 2 --replicas 6' \
    '--ep 2 --zero 1' '--tie-embeddings --accumulate 2'
echo "train_moe over 4 ranks, 6 steps, a save after each: $points places each"
for layout; do
    job DP_FAIL_WHO=1 DP_FAIL_AT=18446744073709551615
    [ "$status" -eq 0 ] || { cat "$work/err" >&2; exit 1; }
    cp "$work/losses" "$work/reference"
    total=$(calls)
    sweep one 1 "$points" DP_FAIL_SIGNAL=9
    sweep end $((total * 9 / 10)) "$points" DP_FAIL_SIGNAL=9
    sweep all 1 $((points / 2)) DP_FAIL_SIGNAL=9 DP_FAIL_ON=1
    sweep hang $((total / 3)) $((points / 4)) DP_FAIL_SIGNAL=19
done
exit "$bad"
