#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_bits.sh: what --check-bits 1 costs (wanted: < 0.1 % of a step): train_moe over 2 ranks on this machine, in which DualPipe
# has two copies of each stage. What rank 0 takes to compare them stands behind all else of a step, so it is the whole cost: the
# time from before its digests until it knows those of all, the median, over the median step without.
# Run in the build folder:   ../bench/check_bits.sh [STEPS [HIDDEN [SEQ [MICROBATCHES]]]]
set -eu

. "$(dirname "$0")/report_step.sh"
steps=${1:-3}
hidden=${2:-128}
seq=${3:-512}
microbatches=${4:-64}
OPENBLAS_NUM_THREADS=1
DUALPIPE_PLUGIN_PATH=$PWD/.libs
export OPENBLAS_NUM_THREADS DUALPIPE_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

model="--layers 4 --hidden $hidden --heads 4 --kv-heads 2 --experts 4 --expert-hidden $((2 * hidden)) --seq $seq --batch 2 --microbatches $microbatches"
run="--steps $steps --warmup 1 --sample 0 --val-every 0"
DUALPIPE_LOG=debug ./dualpipe run -n 2 -- apps/train_moe/train_moe $model $run --check-bits 1 >"$work/out" 2>"$work/err" ||
    { cat "$work/out" "$work/err" >&2; exit 1; }
step=$(report_step "$work/out")
sed -n 's/^\[0\] .*check_bits: step [0-9]*: compared in \([0-9.]*\) ms$/\1/p' "$work/err" | sort -n >"$work/times"
count=$(wc -l <"$work/times")
[ "$count" -eq "$steps" ] || { echo "$count comparisons in $steps steps" >&2; exit 1; }
median=$(sed -n "$(((count + 1) / 2))p" "$work/times")
parameters=$(sed 's/^\[0\] //' "$work/out" | tr '\n' ' ' | tr -s ' ' | sed -n 's/.* \([0-9.]* million\) parameters.*/\1/p')
echo "train_moe over 2 ranks: $model: ${parameters:-?} parameters"
echo "median step: $step ms, compared in $median ms: $(awk "BEGIN { printf \"%.3f %%\", 100 * $median / $step }") of a step"
