#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_finite.sh: what --check-finite costs: train_moe over 4 ranks on this machine, rounds with and without it in turn, the median
# step of the best round of each. Run in the build folder:   ../bench/check_finite.sh [ROUNDS [HIDDEN [SEQ]]]
set -eu

. "$(dirname "$0")/report_step.sh"
rounds=${1:-3}
hidden=${2:-128}
seq=${3:-128}
OPENBLAS_NUM_THREADS=1
DUALPIPE_PLUGIN_PATH=$PWD/.libs
export OPENBLAS_NUM_THREADS DUALPIPE_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

model="--layers 8 --hidden $hidden --heads 4 --kv-heads 2 --experts 4 --expert-hidden $((2 * hidden)) --seq $seq --batch 2 --microbatches 8"
for round in $(seq "$rounds"); do
    for option in '' --check-finite; do
        ./dualpipe run -n 4 -- apps/train_moe/train_moe $model --steps 14 --sample 0 --val-every 0 $option >"$work/out" 2>&1 ||
            { cat "$work/out" >&2; exit 1; }
        report_step "$work/out" >>"$work/times$option"
    done
done
without=$(sort -n "$work/times" | head -n 1)
with=$(sort -n "$work/times--check-finite" | head -n 1)
echo "train_moe over 4 ranks: $model"
echo "median step: $without ms, with --check-finite $with ms: $(awk "BEGIN { printf \"%.3f\", $with / $without }")"
