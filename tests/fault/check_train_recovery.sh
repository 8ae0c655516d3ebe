#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_recovery.sh: ranks of a training run are killed, one after the other, rank 0 among them: others take their
# places, and the run ends with the losses of one that nobody has disturbed, to the last bit.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

options="--steps 400 --val-every 100 --log-every 1 --sample 0"

kill_rank() { # RANK...: all at once
    targets=
    for rank; do
        target=$(member "$rank")
        [ -n "$target" ] || complain "$name: no rank $rank to kill"
        targets="$targets $target"
    done
    kill -KILL $targets
}
await() { # TIMES PATTERN: in what was printed so far
    tries=$((1500 * scale))
    until [ "$(grep -c -s -e "$2" "$work/out")" -ge "$1" ]; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ] || ! kill -0 "$job" 2>/dev/null; then
            complain "$name: \"$2\" was not printed $1 times"
            return
        fi
        sleep 0.02
    done
}
begin() { # NAME RESPAWN RANKS OPTIONS...
    name=$1
    mark=$$.$name
    respawn=$2
    n=$3
    shift 3
    : >"$work/out"
    DP_TEST_CASE=$mark "$dualpipe" run --respawn "$respawn" -n "$n" -- "$train" $small $options "$@" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
}
end() { # STATUS
    status=0
    wait "$job" || status=$?
    [ "$status" -eq "$1" ] || complain "$name: exit status $status, $1 was expected"
    left=$(members)
    [ -z "$left" ] || complain "$name: left behind: $left"
}
same_losses() { # FILE
    cmp -s "$work/undisturbed" "$1" || complain "$name: other losses than without a death"
}

