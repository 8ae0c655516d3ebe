#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_bits.sh: the same seed gives the same losses and norms to the last bit: again, with every schedule and depth of the
# pipeline, with ranks as processes and as threads, as long as there are as many data replicas.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

steps="--steps 4 --val-every 2 --sample 0 --microbatches 8 --quiet"

same() { # REFERENCE WHAT
    [ "$status" -eq 0 ] || complain "$2: exit status $status"
    cmp -s "$work/losses" "$work/$1" || complain "$2: other losses than $1: $(diff "$work/$1" "$work/losses" | head -n 4)"
    rm -f "$work/losses"
}
reference() { # NAME
    [ "$status" -eq 0 ] || complain "$1: exit status $status"
    mv "$work/losses" "$work/$1"
    [ "$(grep -c '^[0-9]* 0x1\.[0-9a-f]*p' "$work/$1")" -eq 4 ] || complain "$1: not four steps with losses"
}

threads 1 $steps --losses "$work/losses"
reference one_replica
threads 1 $steps --losses "$work/losses"
same one_replica "a second run"
# What has been held out is worth the same, however many rounds a step has.
for rounds in 1 3; do
    threads 2 --steps 1 --val-every 1 --sample 0 --microbatches 8 --lr 1e-30 --min-lr 0 --bias-rate 0 --accumulate $rounds --quiet \
        --losses "$work/rounds$rounds"
    [ "$status" -eq 0 ] || complain "$rounds rounds a step: exit status $status"
done
[ -n "$(sed -n 's/^[0-9]* [^ ]* [^ ]* //p' "$work/rounds1")" ] &&
    [ "$(sed 's/.* //' "$work/rounds1")" = "$(sed 's/.* //' "$work/rounds3")" ] ||
    complain "other losses on held-out text with 3 rounds: $(cat "$work/rounds1" "$work/rounds3")"
for schedule in gpipe 1f1b interleaved zb1p zbv v-half v-min dualpipe dualpipev; do
    threads 4 $steps --losses "$work/losses" --schedule $schedule
    same one_replica "$schedule over 4 threads"
done
threads 3 $steps --losses "$work/losses"
same one_replica "dualpipev over 3 threads"
for n in 2 4; do
    ranks $n $steps --losses "$work/losses"
    same one_replica "dualpipe over $n processes"
done

ranks 2 --ep 2 $steps --losses "$work/losses"
reference two_expert_ranks
ranks 8 --ep 2 $steps --losses "$work/losses"
same two_expert_ranks "dualpipe over 4 x 2 processes"
threads 4 --ep 2 --schedule 1f1b $steps --losses "$work/losses"
same two_expert_ranks "1f1b over 2 x 2 threads"
# DUALPIPE_GUARD=1 looks at every call of the plugins, and changes no bit.
DUALPIPE_GUARD=1
export DUALPIPE_GUARD
threads 4 --ep 2 --schedule dualpipe $steps --losses "$work/losses"
same two_expert_ranks "dualpipe over 2 x 2 guarded threads"
unset DUALPIPE_GUARD

for overlap in canonical none planned; do
    threads 4 --ep 2 --schedule dualpipe --overlap $overlap $steps --losses "$work/losses"
    same two_expert_ranks "dualpipe over 2 x 2 threads, overlap $overlap"
done
threads 8 --ep 2 --schedule zbv --overlap planned $steps --losses "$work/losses"
same two_expert_ranks "zbv over 4 x 2 threads, overlap planned"
ranks 4 --ep 2 --schedule dualpipev --overlap planned $steps --losses "$work/losses"
same two_expert_ranks "dualpipev over 2 x 2 processes, overlap planned"

# Groups of more micro-batches than ranks.
threads 4 --schedule interleaved_overlap --chunks 2 --microbatch-group 8 $steps --losses "$work/losses"
same one_replica "interleaved_overlap over 4 threads, groups of 8"
threads 2 --schedule interleaved --chunks 2 --microbatch-group 3 $steps --losses "$work/losses"
same one_replica "interleaved over 2 threads, groups of 3"

