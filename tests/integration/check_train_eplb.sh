#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_eplb.sh: training with replicated experts whose placement changes while it runs: losses and gradients are those of
# a serial run without replicas, all replicas of an expert stay equal, ranks are loaded more evenly, and what cannot be is refused.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

# ---- against a serial run, over three changes of placement ----

moved() { # WHAT: replicas moved, and where there is more than one expert rank, over the wire
    awk '/ plans in .* replicas moved/ { for (i = 1; i <= NF; i++) if ($i == "replicas") { moved = $(i - 1) } sent = $(NF - 2) }
         END { exit !(moved > 0 && sent > 0) }' "$work/out" || complain "$1: nothing was moved"
}
verify() { # PP EP DP OPTIONS...
    layout="pp $1 ep $2 dp $3"
    total=$(($1 * $2 * $3))
    options="--pp $1 --ep $2 --dp $3"
    groups=$2
    shift 3
    threads "$total" $options --verify --eplb 1 --eplb-threshold 1 --skew -0.3 --bias-rate 0.01 "$@"
    expect 0 out "$layout, .*: the same as a serial run" "verify $layout $*"
    if grep -q FAILED "$work/out"; then
        complain "verify $layout $*: a rank failed"
    fi
    [ "$groups" -eq 1 ] || moved "verify $layout $*"
}

for pp in 1 2 4; do
    for ep in 1 2 4; do
        verify $pp $ep 1 --dtype f64
    done
done
verify 2 2 2 --dtype f64 --gate softmax --aux-alpha 0.1 --shared-experts 0
verify 3 2 1 --dtype f64 --layers 7 --microbatches 7 --schedule dualpipev
verify 2 2 1 --dtype f32 --eplb 2
verify 1 4 1 --dtype f64 --experts 3 --replicas 8 # fewer experts than ranks
verify 2 2 1 --dtype f64 --experts 5 --replicas 6 --top-k 3 # experts that do not divide
verify 1 2 1 --dtype f64 --replicas 4 # as many replicas as experts: placement alone
ranks 4 --pp 2 --ep 2 --verify --dtype f64 --eplb 1 --skew 0.3 # processes
expect 0 out 'pp 2 ep 2 dp 1, .*: the same as a serial run' 'verify as processes'

# Through a fake CUDA driver, where the host does not reach the device's memory; masters of bf16 move as well.
fakes=$DP_TEST_BUILDDIR/tests/fake_cuda/.libs
if [ -e "$fakes/libcuda_fake.so" ] && [ -e "$fakes/libcublaslt_fake.so" ]; then
    DUALPIPE_DEBUG=lib.cuda=$fakes/libcuda_fake.so,lib.cublaslt=$fakes/libcublaslt_fake.so,lib.cutlass=$fakes/libcutlass_fake.so
    export DUALPIPE_DEBUG
    for dtype in f64 bf16; do
        verify 1 2 1 --dtype $dtype --device cuda --attention cuda --hidden 16 --layers 1 --microbatches 2
    done
    unset DUALPIPE_DEBUG
fi

# A serial run that is a little off is found out here as well.
MOCK_REAL=$DP_TEST_BUILDDIR/.libs/dp_attention_cpu.so
MOCK_POKE=serial
export MOCK_REAL MOCK_POKE
ranks 2 --ep 2 --verify --dtype f64 --eplb 1 --attention "$DP_TEST_MOCKS/mock_attention_poke.so"
expect 1 out 'NOT the same as a serial run' 'a serial run with one number changed'
unset MOCK_POKE

# ---- bits ----

steps="--steps 6 --val-every 3 --sample 0 --microbatches 8 --quiet --losses $work/losses"
same() { # REFERENCE WHAT
    [ "$status" -eq 0 ] || complain "$2: exit status $status"
    cmp -s "$work/losses" "$work/$1" || complain "$2: other losses than $1"
    rm -f "$work/losses"
}
threads 2 --ep 2 $steps --eplb 2 --skew 0.3
[ "$status" -eq 0 ] || complain "--eplb 2: exit status $status"
mv "$work/losses" "$work/balanced"
threads 2 --ep 2 $steps --eplb 2 --skew 0.3
same balanced "a second run"
threads 4 --ep 2 $steps --eplb 2 --skew 0.3 --schedule 1f1b
same balanced "1f1b over 2 x 2 threads"
ranks 8 --ep 2 $steps --eplb 2 --skew 0.3
same balanced "dualpipe over 4 x 2 processes"
threads 2 --ep 2 $steps
mv "$work/losses" "$work/plain"
threads 2 --ep 2 $steps --replicas 4
same plain "one replica per expert"

# ---- what the report says ----

learn="--steps 24 --val-every 0 --sample 0 --seq 32 --batch 2 --lr 0.001 --skew 0.4 --bias-rate 0"
threads 4 --ep 4 $learn --experts 8 --eplb 6 --report "$work/report"
expect 0 out '^after 6 steps: max/mean tokens [0-9.]*, then [0-9.]*: [1-9][0-9]* replicas moved' '--eplb 6'
expect 0 report '^experts  *12 replicas of 8 on 4 ranks; 3 plans, [1-9]' 'the report of --eplb 6'
awk '/ in steps .* \(median step/ { for (i = 2; i <= NF; i++) if ($i == "in") seen[++n] = $(i - 1) }
     END { exit !(n == 2 && seen[1] > 1.5 && seen[2] < 1.3 && seen[2] >= 1) }' "$work/report" ||
    complain "tokens are not spread more evenly after the first plan: $(grep 'in steps' "$work/report")"
threads 4 --ep 4 $learn --experts 8 --report "$work/report"
awk '/ in steps .* \(median step/ { for (i = 2; i <= NF; i++) if ($i == "in") seen[++n] = $(i - 1) }
     END { exit !(n == 1 && seen[1] > 1.5) }' "$work/report" || complain "without --eplb: $(grep 'in steps' "$work/report")"
grep -q '^experts' "$work/report" && complain "replicas are reported where there are none"

# Even loads: a threshold above them, and nothing moves.
threads 2 --ep 2 --steps 4 --val-every 0 --sample 0 --eplb 1 --eplb-threshold 3
expect 0 out ' 0 replicas moved in 0 layers (0.00 MiB)' '--eplb-threshold 3'

# ---- refusals ----

refused() { # STATUS PATTERN N OPTIONS...
    wanted=$1
    pattern=$2
    shift 2
    threads "$@"
    expect "$wanted" err "$pattern" "$*"
}
refused 2 'replicas 3: there are 4 experts' 2 --replicas 3
refused 2 'replicas 5: must be a multiple of --ep 2' 2 --ep 2 --replicas 5
refused 2 'experts 5: must be a multiple of --ep 2' 2 --ep 2 --experts 5
refused 2 'eplb -1: a whole number from 0' 2 --eplb -1
MOCK_REAL=$DP_TEST_BUILDDIR/.libs/dp_moe_cpu.so
refused 1 'has neither replicas nor ep_vt' 2 --ep 2 --eplb 1 --steps 2 --moe "$DP_TEST_MOCKS/mock_moe_plain.so"
threads 2 --ep 2 --steps 2 --sample 0 --quiet --moe "$DP_TEST_MOCKS/mock_moe_plain.so"
[ "$status" -eq 0 ] || complain "a plugin without replicas cannot do without them: $status"

finish
