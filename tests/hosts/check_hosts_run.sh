#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_hosts_run.sh: `dualpipe run --hosts` over hosts with separate networks and processes: ranks meet over the network,
# ends and their causes reach all, and nothing is left on any host, whatever is killed.
set -u
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"

dualpipe=$DP_TEST_BUILDDIR/dualpipe
rank=$DP_TEST_BUILDDIR/tests/fault/run_rank
scale=${DUALPIPE_TIMEOUT_SCALE:-1}
failures=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT DUALPIPE_LAUNCH

hosts_begin 3
rsh=$(hosts_rsh)

complain() {
    echo "$case: $*"
    sed 's/^/    out: /' "$hosts_work/out" | cut -c 1-200 | head -20
    sed 's/^/    err: /' "$hosts_work/err" | cut -c 1-200 | head -20
    failures=$((failures + 1))
}
require() { # FILE PATTERN
    grep -q -e "$2" "$hosts_work/$1" || complain "\"$2\" is not in $1"
}
begin() { # NAME OPTIONS AND PROGRAM...
    case=$1
    shift
    : >"$hosts_work/out"
    : >"$hosts_work/err"
    "$dualpipe" run --rsh "$rsh" --hosts host1,host2,host3 --ranks-per-host 2 "$@" \
        >"$hosts_work/out" 2>"$hosts_work/err" </dev/null 9>&- &
    job=$!
    hosts_jobs="$hosts_jobs $job"
}
await_ready() {
    tries=$((200 * scale))
    until [ "$(grep -c ready "$hosts_work/out")" -ge 6 ]; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || {
            complain "six ranks are not ready"
            return
        }
        sleep 0.05
    done
}
# Processes on a host beside its first one and what stands still to end.
there() { # HOST
    hosts_run "$1" sh -c 'for f in /proc/[0-9]*; do
            [ "${f#/proc/}" = 1 ] || [ "${f#/proc/}" = $$ ] || grep -q "^State:[[:space:]]*Z" $f/status 2>/dev/null ||
                tr "\0" " " <$f/cmdline 2>/dev/null
        done' | grep -e run -e sleep
}
expect_end() { # STATUS SECONDS HOSTS
    start=$(date +%s)
    ended=0
    wait "$job" 2>/dev/null || ended=$?
    [ "$ended" -eq "$1" ] || complain "status $ended, $1 was expected"
    [ $(($(date +%s) - start)) -le $(($2 * scale)) ] || complain "took $(($(date +%s) - start)) s"
    expect_nothing "$3"
}
expect_nothing() { # HOSTS
    for h in $1; do
        tries=$((60 * scale))
        while left=$(there "$h") && [ "$tries" -gt 0 ]; do
            tries=$((tries - 1))
            sleep 0.05
        done
        [ -z "$left" ] || complain "on host $h is left: $left"
    done
}

begin work -- "$rank" work
expect_end 0 10 '1 2 3'
[ "$(grep -c 'sum 15$' "$hosts_work/out")" -eq 6 ] || complain "six ranks on three hosts"
begin where -- sh -c 'echo "$RANK $LOCAL_RANK $MASTER_ADDR $(uname -n)"'
expect_end 0 10 '1 2 3'
for r in 0 1 2 3 4 5; do
    require out "^\[$r\] $r $((r % 2)) 10\.77\.0\.1 host$((r / 2 + 1))\$"
done
begin address --address "$(hosts_address6 1)" -- "$rank" work
expect_end 0 10 '1 2 3'
[ "$(grep -c 'sum 15$' "$hosts_work/out")" -eq 6 ] || complain "over IPv6"

begin die -- "$rank" die 3
expect_end 137 10 '1 2 3'
require err '^dualpipe run: rank 3 (pid [0-9]* on host2) was ended by signal 9'
require out '^\[0\] rank 3 (pid [0-9]* on host2) died'
litter='sleep 1000 & setsid sleep 1000 & exec "$0" wait'
begin signal -- sh -c "$litter" "$rank"
await_ready
kill -s TERM "$job"
expect_end 10 10 '1 2 3'
# A model trained over three hosts has the losses of one trained in one process, where there is a transport between hosts.
train=$DP_TEST_BUILDDIR/apps/train_moe/train_moe
if [ -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ] && [ -x "$train" ]; then
    model="--layers 6 --hidden 8 --heads 2 --kv-heads 1 --experts 4 --expert-hidden 8 --seq 8 --batch 1 --warmup 2 --steps 3
        --val-every 3 --sample 0 --microbatches 12 --quiet"
    # shellcheck disable=SC2086
    "$train" $model --threads 1 --losses "$hosts_work/reference" >"$hosts_work/out" 2>&1
    # shellcheck disable=SC2086
    begin train --verbose -x OPENBLAS_NUM_THREADS -- "$train" $model --losses "$hosts_work/losses"
    expect_end 0 30 '1 2 3'
    require err '6 ranks on 3 hosts \[0-1\] \[2-3\] \[4-5\] talk over comm_shm within a host and comm_ofi between hosts'
    cmp -s "$hosts_work/reference" "$hosts_work/losses" || complain "other losses over three hosts"
    # shellcheck disable=SC2086
    begin apart -x OPENBLAS_NUM_THREADS -- "$train" $model --comm shm
    expect_end 1 30 '1 2 3'
    require err 'comm_shm reaches ranks of one host only, and rank 2 is on another host than rank 0 (one kernel, but separate PID namespaces'
else
    echo "training over hosts is not tried: this build has no comm_ofi"
fi
begin killed -- sh -c "$litter" "$rank"
await_ready
kill -s KILL "$job"
wait "$job" 2>/dev/null
expect_nothing '1 2 3'
begin crash --grace 2 -- sh -c "$litter" "$rank"
await_ready
hosts_crash 3
expect_end 1 20 '1 2'
require err '^dualpipe run: host host3 with ranks 4 to 5 is lost: '

hosts_end
echo "$failures failures"
[ "$failures" -eq 0 ]
