#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_verify.sh: a step of the pipeline is that of a serial run of the same model, whatever the layout; and the
# comparison notices when it is not.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

verify() { # PP EP DP OPTIONS...
    layout="pp $1 ep $2 dp $3"
    total=$(($1 * $2 * $3))
    options="--pp $1 --ep $2 --dp $3"
    shift 3
    ranks "$total" $options --verify "$@"
    expect 0 out "$layout, .*: the same as a serial run" "verify $layout $*"
    if grep -q FAILED "$work/out"; then
        complain "verify $layout $*: a rank failed"
    fi
}

for pp in 2 4 8; do
    for ep in 1 2 4; do
        verify $pp $ep 1 --schedule dualpipe --dtype f64
    done
done
for pp in 1 2 3 4; do
    verify $pp 1 1 --schedule dualpipev --dtype f64
    verify $pp 1 1 --schedule 1f1b --dtype f64
done
# What runs beside what changes no number.
for pp in 2 4; do
    verify $pp 2 1 --schedule dualpipe --overlap planned --dtype f64
    verify $pp 1 1 --schedule dualpipev --overlap planned --dtype f64
done
verify 2 2 1 --schedule zb1p --overlap planned --dtype f64
verify 2 1 1 --schedule interleaved_overlap --overlap planned --dtype f64
verify 2 2 1 --schedule dualpipe --overlap none --dtype f64
verify 1 2 2 --dtype f64
verify 2 2 2 --dtype f64 --gate softmax --aux-alpha 0.1 --shared-experts 0
verify 2 2 1 --dtype f32
verify 2 2 1 --dtype f64 --experts 8 --top-k 3 --route-groups 4 --route-limit 2
verify 3 2 1 --dtype f64 --layers 7 --microbatches 7

# One accumulator through the whole step, in the serial run too; dualpipe has one for each half at its two ends anyway.
for schedule in dualpipe dualpipev zb1p; do
    verify 2 2 1 --schedule $schedule --one-accumulator --dtype f64
done

# Latent attention: every kind of schedule, experts over several ranks, several replicas; with and without a latent for queries.
mla="--dtype f64 --attention-kind mla"
for schedule in dualpipe dualpipev 1f1b zb1p; do
    verify 2 1 1 --schedule $schedule $mla --q-rank 6 --kv-rank 5 --rope-dim 2
    verify 2 2 1 --schedule $schedule $mla --kv-rank 5
    verify 2 1 2 --schedule $schedule $mla --q-rank 6
done
verify 2 2 2 --schedule dualpipe $mla --overlap planned
verify 2 1 1 --schedule dualpipe --dtype f32 --attention-kind mla --q-rank 6

# Less kept and more computed: the serial run of a comparison keeps all.
for level in cheap mlp full; do
    for schedule in dualpipe dualpipev 1f1b zb1p; do
        verify 2 1 1 --schedule $schedule --recompute $level --dtype f64
        verify 2 2 1 --schedule $schedule --recompute $level --dtype f64
    done
    verify 2 1 2 --schedule dualpipe --recompute $level --dtype f32
    verify 4 2 1 --schedule dualpipe --recompute $level --overlap planned --dtype f64
    verify 2 1 1 --schedule zb1p --recompute $level $mla --q-rank 6
    verify 2 2 1 --schedule dualpipe --recompute $level $mla --kv-rank 5
    DUALPIPE_GUARD=1
    export DUALPIPE_GUARD
    verify 2 1 1 --schedule dualpipe --recompute $level $mla --q-rank 6
    unset DUALPIPE_GUARD
done

# The head's matrix is the embedding's table: on one rank, on mirrors, or with a message between the first and the last.
tied="--dtype f64 --tie-embeddings"
for schedule in dualpipe dualpipev 1f1b zb1p; do
    verify 2 1 1 --schedule $schedule $tied
    verify 2 2 1 --schedule $schedule $tied
    verify 2 1 2 --schedule $schedule $tied
done
verify 4 1 1 --schedule 1f1b $tied
verify 4 1 1 --schedule dualpipe $tied
verify 2 2 2 --schedule zb1p $tied

# Rounds of micro-batches for one update.
verify 2 2 1 --schedule dualpipe --dtype f64 --accumulate 3
verify 2 1 2 --schedule zb1p $tied --accumulate 2

# Shards of the optimizer: over mirrors, the data group, the expert group; with one expert rank a second step too.
zero="--dtype f64 --zero 1"
verify 2 1 1 --schedule dualpipe $zero
for schedule in dualpipe dualpipev 1f1b zb1p; do
    verify 2 2 1 --schedule $schedule $zero
    verify 2 1 2 --schedule $schedule $zero
done
verify 2 2 2 --schedule dualpipe $zero --tie-embeddings --accumulate 2
verify 2 1 2 --schedule dualpipe --zero 1 --dtype f32 --tie-embeddings --hidden 48

# Micro-batches of different length, packed with documents.
unlike="--dtype f64 --varlen --documents"
for schedule in dualpipe dualpipev 1f1b zb1p; do
    verify 2 1 1 --schedule $schedule $unlike
    verify 2 2 1 --schedule $schedule $unlike
    verify 2 1 2 --schedule $schedule $unlike
done
verify 2 2 1 --schedule dualpipe --varlen --dtype f32 --aux-alpha 0.1 --accumulate 2
verify 2 1 2 --schedule dualpipe --zero 1 $unlike --accumulate 2
verify 2 1 1 --schedule zb1p $unlike --attention-kind mla --q-rank 6 --recompute full
DUALPIPE_GUARD=1
export DUALPIPE_GUARD
verify 2 1 1 --schedule dualpipe $unlike
unset DUALPIPE_GUARD

# With exact tensors everywhere (one expert rank) and with shards, a serial run that is a little off is found out.
MOCK_REAL=$DP_TEST_BUILDDIR/.libs/dp_attention_cpu.so
MOCK_POKE=serial
export MOCK_REAL MOCK_POKE
mock=$DP_TEST_MOCKS/mock_attention_poke.so
ranks 2 --verify --dtype f64 --attention "$mock"
expect 1 out 'NOT the same as a serial run' 'a serial run with one number changed'
expect 1 out '0 of .*FAILED' 'a serial run with one number changed'
ranks 4 --ep 2 --verify --dtype f64 --attention "$mock"
expect 1 out 'NOT the same as a serial run' 'the same with expert shards'

finish
