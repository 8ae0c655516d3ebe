#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# train_torch.sh: train_moe beside PyTorch on one core: the same model, f32, one thread each, rounds in turn. Run in the build folder:
#   ../bench/train_torch.sh PYTHON [HIDDEN... [, ROUNDS]]     PYTHON: one that has PyTorch; hidden 64 and 512, 3 rounds
#
#   tokens/s    medians of the rounds, each the median of its steps; eager, and compile where torch.compile runs
#   products    the step's matrix products alone (bench/train_products), and what of the step they are
set -eu

python=$1
shift
rounds=3 hidden=
while [ $# -gt 0 ]; do
    if [ "$1" = , ]; then
        rounds=$2
        shift
    else
        hidden="$hidden $1"
    fi
    shift
done
[ -n "$hidden" ] || hidden="64 512"
here=$(dirname "$0")
. "$here/report_step.sh"
OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
DUALPIPE_PLUGIN_PATH=$PWD/.libs
export OPENBLAS_NUM_THREADS OMP_NUM_THREADS DUALPIPE_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

median() { # FILE
    sort -n "$1" | awk '{ x[NR] = $1 } END { print NR ? x[int((NR + 1) / 2)] : 0 }'
}

echo "PyTorch $("$python" -c 'import torch; print(torch.__version__)'); $(getconf _NPROCESSORS_ONLN) cores, load $(cut -d' ' -f1 /proc/loadavg)"
for h in $hidden; do
    steps=30 heads=4
    if [ "$h" -gt 128 ]; then steps=5 heads=8; fi
    : >"$work/ours"
    : >"$work/eager"
    : >"$work/compile"
    : >"$work/products"
    for round in $(seq "$rounds"); do
        apps/train_moe/train_moe --threads 1 --hidden "$h" --expert-hidden "$h" --heads $heads --kv-heads $((heads / 2)) --steps $steps \
            --trace-steps $((steps - 1)) --sample 0 --val-every 0 >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
        report_step "$work/out" >>"$work/ours"
        bench/train_products "$h" 3 >>"$work/products" 2>/dev/null
        "$python" "$here/train_torch.py" "$h" $((steps / 2 + 2)) eager >>"$work/eager"
        if [ "$round" = 1 ]; then
            timeout 200 "$python" "$here/train_torch.py" "$h" 4 compile >"$work/compile" 2>/dev/null || echo 0 >"$work/compile"
        fi
    done
    awk -v h="$h" -v ms="$(median "$work/ours")" -v eager="$(median "$work/eager")" -v compile="$(median "$work/compile")" \
        -v products="$(median "$work/products")" 'BEGIN {
            ours = 2048 / (ms / 1000)
            printf "hidden %d: %.0f tokens/s; PyTorch eager %.0f (%.2f times), ", h, ours, eager, ours / eager
            if (compile + 0 == 0) print "compile does not run"
            else printf "compile %d (%.2f times)\n", compile, ours / compile
            printf "    step %.1f ms, its products alone %.1f ms: %.0f %%, step / products %.2f\n", ms, 1000 * products, 100000 * products / ms, ms / 1000 / products }'
done
