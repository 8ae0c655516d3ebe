#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_recovery_hosts.sh: ranks of a training run over three hosts are killed, rank 0 and both of one host among them: new ones
# start where they died, and the run ends with the losses of one that nobody has disturbed, to the last bit. What cannot be
# replaced ends the job on all hosts.
set -u
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"

dualpipe=$DP_TEST_BUILDDIR/dualpipe
train=$DP_TEST_BUILDDIR/apps/train_moe/train_moe
scale=${DUALPIPE_TIMEOUT_SCALE:-1}
failures=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT DUALPIPE_LAUNCH
[ -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ] && [ -x "$train" ] || hosts_skip "this build has no comm_ofi"
OPENBLAS_NUM_THREADS=1
export OPENBLAS_NUM_THREADS

hosts_begin 3
rsh=$(hosts_rsh)
model="--layers 6 --hidden 8 --heads 2 --kv-heads 1 --experts 4 --expert-hidden 8 --seq 8 --batch 1 --warmup 2
    --val-every 100 --sample 0 --microbatches 12 --log-every 1"

complain() {
    echo "$case: $*"
    sed 's/^/    out: /' "$hosts_work/out" | cut -c 1-200 | tail -20
    sed 's/^/    err: /' "$hosts_work/err" | cut -c 1-200 | tail -20
    failures=$((failures + 1))
}
require() { # FILE PATTERN
    grep -q -e "$2" "$hosts_work/$1" || complain "\"$2\" is not in $1"
}
begin() { # NAME RESPAWN STEPS OPTIONS...
    case=$1
    respawn=$2
    steps=$3
    shift 3
    : >"$hosts_work/out"
    : >"$hosts_work/err"
    # shellcheck disable=SC2086
    "$dualpipe" run --rsh "$rsh" --hosts host1,host2,host3 --ranks-per-host 2 --respawn "$respawn" -x OPENBLAS_NUM_THREADS -- \
        "$train" $model --steps "$steps" "$@" --losses "$hosts_work/losses" >"$hosts_work/out" 2>"$hosts_work/err" </dev/null 9>&- &
    job=$!
    hosts_jobs="$hosts_jobs $job"
}
await() { # TIMES PATTERN: in what was printed so far
    tries=$((600 * scale))
    until [ "$(grep -c -s -e "$2" "$hosts_work/out")" -ge "$1" ]; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ] || ! kill -0 "$job" 2>/dev/null; then
            complain "\"$2\" was not printed $1 times"
            return
        fi
        sleep 0.05
    done
}
kill_rank() { # HOST RANK
    victim=$(hosts_rank "$1" "$2")
    [ -n "$victim" ] && kill -KILL "$victim" || complain "no rank $2 on host $1 to kill"
}
end() { # STATUS
    ended=0
    wait "$job" || ended=$?
    [ "$ended" -eq "$1" ] || complain "status $ended, $1 was expected"
    for h in 1 2 3; do
        tries=$((60 * scale))
        while [ -n "$(hosts_rest "$h")" ] && [ "$tries" -gt 0 ]; do
            tries=$((tries - 1))
            sleep 0.05
        done
        [ -z "$(hosts_rest "$h")" ] || complain "left on host $h: $(hosts_rest "$h")"
    done
}

case=undisturbed
# shellcheck disable=SC2086
"$train" $model --steps 200 --threads 1 --losses "$hosts_work/reference" >"$hosts_work/out" 2>"$hosts_work/err" || complain "no reference"

# What a rank holds is in its mirror; in a line the agent of its host has a copy.
for schedule in dualpipe 1f1b; do
    begin "replaced $schedule" 4 200 --schedule $schedule
    await 1 'step  *10/'
    kill_rank 2 3
    await 1 'was replaced'
    kill_rank 1 0
    await 2 '^\[0\] layout ' # the new rank 0 begins as the first one did
    kill_rank 3 4
    kill_rank 3 5
    end 0
    cmp -s "$hosts_work/reference" "$hosts_work/losses" || complain "other losses than without a death"
    require err '^dualpipe run: rank 3 (pid [0-9]* on host2) was ended by signal 9 (Killed): started again as pid [0-9]* (1 of 4)'
    require err '^dualpipe run: rank 0 (pid [0-9]* on host1) was ended by signal 9 (Killed): started again as pid [0-9]* (2 of 4)'
done

begin 'none left' 1 100000
await 1 'step  *10/'
kill_rank 2 2
await 1 'was replaced'
sleep 1 # ranks of other hosts tell what they do four times a second
kill_rank 3 5
end 137
require err 'rank 5 (pid [0-9]* on host3).* died .*nobody came in'

# A host that is cut off cannot be replaced, and is not waited for: neither where nobody has died, nor where the others join
# again because somebody has.
for killed in '' 3; do
    begin "cut off ${killed:+at a death}" 3 100000
    await 1 'step  *10/'
    [ -z "$killed" ] || kill_rank 2 3
    hosts_pull 3
    begun=$(date +%s)
    ended=0
    wait "$job" || ended=$?
    took=$(($(date +%s) - begun))
    [ "$ended" -ne 0 ] || complain "status $ended"
    [ "$took" -le $((10 * scale)) ] || complain "it took $took s"
    grep -q 'out of reach\|waited [0-9.]* s for rank 0' "$hosts_work/out" "$hosts_work/err" || complain "nobody says that a host is out of reach"
    ! grep -q 'starts no more of them$' "$hosts_work/out" "$hosts_work/err" || complain "restarts are left"
    hosts_plug 3
done

# A host that is lost, or stands still, is left out: all ranks start again on the others, from the newest checkpoint.
lost() { # NAME HOST FAULT...
    begin "$1" 3 200 --checkpoint "$hosts_work/saved" --every 5
    gone=$2
    shift 2
    await 1 'step  *20/'
    begun=$(date +%s)
    "$@" "$gone"
    await 2 '^\[0\] layout '
    took=$(($(date +%s) - begun))
    [ "$took" -le $((15 * scale)) ] || complain "it took $took s until the ranks started again"
    ended=0
    wait "$job" || ended=$?
    [ "$ended" -eq 0 ] || complain "status $ended"
    require err "^dualpipe run: host host$gone with ranks .* is lost: "
    require err '^dualpipe run: all 6 ranks are started again on the 2 hosts left (2 restarts left)$'
    require out '^\[0\] resumed after [1-9]'
    cmp -s "$hosts_work/reference" "$hosts_work/losses" || complain "other losses than with all hosts"
    rm -rf "$hosts_work/saved"
}
# Its ranks hold the folder's lock until it moves again, and hears that its time is over.
stand_still() { # HOST
    hosts_freeze "$1"
    tries=$((600 * scale))
    until grep -q 'which has up to 120 s to end' "$hosts_work/out" "$hosts_work/err" || [ "$tries" -eq 0 ]; do
        tries=$((tries - 1))
        sleep 0.05
    done
    [ "$tries" -gt 0 ] || complain "the lock of the ranks that stand still is not waited for"
    hosts_thaw "$1"
}
lost 'host that stands still' 3 stand_still
tries=$((400 * scale))
while [ -n "$(hosts_rest 3)" ] && [ "$tries" -gt 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done
[ -z "$(hosts_rest 3)" ] || complain "left on host 3: $(hosts_rest 3)"
lost 'lost host' 3 hosts_crash
hosts_boot 3
lost 'lost first host' 1 hosts_crash

hosts_end
echo "$failures failures"
[ "$failures" -eq 0 ]
