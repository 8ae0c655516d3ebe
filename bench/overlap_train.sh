#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# overlap_train.sh: what --overlap planned does to a real step: train_moe with ranks as processes, canonical and planned in turn, on
# this machine. Run in the build folder:   ../bench/overlap_train.sh [ROUNDS [STEPS [LAYERS]]]
#
# A row is a number of pipeline ranks and of ranks that share the experts of a layer, with the medians of the rounds' median steps. The
# losses of all runs of a row have to be the same to the last digit printed. Exit status 1: they are not, or planned took 2 % more.
set -eu

. "$(dirname "$0")/report_step.sh"
rounds=${1:-5}
steps=${2:-24}
layers=${3:-4}
OPENBLAS_NUM_THREADS=1
DUALPIPE_PLUGIN_PATH=$PWD/.libs
export OPENBLAS_NUM_THREADS DUALPIPE_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

model="--layers $layers --hidden 64 --heads 2 --kv-heads 1 --experts 8 --expert-hidden 128"
data="--seq 64 --batch 4 --microbatches 8"
run="--steps $steps --trace-steps $((steps - 4)) --sample 0 --val-every 0 --log-every $steps"

one_run() { # PP EP METHOD HOW: appends its median step to a file
    ./dualpipe run -n $(($1 * $2)) -- ./apps/train_moe/train_moe --pp "$1" --ep "$2" --schedule "$3" --overlap "$4" $model $data $run \
        >"$work/out" 2>&1 </dev/null || { cat "$work/out" >&2; exit 1; }
    report_step "$work/out" >>"$work/$1.$2.$4"
    sed -n "s/^step *$steps\/$steps *\(loss *[0-9.]*\).*/\1/p" "$work/out" >>"$work/$1.$2.loss"
}

median() {
    sort -n "$1" | sed -n "$(((rounds + 1) / 2))p"
}

echo "train_moe, $steps steps: $model"
echo "    $data"
echo "$(nproc) cores, $(uname -sr), load before: $(cut -d' ' -f1-3 /proc/loadavg); medians of $rounds rounds, canonical and planned in turn"
echo
printf '%-14s %3s %3s %10s  %-22s %-22s %s\n' schedule pp ep processes "canonical, ms a step" "planned, ms a step" "planned takes"
failed=0
while read -r pp ep method; do
    for _ in $(seq "$rounds"); do
        one_run "$pp" "$ep" "$method" canonical
        one_run "$pp" "$ep" "$method" planned
    done
    base=$work/$pp.$ep
    printf '%-14s %3d %3d %10d  %-22s %-22s %s\n' "$method" "$pp" "$ep" $((pp * ep)) "$(median "$base.canonical")" \
        "$(median "$base.planned")" "$(awk -v a="$(median "$base.canonical")" -v b="$(median "$base.planned")" \
            'BEGIN { printf "%+.1f %%", 100 * (b / a - 1) }')"
    [ "$(sort -u "$base.loss" | wc -l)" -eq 1 ] || { echo "losses differ: $(sort "$base.loss" | uniq -c)"; failed=1; }
    awk -v a="$(median "$base.canonical")" -v b="$(median "$base.planned")" 'BEGIN { exit b > 1.02 * a }' || failed=1
done <<END
2 1 dualpipe
2 2 dualpipe
END
exit $failed
