#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_run.sh: what `dualpipe run` promises when nothing goes wrong, and how it takes wrong usage.
set -u

dualpipe=$DP_TEST_BUILDDIR/dualpipe
rank=$DP_TEST_BUILDDIR/tests/fault/run_rank
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

complain() {
    echo "$*"
    sed 's/^/    out: /' "$work/out" | cut -c 1-200 | head -20
    sed 's/^/    err: /' "$work/err" | cut -c 1-200 | head -20
    failures=$((failures + 1))
}
expect() { # STATUS ARGUMENTS...
    wanted=$1
    shift
    status=0
    command="run $*"
    timeout 60 "$dualpipe" run --prefix "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    [ "$status" -eq "$wanted" ] || complain "$command: status $status, $wanted was expected"
}
require() { # FILE PATTERN
    grep -q -e "$2" "$work/$1" || complain "$command: \"$2\" is not in $1"
}
lines() { # FILE COUNT PATTERN
    found=$(grep -c -e "$3" "$work/$1")
    [ "$found" -eq "$2" ] || complain "$command: \"$3\" is $found times in $1, $2 were expected"
}

# ---- wrong usage ----
expect 2
require err '-n N is missing'
expect 2 -n 2
require err 'the program is missing'
for bad in 0 -1 4097 two 2x '' 99999999999999999999; do
    expect 2 -n "$bad" true
    require err 'a whole number from 1 to 4096'
done
for bad in -1 x 1x '' nan inf; do
    expect 2 -n 1 --grace "$bad" true
    require err 'a number from 0 to 1e+06'
done
expect 2 --no-such-option -n 1 true
require err 'unknown option --no-such-option'
expect 2 -n
require err '-n: a value is missing'
expect 0 --help
require out '^usage: dualpipe run -n N'
command='few files'
status=0
(ulimit -n 48; "$dualpipe" run -n 8 -- sh -c 'echo started') >"$work/out" 2>"$work/err" || status=$?
[ "$status" -eq 1 ] || complain "$command: status $status, 1 was expected"
require err '8 ranks take up to 56 open files in one of them, and 48 are allowed: raise the limit (ulimit -n)'
lines out 0 started
expect 127 -n 3 -- /no/such/program
require err 'cannot start "/no/such/program": No such file'
expect 126 -n 3 -- "$DP_TEST_SRCDIR/LICENSE"
require err 'Permission denied'

# ---- the program and its words are the program's ----
expect 0 -n 2 echo -n --help -- x
lines out 2 '\] --help -- x$'
expect 0 -n 1 -- printf '%s|' 'a b' '' '*'
require out '^\[0\] a b||\*|$'

# ---- environment ----
expect 0 -n 3 -- sh -c 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR"'
for r in 0 1 2; do
    lines out 1 "^\[$r\] $r 3 $r 3 127.0.0.1\$"
done
expect 0 -n 3 -- sh -c 'test "$MASTER_PORT" -ge 1 && echo "port $MASTER_PORT" && test "$DUALPIPE_LAUNCH" != "${DUALPIPE_LAUNCH#run=?}" && ls -l /proc/self/fd'
[ "$(grep -o 'port [0-9]*' "$work/out" | sort -u | wc -l)" -eq 1 ] || complain "the ranks have different ports"
lines out 1 socket: # rank 0 has the listening one, the others nothing of it
expect 0 -n 2 -- sh -c 'cat; echo "read to the end"'
lines out 2 'read to the end'
OMP_NUM_THREADS=7
export OMP_NUM_THREADS
expect 0 -n 2 -- sh -c 'echo "threads $OMP_NUM_THREADS"'
lines out 2 'threads 7'
unset OMP_NUM_THREADS
expect 0 -n 64 -- sh -c 'echo "threads $OMP_NUM_THREADS"'
lines out 64 'threads [0-9]'

