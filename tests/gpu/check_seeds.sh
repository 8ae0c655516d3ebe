#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_seeds.sh: kernels come to the same whatever the order in which blocks start and threads of a block run: a GPU promises none.
set -eu

fakes=$DP_TEST_BUILDDIR/tests/fake_cuda/.libs
[ -e "$fakes/libcuda_fake.so" ] || { echo "SKIP: built without CUDA" && exit 77; }
work=$(mktemp)
trap 'rm -f "$work"' EXIT
failures=0

for seed in 1 2; do
    for what in test_kernels "test_moe_cuda each_way_of_multiplying tensor_cores_are_plain_products"; do
        name=${what%% *} cases=${what#"${what%% *}"}
        [ -e "$DP_TEST_BUILDDIR/tests/gpu/$name" ] || continue
        # shellcheck disable=SC2086
        DP_FAKE_SEED=$seed sh "$DP_TEST_BUILDDIR/tests/gpu/${name}_fake.sh" $cases >"$work" 2>&1 || {
            echo "$name with DP_FAKE_SEED=$seed: $(tail -n 20 "$work")"
            failures=$((failures + 1))
        }
    done
done

echo "$failures failures"
[ "$failures" -eq 0 ]
