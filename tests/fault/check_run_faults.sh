#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_run_faults.sh: whatever ends a job of `dualpipe run`, it ends in time, says why, and nothing of it is left.
set -u

dualpipe=$DP_TEST_BUILDDIR/dualpipe
rank=$DP_TEST_BUILDDIR/tests/fault/run_rank
scale=${DUALPIPE_TIMEOUT_SCALE:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

complain() {
    echo "$case: $*"
    sed 's/^/    out: /' "$work/out" | cut -c 1-200
    sed 's/^/    err: /' "$work/err" | cut -c 1-200
    failures=$((failures + 1))
}
now_ms() {
    echo $(($(date +%s%N) / 1000000))
}
# Every process of a case has this variable in its environment, whatever it has become.
survivors() {
    for environ in /proc/[0-9]*/environ; do
        if { tr '\0' '\n' <"$environ" | grep -q -x "DP_TEST_CASE=$mark"; } 2>/dev/null; then
            state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "${environ%/environ}/status" 2>/dev/null) || state=
            [ "$state" = Z ] || [ -z "$state" ] || basename "${environ%/environ}"
        fi
    done
}
begin() { # NAME ARGUMENTS OF DUALPIPE RUN...
    case=$1
    mark=$$.$case
    shift
    : >"$work/out" # the job's own truncation may come after we look
    : >"$work/err"
    DP_TEST_CASE=$mark "$dualpipe" run --prefix "$@" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
}
await_lines() { # COUNT PATTERN
    tries=$((200 * scale))
    while [ "$(grep -c "$2" "$work/out")" -lt "$1" ]; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ]; then
            complain "\"$2\" did not appear $1 times"
            return
        fi
        sleep 0.05
    done
}
expect_end() { # STATUS MILLISECONDS
    start=$(now_ms)
    ended=0
    wait "$job" 2>/dev/null || ended=$?
    took=$(($(now_ms) - start))
    [ "$ended" -eq "$1" ] || complain "status $ended, $1 was expected"
    [ "$took" -le $(($2 * scale)) ] || complain "took $took ms, $2 are allowed"
    expect_nothing_left 0
}
expect_nothing_left() { # MILLISECONDS
    end=$(($(now_ms) + $1 * scale))
    left=$(survivors)
    while [ -n "$left" ] && [ "$(now_ms)" -lt "$end" ]; do
        sleep 0.05
        left=$(survivors)
    done
    if [ -n "$left" ]; then
        complain "still there:" $left
        kill -9 $left 2>/dev/null
    fi
}
require() { # FILE PATTERN
    grep -q "$2" "$work/$1" || complain "\"$2\" is not in $1"
}
child_of() { # PID: its first child
    sed -n 's/^\([0-9]*\) .*/\1/p' "/proc/$1/task/$1/children"
}

# ---- ranks ----
for victim in 0 1 3; do
    begin "die$victim" -n 4 -- "$rank" die "$victim"
    await_lines 4 ready
    expect_end 137 2200
    require err "^dualpipe run: rank $victim (pid [0-9]*) was ended by signal 9"
    for r in 0 1 2 3; do
        [ "$r" -eq "$victim" ] || require out "^\[$r\] rank $victim (pid [0-9]* on .*) died in step 3: W of stage 2"
    done
done
begin exit -n 3 -- "$rank" exit 2
await_lines 3 ready
expect_end 3 2200
require err '^dualpipe run: rank 2 (pid [0-9]*) exited with status 3'
require out '^\[0\] rank 2 (pid [0-9]* on .*) died in step 3: W of stage 2'

begin stubborn -n 3 --grace 0.3 -- sh -c 'test "$RANK" = 1 && exit 7; trap "" TERM; sleep 1000 & wait; sleep 1000'
expect_end 7 2000
require err 'rank 1 (pid [0-9]*) exited with status 7'
require err '2 ranks did not end in time: killed'

# ---- signals ----
for signal in INT TERM HUP; do
    begin "signal$signal" -n 3 -- sh -c 'trap "" HUP; exec "$0" wait' "$rank"
    await_lines 3 ready
    kill -s "$signal" "$job"
    if [ "$signal" = HUP ]; then # the ranks do not care: the second one is for good
        sleep 0.3
        kill -s "$signal" "$job"
        expect_end 137 2000
        require err '3 ranks did not end in time: killed'
    else
        expect_end 10 2000
        require out '^\[0\] interrupted: rank [0-2] (pid'
    fi
    require err 'passed on to the ranks'
