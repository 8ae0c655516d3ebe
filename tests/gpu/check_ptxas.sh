#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_ptxas.sh: what the assembler for Hopper says of the kernels that a step spends its time in: no register is spilled to
# memory, and no wgmma is made to wait for the one before it (ptxas warns of that: C7510 and its neighbours).
set -eu

if [ -z "${DP_TEST_NVCC:-}" ]; then
    echo "SKIP: built without CUDA"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$DP_TEST_SRCDIR"

# Double precision is for tests of the mathematics, and these are not in a product's loop.
allowed='_f64$|^moe_cuda_combine_f32$'
failures=0
# CUTLASS's, where it is, as plugins/moe_cuda/Makefile.inc has them.
for source in ${DP_TEST_CUTLASS:+plugins/moe_cuda/cutlass/moe_cutlass.cu} \
    plugins/moe_cuda/moe_gemm.cu plugins/moe_cuda/moe_router.cu plugins/moe_cuda/moe_rows.cu plugins/moe_cuda/moe_groups.cu \
    plugins/attention/cuda/attention_rows.cu plugins/comm_cuda_ipc/ipc_kernels.cu; do
    $DP_TEST_NVCC -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -Xptxas -v -Iplugins -I. \
        ${DP_TEST_CUTLASS:+--expt-relaxed-constexpr -DNDEBUG $DP_TEST_CUTLASS} -cubin -o "$work/image" "$source" \
        >"$work/said" 2>&1 || {
        cat "$work/said"
        exit 1
    }
    awk -v allowed="$allowed" -v source="$source" '
        /Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; kernels++ }
        /bytes stack frame/ && $0 !~ / 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/ && kernel !~ allowed {
            print source ": " kernel ":" $0; bad = 1 }
        /C75[0-9][0-9]|wgmma.*serial/ { print source ": " $0; bad = 1 }
        END { if (kernels == 0) { print source ": ptxas names no kernel"; bad = 1 } exit bad }' "$work/said" ||
        failures=$((failures + 1))
done
[ "$failures" -eq 0 ]
