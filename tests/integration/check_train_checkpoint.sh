#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_checkpoint.sh: a run that was killed goes on from its checkpoint with the losses of one that never was, to the last
# bit: on half and twice the ranks, with other schedules, as processes or threads, over other transports; what Python's safetensors
# reads is what was written; a full disk costs the checkpoint and nothing else.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

common="--steps 8 --val-every 3 --sample 0 --microbatches 8 --quiet"
losses="--losses $work/losses"

same() { # REFERENCE WHAT [STATUS]
    [ "$status" -eq "${3:-0}" ] || complain "$2: exit status $status"
    cmp -s "$work/losses" "$work/$1" || complain "$2: other losses than $1: $(diff "$work/$1" "$work/losses" | head -n 4)"
    rm -f "$work/losses"
}
# The checkpoint after step 3 alone, as a run that was killed in step 4, 5 or 6 leaves it.
interrupted() { # NAME
    rm -rf "$work/ck"
    mkdir "$work/ck"
    cp -r "$work/$1/step-00000003" "$work/ck/"
}
resume="--checkpoint $work/ck --every 100 --resume"

threads 4 $common $losses
mv "$work/losses" "$work/one"
threads 4 $common $losses --checkpoint "$work/saved" --every 3 --keep 2
same one "saving"
# Step 6 is left out where step 3 is still being written then.
ls "$work/saved" | tr '\n' ' ' | grep -qx 'step-0000000[36] step-00000008 ' || complain "--keep 2 left $(ls "$work/saved")"
threads 4 $common --checkpoint "$work/all" --every 3 --keep 0

for n in 1 2 4 8; do
    interrupted all
    threads $n $common $losses $resume $([ $n -lt 8 ] || echo --schedule 1f1b)
    same one "4 ranks saved, $n threads resumed"
done
for schedule in gpipe interleaved zb1p zbv dualpipev; do
    interrupted all
    threads 4 $common $losses $resume --schedule $schedule
    same one "dualpipe saved, $schedule resumed"
done
interrupted all
ranks 4 $common $losses $resume
same one "threads saved, processes resumed"
if [ -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ]; then
    interrupted all
    ranks 2 $common $losses $resume --comm ofi
    same one "comm_shm saved, comm_ofi resumed"
fi

# Experts over two ranks, with replicas that have moved; the data group of as many replicas has the same data.
eplb="--ep 2 --eplb 2 --skew 0.3 --bias-rate 0"
threads 4 $common $eplb $losses --checkpoint "$work/eplb" --every 3 --keep 0
mv "$work/losses" "$work/moved"
interrupted eplb
threads 4 $common $eplb $losses $resume
same moved "replicas that had moved"
interrupted eplb
threads 2 $common $eplb $losses $resume
same moved "replicas that had moved, half the pipeline"

threads 4 --dp 2 $common $losses --checkpoint "$work/dp" --every 3 --keep 0
mv "$work/losses" "$work/two"
interrupted dp
threads 4 --ep 2 $common $losses $resume
[ "$status" -eq 0 ] || complain "dp 2 saved, ep 2 resumed: exit status $status"
[ "$(sed -n 5p "$work/losses" | cut -d' ' -f1,2)" = "$(sed -n 5p "$work/two" | cut -d' ' -f1,2)" ] ||
    complain "dp 2 saved, ep 2 resumed: another first loss: $(sed -n 5p "$work/losses"), $(sed -n 5p "$work/two")"

# Killed at any moment, then resumed by as many ranks or others.
for moment in 0.3 0.5 0.8 1.2; do
    rm -rf "$work/ck" "$work/losses"
    timeout -s KILL "$moment" "$train" $small --threads 4 $common --checkpoint "$work/ck" --every 1 >/dev/null 2>&1 </dev/null
    threads 2 $common $losses --checkpoint "$work/ck" --every 100 --resume
    if grep -q 'has had its' "$work/err"; then continue; fi
    same one "killed after $moment s"
