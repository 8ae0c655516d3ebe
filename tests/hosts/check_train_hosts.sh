#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_hosts.sh: a model trained on two and four hosts, without a word about transports, has the losses and norms of one
# trained on one host, to the last bit: schedules, expert and data groups; and what pairs use is said.
set -u
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
[ -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ] || hosts_skip "this build has no comm_ofi"
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
DUALPIPE_OFI_PROVIDER=tcp
export DUALPIPE_OFI_PROVIDER
steps="--steps 3 --val-every 3 --sample 0 --microbatches 8 --quiet"

reference() { # NAME RANKS OPTIONS...: on one host
    name=$1
    shift
    threads "$@" $steps --comm shm --losses "$work/$name"
    [ "$(grep -c '^[0-9]* 0x1\.[0-9a-f]*p' "$work/$name")" -eq 3 ] || complain "$name: not three steps with losses"
}
same() { # REFERENCE RANKS_PER_HOST OPTIONS...
    name=$1
    each=$2
    shift 2
    rm -f "$work/losses"
    hosts_ranks "$each" "$train" $small $steps --losses "$work/losses" "$@"
    for r in $(seq 0 $((hosts_count * each - 1))); do
        hosts_await "rank$r" 60
        if [ "$status" != 0 ]; then
            cp "$hosts_work/rank$r.err" "$work/err"
            complain "$hosts_count hosts, $*: rank $r: exit status $status"
        fi
    done
    cmp -s "$work/losses" "$work/$name" || complain "$hosts_count hosts of $each ranks, $*: other losses than $name"
}

hosts_begin 2
trap 'hosts_end; rm -rf "$work"' EXIT
reference one_replica 4
reference two_expert_ranks 4 --ep 2
reference two_copies 4 --dp 2
reference all_three 8 --dp 2 --ep 2
for schedule in gpipe 1f1b interleaved zb1p zbv v-half v-min dualpipe dualpipev; do
    same one_replica 2 --schedule $schedule
done
same two_expert_ranks 2 --ep 2
same two_copies 2 --dp 2 --schedule zb1p
same all_three 4 --dp 2 --ep 2
same one_replica 2 --comm ofi

# Who talks to whom over what: in the log and in the report.
DUALPIPE_LOG=info
export DUALPIPE_LOG
same one_replica 2 --report "$work/out"
cp "$hosts_work/rank0.err" "$work/err"
status=0
expect 0 err '4 ranks on 2 hosts \[0-1\] \[2-3\] talk over comm_shm within a host and comm_ofi between hosts' "the log"
cp "$hosts_work/rank0.out" "$work/out"
unset DUALPIPE_LOG
hosts_end

hosts_begin 4
trap 'hosts_end; rm -rf "$work"' EXIT
same all_three 2 --dp 2 --ep 2
same one_replica 1
hosts_end
finish
