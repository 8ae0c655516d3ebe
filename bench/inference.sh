#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# inference.sh: two micro-batches of forwards beside each other, in the published orders of prefill and decode: the step over the work of
# the busiest lane, which no order can beat (wanted: <= 1.03). Run in the build folder:   ../bench/inference.sh [SECONDS]
#
#   simulated   61 layers with the forward costs of DeepSeek-V3's published training profile (four layers: 35.9 ms of computation,
#               61.5 ms of all-to-all), and with costs whose computation is more than the all-to-all
#   executed    by the engine with segments that sleep, beside one micro-batch after the other
#   posted      by the engine with attention_cpu and moe_cpu: bench/inference_posted
set -eu

seconds=${1:-8}
microbatches=16
DUALPIPE_PLUGIN_PATH=$PWD/.libs
export DUALPIPE_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# COMPUTE and COMMUNICATION of a layer in ms. prefill: attention, shared experts and MLP take 3 : 1 : 3 of the one, dispatch and combine
# half of the other each. decode: projections, the core of attention, shared experts and MLP 2 : 5 : 2 : 5, dispatch and combine 4 : 5,
# so that what stands beside each transfer covers it as long as COMMUNICATION is at most 9/14 of COMPUTE.
simulate() { # KIND LAYERS COMPUTE COMMUNICATION WHAT
    cost=$(awk -v c="$3" -v t="$4" -v kind="$1" 'BEGIN {
        if (kind == "decode")
            printf "project.F=%g,attention.F=%g,shared.F=%g,mlp.F=%g,dispatch.F=%g,combine.F=%g", c * 2 / 14, c * 5 / 14, c * 2 / 14, c * 5 / 14, t * 4 / 9, t * 5 / 9
        else
            printf "attention.F=%g,shared.F=%g,mlp.F=%g,dispatch.F=%g,combine.F=%g", c * 3 / 7, c / 7, c * 3 / 7, t / 2, t / 2
    }')
    step=$(./dualpipe simulate --method 1f1b --ranks 1 --microbatches $microbatches --inference "$1" --cost "$cost,LAYERS=$2" --format json |
        sed -n 's/.*"step_time":\([0-9.]*\),.*/\1/p')
    awk -v kind="$1" -v what="$5" -v step="$step" -v c="$3" -v t="$4" -v n=$((microbatches * $2)) 'BEGIN {
        busiest = n * (c > t ? c : t)
        printf "simulated %-8s %s: step %.1f ms, busiest lane %.1f ms: %.3f\n", kind, what, step, busiest, step / busiest
    }'
}
simulate prefill 4 8.975 15.375 "4 layers of the training profile"
simulate prefill 61 8.975 15.375 "61 layers of the training profile"
simulate prefill 61 14 10 "61 layers, computation is more"
simulate decode 61 14 9 "61 layers, computation covers each transfer"
simulate decode 61 14 12 "61 layers, it does not"

for kind in prefill decode; do
    cost=attention.F=1,shared.F=0.5,mlp.F=1,dispatch.F=1,combine.F=1
    [ $kind = prefill ] || cost=project.F=0.4,attention.F=1,shared.F=0.4,mlp.F=0.7,dispatch.F=0.8,combine.F=1
    ./dualpipe demo --inference $kind --microbatches $microbatches --cost $cost,LAYERS=8 --seconds "$seconds" --output "$work/out" >"$work/table"
    awk -v kind=$kind -v n=$((microbatches * 8)) '/sleeps/ { unit = $(NF - 1) } $1 == kind { step = $3; hidden = $(NF - 1) } /^one by one/ { alone = $5 }
        END { printf "executed  %-8s 8 layers, 2.5 units of computation: step %.1f ms, busiest lane %.1f ms: %.3f; %s %% of the all-to-all hidden; one by one %.2f times as long\n",
              kind, step, n * 2.5 * unit, step / (n * 2.5 * unit), hidden, alone / step }' "$work/table"
done

# Real layers: transfers posted on the compute lane beside transfers on a separate one, over comm_shm, two ranks.
if [ -x bench/inference_posted ]; then
    for tokens in 16 128; do bench/inference_posted 31 $tokens 64 | sed 's/^/posted    /'; done
fi
