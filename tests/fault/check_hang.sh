#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_hang.sh: a rank of a training job is stopped, each in its turn: all others name it, with its state, not the one that
# they happened to wait for; nobody is said to have died; and the job does not wait for it to hear a signal.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
limit=3
DUALPIPE_TIMEOUT_SCALE=0.1 # of 30 s
export DUALPIPE_TIMEOUT_SCALE

find_rank() { # RANK: of this job's processes
    for p in $(cat "/proc/$job/task/$job/children"); do
        for q in $(cat "/proc/$p/task/$p/children"); do
            if tr '\0' '\n' <"/proc/$q/environ" 2>/dev/null | grep -q -x "RANK=$1"; then
                echo "$q"
            fi
        done
    done
}
pid_of() { # RANK: the kernel's list of children now and then lacks one
    found=
    tries=100
    while [ -z "$found" ] && [ $tries -gt 0 ]; do
        found=$(find_rank "$1")
        tries=$((tries - 1))
    done
    echo "${found:-none}"
}
begin() { # OPTIONS...
    "$dualpipe" run -n 4 --prefix "$@" -- "$train" $small --steps 1000000 --val-every 0 --sample 0 >"$work/out" 2>"$work/err" </dev/null &
    job=$!
    tries=$((400 * scale))
    until grep -q 'step  *[0-9]' "$work/out"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || {
            complain "no step"
            return
        }
        sleep 0.05
    done
}
await_end() { # SECONDS
    start=$(date +%s)
    status=0
    wait "$job" || status=$?
    [ $(($(date +%s) - start)) -le $(($1 * scale)) ] || complain "$case: the job took $(($(date +%s) - start)) s to end"
}

for victim in 0 2 3; do
    case="rank $victim is stopped"
    begin
    pid=$(pid_of $victim)
    kill -STOP "$pid" || kill -KILL "$job"
    await_end $((2 * limit + 5))
    [ "$status" -eq 14 ] || complain "$case: exit status $status, 14 was due"
    for r in 0 1 2 3; do
        [ $r = $victim ] || grep -q "^\[$r\] train_moe: rank $victim (pid $pid on .*process state T (stopped)" "$work/err" ||
            complain "$case: rank $r does not say so"
    done
    ! grep -q 'died' "$work/err" || complain "$case: somebody is said to have died"
    [ $victim = 0 ] || [ "$(grep -c 'nobody gets on: rank' "$work/err")" -eq 4 ] || complain "$case: no report of all ranks"
done

case="SIGINT with a stopped rank"
begin --grace 8
kill -STOP "$(pid_of 1)" || kill -KILL "$job"
kill -INT "$job"
await_end 6
finish