done
begin default -n 2 -- sleep 1000
sleep 0.3
kill -s TERM "$job"
expect_end 143 2000
require err 'was ended by signal 15'
# A rank that saves has the time it takes, also where one signal reaches all processes of the launcher (killall).
for hit in launcher all; do
    begin "saving.$hit" -n 2 --grace 0.1 -- sh -c 'trap "sleep 1.5; echo saved; exit 75" TERM; echo ready; while :; do sleep 0.1; done'
    await_lines 2 ready
    [ "$hit" = launcher ] || kill -s TERM "$(child_of "$job")"
    sleep 0.2
    kill -s TERM "$job"
    expect_end 75 4000
    [ "$(grep -c '\] saved$' "$work/out")" -eq 2 ] || complain "ranks were killed while they saved"
    require err 'Terminated: passed on to the ranks; waiting for them to end (a second signal kills them)'
done
# Once a rank has failed behind the signal, the others have five times the grace.
begin behind -n 2 --grace 0.1 -- sh -c 'test $RANK = 0 || trap "exit 7" TERM; test $RANK = 1 || trap "" TERM; echo ready; while :; do sleep 0.1; done'
await_lines 2 ready
kill -s TERM "$job"
expect_end 7 2000
require err '1 rank did not end in time: killed'

# ---- the command itself, with grandchildren that try to get away ----
litter='sleep 1000 & setsid sleep 1000 & setsid sh -c "sleep 1000 & sleep 1000" & echo ready; '
begin front -n 3 -- sh -c "$litter exec \"\$0\" wait" "$rank"
await_lines 6 ready
kill -s KILL "$job"
expect_nothing_left 1000
wait "$job" 2>/dev/null

begin keeper -n 3 -- sh -c "$litter exec \"\$0\" wait" "$rank"
await_lines 6 ready
kill -s KILL "$(child_of "$job")"
expect_end 137 2000
require err 'ended by signal 9'

begin litter -n 3 -- sh -c "$litter exit 0"
expect_end 0 2000

begin litter_killed -n 3 -- sh -c "$litter exec \"\$0\" die 1" "$rank"
await_lines 6 ready
expect_end 137 2500

# A rank ends before it has said who it is: the launcher tells the others, who name it, and nobody waits for the minute that
# joining may take.
for victim in 0 2; do
    begin "early$victim" -n 4 --grace 60 -- sh -c 'test "$RANK" = '$victim' && kill -9 $$; exec "$0" work' "$rank"
    expect_end 137 4000
    require err "^dualpipe run: rank $victim (pid [0-9]*) was ended by signal 9"
    for r in 0 1 2 3; do
        [ "$r" -eq "$victim" ] ||
            require out "^\[$r\] rank $victim (pid [0-9]*) was ended by signal 9 (Killed) before all ranks had joined"
    done
done
begin "left early" -n 3 --grace 60 -- sh -c 'test "$RANK" = 1 && exit 0; exec "$0" work' "$rank"
expect_end 13 4000
require out '^\[0\] rank 1 (pid [0-9]*) exited with status 0 before all ranks had joined'
# The same where the launcher might start ranks again: rank 0 waits at its door, which is shut, or comes back to one that is.
for late in 0 0.5; do
    begin "left early, respawn, $late" -n 3 --respawn 2 --grace 60 -- sh -c 'test "$RANK" != 1 || { sleep '$late'; exit 0; }; exec "$0" work' "$rank"
    expect_end 13 4000
    require out '^\[0\] .*rank 1 (pid [0-9]*) exited with status 0 before all ranks had joined'
done
begin "back too late" -n 3 --respawn 2 --grace 60 -- \
    sh -c 'case $RANK,$DUALPIPE_LAUNCH in 0,*again=1) exec "$0" work ;; 0,*) kill -9 $$ ;; *) sleep 0.5 ;; esac' "$rank"
expect_end 13 4000
require out '^\[0\] .*rank [12] (pid [0-9]*) exited with status 0 before all ranks had joined'

# Restarts are spaced (0.1 and 0.2 s), so that a fault which passes does not use up all of them; the third death in a row at
# the same place is the end.
begin thrice -n 2 --respawn 50 --grace 1 -- sh -c 'test "$RANK" = 1 && kill -9 $$; exec "$0" work' "$rank"
begun=$(now_ms)
expect_end 137 6000
[ $(($(now_ms) - begun)) -ge 300 ] || complain "three deaths in $(($(now_ms) - begun)) ms"
[ "$(grep -c 'started again as pid' "$work/err")" -eq 2 ] || complain "it was not started again twice"
require err '^dualpipe run: rank 1 (pid [0-9]*) was ended by signal 9 (Killed); it died 3 times in the same operation: before it had joined'

echo "$failures failures"
[ "$failures" -eq 0 ]