done

# Broken, foreign, of another model.
interrupted all
cp -r "$work/all/step-00000008" "$work/ck/"
printf x | dd of="$work/ck/step-00000008/model-00002-of-00004.safetensors" bs=1 seek=20000 conv=notrunc 2>/dev/null
threads 4 $common $losses $resume
grep -q 'step-00000008/model-00002-of-00004.safetensors: tensor .* an earlier one is tried' "$work/err" ||
    complain "a broken checkpoint was not named"
same one "the newest is broken"
# Folders of thousands of saves that came to nothing: one look and one sentence for all of them.
interrupted all
seq -f "$work/ck/step-%08g" 5 3004 | xargs mkdir
threads 4 $common $losses $resume
same one "3,000 folders without an index"
[ "$(grep -c '' "$work/err")" -eq 1 ] || complain "3,000 folders without an index: $(head -n 3 "$work/err")"
grep -q 'folders without an index are passed over, as that of step 3004' "$work/err" || complain "folders without an index are not told of"
interrupted all
threads 4 $common $resume --hidden 16
[ "$status" -ne 0 ] || complain "another model was loaded"
grep -q 'tensor .* elements of' "$work/err" || complain "another model: no tensor is named"
interrupted all
threads 4 $common $resume --layers 4
grep -q 'larger model' "$work/err" || complain "a smaller model was loaded: $(cat "$work/err")"
interrupted all
threads 4 $common $resume --seed 2
expect 2 err 'seed is 2, that of the run' "another seed"
threads 4 $common --resume
expect 2 err 'goes with --checkpoint' "--resume alone"

# What makes another run is refused, with both values; also where the newest checkpoint is broken and another one is taken.
differs() { # SENTENCE OPTIONS...
    sentence=$1
    shift
    interrupted all
    cp -r "$work/all/step-00000008" "$work/ck/"
    printf x | dd of="$work/ck/step-00000008/model-00002-of-00004.safetensors" bs=1 seek=20000 conv=notrunc 2>/dev/null
    threads 4 $common $resume "$@"
    expect 2 err "$sentence: it would not be the same run" "$*"
}
there="that of the run in $work/ck was"
differs "--seed is 2, $there 1" --seed 2
differs "--data is [0-9a-f]* (hash of the text), $there [0-9a-f]* (hash of the text)" --data "$DP_TEST_SRCDIR/CHANGELOG.md"
differs "--gate is softmax, $there sigmoid" --gate softmax
differs "--top-k is 1, $there 2" --top-k 1
differs "--aux-alpha is 0.5, $there 0" --aux-alpha 0.5
differs "--seq is 4, $there 8" --seq 4
differs "--batch is 2, $there 1" --batch 2
differs "--microbatches is 10, $there 8" --microbatches 10
differs "--accumulate is 2, $there 1" --accumulate 2
differs "--documents is 1, $there 0" --documents
differs "--varlen is 1, $there 0" --varlen
differs "--steps is 7, $there 8" --steps 7

# What changes the losses from now on alone is told of.
interrupted all
threads 4 $common $resume --lr 0.5 --warmup 9 --bias-rate 0 --clip 2
[ "$status" -eq 0 ] || complain "another learning rate: exit status $status"
for change in '--lr is 0.5 .* was 0.004' '--warmup is 9 .* was 2' '--bias-rate is 0 .* was 0.002' '--clip is 2 .* was 1'; do
    grep -q -e "^train_moe: $(echo "$change" | sed "s|\.\* was|from now on, in the run in $work/ck it was|")" "$work/err" ||
        complain "not told: $change"
done
interrupted all
threads 4 $common $resume
[ -s "$work/err" ] && complain "a run that goes on as it was is told of"
threads 2 --dp 2 $common $resume
grep -q 'has had its 8 steps' "$work/err" || complain "a run that is over goes on: $(cat "$work/err")"

