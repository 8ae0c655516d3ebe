#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# hosts_step.sh: a step of train_moe, DualPipe on 2 ranks: both on one host (comm_shm), and one on each of two hosts made of namespaces
# (comm_ofi over tcp, no delay), on the same 2 cores, ROUNDS times in turn. Wanted: 1.15 times the step of one host, or less (median of the
# rounds). From the build folder, as root, after "make tests/hosts/cable": sh ../bench/hosts_step.sh [ROUNDS [OPTIONS OF train_moe...]]
set -u
DP_TEST_BUILDDIR=$PWD
DP_TEST_SRCDIR=$(cd "$(dirname "$0")/.." && pwd)
DUALPIPE_PLUGIN_PATH=$PWD/.libs
DUALPIPE_OFI_PROVIDER=${DUALPIPE_OFI_PROVIDER:-tcp}
OMP_NUM_THREADS=1
OPENBLAS_NUM_THREADS=1
export DUALPIPE_PLUGIN_PATH DUALPIPE_OFI_PROVIDER OMP_NUM_THREADS OPENBLAS_NUM_THREADS
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
rounds=${1:-9}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- --layers 4 --hidden 64 --seq 64 --batch 2 --microbatches 8
port=29600

step() { # HOSTS OPTIONS...: prints the median step in ms, and what carried the messages
    hosts_used=$1
    shift
    port=$((port + 1))
    for r in 0 1; do
        hosts_start $((r * (hosts_used - 1) + 1)) rank$r env RANK=$r WORLD_SIZE=2 LOCAL_RANK=$((r * (2 - hosts_used))) \
            MASTER_ADDR="$(hosts_address 1)" MASTER_PORT=$port DUALPIPE_SECRET_FILE="$hosts_work/secret" \
            taskset -c 0,1 "$PWD/apps/train_moe/train_moe" "$@" --steps 24 --trace-steps 20 --val-every 1000 --sample 0 --log-every 1000
    done
    for r in 0 1; do
        hosts_await rank$r 120
        [ "$status" = 0 ] || {
            cat "$hosts_work/rank$r.err"
            exit 1
        }
    done
    tr -s '\n ' ' ' <"$hosts_work/rank0.out" >"$hosts_work/text"
    echo "$(sed 's/.* \([0-9.]*\) ms \(a step \)*(median of 20).*/\1/' "$hosts_work/text") $(grep -o 'comm_[a-z]*' "$hosts_work/text" | sort -u | paste -sd+)"
}

median() { # COLUMN
    cut -d' ' -f"$1" "$hosts_work/figures" | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

hosts_begin 2
echo "machine  $(sed -n 's/^model name.*: //p;T;q' /proc/cpuinfo), $(getconf _NPROCESSORS_ONLN) cores, $(uname -sr), load average $(cut -d' ' -f1 /proc/loadavg)"
echo "round    one host         two hosts      (ms a step, median of 20)"
for round in $(seq "$rounds"); do
    near=$(step 1 "$@") || { echo "$near"; exit 1; }
    far=$(step 2 "$@") || { echo "$far"; exit 1; }
    echo "$near $far" | awk -v round="$round" '{ printf "%-8s %7.2f %s %7.2f %s  %.2f\n", round, $1, $2, $3, $4, $3 / $1 }'
    echo "$near $far" | awk '{ print $1, $3, $3 / $1 }' >>"$hosts_work/figures"
done
echo "medians: one host $(median 1) ms, two hosts $(median 2) ms; ratio of a round: $(median 3) (wanted: 1.15 or less)"
hosts_end
