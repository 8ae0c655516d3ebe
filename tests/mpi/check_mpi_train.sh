#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_mpi_train.sh: a model trained over MPI has the losses and norms of one trained over shared memory, to the last bit: all
# schedules, with and without expert and data groups, and with micro-batches of different length.
set -u
. "$DP_TEST_SRCDIR/tests/mpi/mpi.sh"
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

steps="--steps 3 --val-every 3 --sample 0 --microbatches 8 --quiet"
lengths="--varlen --documents"

reference() { # NAME RANKS OPTIONS...: over shared memory
    name=$1
    shift
    threads "$@" $steps --comm shm --losses "$work/$name"
    [ "$(grep -c '^[0-9]* 0x1\.[0-9a-f]*p' "$work/$name")" -eq 3 ] || complain "$name: not three steps with losses"
}
same() { # REFERENCE RANKS OPTIONS...
    name=$1
    n=$2
    shift 2
    status=0
    rm -f "$work/losses"
    timeout $((60 * scale)) $mpirun -n "$n" "$train" $small $steps --comm mpi --losses "$work/losses" "$@" \
        >"$work/out" 2>"$work/err" </dev/null || status=$?
    [ "$status" -eq 0 ] || complain "$mpi, $n ranks, $*: exit status $status"
    cmp -s "$work/losses" "$work/$name" || complain "$mpi, $n ranks, $*: other losses than $name"
}
try_mpi() {
    export DUALPIPE_PLUGIN_PATH
    for schedule in gpipe 1f1b interleaved zb1p zbv v-half v-min dualpipe dualpipev; do
        same one_replica 4 --schedule $schedule
    done
    same one_replica 1
    same two_expert_ranks 4 --ep 2 --schedule dualpipe
    same two_expert_ranks 4 --ep 2 --schedule 1f1b
    for schedule in 1f1b dualpipe; do # the all-to-all issued and awaited on the compute lane
        same two_expert_ranks 4 --ep 2 --schedule $schedule --segments posted
    done
    same two_copies 4 --dp 2 --schedule dualpipe
    same all_three 4 --dp 2 --ep 2
    same all_three 8 --dp 2 --ep 2 --schedule dualpipe
    for schedule in 1f1b zb1p dualpipe dualpipev; do # messages shorter than their slots
        same unlike 4 --schedule $schedule $lengths
    done
    same unlike_experts 4 --ep 2 --schedule dualpipe $lengths
}

reference one_replica 1
reference two_expert_ranks 2 --ep 2
reference two_copies 2 --dp 2
reference all_three 4 --dp 2 --ep 2
reference unlike 1 $lengths
reference unlike_experts 2 --ep 2 $lengths
try_mpis
finish
