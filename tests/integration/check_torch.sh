#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_torch.sh: the example torch: libtorch's autograd in 1f1b, zb1p, dualpipe and dualpipev has the losses of plain autograd in one
# process, to the last bit, and so it has after a death, a swap of transports and under the guard. An exception becomes the step's
# error. Takes the libtorch in DP_TEST_LIBTORCH, else that of /usr (Debian: libtorch-dev, 1 GB with what it needs).
set -u

torch=${DP_TEST_LIBTORCH:-/usr}
if [ ! -f "$torch/include/torch/csrc/api/include/torch/torch.h" ]; then
    echo "skipped: no libtorch in $torch (Debian: libtorch-dev; or DP_TEST_LIBTORCH=FOLDER, an unpacked libtorch or the folder torch of a wheel)"
    exit 77
fi
if ! command -v "${CXX##* }" >/dev/null 2>&1; then
    echo "skipped: no C++ compiler (Debian: g++)"
    exit 77
fi
. "$DP_TEST_SRCDIR/tests/integration/built_pc.sh"
cp -R "$DP_TEST_SRCDIR/examples/torch" "$work/torch"
cd "$work/torch" || exit 1
OMP_NUM_THREADS=1
export OMP_NUM_THREADS

quietly "train_torch builds" make TORCH="$torch" CXX="$CXX" CXXFLAGS="-O1 -Wall -Wextra" train_torch || { finish; exit 1; }
quietly "make check: the losses of one process" make TORCH="$torch" CXX="$CXX" check || { finish; exit 1; }
[ "$(wc -l <serial.txt)" -eq 12 ] || complain "not twelve steps"
# It learns: the losses of the last step are below those of the first.
first=$(awk 'NR == 1 {print $3}' serial.txt) last=$(awk 'END {print $3}' serial.txt)
awk "BEGIN { exit !($(printf '%g' "$last") < 0.8 * $(printf '%g' "$first")) }" || complain "it does not learn: $first, then $last"

run() { # N OPTIONS -- ARGUMENTS...
    n=$1
    shift
    timeout $((120 * scale)) dualpipe run -n "$n" --no-prefix "$@"
}
same() { # WHAT N ...
    what=$1
    shift
    run "$@" >out.txt 2>"$work/log" && cmp serial.txt out.txt >>"$work/log" 2>&1 || complain "$what: other losses"
    echo "done: $what"
}
same "four ranks" 4 -- ./train_torch dualpipe
same "a rank dies and comes back" 2 --respawn 1 -- ./train_torch dualpipe kill 5 1
grep -q 'was ended by signal 9' "$work/log" || complain "nobody died"
same "another transport" 2 -- ./train_torch zb1p swap 4 shm
DUALPIPE_GUARD=1 same "under the guard" 2 -- ./train_torch dualpipe
if run 2 -- ./train_torch zb1p throw 3 2 >out.txt 2>"$work/log"; then
    complain "an exception in a segment: the run ended well"
fi
grep -q 'micro-batch 2.*told to throw' "$work/log" || complain "an exception in a segment: no such message"
finish
