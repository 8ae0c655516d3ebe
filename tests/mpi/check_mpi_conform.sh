#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_mpi_conform.sh: comm_mpi keeps the contract of dp.comm/1, ranks as processes under mpirun; what it cannot serve it refuses.
set -u
. "$DP_TEST_SRCDIR/tests/mpi/mpi.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
export DUALPIPE_PLUGIN_PATH

refused() { # PATTERN COMMAND...: fails, with a sentence
    pattern=$1
    shift
    if "$@" >"$work/out" 2>&1 || ! grep -q "$pattern" "$work/out"; then
        echo "$mpi: $*: has to fail with \"$pattern\":"
        cut -c 1-300 "$work/out"
        failures=$((failures + 1))
    fi
}
try_mpi() {
    "$DP_TEST_BUILDDIR/tests/conform/test_conform_comm" --plugin "$plugin" --mode processes --launch "$mpirun -n %d" ||
        failures=$((failures + 1))
    "$DP_TEST_BUILDDIR/dualpipe" plugin check "$plugin" --mode processes --launch "$mpirun -n %d" all_traffic_at_once ||
        failures=$((failures + 1))
    # no launcher of MPI: every process is a separate MPI job, as are all threads of one together
    refused 'by its mpirun or by srun' "$DP_TEST_BUILDDIR/tests/conform/test_conform_comm" --plugin "$plugin" sums_follow_each_other
    refused 'by its mpirun or by srun' "$DP_TEST_BUILDDIR/dualpipe" run -n 2 -- \
        "$DP_TEST_BUILDDIR/dualpipe" plugin check "$plugin" --mode threads sums_follow_each_other
}
try_mpis
echo "$failures failures"
[ "$failures" -eq 0 ]
