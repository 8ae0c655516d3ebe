#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# recovery_cost.sh: what it costs that ranks can be replaced, and that one is: train_moe over 4 ranks on this machine, rounds with and
# without --respawn in turn. Run in the build folder:   ../bench/recovery_cost.sh [ROUNDS [HIDDEN]]
#
#   able       median step with --respawn over the one without; the best round of each (wanted: <= 1.02)
#   buddy      the time in which a rank's state is copied beside a step, the median over ranks and steps, over the median step, where
#              no other rank has that state (wanted: <= 0.03). On busy cores that is the most that a step gets longer by
#   recovery   from rank 0's notice of a death until the step is taken again, in steps (wanted: <= 2 and the time to move the state)
set -eu

. "$(dirname "$0")/report_step.sh"
rounds=${1:-3}
hidden=${2:-128}
OPENBLAS_NUM_THREADS=1
DUALPIPE_PLUGIN_PATH=$PWD/.libs
export OPENBLAS_NUM_THREADS DUALPIPE_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

model="--layers 8 --hidden $hidden --heads 4 --kv-heads 2 --experts 4 --expert-hidden $((2 * hidden)) --seq 128 --batch 2 --microbatches 8"
run="--steps 14 --sample 0 --val-every 0 --log-every 1"

kill_rank() { # RANK FILE: when five steps are taken of the job that runs
    until grep -q -s 'step  *5/' "$2"; do
        kill -0 "$!" 2>/dev/null || { cat "$2" >&2; exit 1; }
        sleep 0.01
    done
    for environ in $(grep -l -s -z -x "DP_BENCH=$$" /proc/[0-9]*/environ); do
        if grep -q -s -z -x "RANK=$1" "$environ"; then
            pid=${environ%/environ}
            kill -KILL "${pid#/proc/}"
            return
        fi
    done
}

echo "train_moe over 4 ranks: $model"
: >"$work/without"
: >"$work/with"
for round in $(seq "$rounds"); do
    ./dualpipe run -n 4 -- apps/train_moe/train_moe $model $run --losses "$work/losses" >"$work/out" 2>&1
    report_step "$work/out" >>"$work/without"
    ./dualpipe run --respawn 1 -n 4 -- apps/train_moe/train_moe $model $run >"$work/out" 2>&1
    report_step "$work/out" >>"$work/with"
done
without=$(sort -n "$work/without" | head -n 1)
with=$(sort -n "$work/with" | head -n 1)
echo "median step: $without ms, with --respawn $with ms: able $(awk "BEGIN { printf \"%.3f\", $with / $without }")"

for layout in "--schedule 1f1b" "--schedule dualpipev" "--zero 1"; do
    DUALPIPE_LOG=debug ./dualpipe run --respawn 1 -n 4 -- apps/train_moe/train_moe $model $run $layout >"$work/out" 2>"$work/err" ||
        { cat "$work/out" "$work/err" >&2; exit 1; }
    step=$(report_step "$work/out")
    sed -n 's/.*buddy: the state of step [0-9]* copied in \([0-9.]*\) ms$/\1/p' "$work/err" | sort -n >"$work/times"
    count=$(wc -l <"$work/times")
    [ "$count" -ge 52 ] || { echo "$count copies of 4 ranks in 14 steps" >&2; exit 1; }
    copy=$(sed -n "$(((count + 1) / 2))p" "$work/times")
    memory=$(sed -n 's/.* \([0-9.]* MiB\) of it are two copies.*/\1/p' "$work/out")
    echo "$layout: median step $step ms, state ($memory in two copies on rank 0) copied in $copy ms: buddy $(awk "BEGIN { printf \"%.4f\", $copy / $step }")"
done
for rank in 1 2 3; do
    : >"$work/out"
    DP_BENCH=$$ ./dualpipe run --respawn 1 -n 4 -- apps/train_moe/train_moe $model $run --losses "$work/after" >"$work/out" 2>&1 &
    kill_rank "$rank" "$work/out"
    wait $!
    seconds=$(sed -n 's/.*was replaced in \([0-9.]*\) s.*/\1/p' "$work/out")
    cmp -s "$work/losses" "$work/after" && same="same losses" || same="OTHER LOSSES"
    echo "rank $rank killed: ${seconds:-?} s: recovery $(awk "BEGIN { printf \"%.2f\", 1000 * ${seconds:-0} / $without }") steps, $same"
done
