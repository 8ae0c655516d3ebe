#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# eplb_train.sh: what --eplb is worth: train_moe with uneven routing, with and without it, in turn, on this machine. Run in the
# build folder:   ../bench/eplb_train.sh [RANKS [ROUNDS [STEPS]]]      RANKS: of one expert group; one core for each is wanted
#
#   max/mean   tokens on the fullest rank over the mean, summed over layers; after the first plan (without --eplb: all steps)
#   step       median time of a step, of the same steps
#   busiest    processor time of the rank that used most, over all steps, start and planning included: what a step takes when
#              every rank has a core to itself; it hardly depends on what else the machine does
#
# The table has the best round of each; rounds are interleaved.
set -eu

ranks=${1:-2}
rounds=${2:-2}
steps=${3:-30}
every=5
OPENBLAS_NUM_THREADS=1
DUALPIPE_PLUGIN_PATH=$PWD/.libs
export OPENBLAS_NUM_THREADS DUALPIPE_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

model="--layers 2 --hidden 128 --heads 2 --kv-heads 1 --experts $((4 * ranks)) --expert-hidden 1024 --shared-experts 0"
data="--seq 64 --batch 8 --microbatches 4"
run="--steps $steps --sample 0 --val-every 0 --bias-rate 0 --lr 0.0005 --log-every 1000000"

# "max/mean median-ms busiest-ms replicas MiB"
one_run() { # TOP_K SKEW OPTIONS...
    top_k=$1
    skew=$2
    shift 2
    ./dualpipe run -n "$ranks" -- sh -c '"$@" && times' sh ./apps/train_moe/train_moe --ep "$ranks" $model $data $run \
        --top-k "$top_k" --skew "$skew" "$@" >"$work/out"
    awk -v steps="$steps" '
        function seconds(t) { split(t, part, /[ms]/); return part[1] * 60 + part[2] }
        / in steps .* \(median step/ { for (i = 1; i <= NF; i++) { if ($i == "in") balance = $(i - 1); if ($i == "step") ms = $(i + 1) } }
        / replicas moved, .* between ranks/ { for (i = 1; i <= NF; i++) if ($i == "moved,") { moved = $(i - 2); mib = $(i + 1) } }
        NF == 3 && $2 ~ /^[0-9]+m[0-9.]+s$/ { used = seconds($2) + seconds($3); if (used > most) most = used }
        END { print balance, ms, 1000 * most / steps, moved + 0, mib + 0 }' "$work/out"
}

# The least of a column, over rounds.
least() {
    sort -n -k "$2" "$1" | head -n 1 | cut -d' ' -f"$2"
}

echo "train_moe over ep $ranks, $steps steps:"
echo "    $model"
echo "    $data --bias-rate 0 --lr 0.0005"
echo "$(nproc) cores, $(uname -sr), load before: $(cut -d' ' -f1-3 /proc/loadavg); best of $rounds rounds"
echo
printf '%-5s %-4s  %-15s  %-21s  %-21s  %s\n' "" "" "max/mean tokens" "step, ms" "busiest rank, ms/step" "moved by --eplb $every"
printf '%-5s %-4s  %-7s %-7s  %-7s %-7s %-5s  %-7s %-7s %-5s  %s\n' top-k skew without with without with gain without with gain \
    "replicas, MiB sent"
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
        plain="$(least "$work/plain" 1) $(least "$work/plain" 2) $(least "$work/plain" 3)"
        eplb="$(least "$work/eplb" 1) $(least "$work/eplb" 2) $(least "$work/eplb" 3) $(least "$work/eplb" 4) $(least "$work/eplb" 5)"
        echo "$top_k $skew $plain $eplb" |
            awk '{ printf "%-5s %-4s  %-7.3f %-7.3f  %-7.1f %-7.1f %-5.2f  %-7.1f %-7.1f %-5.2f  %d, %.1f\n",
                   $1, $2, $3, $6, $4, $7, $4 / $7, $5, $8, $5 / $8, $9, $10 }'
    done
done
