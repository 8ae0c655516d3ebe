#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_status_hosts.sh: a job over three hosts says what all its ranks are at, to who asks on the host of rank 0 and to a SIGQUIT
# at the launcher, which lives on none of them; and when a rank on another host is stopped all others name it, and what all did
# last lies in one trace.
set -u
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"

dualpipe=$DP_TEST_BUILDDIR/dualpipe
train=$DP_TEST_BUILDDIR/apps/train_moe/train_moe
scale=${DUALPIPE_TIMEOUT_SCALE:-1}
failures=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT DUALPIPE_LAUNCH DUALPIPE_HANG_TRACE
[ -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ] && [ -x "$train" ] || hosts_skip "this build has no comm_ofi"
OPENBLAS_NUM_THREADS=1
DUALPIPE_TIMEOUT_SCALE=$(awk "BEGIN { print 0.4 * $scale }") # of 30 s without progress, and of 8 s without a sign of life
export OPENBLAS_NUM_THREADS DUALPIPE_TIMEOUT_SCALE

hosts_begin 3
rsh=$(hosts_rsh)
out=$hosts_work/out
err=$hosts_work/err

complain() {
    echo "$*"
    if [ "$failures" -eq 0 ]; then
        sed 's/^/    out: /' "$out" | cut -c 1-200 | tail -20
        sed 's/^/    err: /' "$err" | cut -c 1-300 | tail -20
    fi
    failures=$((failures + 1))
}
await() { # FILE TIMES PATTERN
    tries=$((600 * scale))
    : >>"$1" # the job may not have made it yet
    until [ "$(grep -c -s -e "$3" "$1")" -ge "$2" ]; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ] || ! kill -0 "$job" 2>/dev/null; then
            complain "\"$3\" was not printed $2 times"
            return
        fi
        sleep 0.05
    done
}

"$dualpipe" run --rsh "$rsh" --hosts host1,host2,host3 --ranks-per-host 2 --wdir "$hosts_work" -x OPENBLAS_NUM_THREADS -- \
    "$train" --layers 6 --hidden 8 --heads 2 --kv-heads 1 --experts 4 --expert-hidden 8 --seq 8 --batch 1 --microbatches 12 \
    --steps 1000000 --val-every 0 --sample 0 --log-every 1 >"$out" 2>"$err" </dev/null 9>&- &
job=$!
hosts_jobs="$hosts_jobs $job"
await "$out" 1 'step  *5/'

asked=0
hosts_run 1 "$dualpipe" status >"$hosts_work/answer" 2>&1 || asked=$?
[ "$asked" -eq 0 ] || complain "exit status $asked of dualpipe status: $(cat "$hosts_work/answer")"
grep -q '^job of 6 ranks, hosts: 3: [1-9][0-9]* steps' "$hosts_work/answer" || complain "no line on the job: $(cat "$hosts_work/answer")"
for r in 0 1 2 3 4 5; do
    grep -q "^rank $r (pid [0-9]* on host$((r / 2 + 1))): [1-9][0-9]* steps" "$hosts_work/answer" ||
        complain "nothing of rank $r: $(cat "$hosts_work/answer")"
done
! hosts_run 2 "$dualpipe" status >"$hosts_work/answer" 2>&1 || complain "host 2 has no rank 0, and answers: $(cat "$hosts_work/answer")"

kill -QUIT "$job"
await "$err" 1 '^rank 5 (pid [0-9]* on host3): [1-9][0-9]* steps'
steps=$(grep -c 'step ' "$out")
await "$out" $((steps + 3)) 'step ' # it goes on

victim=$(hosts_rank 2 3)
number=$(sed -n 's/^NSpid:.*[[:space:]]\([0-9]*\)$/\1/p' "/proc/${victim:-none}/status")
kill -STOP "${victim:-none}" || complain "no rank 3 on host 2 to stop"
ended=0
wait "$job" || ended=$?
[ "$ended" -eq 14 ] || complain "status $ended, 14 was expected"
for r in 0 1 2 4 5; do
    grep -q "^\[$r\] train_moe: rank 3 (pid $number on host2)" "$err" || complain "rank $r does not name rank 3"
done
trace=$(sed -n 's/.*last spans of all ranks: \([^;]*\);.*/\1/p' "$err" | head -n 1)
[ -s "$trace" ] || complain "there is no trace \"$trace\""
for r in 0 1 2 4 5; do
    grep -q "\"ph\":\"X\",\"pid\":$r," "$trace" || complain "the trace has nothing of rank $r"
done

hosts_end
echo "$failures failures"
[ "$failures" -eq 0 ]
