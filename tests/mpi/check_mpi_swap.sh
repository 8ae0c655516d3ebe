#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_mpi_swap.sh: under mpirun, a running pipeline swapped between shared memory, MPI, libfabric and two of them joined keeps its
# bits, and so does a model trained over shared memory within hosts and MPI between them. DUALPIPE_DEBUG=hosts makes the hosts.
set -u
. "$DP_TEST_SRCDIR/tests/mpi/mpi.sh"
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
swap=$DP_TEST_BUILDDIR/examples/swap_comm/swap_comm
DUALPIPE_OFI_PROVIDER=tcp
export DUALPIPE_OFI_PROVIDER
steps="--steps 3 --val-every 3 --sample 0 --microbatches 8 --quiet"

same() { # REFERENCE FILE WHAT
    [ "$status" -eq 0 ] || complain "$mpi, $3: exit status $status"
    grep -o 'step.*loss.*\|^[0-9].*' "$2" | cmp -s - "$work/$1" || complain "$mpi, $3: other losses"
}
swapped() { # COMM...
    status=0
    timeout $((60 * scale)) $mpirun -n 4 "$swap" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    same swapped "$work/out" "$*"
}
trained() { # REFERENCE OPTIONS...
    name=$1
    shift
    status=0
    rm -f "$work/losses"
    timeout $((60 * scale)) $mpirun -n 4 "$train" $small $steps --comm shm+mpi --losses "$work/losses" "$@" \
        >"$work/out" 2>"$work/err" </dev/null || status=$?
    grep -o '^[0-9].*' "$work/losses" >"$work/mine" 2>/dev/null
    same "$name" "$work/mine" "shm+mpi, $*"
}
try_mpi() {
    export DUALPIPE_PLUGIN_PATH
    swapped shm mpi shm
    [ ! -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ] || swapped shm ofi mpi ofi
    DUALPIPE_DEBUG=hosts=a:a:b:b
    export DUALPIPE_DEBUG
    swapped mpi shm+mpi mpi
    [ ! -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ] || swapped shm+mpi shm+ofi ofi mpi auto
    trained one_replica --schedule dualpipe
    trained one_replica --schedule zb1p
    trained two_expert_ranks --ep 2
    trained two_copies --dp 2
    unset DUALPIPE_DEBUG
}

timeout $((60 * scale)) "$dualpipe" run -n 4 -- "$swap" shm 2>"$work/err" </dev/null | grep -o 'step.*' >"$work/swapped"
[ "$(wc -l <"$work/swapped")" -eq 60 ] || complain "shm: not sixty steps"
for case in "one_replica 4" "two_expert_ranks 4 --ep 2" "two_copies 4 --dp 2"; do
    set -- $case
    name=$1
    shift
    threads "$@" $steps --comm shm --losses "$work/all"
    grep -o '^[0-9].*' "$work/all" >"$work/$name"
done
try_mpis
finish
