# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# mpi.sh: what the scripts that run under an MPI share; they read it with ".". A script defines try_mpi, which finds $mpi (ompi or
# mpich), $mpirun (a command that takes -n N) and $plugin, and is called for the MPI that is there and starts; in check-long for another one, too.

case " $CFLAGS " in *fsanitize=thread*)
    echo "skipped: ThreadSanitizer takes the inside of an MPI for races"
    exit 77
    ;;
esac
# What an MPI keeps to the end of the process lies in modules that have no name any more when leaks are looked for.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export ASAN_OPTIONS
[ -n "${DP_TEST_MPI% *}" ] && [ -f "$DP_TEST_BUILDDIR/.libs/dp_comm_mpi.so" ] || {
    echo "skipped: this build has no comm_mpi"
    exit 77
}
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR DUALPIPE_LAUNCH
# hwloc in Open MPI asks ten X displays of "localhost" for GPUs, in every process: without /etc/hosts hundreds of questions to a
# resolver, and each answer that is lost costs 5 s.
HWLOC_COMPONENTS=-gl
export HWLOC_COMPONENTS
# Hydra gives a job no name to make a port of.
MASTER_PORT=$((20000 + $$ % 10000))
export MASTER_PORT

use_mpi() { # KIND LAUNCHER PLUGIN
    mpi=$1 mpirun=$2 plugin=$3
    case $mpi in
    ompi)
        mpirun="$mpirun --oversubscribe --bind-to none"
        [ "$(id -u)" -ne 0 ] || mpirun="$mpirun --allow-run-as-root"
        ;;
    esac
    said=$(timeout 60 $mpirun -n 2 sh -c 'echo "${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}"' 2>&1 | sort -u)
    if [ "$said" != 2 ]; then
        echo "skipped: $mpi cannot start processes here: $2 says: $(printf '%s' "$said" | tr '\n' ' ' | cut -c 1-200)"
        return
    fi
    tried=$((tried + 1))
    echo "== $mpi"
    DUALPIPE_PLUGIN_PATH=$(dirname "$plugin"):$DP_TEST_BUILDDIR/.libs try_mpi
}
try_mpis() {
    tried=0
    use_mpi $DP_TEST_MPI "$DP_TEST_BUILDDIR/.libs/dp_comm_mpi.so"
    if [ -n "${DP_TEST_OTHER_MPI% *}" ] && [ "${DP_TEST_LONG:-0}" = 1 ]; then
        use_mpi $DP_TEST_OTHER_MPI "$DP_TEST_BUILDDIR/tests/mpi/.libs/dp_comm_mpi.so"
    fi
    [ "$tried" -gt 0 ] || exit 77
}