for layout in '4' '4 --schedule 1f1b --dp 2' '4 --ep 2' '4 --overlap none' '4 --tie-embeddings --accumulate 2'; do
    set -- $layout
    long || [ $# -eq 1 ] || [ "$2" = --schedule ] || continue
    n=$1
    shift
    ranks "$n" $options --losses "$work/undisturbed" "$@"
    [ "$status" -eq 0 ] || complain "undisturbed: exit status $status"

    begin "three $*" 3 "$n" --losses "$work/losses" "$@"
    await 1 'step  *20/'
    kill_rank 2
    await 1 'was replaced'
    kill_rank 0
    await 2 '^\(\[0\] \)*layout ' # the new rank 0 begins as the first one did
    kill_rank 3
    end 0
    same_losses "$work/losses"
    grep -q 'rank 0 (pid [0-9]*) was ended by signal 9 (Killed): started again as pid [0-9]* (2 of 3)' "$work/err" ||
        complain "$name: the launcher does not say what it did"
    grep -q 'a rank has died and was replaced in [0-9.]* s: step [0-9]* is taken again' "$work/out" || complain "$name: not said by rank 0"
done

# The second death finds no process to replace it.
begin once 1 4
await 1 'step  *20/'
kill_rank 1
await 1 'was replaced'
kill_rank 2
end 137
grep -q 'rank 2 (pid [0-9]*.* died .*nobody came in place of rank 2.*dualpipe run starts no more of them: rank 2 (pid .*ended by signal 9' "$work/err" ||
    complain "once: nobody says who was not replaced"

# A rank that dies where all its processes died.
name=thrice
mark=$$.$name
DP_TEST_CASE=$mark "$dualpipe" run -n 2 --respawn 9 -- "$DP_TEST_BUILDDIR/examples/recovery/recovery" 1 0 >"$work/out" 2>"$work/err" </dev/null &
job=$!
end 137
grep -q '^dualpipe run: rank 1 (pid [0-9]*) was ended.*; it died 3 times in the same operation: before its first operation' "$work/err" ||
    complain "thrice: nobody says where it died"

# Where no other rank has a rank's state, its buddy has it: one after the other dies, then all at once. No checkpoint is given.
for layout in '--schedule dualpipev' '--schedule 1f1b --ep 2' '--zero 1'; do
    long || [ "$layout" != '--schedule 1f1b --ep 2' ] || continue
    ranks 4 $options --losses "$work/undisturbed" $layout
    [ "$status" -eq 0 ] || complain "undisturbed: exit status $status"
    rm -f "$work/losses"
    begin "buddy $layout" 7 4 --losses "$work/losses" $layout
    await 1 'step  *20/'
    kill_rank 2
    await 1 'was replaced'
    kill_rank 0
    await 2 '^\(\[0\] \)*layout '
    kill_rank 3
    sleep 0.2
    kill -KILL $(for r in 0 1 2 3; do member $r; done)
    end 0
    same_losses "$work/losses"
    grep -q 'MiB of it are two copies of its state' "$work/out" || complain "$name: the memory of the copies is not announced"
    [ "$(grep -c 'started again' "$work/err")" -eq 7 ] || complain "$name: not 7 deaths"
    [ "$(grep -c 'step  *1/' "$work/out")" -eq 1 ] || complain "$name: it began anew"
done

# Where nobody holds the state of the dead rank, all say so.
begin v 3 4 --schedule dualpipev --buddy 0
await 1 'step  *20/'
kill_rank 1
end 17
grep -q 'rank 1 died, and no living rank holds its stages.*DP_ERR_LOST' "$work/err" || complain "v: nobody says what was lost"

# With checkpoints the run says so and goes on from the newest by itself, or from its begin before there is one; experts that have
# moved go back with it.
saves="--every 150 --checkpoint $work/ck"
await_checkpoint() {
    tries=$((3000 * scale))
    until ls "$work/ck" 2>/dev/null | grep -q step- || [ "$tries" -eq 0 ]; do
        tries=$((tries - 1))
        sleep 0.02
    done
}
for layout in '--schedule 1f1b --buddy 0' '--ep 2 --eplb 40 --skew 0.3'; do
    ranks 4 $options --losses "$work/undisturbed" $layout
    [ "$status" -eq 0 ] || complain "undisturbed: exit status $status"
    rm -rf "$work/ck" "$work/losses"
    begin "lost $layout" 3 4 --losses "$work/losses" $saves $layout
    await 1 'step  *2/'
    kill_rank 2
    await 1 'begun at step 0'
    await_checkpoint
    kill_rank 0
    end 0
    same_losses "$work/losses"
    grep -q 'resumed after [1-9]' "$work/out" || complain "$name: not resumed"
    grep -q 'a checkpoint has to be read' "$work/err" || complain "$name: not said"
done

# Without one a run with --eplb says at start that it survives no death.
for folder in '' "--checkpoint $work/ck --every 1"; do
    rm -rf "$work/ck"
    begin "eplb $folder" 1 2 --steps 2 --val-every 2 --ep 2 --eplb 1 $folder
    end 0
    [ "$(grep -c 'with --eplb and without --checkpoint a rank that dies ends the run' "$work/err")" -eq "$([ -n "$folder" ]; echo $?)" ] ||
        complain "$name: said, or not said"
done

# Both mirrors of DualPipe; then one, whose state the other has, so that no checkpoint is read.
ranks 4 $options --losses "$work/undisturbed"
rm -rf "$work/ck"
begin mirrors 3 4 --losses "$work/losses" $saves
await_checkpoint
kill_rank 1 2
await 1 'was replaced'
kill_rank 3
end 0
same_losses "$work/losses"
[ "$(grep -c 'resumed after' "$work/out")" -eq 1 ] || complain "$name: a checkpoint was read where a mirror lives, or none where none does"

# All ranks at once, before there is a checkpoint and behind one: nobody types --resume.
rm -rf "$work/ck" "$work/losses"
for every in 1000 150; do
    rm -rf "$work/ck" "$work/losses"
    begin "all $every" 4 4 --losses "$work/losses" --every $every --checkpoint "$work/ck"
    [ $every -eq 1000 ] && await 1 'step  *5/' || await_checkpoint
    kill -KILL $(for r in 0 1 2 3; do member $r; done)
    end 0
    same_losses "$work/losses"
    [ "$(grep -c 'resumed after [1-9]' "$work/out")" -eq $((every == 150)) ] || complain "$name: not resumed as it should be"
done

# SIGTERM: all save after the same step and end with 75; the run that resumes has the same losses.
rm -rf "$work/ck"
begin term 3 4 --losses "$work/losses" --every 1000 --checkpoint "$work/ck"
await 1 'step  *20/'
kill -TERM "$job"
end 75
grep -q 'SIGTERM: ended after step [0-9]*, which is saved in .*: --resume goes on' "$work/err" || complain "$name: not said"
ls "$work/ck" | grep -q step- || complain "$name: not saved"
begin 'term resumed' 3 4 --losses "$work/losses" --every 1000 --checkpoint "$work/ck" --resume
end 0
same_losses "$work/losses"

# Behind the last step, while the last save is on its way to a slow disk: with rank 0 its timeline is lost, and nothing else.
case " $CFLAGS " in
*-fsanitize*) slow= ;; # which has its own malloc
*) slow=$DP_TEST_BUILDDIR/tests/fault/.libs/failing_calls.so ;;
esac
for victim in ${slow:+0 2}; do
    rm -rf "$work/ck" "$work/losses" "$work/files"
    head -c 4096 /dev/zero >"$work/tally"
    DP_FAIL_TALLY=$work/tally DP_FAIL_CALL=fsync DP_FAIL_AT=1 DP_FAIL_ON=1 DP_FAIL_SLEEP_MS=400 LD_PRELOAD=$slow
    export DP_FAIL_TALLY DP_FAIL_CALL DP_FAIL_AT DP_FAIL_ON DP_FAIL_SLEEP_MS LD_PRELOAD
    begin "last $victim" 3 4 --losses "$work/losses" --every 1000 --checkpoint "$work/ck" --out "$work/files"
    unset LD_PRELOAD
    await 1 'step  *100/'
    target=$(member "$victim")
    await 1 'step  *400/'
    sleep 0.3
    kill -KILL "$target" || complain "$name: it had ended"
    end $((victim == 0))
    for file in trace.json costs.txt; do
        [ "$(grep -c "$file is not written: the timeline was lost" "$work/err")" -eq $((victim == 0)) ] || complain "$name: $file: said, or not said"
        if [ "$victim" -eq 0 ]; then [ ! -e "$work/files/$file" ]; else [ -s "$work/files/$file" ]; fi ||
            complain "$name: $file is empty, or there"
    done
    [ -s "$work/files/report.txt" ] && [ -s "$work/files/curve.svg" ] || complain "$name: a report or a curve is missing"
    same_losses "$work/losses"
    ls "$work/ck" | grep -q step-00000400 || complain "$name: the last save is missing"
    grep -q 'started again' "$work/err" || complain "$name: nobody was replaced"
done

# A run that was resumed is recovered as any other; a folder with another run's checkpoints is not begun in.
rm -rf "$work/ck"
begin resumed 3 4 --losses "$work/losses" $saves --resume
await 1 'step  *5/'
kill_rank 1
end 0
same_losses "$work/losses"
begin full 3 4 --losses "$work/losses" $saves
end 2
grep -q 'has a checkpoint after 400 steps: --resume' "$work/err" || complain "$name: begun beside another run's checkpoints"

finish
