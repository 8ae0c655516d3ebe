#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_first_hour.sh: first_hour.sh gets to its end on the emulated device, says what failed, and needs a device.
set -eu

[ -e "$DP_TEST_BUILDDIR/tests/fake_cuda/.libs/libcuda_fake.so" ] || { echo "SKIP: built without CUDA" && exit 77; }
script=$DP_TEST_SRCDIR/tests/gpu/first_hour.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
complain() {
    echo "$*"
    failures=$((failures + 1))
}

# a separate build folder for what it leaves behind
for name in .libs tests apps bench dualpipe; do
    ln -s "$DP_TEST_BUILDDIR/$name" "$work/$name"
done
unset DUALPIPE_DEBUG || :
sh "$script" --emulated --short "$work" >"$work/report" 2>&1 || complain "it failed: $(cat "$work/report")"
for step in partitions train_one train_threads train_blocking train_partition attention_partition attention_share moe_grouped overlap p2p; do
    [ "$(grep -c "^$step: ok" "$work/report")" -eq 2 ] || complain "$step is not ok, once as it ends and once in the results"
done
grep -q 'EMULATED' "$work/report" || complain "it does not say that the device is emulated"
grep -q 'what to look at' "$work/report" || complain "it does not get to its end"

# a step that fails is named, and fails the whole
status=0
DP_FAKE_FAIL=cuLaunchKernelEx:40 sh "$script" --emulated --short "$work" >"$work/report" 2>&1 || status=$?
[ "$status" -eq 1 ] && grep -q '^train_one: FAILED' "$work/report" || complain "kernels that fail: status $status, $(cat "$work/report")"

status=0
DUALPIPE_DEBUG=lib.cuda=/nonexistent/libcuda.so sh "$script" "$work" >"$work/report" 2>&1 || status=$?
[ "$status" -eq 77 ] && grep -q 'SKIP: .*no CUDA device' "$work/report" || complain "no device: status $status, $(cat "$work/report")"

echo "$failures failures"
[ "$failures" -eq 0 ]
