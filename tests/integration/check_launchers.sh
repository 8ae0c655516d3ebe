#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_launchers.sh: ranks find each other by what other launchers put in the environment: Open MPI and MPICH themselves where they
# are, and the variables of the others.
set -u

rank=$DP_TEST_BUILDDIR/tests/fault/run_rank
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT DUALPIPE_LAUNCH

expect_sum() { # NAME COUNT SUM
    if [ "$(grep -c "sum $3\$" "$work/out")" -ne "$2" ]; then
        echo "$1: \"sum $3\" was expected $2 times:"
        cut -c 1-200 "$work/out" | head -20
        failures=$((failures + 1))
    fi
}
# A number that is the same for all ranks of a job and hardly for two jobs.
job=$((20000 + $$ % 10000))

launcher_of() { # PATTERN NAME...: the first of them that is there and says so of itself
    pattern=$1
    shift
    for name in "$@"; do
        if command -v "$name" >/dev/null 2>&1 && "$name" --version 2>/dev/null | grep -q "$pattern"; then
            echo "$name"
            return
        fi
    done
}
mpirun=$(launcher_of 'Open MPI' mpirun.openmpi mpirun)
if [ -n "$mpirun" ]; then
    timeout 60 "$mpirun" --allow-run-as-root --oversubscribe -n 4 "$rank" work >"$work/out" 2>&1
    expect_sum "Open MPI" 4 6
else
    echo "Open MPI is not installed: its variables alone are tried"
fi
mpirun=$(launcher_of HYDRA mpirun.mpich mpiexec.hydra mpirun)
if [ -n "$mpirun" ]; then
    MASTER_PORT=$((job + 7)) timeout 60 "$mpirun" -n 4 "$rank" work >"$work/out" 2>&1
    expect_sum "MPICH" 4 6
else
    echo "MPICH is not installed: its variables alone are tried"
fi

if command -v torchrun >/dev/null 2>&1; then
    timeout 120 torchrun --standalone --nproc-per-node 4 --no-python "$rank" work >"$work/out" 2>&1
    expect_sum "torchrun" 4 6
else
    echo "torchrun is not installed: its variables alone are tried"
fi

: >"$work/out"
for r in 0 1 2; do
    PMI_RANK=$r PMI_SIZE=3 MPI_LOCALRANKID=$r MASTER_PORT=$((job + 9)) timeout 60 "$rank" work >>"$work/out" 2>&1 &
done
wait
expect_sum "variables of MPICH" 3 3

: >"$work/out"
for r in 0 1 2; do
    OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=$r PMIX_NAMESPACE=$job.1 \
        timeout 60 "$rank" work >>"$work/out" 2>&1 &
done
wait
expect_sum "variables of Open MPI" 3 3

: >"$work/out"
for r in 0 1 2; do
    SLURM_PROCID=$r SLURM_NTASKS=3 SLURM_LOCALID=$r SLURM_JOB_ID=$job.2 timeout 60 "$rank" work >>"$work/out" 2>&1 &
done
wait
expect_sum "variables of Slurm" 3 3

# torchrun's agent keeps MASTER_PORT busy
: >"$work/out"
for r in 0 1; do
    RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r MASTER_ADDR=localhost MASTER_PORT=$((job + 1)) TORCHELASTIC_USE_AGENT_STORE=True \
        TORCHELASTIC_RUN_ID=$job timeout 60 "$rank" work >>"$work/out" 2>&1 &
done
wait
expect_sum "variables of torchrun" 2 1

# ranks of two jobs at one port, without a secret: they find out by the job's name
: >"$work/out"
for r in 0 1; do
    RANK=$r WORLD_SIZE=2 MASTER_PORT=$((job + 3)) TORCHELASTIC_RUN_ID=$job.$r timeout 60 "$rank" work >>"$work/out" 2>&1 &
done
wait
if [ "$(grep -c "job is $job.0 on rank 0 and $job.1 on rank 1" "$work/out")" -ne 2 ]; then
    echo "ranks of different jobs:"
    cut -c 1-200 "$work/out"
    failures=$((failures + 1))
fi

if [ -f /proc/net/if_inet6 ] && grep -q '^0*1 .* lo$' /proc/net/if_inet6; then
    : >"$work/out"
    for r in 0 1; do
        RANK=$r WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=$((job + 5)) timeout 60 "$rank" work >>"$work/out" 2>&1 &
    done
    wait
    expect_sum "IPv6 loopback" 2 1
fi

echo "$failures failures"
[ "$failures" -eq 0 ]
