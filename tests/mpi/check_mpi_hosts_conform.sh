#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_mpi_hosts_conform.sh: comm_mpi keeps all of the contract of dp.comm/1 when an mpirun deals the ranks out to two hosts (namespaces).
set -u
. "$DP_TEST_SRCDIR/tests/mpi/mpi.sh"
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
. "$DP_TEST_SRCDIR/tests/mpi/mpi_hosts.sh"

mpi_hosts_begin
DUALPIPE_LOG=warn
failures=0
try_mpi() {
    export DUALPIPE_PLUGIN_PATH
    "$DP_TEST_BUILDDIR/tests/conform/test_conform_comm" --plugin "$plugin" --mode processes --launch "$(mpi_hosts_launcher 1) -n %d" \
        >"$hosts_work/out" 2>&1 9>&- || failures=$((failures + 1))
    grep -v '^passed' "$hosts_work/out"
    [ "$(grep -c '^passed .*, [2-9] processes$' "$hosts_work/out")" -ge 40 ] || {
        echo "$mpi: not the whole suite has passed"
        failures=$((failures + 1))
    }
}
try_mpis
hosts_end
echo "$failures failures"
[ "$failures" -eq 0 ]
