#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# eplb_train.sh: what --eplb is worth: train_moe with uneven routing, with and without it, in turn, on this machine. Run in the
# build folder:   ../bench/eplb_train.sh [RANKS [ROUNDS [STEPS]]]      RANKS: of one expert group; one core for each is wanted
#
# A step's figure is the median over the steps after the first change of placement (without --eplb: over all steps); the table
# has the best of the rounds, which are interleaved. max/mean: tokens on the fullest rank over the mean, the sum over layers, of
# the whole stretch.
set -eu

ranks=${1:-2}
rounds=${2:-3}
steps=${3:-40}
every=10
train=./examples/train_moe/train_moe
OPENBLAS_NUM_THREADS=1
DUALPIPE_PLUGIN_PATH=$PWD/.libs
export OPENBLAS_NUM_THREADS DUALPIPE_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

model="--layers 2 --hidden 128 --heads 2 --kv-heads 1 --experts $((4 * ranks)) --expert-hidden 1024 --shared-experts 0 --seq 64 --batch 8 --microbatches 4"
run="--steps $steps --sample 0 --val-every 0 --bias-rate 0 --lr 0.0005 --log-every 1000000"

# "max/mean median-ms" of the last stretch, "moved MiB" of the plans.
one_run() { # TOP_K SKEW OPTIONS...
    top_k=$1
    skew=$2
    shift 2
    ./dualpipe run -n "$ranks" -- "$train" --ep "$ranks" $model --top-k "$top_k" $run --skew "$skew" "$@" >"$work/out"
    awk '/in steps .* \(median step/ { for (i = 1; i <= NF; i++) { if ($i == "in") balance = $(i - 1); if ($i == "step") ms = $(i + 1) } }
         / replicas moved, / { for (i = 1; i <= NF; i++) { if ($i == "replicas" && $(i + 1) == "moved,") { moved = $(i - 1); mib = $(i + 2) } } }
         END { print balance, ms, moved + 0, mib + 0 }' "$work/out"
}

echo "train_moe, pp 1 ep $ranks: $model; $steps steps, --bias-rate 0 --lr 0.0005"
echo "$(nproc) cores, $(uname -sr), load before: $(cut -d' ' -f1-3 /proc/loadavg)"
echo
printf '%-6s %-5s  %-17s  %-23s  %-8s  %s\n' top-k skew "max/mean tokens" "step, ms" faster "moved by --eplb $every"
printf '%-6s %-5s  %-8s %-8s  %-11s %-11s  %-8s  %s\n' "" "" without with without with "" "replicas, MiB between ranks"
for top_k in 1 2; do
    for skew in 0 0.1 0.3; do
        : >"$work/plain"
        : >"$work/eplb"
        round=0
        while [ "$round" -lt "$rounds" ]; do
            one_run "$top_k" "$skew" >>"$work/plain"
            one_run "$top_k" "$skew" --eplb "$every" >>"$work/eplb"
            round=$((round + 1))
        done
        sort -n -k 2 "$work/plain" | head -n 1 >"$work/best"
        sort -n -k 2 "$work/eplb" | head -n 1 >>"$work/best"
        awk -v k="$top_k" -v s="$skew" 'NR == 1 { b = $1; t = $2 }
            NR == 2 { printf "%-6s %-5s  %-8.3f %-8.3f  %-11.1f %-11.1f  %-8.2f  %d, %.1f\n", k, s, b, $1, t, $2, t / $2, $3, $4 }' "$work/best"
    done
done
