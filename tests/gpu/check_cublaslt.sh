#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_cublaslt.sh: with the cuBLASLt that PyTorch 2.11 brings (13.1), which multiplies no groups, the ways of multiplying behind it
# are tested all the same, and the skip names the version.
set -eu

fake=$DP_TEST_BUILDDIR/tests/gpu/test_moe_cuda_fake.sh
[ -e "$DP_TEST_BUILDDIR/tests/fake_cuda/.libs/libcublaslt_fake.so" ] && [ -e "$fake" ] || { echo "SKIP: built without cuBLASLt" && exit 77; }
work=$(mktemp)
trap 'rm -f "$work"' EXIT
failures=0

FAKE_CUBLASLT_VERSION=130100 sh "$fake" cublaslt_is_here cutlass_is_here each_way_of_multiplying a_library_opens_for_large_products \
    >"$work" 2>&1 || failures=1
for line in "skipped cublaslt_is_here: .* 130100 was found" "passed  cutlass_is_here" "passed  each_way_of_multiplying" \
    "passed  a_library_opens_for_large_products"; do
    grep -q "^$line" "$work" || {
        echo "not said: $line"
        failures=$((failures + 1))
    }
done
[ "$failures" -eq 0 ] || cat "$work"
echo "$failures failures"
[ "$failures" -eq 0 ]