# ---- output ----
expect 0 -n 2 -- sh -c 'echo out; echo err >&2'
lines out 2 '^\[[01]\] out$'
lines err 2 '^\[[01]\] err$'
expect 0 -n 2 --no-prefix -- sh -c 'echo out; echo err >&2'
lines out 2 '^out$'
lines err 2 '^err$'
expect 0 -n 2 --no-prefix --prefix -- echo out
lines out 2 '^\[[01]\] out$'
expect 0 -n 1 -- printf 'no newline at the end'
require out '^\[0\] no newline at the end$'
expect 0 -n 1 -- printf 'a\r\nb\rc\n\nd\r'
[ "$(cat "$work/out")" = "[0] a
[0] b
[0] c
[0] 
[0] d" ] || complain "carriage returns"

# Without --prefix the lines of several ranks bear it from the first on, those of one never.
timeout 60 "$dualpipe" run -n 3 -- sh -c '[ $RANK != 1 ] || { echo a; echo b >&2; echo c; }' >"$work/out" 2>"$work/err"
[ "$(cat "$work/out" "$work/err" | tr '\n' ' ')" = "[1] a [1] c [1] b " ] || complain "a rank that speaks alone is not named"
timeout 60 "$dualpipe" run -n 1 -- echo 1 >"$work/out"
lines out 1 '^1$'

# Lines written in parts by many ranks at the same time stay whole.
expect 0 -n 8 -- sh -c 'i=0; while [ $i -lt 200 ]; do printf "%s" "<$RANK "; printf "%s" "$i $i"; echo " $RANK>"; i=$((i + 1)); done'
lines out 1600 '^\[\([0-7]\)\] <\1 \([0-9]*\) \2 \1>$'
for r in 0 7; do
    sed -n "s/^\[$r\] <$r \([0-9]*\) .*/\1/p" "$work/out" >"$work/order"
    sort -n "$work/order" | cmp -s - "$work/order" || complain "the lines of rank $r are out of order"
done
# A line longer than any buffer.
expect 0 -n 2 -- sh -c 'head -c 500000 /dev/zero | tr "\0" "$RANK"; echo'
[ "$(wc -c <"$work/out")" -eq 1000010 ] || complain "long lines came out changed"
[ "$(cut -c 5- "$work/out" | fold -w 1000 | sort -u | wc -l)" -eq 2 ] || complain "long lines came out mixed"

# Who writes to nobody hears of it; the command does not hang.
timeout 20 "$dualpipe" run --prefix -n 2 -- sh -c 'while :; do echo y; done' 2>"$work/err" | head -n 2 >"$work/out"
lines out 2 '\] y$'

# A full disk below the output costs lines, not the job, which says so once and ends with 1.
status=0
timeout 60 "$dualpipe" run --prefix -n 2 -- sh -c 'for i in 1 2 3; do echo $i; sleep 0.1; done; echo $RANK >>"$0"' "$work/lived" \
    >/dev/full 2>"$work/err" || status=$?
[ "$status" -eq 1 ] || complain "status $status with a full disk below standard output"
[ "$(sort "$work/lived" | tr '\n' ' ')" = "0 1 " ] || complain "a full disk below standard output has ended ranks"
lines err 1 'standard output: No space left on device: the ranks go on'

# What the launcher tells the ranks of an end is whole, or it says so: 14 lines of 75 bytes do not fit into 512 or 1,024.
command='a limit of file sizes'
(trap '' XFSZ; ulimit -f 1; exec "$dualpipe" run -n 14 -- sh -c 'exit 111') >"$work/out" 2>"$work/err"
lines err 1 'the ranks cannot be told of an end: its line is cut off'

# ---- status ----
expect 0 -n 4 -- true
expect 1 -n 4 -- false
expect 75 -n 2 -- sh -c 'exit 75'
expect 9 -n 3 --grace 0.2 -- sh -c 'test "$RANK" = 2 && exit 9; exec sleep 1000'
require err '^dualpipe run: rank 2 (pid [0-9]*) exited with status 9$'
# who ends with 13 has only noticed that another one died
expect 4 -n 3 -- sh -c 'case $RANK in 0) exit 13 ;; 1) sleep 0.05; exit 4 ;; esac'
require err '^dualpipe run: rank 1 (pid [0-9]*) exited with status 4$'
expect 13 -n 2 -- sh -c 'exit 13'
expect 137 -n 2 -- sh -c 'test "$RANK" = 1 || exit 5; sleep 0.05; kill -9 $$'
require err '^dualpipe run: rank 1 (pid [0-9]*) was ended by signal 9'
expect 5 -n 2 --grace 0 -- sh -c 'test "$RANK" = 1 || exit 5; exec sleep 1000'

# ---- ranks that join ----
for n in 1 2 5; do
    expect 0 -n "$n" -- "$rank" work
    lines out "$n" "sum $((n * (n - 1) / 2))\$"
    [ -s "$work/err" ] && complain "something on standard error"
done
# two jobs at the same time do not meet
timeout 60 "$dualpipe" run -n 3 -- "$rank" work >"$work/second" &
expect 0 -n 3 -- "$rank" work
wait $! || complain "the second job failed"
lines out 3 'sum 3$'
# a secret or a port in the environment belongs to another job
DUALPIPE_SECRET_FILE=/no/such/file MASTER_PORT=1 DUALPIPE_LAUNCH=secret=0,listen=0 TORCHELASTIC_USE_AGENT_STORE=True
export DUALPIPE_SECRET_FILE MASTER_PORT DUALPIPE_LAUNCH TORCHELASTIC_USE_AGENT_STORE
expect 0 -n 2 -- "$rank" work
lines out 2 'sum 1$'

echo "$failures failures"
[ "$failures" -eq 0 ]
