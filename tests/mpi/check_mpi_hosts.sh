#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_mpi_hosts.sh: an mpirun over two hosts (namespaces): a model trained over comm_mpi, alone or joined with shared memory, has the losses
# of one process.
set -u
. "$DP_TEST_SRCDIR/tests/mpi/mpi.sh"
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
. "$DP_TEST_SRCDIR/tests/mpi/mpi_hosts.sh"
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

mpi_hosts_begin
trap 'hosts_end; rm -rf "$work"' EXIT
steps="--steps 3 --val-every 3 --sample 0 --microbatches 8 --quiet"

same() { # REFERENCE COMM OPTIONS...
    name=$1
    comm=$2
    shift 2
    status=0
    rm -f "$work/losses"
    timeout $((60 * scale)) $(mpi_hosts_launcher 2) -n 4 "$train" $small $steps --comm "$comm" --losses "$work/losses" "$@" \
        >"$work/out" 2>"$work/err" </dev/null || status=$?
    expect 0 err "4 ranks on 2 hosts \[0-1\] \[2-3\] talk over comm_.* and comm_mpi between hosts" "$mpi, $comm, $*"
    cmp -s "$work/losses" "$work/$name" || complain "$mpi, $comm, $*: other losses than $name"
}
try_mpi() {
    export DUALPIPE_PLUGIN_PATH
    same one_replica mpi
    same one_replica shm+mpi --schedule zb1p
    same two_expert_ranks shm+mpi --ep 2
}

for case in "one_replica 1" "two_expert_ranks 2 --ep 2"; do
    set -- $case
    name=$1
    shift
    DUALPIPE_LOG='' threads "$@" $steps --comm shm --losses "$work/$name"
done
try_mpis
finish
