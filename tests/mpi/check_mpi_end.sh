#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_mpi_end.sh: who starts and ends MPI, the trainer or the plugin; and how a job over MPI ends when a rank is killed.
set -u
. "$DP_TEST_SRCDIR/tests/mpi/mpi.sh"
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

trainer=$DP_TEST_BUILDDIR/tests/mpi/mpi_trainer

run() { # STATUS N PROGRAM...
    wanted=$1
    n=$2
    shift 2
    status=0
    timeout $((60 * scale)) $mpirun -n "$n" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    [ "$wanted" = any ] || [ "$status" -eq "$wanted" ] || complain "$mpi: $*: exit status $status, $wanted was expected"
}
lines() { # COUNT PATTERN
    found=$(grep -c "$2" "$work/out")
    [ "$found" -eq "$1" ] || complain "$mpi: \"$2\" $found times, $1 were expected"
}

# A rank is killed in the middle of a step. Open MPI is told to leave the others alone, so that they say why they end; Hydra
# kills them at once, whatever it is told. Nobody is left. mpirun of Open MPI 5.0 returns before the last of the others has ended, and what
# that one says then reaches nobody: so each writes to a separate file, and has the same 10 s.
kill_one() {
    rm -f "$work"/pid.* "$work"/said.*
    recover=
    [ "$mpi" = mpich ] || recover=--enable-recovery
    timeout $((60 * scale)) $mpirun $recover -n 4 sh -c 'r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; echo $$ >"$0/pid.$r"; exec "$@" 2>"$0/said.$r"' "$work" \
        "$train" $small --steps 1000000 --ep 2 --comm mpi --losses "$work/losses" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
    tries=0
    until [ "$(grep -c . "$work/out")" -gt 8 ] || [ "$tries" -gt $((300 * scale)) ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    begin=$(date +%s)
    kill -9 "$(cat "$work/pid.2")"
    status=0
    wait $job || status=$?
    for pid in $(cat "$work"/pid.*); do
        while kill -0 "$pid" 2>/dev/null && [ $(($(date +%s) - begin)) -le $((10 * scale)) ]; do
            sleep 0.1
        done
        ! kill -0 "$pid" 2>/dev/null || complain "$mpi: process $pid is left"
    done
    cat "$work"/said.* >>"$work/err"
    [ $(($(date +%s) - begin)) -le $((10 * scale)) ] || complain "$mpi: a job with a dead rank went on for more than 10 s"
    if [ "$mpi" = ompi ]; then
        [ "$(grep -c 'rank 2 (pid [0-9]* on .*) died in step' "$work/err")" -eq 3 ] || complain "$mpi: three ranks have to say who died"
    else
        [ "$status" -ne 0 ] || complain "$mpi: mpirun did not notice that a rank died"
    fi
}

try_mpi() {
    export DUALPIPE_PLUGIN_PATH
    kill_one
    [ "$mpi" = "${DP_TEST_MPI% *}" ] || return # the MPI that the trainer was built with
    run 0 2 "$trainer" multiple
    lines 2 '^sum 3, MPI still works$'
    run any 2 "$trainer" funneled
    lines 2 'without MPI_THREAD_MULTIPLE'
    run any 2 "$trainer" finalized
    lines 2 'MPI_Finalize was called before'
    run 0 2 "$trainer" plugin
    lines 2 '^sum 3, MPI is the plugin'
    other=$DP_TEST_BUILDDIR/tests/mpi/.libs
    [ -f "$other/dp_comm_mpi.so" ] || return
    DUALPIPE_PLUGIN_PATH=$other:$DP_TEST_BUILDDIR/.libs
    run any 2 "$trainer" multiple
    lines 2 'this plugin was built for another MPI than the'
}
try_mpis
finish
