#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_sass.sh: instructions that kernels for Hopper are made of: rows move in 16-byte accesses, several of which are loaded before
# the first is used, and products run on the tensor cores.
set -eu

[ -n "${DP_TEST_NVCC:-}" ] || { echo "SKIP: built without CUDA" && exit 77; }
cuobjdump=$(dirname "$(command -v "$DP_TEST_NVCC" || echo "$DP_TEST_NVCC")")/cuobjdump
[ -x "$cuobjdump" ] || cuobjdump=$(command -v cuobjdump) || { echo "SKIP: cuobjdump is not here" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$DP_TEST_SRCDIR"
failures=0

# demand SOURCE KERNELS COUNT INSTRUCTION: each of the kernels (a pattern) has at least so many of them (a pattern).
demand() {
    if [ "$1" != "${assembled-}" ]; then
        $DP_TEST_NVCC -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -Iplugins -I. \
            ${DP_TEST_CUTLASS:+--expt-relaxed-constexpr -DNDEBUG $DP_TEST_CUTLASS} -cubin -o "$work/image" "$1"
        "$cuobjdump" --dump-sass "$work/image" >"$work/sass"
        assembled=$1
    fi
    awk -v kernels="$2" -v least="$3" -v instruction="$4" -v source="$1" '
        function judge() {
            if (name == "") return
            seen++
            if (count < least) { print source ": " name ": " count " x " instruction ", demanded: " least; bad = 1 }
        }
        $1 == "Function" { judge(); name = $3 ~ kernels ? $3 : ""; count = 0 }
        name != "" && $0 ~ "[ \t]" instruction { count++ }
        END { judge(); if (!seen) { print source ": no kernel is " kernels; bad = 1 } exit bad }' "$work/sass" ||
        failures=$((failures + 1))
}

rows=plugins/attention/cuda/attention_rows.cu
# One of bf16 that went by halves would have none: the path of odd sizes has the others.
demand $rows '^attn_(normalize|apply_gain)_' 8 'LDG[.A-Z0-9]*[.]128'
demand $rows '^attn_normalize_backward_' 16 'LDG[.A-Z0-9]*[.]128'
demand $rows '^attn_(gain_gradient|rotate|split_keys)_' 8 'LDG[.A-Z0-9]*[.]128'
demand $rows '^attn_(dot_rows|join_keys)_' 4 'LDG[.A-Z0-9]*[.]128'
demand $rows '^attn_(normalize|apply_gain|normalize_backward|rotate|join_keys|split_keys)_' 4 'STG[.A-Z0-9]*[.]128'
demand plugins/moe_cuda/moe_gemm.cu '^moe_cuda_tensor_' 64 'HMMA[.]16816[.]F32[.]BF16'
[ -z "${DP_TEST_CUTLASS:-}" ] || demand plugins/moe_cuda/cutlass/moe_cutlass.cu '^moe_cutlass_' 4 HGMMA
[ "$failures" -eq 0 ]