# Layers cut finer, and transfers without a lane.
for segments in fine posted; do
    for schedule in dualpipe zb1p; do
        threads 4 --ep 2 --schedule $schedule --segments $segments $steps --losses "$work/losses"
        same two_expert_ranks "$schedule over 2 x 2 threads, $segments segments"
    done
done
ranks 4 --ep 2 --schedule dualpipev --segments fine --overlap planned --recompute mlp $steps --losses "$work/losses" --costs-out "$work/costs"
same two_expert_ranks "dualpipev over 2 x 2 processes, fine segments, planned"
grep -q '^project.F=0*[0-9.]*[1-9]' "$work/costs" || complain "the costs have no projections: $(cat "$work/costs")"
threads 2 $steps --verify --segments fine
[ "$status" -eq 0 ] || complain "--verify of fine segments: exit status $status"

# Text that is written with keys and values kept is that of computing each window anew, whose bits differ in the last place alone.
for layout in "--schedule dualpipev" "--schedule dualpipe --attention-kind mla" "--schedule 1f1b --segments fine --documents"; do
    for cache in 0 1; do
        threads 4 --ep 2 $layout --dtype f64 --seq 20 --steps 20 --val-every 0 --microbatches 8 --quiet --sample 50 --sample-seconds 1000 \
            --sample-cache $cache --report "$work/report"
        [ "$status" -eq 0 ] || complain "sample with $layout, cache $cache: exit status $status"
        sed '1,/^Written by the model/d' "$work/report" >"$work/text$cache"
    done
    [ "$(wc -c <"$work/text1")" -ge 240 ] || complain "sample with $layout: $(cat "$work/text1")"
    cmp -s "$work/text0" "$work/text1" || complain "sample with $layout: another text with a cache: $(diff "$work/text0" "$work/text1")"
done

# Which stage holds which layers changes no bit; the trace shows where they are.
held() { # STAGE: spans of attention, forward
    grep -c "\"name\":\"attention F .*\"stage\":$1," "$work/trace"
}
for partition in 5,1,1,1 1,2,1,4 auto; do
    threads 4 $steps --losses "$work/losses" --schedule dualpipe --partition $partition --trace "$work/trace"
    same one_replica "dualpipe over 4 threads, layers $partition"
    [ $partition != 5,1,1,1 ] || [ "$(held 0)" -eq $((5 * $(held 3))) ] || complain "partition $partition: $(held 0) and $(held 3) spans"
done
ranks 2 $steps --losses "$work/losses" --schedule zbv --partition 1,5,1,1 --overlap planned
same one_replica "zbv over 2 processes, layers 1,5,1,1, overlap planned"
threads 2 $steps --verify --partition 7,1
[ "$status" -eq 0 ] || complain "--verify of layers 7,1: exit status $status"
for partition in 5,1,1 5,1,1,2 5,1,1,1, 0,6,1,1 odd; do
    threads 4 $steps --partition $partition
    expect 2 err "--partition $partition: " "layers $partition"
done

threads 2 --dp 2 $steps --losses "$work/losses"
reference two_copies
ranks 4 --dp 2 $steps --losses "$work/losses"
same two_copies "dualpipe over 2 x 2 processes"

ranks 8 --dp 2 --ep 2 $steps --losses "$work/losses" --dtype f64 --gate softmax --aux-alpha 0.01
reference all_three
threads 4 --dp 2 --ep 2 $steps --losses "$work/losses" --dtype f64 --gate softmax --aux-alpha 0.01
same all_three "1f1b over 1 x 2 x 2 threads"

# Another seed is another run: the comparison above is not of constants.
threads 1 $steps --losses "$work/losses" --seed 2
cmp -s "$work/losses" "$work/one_replica" && complain "another seed gave the same losses"

finish
