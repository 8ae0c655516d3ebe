#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# timed.sh COMMAND... TEST: runs it and adds a line to tests/times.tsv in the build folder: seconds that passed, seconds of processor time of
# it and of all that it waited for, its exit status, and which test it was.
for test; do :; done
begin=$(date +%s)
"$@"
status=$?
out=$DP_TEST_BUILDDIR/tests/times.$$
times >"$out" # not in a pipe, where it is that of a subshell
awk -v wall=$(($(date +%s) - begin)) -v status=$status -v test="${test##*/tests/}" 'NR == 2 {
    gsub("s", "")
    split($1, user, "m")
    split($2, sys, "m")
    printf "%d\t%.0f\t%d\t%s\n", wall, 60 * (user[1] + sys[1]) + user[2] + sys[2], status, test
}' "$out" >>"$DP_TEST_BUILDDIR/tests/times.tsv"
rm -f "$out"
exit $status
