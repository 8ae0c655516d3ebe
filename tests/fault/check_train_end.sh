#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_end.sh: a training job of which a rank dies, or which is interrupted, ends within two seconds, with an error
# that names rank and operation, and leaves nothing behind.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

options="--steps 1000000 --val-every 0 --log-every 20"

now_ms() {
    echo $(($(date +%s%N) / 1000000))
}
# Every process of a case has this variable in its environment.
members() {
    for environ in $(grep -l -s -z -x "DP_TEST_CASE=$mark" /proc/[0-9]*/environ); do
        pid=${environ%/environ}
        pid=${pid#/proc/}
        state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$pid/status" 2>/dev/null) || state=
        [ "$state" = Z ] || [ -z "$state" ] || echo "$pid"
    done
}
signal_rank() { # SIGNAL RANK
    target=
    for pid in $(members); do
        if grep -q -s -z -x "RANK=$2" "/proc/$pid/environ"; then
            target=$pid
        fi
    done
    [ -n "$target" ] && kill "-$1" "$target" || complain "$name: no rank $2 to signal among $(members)"
}
begin() { # NAME COMMAND...
    name=$1
    mark=$$.$name
    shift
    rm -f "$work/out" "$work/err" # of the case before
    DP_TEST_CASE=$mark "$@" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
    tries=$((400 * scale)) # until it trains
    until grep -q -s 'step  *[0-9]*/' "$work/out"; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ]; then
            complain "$name: no step was made"
            break
        fi
        sleep 0.05
    done
}
expect_end() { # STATUS, or several
    start=$(now_ms)
    while kill -0 "$job" 2>/dev/null && [ "$(($(now_ms) - start))" -le $((10000 * scale)) ]; do
        sleep 0.05
    done
    took=$(($(now_ms) - start))
    kill -KILL "$job" 2>/dev/null
    status=0
    wait "$job" 2>/dev/null || status=$?
    case " $1 " in
    *" $status "*) ;;
    *) complain "$name: exit status $status, $1 was expected" ;;
    esac
    [ "$took" -le $((2000 * scale)) ] || complain "$name: took $took ms"
    left=$(members)
    [ -z "$left" ] || complain "$name: left behind: $left"
}
require() { # PATTERN
    grep -q -e "$1" "$work/err" || complain "$name: \"$1\" is not in err"
}
job() { # NAME N OPTIONS...
    label=$1
    n=$2
    shift 2
    begin "$label" "$dualpipe" run --prefix -n "$n" -- "$train" $small $options "$@"
}

# A rank is killed: the others say which and where it was.
for victim in 0 1 2 3; do
    job "kill-$victim" 4 --ep 2
    sleep "0.$((victim * 13 % 10))"
    signal_rank KILL $victim
    expect_end 137
    require "^\[[0-3]\] train_moe: .*rank $victim (pid [0-9]*.* died .*DP_ERR_PEER"
    require 'died \(in\|after\) step [0-9]*: '
    require "rank $victim .* was ended by signal 9"
done

# A signal to the launcher, and to one rank alone.
job interrupt 4
kill -INT "$job"
expect_end 130
require 'interrupted.*DP_ERR_INTERRUPTED'
job terminate 4 --ep 2
signal_rank TERM 2
expect_end '130 143' # of whichever rank ends first
require 'interrupted: rank 2 '

# The launcher itself is killed: no rank survives it.
job orphans 2
kill -KILL "$job"
wait "$job" 2>/dev/null
tries=$((40 * scale))
while [ -n "$(members)" ] && [ "$tries" -gt 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done
[ "$tries" -gt 0 ] || complain "orphans: ranks outlived their launcher"

# Ranks as threads of one process.
begin threads "$train" $small $options --threads 3
kill -INT "$job"
expect_end 130
require 'interrupted.*DP_ERR_INTERRUPTED'

finish
