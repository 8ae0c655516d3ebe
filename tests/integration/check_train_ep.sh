#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_ep.sh: training with rows of experts carried by a plugin of dp.ep.draft/1 gives the bits of training without one,
# and what a serial run gives; who cannot take such a plugin says so.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
if [ ! -f "$DP_TEST_BUILDDIR/.libs/dp_ep_exchange.so" ]; then
    echo "skipped: this build has no ep_exchange"
    exit 77
fi

# ---- bits ----

steps="--steps 4 --val-every 2 --sample 0 --microbatches 8 --quiet --losses $work/losses"
losses() { # NAME WHAT
    [ "$status" -eq 0 ] || complain "$2: exit status $status"
    [ -s "$work/losses" ] || complain "$2: no losses"
    mv "$work/losses" "$work/$1"
}
both() { # threads|ranks N OPTIONS...: with and without the plugin
    how=$1 n=$2
    shift 2
    $how "$n" $steps "$@"
    losses without "$*"
    $how "$n" $steps "$@" --ep-plugin exchange
    losses with "$* --ep-plugin exchange"
    cmp -s "$work/without" "$work/with" || complain "$*: other losses with --ep-plugin exchange"
}
for schedule in dualpipe 1f1b; do
    both threads 2 --schedule $schedule
    both threads 4 --schedule $schedule --ep 2
done
both ranks 4 --ep 4 --pp 1 --schedule 1f1b # one expert a rank
both threads 2 --ep 2 --top-k 3 --shared-experts 0 --recompute full # several experts of a rank
both threads 2 --ep 2 --varlen --dtype f64
both threads 2 --ep 2 --eplb 2 --skew 0.3

# ---- against a serial run ----

for ep in 1 2; do
    for schedule in dualpipe 1f1b; do
        threads $((2 * ep)) --pp 2 --ep $ep --schedule $schedule --dtype f64 --verify --ep-plugin exchange
        expect 0 out "pp 2 ep $ep dp 1, .*: the same as a serial run" "--verify --ep $ep --schedule $schedule"
    done
done

# ---- what is said, and what cannot be ----

threads 2 --ep 2 --steps 1 --sample 0 --ep-plugin exchange
expect 0 out 'rows of experts by' 'the report'
expect 0 out '^ *exchange$' 'the plugin in the report'
threads 2 --ep 2 --steps 1 --sample 0 --ep-plugin nothing_like_it
expect 11 err 'dp_ep_nothing_like_it.so' 'a plugin that is not there'
threads 2 --ep 2 --steps 1 --sample 0 --ep-plugin moe_cpu
expect 11 err 'ep_moe_cpu' 'the name of another kind'
threads 2 --ep 2 --steps 1 --sample 0 --ep-plugin "$DP_TEST_BUILDDIR/.libs/dp_moe_cpu.so"
expect 11 err 'dp.ep.draft/1' 'a plugin of another kind'
MOCK_REAL=$DP_TEST_BUILDDIR/.libs/dp_moe_cpu.so
export MOCK_REAL
threads 2 --ep 2 --steps 1 --sample 0 --moe "$DP_TEST_MOCKS/mock_moe_plain.so" --ep-plugin exchange
expect 1 err 'mock_moe_plain: it has neither' 'a MoE plugin that does dispatch and combine itself'

finish
