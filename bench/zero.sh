#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# zero.sh: what shards of the optimizer cost and save: train_moe with its default model over 4 ranks of this machine as two data groups,
# rounds with --zero 0 and 1 in turn. Run in the build folder:   ../bench/zero.sh [ROUNDS [SCHEDULE [OPTIONS of train_moe]]]
#
#   optimizer   mean and squares of rank 0 (wanted: 1 / 2 without mirrors, 1 / 4 with them)
#   step        median step, and over that without shards, the median of the rounds (wanted: <= 1.02)
# Exit status 1: a run failed, or losses differ.
set -eu

. "$(dirname "$0")/report_step.sh"
rounds=${1:-5}
schedule=${2:-1f1b}
shift $(($# < 2 ? $# : 2))
OPENBLAS_NUM_THREADS=1
DUALPIPE_PLUGIN_PATH=$PWD/.libs
export OPENBLAS_NUM_THREADS DUALPIPE_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run="--threads 4 --dp 2 --schedule $schedule --steps 24 --sample 0 --val-every 0 --log-every 1"
failed=0

median() { # FILE
    sort -n "$1" | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

echo "train_moe $run $*"
for round in $(seq "$rounds"); do
    for zero in 0 1; do
        apps/train_moe/train_moe $run "$@" --zero $zero --losses "$work/losses.$zero" >"$work/out.$zero" 2>&1 ||
            { cat "$work/out.$zero" >&2; exit 1; }
        step=$(report_step "$work/out.$zero")
        cmp -s "$work/losses.0" "$work/losses.$zero" || { echo "zero $zero: OTHER LOSSES"; failed=1; }
        if [ $zero -eq 0 ]; then
            base=$step
        fi
        echo "$step" >>"$work/step.$zero"
        awk "BEGIN { print $step / $base }" >>"$work/ratio.$zero"
    done
done
for zero in 0 1; do
    bytes=$(tr '\n' ' ' <"$work/out.$zero" | tr -s ' ' | sed -n 's/.* optimizer \([0-9.]*\), data .*/\1/p')
    printf 'zero %d  optimizer %s MiB  step %s ms, %s of that without\n' $zero "$bytes" "$(median "$work/step.$zero")" \
        "$(median "$work/ratio.$zero")"
done
exit $failed
