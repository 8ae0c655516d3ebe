#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_zero.sh: with shards of the optimizer (--zero 1) the losses are those without, to the last bit, over transports that give
# parts and by sums of all; the optimizer's memory falls by the number of ranks that hold a parameter; checkpoints go to and fro
# between both and other layouts; a rank that dies takes its shards along, and the run goes on from the newest checkpoint.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

common="--steps 8 --val-every 3 --sample 0 --microbatches 8 --hidden 16 --expert-hidden 24"

same() { # REFERENCE WHAT
    [ "$status" -eq 0 ] || complain "$2: exit status $status"
    cmp -s "$work/losses" "$work/$1" || complain "$2: other losses than $1: $(diff "$work/$1" "$work/losses" | head -n 4)"
    rm -f "$work/losses"
}
optimizer() { # what the report says of rank 0
    tr '\n' ' ' <"$work/out" | tr -s ' ' | sed -n 's/.* optimizer \([0-9.]*\), data .*/\1/p'
}
within() { # LEAST MOST A B WHAT: A / B
    awk "BEGIN { exit !($3 / $4 >= $1 && $3 / $4 <= $2) }" || complain "$5: the optimizer has $3 MiB of $4 MiB"
}

wide="--hidden 64 --expert-hidden 64 --steps 2"
threads 4 --dp 2 $common $wide --losses "$work/wide"
whole=$(optimizer)
threads 4 --dp 2 $common $wide --losses "$work/losses" --zero 1
within 0.24 0.27 "$(optimizer)" "$whole" "dualpipe, dp 2: a quarter"
same wide "a wider model"

number=0
for layout in '2' '4 --dp 2' '4 --ep 2 --tie-embeddings' '4 --dp 2 --schedule zb1p --accumulate 2' '8 --ep 2 --dp 2 --schedule dualpipev'; do
    number=$((number + 1))
    set -- $layout
    ranks=$1
    shift
    threads $ranks $common "$@" --losses "$work/$number"
    threads $ranks $common "$@" --losses "$work/losses" --zero 1
    same $number "$layout"
done
ranks 4 --dp 2 $common --losses "$work/losses" --zero 1
same 2 "processes"
threads 4 --dp 2 $common --losses "$work/losses" --zero 1 --comm "$DP_TEST_MOCKS/mock_comm_threads.so"
same 2 "sums of all"
threads 4 --dp 2 $common --losses "$work/losses" --zero 1 --comm "$DP_TEST_MOCKS/mock_comm_matched.so"
same 2 "bundles"
if [ -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ]; then
    ranks 4 --dp 2 $common --losses "$work/losses" --zero 1 --comm ofi
    same 2 "comm_ofi"
    DUALPIPE_DEBUG=hosts=a:a:b:b
    export DUALPIPE_DEBUG
    ranks 4 --dp 2 $common --losses "$work/losses" --zero 1 --comm shm+ofi
    unset DUALPIPE_DEBUG
    same 2 "two transports"
fi
threads 4 --ep 2 --zero 1 --eplb 2
expect 2 err 'does not go with --replicas' "--zero 1 --eplb"

# Saved with shards, resumed without and in another layout, and the other way round.
threads 4 --dp 2 $common --zero 1 --checkpoint "$work/shards" --every 3 --keep 0
threads 4 --dp 2 $common --checkpoint "$work/all" --every 3 --keep 0
resume() { # FOLDER N OPTIONS...
    rm -rf "$work/ck"
    mkdir "$work/ck"
    cp -r "$work/$1/step-00000003" "$work/ck/"
    saved=$1
    shift
    threads "$@" --dp 2 $common --losses "$work/losses" --checkpoint "$work/ck" --every 100 --resume
    same 2 "saved with $saved, resumed with $*"
}
resume shards 4
resume shards 4 --zero 1
resume shards 8 --zero 1
resume shards 4 --zero 1 --schedule 1f1b
resume all 4 --zero 1
resume all 8 --zero 1

# Without a buddy nobody else has the dead rank's shards.
mark=$$.zero
long="--steps 300 --val-every 0 --sample 0 --log-every 1 --zero 1 --dp 2 --buddy 0"
ranks 4 $long --losses "$work/undisturbed"
[ "$status" -eq 0 ] || complain "undisturbed: exit status $status"
DP_TEST_CASE=$mark "$dualpipe" run --respawn 1 -n 4 -- "$train" $small $long --losses "$work/losses" --checkpoint "$work/lost" --every 40 \
    >"$work/out" 2>"$work/err" </dev/null &
job=$!
tries=$((1500 * scale))
until ls "$work/lost" 2>/dev/null | grep -q step- || [ "$tries" -eq 0 ] || ! kill -0 $job 2>/dev/null; do
    tries=$((tries - 1))
    sleep 0.02
done
victim=$(member 2)
[ -n "$victim" ] && kill -KILL "$victim" || complain "no rank 2 to kill"
status=0
wait $job || status=$?
mv "$work/undisturbed" "$work/reference"
same reference "a rank died"
grep -q 'rank 2 died, and no living rank holds its shards of the optimizer' "$work/err" || complain "nobody says what was lost"
grep -q 'resumed after [0-9]* steps' "$work/out" || complain "it does not say where it goes on"

finish
