#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_faults.sh: a job over several hosts ends in time and names host, rank and operation when one of them is cut off,
# frozen or gone; and goes on, with the same bits, when it is slow. The short form of bench/network_faults.sh, by the
# group alone.
set -u
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
. "$DP_TEST_SRCDIR/tests/hosts/faults.sh"

faults_what="the group alone"
faults_mark='^step 9$'
faults_result='sum '
rank=$DP_TEST_BUILDDIR/tests/hosts/host_rank
scale=${DUALPIPE_TIMEOUT_SCALE:-1} # of hang_seconds, and so of the seconds in what ranks say
faults_head

# ---- what a job survives ----
faults_job="$rank 40 10"
faults_reference 4
fault_cable "5 ms, 2 % lost, 10 % reordered" 2 2 60 delay=5 loss=0.02 reorder=0.1
faults_job="$rank 3 10"
faults_reference 4
fault_cable "delay of 1 s there and back, from the start" 2 2 120 delay=1000

# A rank of another host makes progress, and the others wait for three times hang_seconds; nobody makes progress, and they do not.
faults_job="env DP_TEST_HANG=1 $rank 3 50 3 $((3000 * scale))"
faults_reference 4
fault_cable "hang_seconds $scale, rank 3 takes $((3 * scale)) s longer" 2 2 60
faults_job="env DP_TEST_HANG=1 $rank 100000 100"
faults_begin 2 2
hosts_stop 2
for r in 0 1; do
    hosts_await rank$r 10
    # one of the two may have come to the control collective before its host stopped
    [ "$status" = 10 ] && grep -q "rank [01] waited $scale s in all_gather for ranks [23]" "$hosts_work/rank$r.out" ||
        faults_complain "rank $r: status $status, and what it waited for is not named"
done
hosts_end

# ---- what it does not survive ----
faults_job="$rank 100000 100"
fault_pulled 2 2 2
fault_stopped 1 2 2
fault_rebooted 2 2 2
fault_one_way 2 2 2 in
fault_killed 3 2 2

[ $faults_failures -eq 0 ]
