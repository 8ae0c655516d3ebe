#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_folder.sh: a checkpoint folder belongs to one run. While a job saves into it a second one is refused at once,
# by the name of the first; also where rank 0 of the first is killed and replaced. A job that is gone holds nothing.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

common="--val-every 0 --sample 0 --microbatches 8 --quiet --every 5 --keep 2 --data $DP_TEST_SRCDIR/README.md"
folder=$work/shared

begin() { # NAME OPTIONS...: a job that runs until it is killed
    mark=$$.$1
    shift
    DP_TEST_CASE=$mark "$dualpipe" run --respawn 2 -n 2 -- "$train" $small $common --checkpoint "$folder" --steps 1000000 "$@" \
        >"$work/first" 2>&1 </dev/null &
    job=$!
    tries=$((1500 * scale))
    until ls "$folder" 2>/dev/null | grep -q '^step-' || [ "$tries" -eq 0 ]; do
        tries=$((tries - 1))
        sleep 0.02
    done
}
second() { # WHAT [OPTIONS...]: is refused
    what=$1
    shift
    ranks 2 $common --checkpoint "$folder" --steps 5 --seed 2 "$@"
    expect 2 err "another job saves into $folder: process $(member 0) on $(uname -n)" "$what"
}

begin first
second 'a second job'
second 'a second job that resumes' --seed 1 --resume --steps 1000000

# Others ask all the time while rank 0 is killed and replaced: none of them gets the folder meanwhile.
rm -f "$work/taken" "$work/enough"
while [ ! -e "$work/enough" ]; do
    flock -n -x "$folder/.lock" touch "$work/taken"
done &
poll=$!
old=$(member 0)
kill -KILL "$old"
tries=$((1500 * scale))
until grep -q 'process' "$folder/.lock" && ! grep -q "process $old " "$folder/.lock" || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    sleep 0.02
done
touch "$work/enough"
wait "$poll"
[ -e "$work/taken" ] && complain "the folder was free while rank 0 was replaced"
second 'a second job after a death'

# Nobody lives any more.
kill -KILL "$job"
wait "$job" 2>/dev/null
tries=$((1500 * scale))
until [ -z "$(members)" ] || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    sleep 0.02
done
ranks 2 $common --checkpoint "$folder" --steps 5
expect 2 err "$folder has a checkpoint after [0-9]* steps: --resume goes on with it" 'a folder of a job that was killed'

# A run keeps its id over all jobs that go on with it, and --keep counts and removes its own checkpoints alone.
run_of() { sed -n 's/.*"run": "\([0-9a-f]*\)".*/\1/p' "$1/model.safetensors.index.json"; }
rm -rf "$folder" "$work/foreign"
ranks 2 $common --checkpoint "$folder" --steps 5
ranks 2 $common --checkpoint "$work/foreign" --steps 3
run=$(run_of "$folder/step-00000005")
[ -n "$run" ] || complain "a checkpoint does not say its run"
[ "$run" != "$(run_of "$work/foreign/step-00000003")" ] || complain "two runs have the same id"
cp -r "$work/foreign/step-00000003" "$folder/"
ranks 2 $common --checkpoint "$folder" --steps 7 --resume --keep 1
[ "$run" = "$(run_of "$folder/step-00000007")" ] || complain "a run that goes on has another id"
[ "$(ls "$folder" | tr '\n' ' ')" = 'step-00000003 step-00000007 ' ] || complain "--keep 1 left $(ls "$folder")"

# Who takes away the lock from below a job: the job notices it at its next save.
rm -rf "$folder"
begin robbed
rm "$folder/.lock"
(flock -x 9 && exec sleep 1000) 9>"$folder/.lock" &
thief=$!
tries=$((1500 * scale))
until grep -q "was not saved: rank 0: another job saves into $folder" "$work/first" || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    sleep 0.02
done
[ "$tries" -gt 0 ] || complain "a job whose lock was taken saves on: $(tail -n 3 "$work/first")"
kill -KILL "$job" "$thief"
wait "$job" "$thief" 2>/dev/null

# Where all ranks were started again, what holds the lock may be what is left of them on a lost host: they wait, and not for ever.
rm -rf "$folder"
DUALPIPE_TIMEOUT_SCALE=$(awk "BEGIN { print 0.05 * $scale }") begin waiting
rm "$folder/.lock"
(flock -x 9 && exec sleep 1000) 9>"$folder/.lock" &
thief=$!
kill -KILL "$(member 0)" "$(member 1)"
begun=$(date +%s)
status=0
wait "$job" || status=$?
took=$(($(date +%s) - begun))
[ "$status" -eq 2 ] || complain "status $status after a lock that never came free"
[ "$took" -ge $((4 * scale)) ] && [ "$took" -le $((20 * scale)) ] || complain "the lock was waited for during $took s"
grep -q "another job saves into $folder.*which has up to 120 s to end" "$work/first" || complain "not said what is waited for: $(tail -n 3 "$work/first")"
kill -KILL "$thief"
wait "$thief" 2>/dev/null

# Two that begin together: one trains to its end, the other is refused, and all that is there is of the first.
for n in 1 2 3; do
    rm -rf "$folder"
    for seed in 1 2; do
        (
            status=0
            timeout $((60 * scale)) "$train" $small --threads 2 $common --checkpoint "$folder" --steps 60 --seed $seed \
                >/dev/null 2>"$work/err$seed" </dev/null || status=$?
            echo $status >"$work/status$seed"
        ) &
    done
    wait
    case "$(cat "$work/status1") $(cat "$work/status2")" in
    '0 2') seed=1 other=2 ;;
    '2 0') seed=2 other=1 ;;
    *) complain "two jobs began together: $(cat "$work/status1" "$work/status2" "$work/err1" "$work/err2")" && continue ;;
    esac
    grep -q "another job saves into\|has a checkpoint after" "$work/err$other" || complain "not said why: $(cat "$work/err$other")"
    [ -d "$folder/step-00000060" ] || complain "the last step is not there: $(ls "$folder")"
done
finish
