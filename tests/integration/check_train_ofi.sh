#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_ofi.sh: training over comm_ofi gives the bits of comm_shm: EP 1 and 2, DP 1 and 2, several schedules, ranks as threads and as
# processes.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
if [ ! -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ]; then
    echo "skipped: this build has no comm_ofi"
    exit 77
fi
DUALPIPE_OFI_PROVIDER=tcp
export DUALPIPE_OFI_PROVIDER
steps="--steps 4 --val-every 2 --sample 0 --microbatches 8 --quiet"

same() { # HOW N OPTIONS...: over both transports
    rm -f "$work/shm" "$work/ofi"
    for comm in shm ofi; do
        "$@" $steps --comm comm_$comm --losses "$work/$comm"
        [ "$status" -eq 0 ] || complain "comm_$comm, $*: exit status $status"
    done
    [ "$(grep -c '^[0-9]* 0x1\.[0-9a-f]*p' "$work/shm")" -eq 4 ] || complain "$*: not four steps with losses"
    cmp -s "$work/shm" "$work/ofi" || complain "$*: other losses over comm_ofi: $(diff "$work/shm" "$work/ofi" | head -n 4)"
}

same threads 4
same threads 3 --schedule 1f1b
same ranks 4
same threads 4 --ep 2 --schedule zb1p
same ranks 4 --ep 2
same threads 4 --dp 2 --schedule dualpipev
same ranks 8 --dp 2 --ep 2 --dtype f64 --gate softmax --aux-alpha 0.01

# What was chosen is said: tcp progresses by itself from libfabric 1.18 on.
DUALPIPE_LOG=info
export DUALPIPE_LOG
ranks 2 $steps --comm comm_ofi
expect 0 err 'group .*: provider tcp.*; \(manual progress, by a thread of ours\|the provider progresses by itself\); ' "a log at info"

finish
