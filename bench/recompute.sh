#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# recompute.sh: what recomputation costs and saves: train_moe with its default model over 4 ranks of this machine, rounds of the four
# levels in turn. Run in the build folder:   ../bench/recompute.sh [ROUNDS [SCHEDULE [OPTIONS of train_moe]]]
#
#   keeps       activations and what backwards alone have, of rank 0 (wanted of cheap: 25 % fewer than with none)
#   step        median step, and over that of none, the median of the rounds (wanted of cheap: <= 1.05)
#   simulated   the same by dualpipe simulate --recompute, from the costs that the run with none has measured
# Exit status 1: a run failed, or a level has other losses than none.
set -eu

. "$(dirname "$0")/report_step.sh"
rounds=${1:-3}
schedule=${2:-dualpipe}
shift $(($# < 2 ? $# : 2))
OPENBLAS_NUM_THREADS=1
DUALPIPE_PLUGIN_PATH=$PWD/.libs
export OPENBLAS_NUM_THREADS DUALPIPE_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run="--threads 4 --schedule $schedule --steps 14 --sample 0 --val-every 0 --log-every 1"
levels="none cheap mlp full"
failed=0

# The report breaks its lines anywhere.
flat() { # FILE
    tr '\n' ' ' <"$1" | tr -s ' '
}
median() { # FILE
    sort -n "$1" | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

echo "train_moe $run $*"
for round in $(seq "$rounds"); do
    for level in $levels; do
        apps/train_moe/train_moe $run "$@" --recompute "$level" --losses "$work/losses.$level" --costs-out "$work/costs.$level" \
            >"$work/out.$level" 2>&1 || { cat "$work/out.$level" >&2; exit 1; }
        step=$(report_step "$work/out.$level")
        cmp -s "$work/losses.none" "$work/losses.$level" || { echo "$level: OTHER LOSSES"; failed=1; }
        if [ "$level" = none ]; then
            base=$step
        fi
        echo "$step" >>"$work/step.$level"
        awk "BEGIN { print $step / $base }" >>"$work/ratio.$level"
    done
done
dualpipe_step() { # LEVEL
    ./dualpipe simulate --method "$schedule" --ranks 4 --microbatches "$microbatches" --costs "$work/costs.none" --lanes --recompute "$1" |
        sed -n 's/^step  *//p'
}
microbatches=$(flat "$work/out.none" | sed -n 's/.*a step: \([0-9]*\) micro-batches.*/\1/p')
base=$(dualpipe_step none)
for level in $levels; do
    kept=$(flat "$work/out.$level" | sed -n 's/.*activations \([0-9.]*\), of backwards alone \([0-9.]*\),.*/\1 + \2/p')
    printf '%-5s  rank 0 keeps %s MiB  step %s ms, %s of none; simulated %s\n' "$level" "$kept" "$(median "$work/step.$level")" \
        "$(median "$work/ratio.$level")" "$(awk "BEGIN { printf \"%.3f\", $(dualpipe_step "$level") / $base }")"
done
exit $failed
