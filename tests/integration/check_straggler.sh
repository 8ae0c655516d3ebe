#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_straggler.sh: a rank whose attention really takes longer is named within 20 steps, by train_moe and by `dualpipe status`; where
# nobody is slow nobody is named, on a machine that is busy as well.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

MOCK_REAL=$DP_TEST_BUILDDIR/.libs/dp_attention_cpu.so
mock="--attention $DP_TEST_BUILDDIR/tests/mock/.libs/mock_attention_poke.so"
export MOCK_REAL
slow() { # RANK WHERE: the line
    printf '^\(\[0\] \)\{0,1\}train_moe: rank %s (%s) takes [0-9.]* times as long as its peers for the same work, in the latest 16 steps\\. ' "$1" "$2"
}

# The 20th step is the last.
export MOCK_POKE=slow:2:500
ranks 4 $mock --steps 20 --val-every 0 --sample 0
expect 0 err "$(slow 2 'pid [0-9]* on .*')" "rank 2 is slow"
expect 0 err '[-]-partition auto, or with .dualpipe partition --layers 1x8 --method dualpipe --ranks 4 --microbatches 8 --rank-scale 2:' "what to do"
[ "$(grep -c 'times as long' "$work/err")" -eq 1 ] || complain "rank 2 is named more than once"
# Two pipelines: peers are at the same place of the other.
MOCK_POKE=slow:3:500
ranks 4 $mock --dp 2 --steps 20 --val-every 0 --sample 0
expect 0 err "$(slow 3 'pid [0-9]* on .*')" "rank 3 of two pipelines is slow"
expect 0 err '[-]-ranks 2 --microbatches 8 --rank-scale 1:' "rank 3 is rank 1 of its pipeline"

# The same from outside, while it runs.
mark=$$.straggler
: >"$work/out"
MOCK_POKE=slow:1:500
DP_TEST_CASE=$mark "$dualpipe" run -n 4 --prefix -- "$train" $small $mock --steps 1000000 --val-every 0 --sample 0 >"$work/out" 2>"$work/err" </dev/null &
job=$!
tries=$((60 * scale))
until timeout $((20 * scale)) "$dualpipe" status "$job" >"$work/answer" 2>&1 &&
    grep -q '^rank 1 (pid [0-9]* on .*) takes [0-9.]* times as long as its peers for the same work, in the latest 16 steps$' "$work/answer" || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    sleep 0.5
done
[ "$tries" -gt 0 ] || complain "dualpipe status names nobody: $(cat "$work/answer")"
kill -INT "$job"
wait "$job"
unset MOCK_POKE

# Nobody is slow, and two others want the cores all the time.
for load in 1 2; do
    (while :; do :; done) &
    loads="${loads:-} $!"
done
trap 'kill $loads 2>/dev/null; rm -rf "$work"' EXIT
ranks 4 --steps 40 --val-every 0 --sample 0
expect 0 out 'step  *40/40' "nobody is slow"
! grep -q 'times as long' "$work/err" || complain "somebody is named"
threads 4 --steps 40 --val-every 0 --sample 0
expect 0 out 'step  *40/40' "no thread is slow"
! grep -q 'times as long' "$work/err" || complain "a thread is named"
kill $loads
finish
