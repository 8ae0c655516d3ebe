# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# mpi_hosts.sh: an mpirun over two hosts (namespaces), for the scripts that read it with "." behind mpi.sh and hosts.sh.
#   mpi_hosts_begin            the hosts, and who enters them
#   mpi_hosts_launcher COUNT   prints the command that starts processes (-n N): so many on the first host, the others on the second

mpi_hosts_begin() {
    hosts_begin 2
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
}

mpi_hosts_launcher() { # ON THE FIRST
    case $mpi in
    ompi)
        echo "$beside $mpirun --mca plm_rsh_agent $hosts_work/enter --mca plm_rsh_no_tree_spawn 1 --mca btl tcp,self \
            --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 -H host1:$1,host2:4 \
            -x DUALPIPE_PLUGIN_PATH -x MASTER_ADDR -x MASTER_PORT -x DUALPIPE_SECRET_FILE -x DUALPIPE_LOG -x DUALPIPE_TIMEOUT_SCALE -x OPENBLAS_NUM_THREADS"
        ;;
    mpich)
        echo "$beside $mpirun -launcher ssh -launcher-exec $hosts_work/enter -iface br0 -hosts host1:$1,host2:4"
        ;;
    esac
}
