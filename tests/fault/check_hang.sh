#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_hang.sh: a rank of a training job is stopped, each in its turn: all others name it, with its state, not the one that
# they happened to wait for; nobody is said to have died; the job does not wait for it to hear a signal; and what all did last
# lies in a trace, also what the stopped one is in.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
limit=3
DUALPIPE_TIMEOUT_SCALE=0.1 # of 30 s
export DUALPIPE_TIMEOUT_SCALE
unset DUALPIPE_HANG_TRACE # where it lies by default

begin() { # OPTIONS...
    mark=$$.$case
    : >"$work/out"
    (cd "$work" && DP_TEST_CASE=$mark exec "$dualpipe" run -n 4 --prefix "$@" -- "$train" $small --steps 1000000 --val-every 0 \
        --sample 0 >"$work/out" 2>"$work/err" </dev/null) &
    job=$!
    tries=$((400 * scale))
    until grep -q 'step  *[0-9]' "$work/out"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || {
            complain "$case: no step"
            return
        }
        sleep 0.05
    done
}
stop_rank() { # RANK: leaves $pid; a job whose rank cannot be stopped would train for ever
    pid=$(member "$1")
    [ -n "$pid" ] && kill -STOP "$pid" && return
    complain "$case: no rank $1 to stop"
    kill -KILL "$job"
}
await_end() { # SECONDS
    start=$(date +%s)
    status=0
    wait "$job" || status=$?
    [ $(($(date +%s) - start)) -le $(($1 * scale)) ] || complain "$case: the job took $(($(date +%s) - start)) s to end"
}

# A row for each rank, with the operation that the stopped one is in; where the report says that it was stopped behind the last
# one of a step, that step is whole. Where rank 0 is the stopped one each of the others writes.
check_traces() { # VICTIM
    files=$(sed -n 's/.*last spans of all ranks: \([^;]*\);.*/\1/p' "$work/err" | sort -u)
    [ -n "$files" ] || complain "$case: the report names no trace"
    due='not over: '
    step=$(sed -n "s/.*train_moe: rank $1 .* step \([0-9]*\): its last operation.*/\1/p" "$work/err" | sort -u)
    [ -z "$step" ] || due="step $step\""
    for file in $files; do
        [ "$(dirname "$file")" = "$work" ] && [ -s "$file" ] || complain "$case: there is no trace $file in $work"
        for r in 0 1 2 3; do
            grep -q "\"ph\":\"X\",\"pid\":$r," "$file" || complain "$case: $file has nothing of rank $r"
        done
        grep "\"ph\":\"X\",\"pid\":$1,.*\"name\":\"$due" "$file" >/dev/null ||
            complain "$case: $file does not say what rank $1 is in: $due"
        "$dualpipe" trace view "$file" --output "$work/page.html" >/dev/null || complain "$case: $file cannot be read"
        rm -f "$file"
    done
    ! ls "$work"/*.part-* >/dev/null 2>&1 || complain "$case: a part of a trace is left"
}

for victim in 0 2 3; do
    case="rank $victim is stopped"
    begin
    stop_rank "$victim"
    await_end $((2 * limit + 5))
    [ "$status" -eq 14 ] || complain "$case: exit status $status, 14 was expected"
    for r in 0 1 2 3; do
        [ $r = $victim ] || grep -q "^\[$r\] train_moe: rank $victim (pid $pid on .*process state T (stopped)" "$work/err" ||
            complain "$case: rank $r does not say so"
    done
    ! grep -q 'died' "$work/err" || complain "$case: somebody is said to have died"
    [ $victim = 0 ] || [ "$(grep -c 'no rank makes progress: rank' "$work/err")" -eq 4 ] || complain "$case: no report of all ranks"
    check_traces "$victim"
done

# With --respawn it is killed and replaced: the losses are those of a run that nobody has disturbed.
trainer=$DP_TEST_BUILDDIR/tests/fault/hang_trainer
"$dualpipe" run -n 2 --no-prefix -- "$trainer" >"$work/undisturbed" 2>"$work/err" || complain "undisturbed: status $?"
replaced() { # HANG OPTIONS...: one that is replaced
    case="HANG=$1"
    status=0
    HANG=$1 DUALPIPE_HANG_TRACE=$work/hang.json timeout $((60 * scale)) "$dualpipe" run -n 2 --no-prefix --respawn 3 -- "$trainer" >"$work/out" 2>"$work/err" </dev/null ||
        status=$?
    [ "$status" -eq 0 ] || complain "$case: exit status $status"
    cmp -s "$work/undisturbed" "$work/out" || complain "$case: other losses than without a hang"
}
for victim in 0 1; do
    replaced "$victim:loop"
    grep -q "^dualpipe run: rank $victim (pid [0-9]*) makes no progress and is killed: .* waits for nobody" "$work/err" ||
        complain "$case: the launcher does not say why it was killed"
    grep -q "^dualpipe run: rank $victim .*: started again as pid [0-9]* (1 of 3)" "$work/err" || complain "$case: not replaced"
done
SLOW_MS=2000 # of 3 s
export SLOW_MS
replaced 1:slow
! grep -q 'dualpipe run' "$work/err" || complain "$case: a straggler was killed"

undisturbed=
for victim in 2 0; do
    case="rank $victim is stopped for good"
    if [ -z "$undisturbed" ]; then
        undisturbed=$work/losses.0
        threads 4 --steps 400 --val-every 0 --sample 0 --losses "$undisturbed"
    fi
    mark=$$.$victim.stop
    : >"$work/out"
    DP_TEST_CASE=$mark DUALPIPE_HANG_TRACE=$work/hang.json "$dualpipe" run -n 4 --respawn 3 -- "$train" $small --steps 400 --val-every 0 --sample 0 --log-every 1 \
        --losses "$work/losses" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
    until grep -q 'step  *[0-9]' "$work/out" || ! kill -0 "$job"; do
        sleep 0.02
    done
    stop_rank "$victim"
    await_end 50
    [ "$status" -eq 0 ] || complain "$case: exit status $status"
    cmp -s "$undisturbed" "$work/losses" || complain "$case: other losses than without a hang"
    grep -q "^dualpipe run: rank $victim (pid [0-9]*) makes no progress and is killed: .*T (stopped)" "$work/err" ||
        complain "$case: the launcher does not say why it was killed"
done

# Somebody looks at it with a debugger: it is named, as before, and not killed.
case="a debugger"
begin --respawn 3
pid=$(member 2)
"$trainer" trace "$pid" >"$work/held" &
tracer=$!
tries=$((400 * scale))
until grep -q 'stopped by a debugger' "$work/err" || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done
kill -KILL "$tracer"
await_end $((2 * limit + 5))
[ "$status" -eq 14 ] || complain "$case: exit status $status, 14 was expected"
! grep -q 'is killed' "$work/err" || complain "$case: it was killed"
rm -f "$work"/dualpipe-hang-*.json

case="SIGINT with a stopped rank"
begin --grace 8
stop_rank 1
kill -INT "$job"
await_end 6
finish
