#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_mpi_hosts.sh: an mpirun over two hosts (namespaces): comm_mpi keeps the contract of dp.comm/1 between them, and a model trained
# over it, alone or joined with shared memory, has the losses of one process.
set -u
. "$DP_TEST_SRCDIR/tests/mpi/mpi.sh"
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

hosts_begin 2
trap 'hosts_end; rm -rf "$work"' EXIT
export hosts_work DUALPIPE_LOG=info MASTER_ADDR="$(hosts_address 1)" DUALPIPE_SECRET_FILE="$hosts_work/secret"
# What ssh does: options, a host, and a line for a shell there.
cat >"$hosts_work/enter" <<'END'
#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac; do shift; done
number=${1#host}
shift
exec nsenter -t "$(cat "$hosts_work/pid.$number")" -m -u -i -n -p --wd -- sh -c "$*"
END
chmod +x "$hosts_work/enter"
# mpirun stands beside the hosts, on the bridge.
hosts_switch 'ip addr add 10.77.0.100/24 dev br0'
beside="nsenter -t $(cat "$hosts_work/pid.0") -n --"
steps="--steps 3 --val-every 3 --sample 0 --microbatches 8 --quiet"

# How processes are started: one on the first host, or half of them, and the others on the second.
launcher() { # ON THE FIRST
    case $mpi in
    ompi)
        echo "$beside $mpirun --mca plm_rsh_agent $hosts_work/enter --mca plm_rsh_no_tree_spawn 1 --mca btl tcp,self \
            --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 -H host1:$1,host2:4 \
            -x DUALPIPE_PLUGIN_PATH -x MASTER_ADDR -x MASTER_PORT -x DUALPIPE_SECRET_FILE -x DUALPIPE_LOG -x OPENBLAS_NUM_THREADS"
        ;;
    mpich)
        echo "$beside $mpirun -launcher ssh -launcher-exec $hosts_work/enter -iface br0 -hosts host1:$1,host2:4"
        ;;
    esac
}
same() { # REFERENCE COMM OPTIONS...
    name=$1
    comm=$2
    shift 2
    status=0
    rm -f "$work/losses"
    timeout $((60 * scale)) $(launcher 2) -n 4 "$train" $small $steps --comm "$comm" --losses "$work/losses" "$@" \
        >"$work/out" 2>"$work/err" </dev/null || status=$?
    expect 0 err "4 ranks on 2 hosts \[0-1\] \[2-3\] talk over comm_.* and comm_mpi between hosts" "$mpi, $comm, $*"
    cmp -s "$work/losses" "$work/$name" || complain "$mpi, $comm, $*: other losses than $name"
}
try_mpi() {
    export DUALPIPE_PLUGIN_PATH
    "$DP_TEST_BUILDDIR/tests/conform/test_conform_comm" --plugin "$plugin" --mode processes --launch "$(launcher 1) -n %d" \
        messages_arrive_in_order_and_whole exchanges_bring_every_row all_traffic_at_once groups_of_some_ranks \
        sums_have_the_bits_of_a_serial_sum >"$work/out" 2>"$work/err" || complain "$mpi: the contract between two hosts"
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