# More steps than planned: those that were taken stay.
interrupted all
threads 4 $common $losses --steps 12 $resume
[ "$status" -eq 0 ] || complain "more steps: exit status $status"
grep -q -e "--steps is 12 from now on, in the run in $work/ck it was 8" "$work/err" || complain "more steps are not told of"
[ "$(grep -c '' "$work/losses")" -eq $(($(grep -c '' "$work/one") + 4)) ] || complain "more steps: $(cat "$work/losses")"
[ "$(head -n 4 "$work/losses")" = "$(head -n 4 "$work/one")" ] || complain "more steps: other losses before"
[ -d "$work/ck/step-00000012" ] || complain "more steps: not saved"

# Micro-batches follow the ranks where none are given: a run that goes on keeps its own.
free=$(echo "$common" | sed 's/--microbatches 8 //')
interrupted all
threads 8 $free $losses $resume
same one "4 ranks saved, 8 resumed with no micro-batches named"
threads 8 $free $losses --checkpoint "$work/wide" --every 3 --keep 0
mv "$work/losses" "$work/sixteen"
interrupted wide
threads 4 $free $losses $resume
same sixteen "8 ranks saved, 4 resumed with no micro-batches named"

# A folder of 100 KiB: the run goes on, says so, and ends with 1, as its last step is not on the disk.
if unshare -m true 2>/dev/null && mkdir "$work/full" && unshare -m sh -c "mount -t tmpfs -o size=400k none $work/full" 2>/dev/null; then
    unshare -m sh -c "mount -t tmpfs -o size=400k none $work/full && { \"\$@\"; status=\$?; ls $work/full >$work/left; exit \$status; }" sh \
        "$train" $small --threads 4 $common $losses --checkpoint "$work/full" --every 3 --keep 0 >"$work/out" 2>"$work/err" </dev/null
    status=$?
    grep -q 'was not saved: rank .*No space left' "$work/err" || complain "a full disk was not said"
    same one "a full disk" 1
    grep -q step-00000003 "$work/left" || complain "a full disk took the checkpoint that was there"
else
    echo "skipped in part: no file system can be mounted here, so no disk was full"
fi

# A folder that somebody removes in mid-run is made again.
threads 4 $losses --steps 150 --val-every 0 --sample 0 --microbatches 8 --quiet --checkpoint "$work/gone" --every 1 --keep 2 &
run=$!
tries=$((600 * scale))
until ls "$work/gone" 2>/dev/null | grep -q '^step-' || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    sleep 0.02
done
mv "$work/gone" "$work/taken"
wait "$run"
[ -d "$work/taken/step-00000150" ] && complain "a folder was not removed in time"
[ -f "$work/gone/step-00000150/model.safetensors.index.json" ] || complain "a removed folder was not made again"

# Somebody else's reader.
python=python3
if ! python3 -c 'import safetensors' 2>/dev/null; then
    python=$work/venv/bin/python
    python3 -m venv "$work/venv" >/dev/null 2>&1 &&
        "$work/venv/bin/pip" -q --timeout 5 --retries 0 install safetensors >/dev/null 2>&1 || python=
fi
if [ -n "$python" ]; then
    "$python" - "$work/all/step-00000003" >"$work/out" 2>"$work/err" <<'PY' || complain "Python's safetensors does not agree"
import glob, json, sys
import safetensors
folder = sys.argv[1]
index = json.load(open(folder + "/model.safetensors.index.json"))
seen = {}
size = 0
for path in glob.glob(folder + "/*.safetensors"):
    for name, tensor in safetensors.deserialize(open(path, "rb").read()):
        seen[name] = path.split("/")[-1]
        size += len(tensor["data"])
        assert tensor["dtype"] in ("F32", "F64", "I64", "U8"), tensor["dtype"]
assert seen == index["weight_map"] and len(seen) > 500, len(seen)
assert size == index["metadata"]["total_size"]
PY
else
    echo "skipped in part: Python's safetensors is neither here nor can it be installed"
fi

finish
