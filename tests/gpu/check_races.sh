#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_races.sh: no two threads of a block touch the same memory, one of them writing, without a barrier in between: every kernel
# through a driver that looks at each access (tests/fake_cuda/races.c), which is shown races first.
set -eu

driver=$DP_TEST_BUILDDIR/tests/fake_cuda/.libs/libcuda_races.so
[ -e "$driver" ] || { echo "SKIP: built without CUDA" && exit 77; }
if grep -q '^CFLAGS = .*-fsanitize' "$DP_TEST_BUILDDIR/Makefile"; then
    echo "SKIP: a sanitizer has these calls for itself"
    exit 77
fi
work=$(mktemp)
trap 'rm -f "$work"' EXIT
failures=0
scale=$((8 * ${DUALPIPE_TIMEOUT_SCALE:-1})) # each access of a kernel is looked at

# run PROGRAM [CASE]... through that driver
run() {
    name=$1
    shift
    [ -e "$DP_TEST_BUILDDIR/tests/gpu/$name" ] || return 0
    sed "s|libcuda_fake|libcuda_races|" "$DP_TEST_BUILDDIR/tests/gpu/${name}_fake.sh" >"$work.sh"
    DP_TEST_RACES=1 DP_FAKE_HANG_SECONDS=300 DUALPIPE_TIMEOUT_SCALE=$scale sh "$work.sh" "$@" >"$work" 2>&1 || {
        echo "$name: $(tail -n 20 "$work")"
        failures=$((failures + 1))
    }
    rm -f "$work.sh"
}

run test_kernels
[ "$(grep -c 'a race in a block' "$work")" -eq 3 ] || {
    echo "three races were sown, and reported: $(grep 'a race' "$work")"
    failures=$((failures + 1))
}
run test_attention_cuda rows_of_any_width
run test_moe_cuda calls_can_be_captured # small, and every kernel in every way
run test_conform_moe_cuda tokens_choose_from_few_groups
run test_comm_nccl --device device_cuda exchanges_of_the_capacity_are_left exchanges_move_the_rows_that_there_are \
    sums_may_be_those_of_nccl

echo "$failures failures"
[ "$failures" -eq 0 ]
