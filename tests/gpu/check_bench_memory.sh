#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_bench_memory.sh: what the GPU benches take by default fits an H100 (80 GB, of which the driver gives out 78 GiB) and an H200
# (141 GB, 139 GiB), with 3 GiB for contexts and libraries. The emulated device holds memory that nobody writes for nothing, so
# they take all of it, in real sizes, and end before they work.
set -eu

fakes=$DP_TEST_BUILDDIR/tests/fake_cuda/.libs
[ -e "$fakes/libcuda_fake.so" ] || { echo "SKIP: built without CUDA" && exit 77; }
export DUALPIPE_DEBUG="lib.cuda=$fakes/libcuda_fake.so,lib.cublaslt=$fakes/libcublaslt_fake.so,lib.cutlass=$fakes/libcutlass_fake.so,lib.cudnn=$fakes/libcudnn_fake.so" \
    CUDA_MODULE_LOADING=EAGER
failures=0

opens() { # GIB WORDS COMMAND...
    gib=$1 words=$2
    shift 2
    if ! out=$(DP_FAKE_MEMORY=$((gib * 1024)) "$@" --open 1 2>&1) || ! echo "$out" | grep -q "$words"; then
        echo "$gib GiB, $*: $out"
        failures=$((failures + 1))
    fi
}

for gib in 75 136; do
    opens $gib "" "$DP_TEST_BUILDDIR/bench/gpu_attention"
    opens $gib "" "$DP_TEST_BUILDDIR/bench/gpu_attention" --deterministic 1
    opens $gib "" "$DP_TEST_BUILDDIR/bench/gpu_moe"
    opens $gib "layers a stage: opened" "$DP_TEST_BUILDDIR/bench/gpu_overlap"
    opens $gib "2 layers a stage: opened" "$DP_TEST_BUILDDIR/bench/gpu_overlap" --layers 2 # as first_hour.sh has it
done
opens 75 "3 layers a stage: opened" "$DP_TEST_BUILDDIR/bench/gpu_overlap" --layers 3 # with two accumulators they would not fit
# the measure itself: what cannot fit is not opened
if DP_FAKE_MEMORY=$((75 * 1024)) "$DP_TEST_BUILDDIR/bench/gpu_overlap" --layers 4 --open 1 >/dev/null 2>&1; then
    echo "4 layers a stage, more than 100 GB, were opened on 75 GiB"
    failures=$((failures + 1))
fi

echo "$failures failures"
[ "$failures" -eq 0 ]
