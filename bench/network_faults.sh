#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# network_faults.sh: the network fault table: what becomes of a job over 2 and 4 hosts (namespaces of this machine) when
# cables and hosts fail. From the top of a build tree, as root, after "make all tests/hosts/cable tests/hosts/host_rank":
#   sh ../bench/network_faults.sh
# Trains with train_moe where there is a comm plugin that crosses hosts (comm_ofi); what the group does alone is in the
# table in any case. Exit status 1 when a job did not end as it has to.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
DP_TEST_SRCDIR=${DP_TEST_SRCDIR:-$top}
DP_TEST_BUILDDIR=${DP_TEST_BUILDDIR:-$PWD}
DUALPIPE_PLUGIN_PATH=${DUALPIPE_PLUGIN_PATH:-$PWD/.libs}
OPENBLAS_NUM_THREADS=1
export DP_TEST_SRCDIR DP_TEST_BUILDDIR DUALPIPE_PLUGIN_PATH OPENBLAS_NUM_THREADS
. "$top/tests/hosts/hosts.sh"
. "$top/tests/hosts/faults.sh"

echo "# $(date -u +%Y-%m-%d), Linux $(uname -r), $(nproc) cores, hosts are namespaces; auto: comm_shm within a host, comm_ofi between"
echo "# hosts; seconds: from the fault to the end of the last rank that can end; \"told\": what a rank of another host said"
echo "# last of itself; left: processes and files in /dev/shm, on all hosts. Load $(cut -d ' ' -f 1 /proc/loadavg) at the start"
faults_head

# What ends a job.
endings() { # HOSTS RANKS_PER_HOST
    fault_pulled 2 "$1" "$2"
    fault_pulled 1 "$1" "$2"
    fault_frozen 2 "$1" "$2"
    fault_frozen 1 "$1" "$2"
    fault_stopped 2 "$1" "$2"
    fault_crashed 2 "$1" "$2"
    fault_crashed 1 "$1" "$2"
    fault_rebooted 2 "$1" "$2"
    fault_one_way 2 "$1" "$2" out
    fault_one_way 2 "$1" "$2" in
    fault_killed $(($1 * $2 - 1)) "$1" "$2"
    fault_killed 0 "$1" "$2"
}

faults_what="none, the group alone"
faults_result='sum '
rank=$DP_TEST_BUILDDIR/tests/hosts/host_rank
faults_mark='^step 9$'
faults_job="$rank 100000 100"
endings 2 2
endings 4 2
faults_job="$rank 100 20"
faults_reference 8
fault_cable "5 ms" 4 2 120 delay=5
fault_cable "5 ms, 2 % lost" 4 2 120 delay=5 loss=0.02
fault_cable "5 ms +- 5 ms, 25 % overtake" 4 2 120 delay=5 jitter=5 reorder=0.25
fault_cable "1 Mbit/s" 4 2 120 rate=1
faults_job="$rank 400 50"
faults_reference 4
fault_slow_for 2 2 2 60

# ---- training ----
if [ -e "$DUALPIPE_PLUGIN_PATH/dp_comm_ofi.so" ]; then
    DUALPIPE_OFI_PROVIDER=tcp
    export DUALPIPE_OFI_PROVIDER
    faults_result_file=$(mktemp)
    faults_marked=0 # only rank 0 tells of its steps
    faults_mark='^step '
    train="$DP_TEST_BUILDDIR/apps/train_moe/train_moe --layers 8 --hidden 16 --heads 2 --kv-heads 1 --experts 4 --expert-hidden 16
        --seq 16 --batch 1 --warmup 2 --sample 0 --val-every 0 --losses $faults_result_file"
    for how in "dualpipe auto" "dualpipe ofi" "dualpipev auto" "zb1p ofi" "1f1b auto"; do
        method=${how% *}
        comm=${how#* }
        faults_what="$method, $comm"
        faults_job="$train --comm $comm --schedule $method --steps 1000000"
        fault_pulled 2 2 2
        fault_pulled 1 2 2
        fault_frozen 2 2 2
        fault_crashed 2 2 2
        fault_rebooted 2 2 2
        fault_one_way 2 2 2 in
        fault_one_way 2 2 2 out
        fault_killed 3 2 2
        faults_job="$train --comm shm --schedule $method --steps 20"
        faults_reference 4
        faults_job="$train --comm $comm --schedule $method --steps 20"
        fault_cable "5 ms" 2 2 200 delay=5
        fault_cable "5 ms, 1 % lost, 10 % overtake" 2 2 200 delay=5 loss=0.01 reorder=0.1
        fault_cable "4 Mbit/s" 2 2 200 rate=4
    done
    for how in "--ep 2" "--dp 2"; do
        faults_what="dualpipe, auto, $how"
        faults_job="$train --comm auto $how --steps 1000000"
        fault_pulled 3 4 2
        fault_frozen 1 4 2
        fault_killed 5 4 2
        faults_job="$train --comm shm $how --steps 10"
        faults_reference 8
        faults_job="$train --comm auto $how --steps 10"
        fault_cable "5 ms, 1 % lost, 10 % overtake" 4 2 200 delay=5 loss=0.01 reorder=0.1
    done
    for comm in auto ofi; do
        faults_what="dualpipe, $comm"
        faults_job="$train --comm shm --steps 4000"
        faults_reference 4
        faults_job="$train --comm $comm --steps 4000"
        fault_slow_for 2 2 2 60
    done
    rm -f "$faults_result_file"
fi
[ $faults_failures -eq 0 ]
