#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_first_hour.sh: the three calls of first_hour.sh get to their end on an emulated device whose starts take 0.8 s, each step within
# its seconds; what fails or hangs is named, leaves no process behind and the report short.
set -eu

[ -e "$DP_TEST_BUILDDIR/tests/fake_cuda/.libs/libcuda_fake.so" ] || { echo "SKIP: built without CUDA" && exit 77; }
[ -x "$DP_TEST_BUILDDIR/tests/gpu/test_comm_nccl" ] && [ -x "$DP_TEST_BUILDDIR/bench/gpu_moe" ] ||
    { echo "SKIP: built without NCCL or cuBLASLt" && exit 77; }
script=$DP_TEST_SRCDIR/tests/gpu/first_hour.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
complain() {
    echo "$*"
    failures=$((failures + 1))
}
unset DUALPIPE_DEBUG || :
export DP_FAKE_START_MS=800

call() { # NUMBER OPTIONS...: leaves $status and the report
    status=0
    sh "$script" "$@" --emulated --short --keep "$work/kept" >"$work/report" 2>&1 || status=$?
    [ "$(wc -c <"$work/report")" -lt 12000 ] || complain "call $*: the report has $(wc -c <"$work/report") characters"
}
ends_well() { # NUMBER STEPS...
    number=$1
    shift
    [ "$status" -eq 0 ] || complain "call $number: status $status: $(cat "$work/report")"
    for step in "$@"; do
        grep -q "^$step: ok, " "$work/report" || complain "call $number: $step is not ok"
        tar xzOf "$work/kept/logs.tgz" "logs/$step" >/dev/null || complain "call $number: $step left no log"
    done
    grep -q 'EMULATED' "$work/report" || complain "call $number does not say that the device is emulated"
}

call 1
benches="attention_partition moe moe_grouped overlap p2p"
# shellcheck disable=SC2086
ends_well 1 start $benches train_threads train_partition train_cudnn test_moe_ways test_attention_cudnn
for figure in attention_partition.core_forward moe.dispatch moe.experts moe_grouped.experts_backward_weight overlap.hidden \
    p2p.exchange p2p.message_65536; do
    grep -q "^$figure *[0-9]" "$work/report" || complain "call 1 has no figure $figure"
done
cp "$work/kept/figures" "$work/first"

call 2
ends_well 2 ipc_threads_messages_arrive_in_order_and_whole ipc_processes_messages_arrive_in_order_and_whole ipc_killed \
    nccl_processes_sums_follow_each_other train_blocking train_graph

# in one call, and beside those of another
call 3 --old "$DP_TEST_BUILDDIR"
# shellcheck disable=SC2086
ends_well 3 $benches $(printf 'old_%s ' $benches)
[ "$(awk '$1 == "moe_grouped.experts" && $(NF - 1) > 0' "$work/report" | wc -l)" -eq 1 ] || complain "call 3 has nothing old beside the new"
DP_FAKE_FAIL=cuLaunchKernelEx:40 call 3 --old "$work/first"
[ "$status" -eq 1 ] && grep -q '^start: FAILED (1)' "$work/report" && grep -q '^-- overlap' "$work/report" ||
    complain "kernels that fail: status $status: $(cat "$work/report")"

# A step that does not end goes with all that it has started, and none begins when the time is over.
mkdir -p "$work/kit/.libs" "$work/kit/apps/train_moe" "$work/kit/tests"
cp "$script" "$work/kit/"
ln -s "$DP_TEST_BUILDDIR/tests/fake_cuda" "$work/kit/tests/fake_cuda"
ln -s "$DP_TEST_BUILDDIR/dualpipe" "$work/kit/dualpipe"
printf '%s\n' '#!/bin/sh' 'set -m' 'sleep 600 &' "echo \$! >$work/child" wait >"$work/kit/apps/train_moe/train_moe"
chmod +x "$work/kit/apps/train_moe/train_moe"
script=$work/kit/first_hour.sh
DUALPIPE_TIMEOUT_SCALE=1 call 1 --seconds 8
[ "$status" -eq 1 ] && grep -q '^start: FAILED: not done after 5 s' "$work/report" && grep -q '^train_threads: left out, no time' "$work/report" ||
    complain "a step that hangs: status $status: $(cat "$work/report")"
case $(cat "/proc/$(cat "$work/child")/stat" 2>/dev/null) in
'' | *') Z '*) ;;
*) complain "a step that hangs has left a process" ;;
esac

status=0
DUALPIPE_DEBUG=lib.cuda=/nonexistent/libcuda.so sh "$DP_TEST_SRCDIR/tests/gpu/first_hour.sh" 1 --keep "$work/kept" >"$work/report" 2>&1 || status=$?
[ "$status" -eq 77 ] && grep -q 'SKIP: .*no CUDA device' "$work/report" || complain "no device: status $status, $(cat "$work/report")"

echo "$failures failures"
[ "$failures" -eq 0 ]
