#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_slurm.sh: ranks started by srun, with a Slurm of two nodes that the test sets up on this machine, authentication included: they
# find each other over the nodes, hear who died, and train, over shared memory and over MPI. Skipped by name without Slurm or root.
set -u

for tool in munged slurmctld slurmd; do
    where=$(command -v $tool || ls /usr/sbin/$tool 2>/dev/null) || where=
    [ -n "$where" ] || {
        echo "skipped: there is no $tool (Debian: slurm-wlm)"
        exit 77
    }
done
command -v srun >/dev/null 2>&1 || { echo "skipped: there is no srun (Debian: slurm-client)"; exit 77; }
[ "$(id -u)" -eq 0 ] || { echo "skipped: slurmd takes root"; exit 77; }
PATH=$PATH:/usr/sbin
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
rank=$DP_TEST_BUILDDIR/tests/fault/run_rank
case " $CFLAGS " in *fsanitize=*) mpi_is_tried=no ;; *) mpi_is_tried=yes ;; esac

slurm=$work/slurm
SLURM_CONF=$slurm/slurm.conf
export SLURM_CONF
mkdir -p "$slurm/state" "$slurm/node1" "$slurm/node2"
# What looks after a step may outlive its daemon, when that goes first.
steps_left() {
    for environ in /proc/[0-9]*/environ; do
        pid=${environ#/proc/}
        pid=${pid%/environ}
        case $(cat "/proc/$pid/comm" 2>/dev/null) in slurmstepd*) ;; *) continue ;; esac
        ! { tr '\0' '\n' <"$environ" | grep -q -x "SLURM_CONF=$SLURM_CONF"; } 2>/dev/null || echo "$pid"
    done
}
end() {
    tries=50
    while [ "$tries" -gt 0 ] && [ -n "$(steps_left)" ]; do
        tries=$((tries - 1))
        sleep 0.1
    done
    daemons="$(cat "$slurm"/*.pid 2>/dev/null) $(steps_left)"
    tries=100
    for signal in TERM KILL; do
        for pid in $daemons; do
            kill -s $signal "$pid" 2>/dev/null
        done
        while [ "$tries" -gt 0 ] && running $daemons; do
            tries=$((tries - 1))
            sleep 0.1
        done
    done
    for pid in $(steps_left); do
        kill -s KILL "$pid" 2>/dev/null
    done
    rm -rf "$work"
}
running() { # PIDS
    for pid in "$@"; do
        grep -q '^State:[[:space:]]*[^Z]' "/proc/$pid/status" 2>/dev/null && return 0
    done
    return 1
}
trap end EXIT
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT DUALPIPE_LAUNCH

(umask 077 && head -c 64 /dev/urandom >"$slurm/key")
port=$((20000 + $$ % 10000))
cat >"$slurm/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$(uname -n)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm/munge.socket
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/%n
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/%n.pid
SlurmctldLogFile=$slurm/slurmctld.log
SlurmdLogFile=$slurm/%n.log
SlurmctldPort=$port
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=node1 NodeHostname=$(uname -n) NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=4
NodeName=node2 NodeHostname=$(uname -n) NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=4
PartitionName=main Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
END
# From 23 on slurmd asks for control groups even where nothing uses them, and not every container has them.
case $(slurmd -V) in *" 2"[3-9].*) echo CgroupPlugin=disabled >"$slurm/cgroup.conf" ;; esac
{
    munged --force --key-file="$slurm/key" --socket="$slurm/munge.socket" --pid-file="$slurm/munge.pid" \
        --log-file="$slurm/munge.log" --seed-file="$slurm/munge.seed"
    slurmctld -f "$SLURM_CONF"
    slurmd -N node1 -f "$SLURM_CONF"
    slurmd -N node2 -f "$SLURM_CONF"
} >"$work/out" 2>"$work/err"
tries=$((100 * scale))
until [ "$(sinfo -h -o '%t %D' 2>/dev/null)" = "idle 2" ]; do
    tries=$((tries - 1))
    if [ "$tries" -eq 0 ]; then
        echo "skipped: Slurm does not run here: $(cat "$work/err" "$slurm"/*.log | grep -i -e error -e fatal | tail -n 3 | tr '\n' ' ')"
        exit 77
    fi
    sleep 0.1
done

run() { # OPTIONS OF SRUN AND PROGRAM...
    status=0
    timeout $((60 * scale)) srun "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
}
run -N 2 --ntasks-per-node 4 "$rank" work
[ "$status" -eq 0 ] && [ "$(grep -c 'sum 28$' "$work/out")" -eq 8 ] || complain "eight ranks on two nodes: status $status"
run -N 2 --ntasks-per-node 2 "$rank" die 3
[ "$status" -ne 0 ] || complain "srun does not know of a dead rank"
[ "$(grep -c 'rank 3 (pid [0-9]* on .*) died in step 3: W of stage 2' "$work/out")" -eq 3 ] || complain "three ranks have to say who died"

steps="--steps 3 --val-every 3 --sample 0 --microbatches 8 --quiet"
threads 2 --ep 2 $steps --losses "$work/reference"
trains() { # NAME OPTIONS OF SRUN
    name=$1
    shift
    rm -f "$work/losses"
    run "$@" "$train" $small $steps --ep 2 --comm "$comm" --losses "$work/losses"
    [ "$status" -eq 0 ] && cmp -s "$work/losses" "$work/reference" || complain "$name: status $status, or other losses"
}
comm=shm
trains "shared memory" -N 2 --ntasks-per-node 2
# One node each: two PMIx servers of one machine are in each other's way.
comm=mpi
[ "$mpi_is_tried" = yes ] || DP_TEST_MPI= DP_TEST_OTHER_MPI=
for kind in "${DP_TEST_MPI%% *} $DP_TEST_BUILDDIR/.libs" "${DP_TEST_OTHER_MPI%% *} $DP_TEST_BUILDDIR/tests/mpi/.libs"; do
    [ -f "${kind#* }/dp_comm_mpi.so" ] || continue
    DUALPIPE_PLUGIN_PATH=${kind#* }:$DP_TEST_BUILDDIR/.libs
    case ${kind% *} in
    ompi) plugin=pmix ;;
    mpich) plugin=pmi2 ;;
    *) continue ;;
    esac
    if srun --mpi=list 2>&1 | grep -q -w "$plugin"; then
        trains "$kind" --mpi=$plugin -N 1 -n 4
    else
        echo "${kind% *} is not tried: this Slurm has no $plugin"
    fi
done
finish
