#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_status.sh: a job that trains says what its ranks are at, to who asks and on SIGQUIT, names one that stands still, and goes on.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

ask() { # [PID]; leaves $status, $work/answer
    status=0
    timeout $((20 * scale)) "$dualpipe" status "$@" >"$work/answer" 2>"$work/refusal" || status=$?
}
steps() {
    sed -n 's/^job of 4 ranks, hosts: 1: \([0-9]*\) steps, the latest took [0-9.]* ms; [1-9][0-9.]* MiB resident$/\1/p' "$1"
}

mark=$$.status
: >"$work/out"
DP_TEST_CASE=$mark "$dualpipe" run -n 4 --prefix -- "$train" $small --steps 1000000 --val-every 0 --sample 0 \
    >"$work/out" 2>"$work/err" </dev/null &
job=$!
tries=$((400 * scale))
until grep -q 'step  *[0-9]' "$work/out" || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done

ask "$job"
[ "$status" -eq 0 ] || complain "exit status $status of dualpipe status"
first=$(steps "$work/answer")
[ -n "$first" ] || complain "no line on the job: $(cat "$work/answer")"
for r in 0 1 2 3; do
    grep -q "^rank $r (pid [0-9]* on .*): [0-9]* steps, [0-9.]* ms, computes [0-9.]* ms, [1-9][0-9.]* MiB; \(is in\|has ended\) step" \
        "$work/answer" || complain "nothing of rank $r: $(cat "$work/answer")"
done
grep -q '^rank [0-3] computes longest: [0-9.]* ms of it, [1-9][0-9.]* times the mean$' "$work/answer" || complain "no straggler"
sleep 1
ask "$(member 0)"
[ "$(steps "$work/answer")" -gt "$first" ] || complain "no progress: $first, $(steps "$work/answer")"

# One that stands still, well within the limit of a hang.
pid=$(member 2)
kill -STOP "${pid:-none}"
ask "$job"
grep -q '^rank 2 (pid .*): does not answer; process state T (stopped)$' "$work/answer" || complain "a stopped rank: $(cat "$work/answer")"
kill -CONT "${pid:-none}"
ask "$job"
grep -q '^rank 2 (pid .*): [0-9]* steps' "$work/answer" || complain "a rank that goes on: $(cat "$work/answer")"

kill -QUIT "$job"
tries=$((100 * scale))
until grep -q '^rank 3 (pid' "$work/err" || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done
grep -q '^rank 3 (pid' "$work/err" || complain "SIGQUIT prints nothing"
ask "$job"
[ "$status" -eq 0 ] || complain "SIGQUIT has ended the job"

kill -INT "$job"
status=0
wait "$job" || status=$?
[ "$status" -eq 130 ] || complain "exit status $status of the job"
ask "$job"
[ "$status" -eq 1 ] && grep -q 'no job of this user' "$work/refusal" || complain "a job that is over: exit status $status"
ask x
[ "$status" -eq 2 ] || complain "x is no process: exit status $status"
finish
