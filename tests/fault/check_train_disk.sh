#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_disk.sh: a disk that is full, over quota, read-only, broken or slow while checkpoints are saved costs those
# checkpoints and nothing else: the run goes on with the same losses and says what happened, the checkpoint before stays
# whole, the next save that can be made is made. A run whose last save failed ends with 1, as what was asked for is not there.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

library=$DP_TEST_BUILDDIR/tests/fault/.libs/failing_calls.so
case " $CFLAGS " in
*-fsanitize*)
    echo "skipped: a sanitizer has its own malloc, which the failing calls are preloaded before"
    exit 77
    ;;
esac
common="--steps 8 --val-every 0 --sample 0 --microbatches 8 --quiet --data $DP_TEST_SRCDIR/README.md --losses $work/losses"

same() { # WHAT [STATUS]
    [ "$status" -eq "${2:-0}" ] || complain "$1: exit status $status"
    cmp -s "$work/losses" "$work/undisturbed" || complain "$1: other losses"
    rm -f "$work/losses"
}
# The checkpoint after step 3 is there; those after 6 and 8 meet a disk that fails.
fails() { # WHAT CALL FIRST ERRNO SENTENCE [PATH]
    rm -rf "$work/ck"
    mkdir "$work/ck"
    cp -r "$work/good/step-00000003" "$work/ck/"
    head -c 4096 /dev/zero >"$work/tally"
    status=0
    DP_FAIL_TALLY=$work/tally DP_FAIL_WHO=launcher DP_FAIL_CALL=$2 DP_FAIL_AT=$3 DP_FAIL_ON=1 DP_FAIL_ERRNO=$4 DP_FAIL_PATH=${6:-$work/ck/} \
        LD_PRELOAD=$library timeout $((60 * scale)) "$train" $small --threads 2 $common --checkpoint "$work/ck" --every 3 --keep 0 \
        --resume >"$work/out" 2>"$work/err" </dev/null || status=$?
    same "$1" 1
    grep -q "the last save failed: the newest checkpoint in $work/ck is that of step [36]$" "$work/err" ||
        complain "$1: the newest checkpoint is not named"
    grep -q "step 8 was not saved: rank [01]: .*$5" "$work/err" || complain "$1 was not said"
    diff -r "$work/good/step-00000003" "$work/ck/step-00000003" >/dev/null || complain "$1: the checkpoint before is not what it was"
    threads 2 $common --checkpoint "$work/ck" --every 3 --keep 0 --resume
    same "resumed after $1"
    [ -d "$work/ck/step-00000008" ] || complain "resumed after $1: not saved, on a disk that works again"
    left=$(find "$work/ck" -name '*partial*')
    [ -z "$left" ] || complain "resumed after $1: left behind: $left"
}

threads 2 $common --checkpoint "$work/good" --every 3 --keep 0
[ "$status" -eq 0 ] || complain "undisturbed: exit status $status"
mv "$work/losses" "$work/undisturbed"

fails 'a full disk' pwrite 1 28 'No space left on device'
fails 'a disk that fills up' pwrite 30 28 'No space left on device'
fails 'a quota' pwrite 1 122 'Disk quota exceeded'
fails 'a quota at the end' fsync 2 122 'Disk quota exceeded'
fails 'a read-only disk' mkdir 1 30 'Read-only file system'
fails 'a disk turned read-only' open 2 30 'Read-only file system' .partial
fails 'a disk that loses what it was given' fsync 3 5 'Input/output error'
fails 'no room for a name' rename 1 28 'No space left on device'

# A folder that takes nothing is known before the training.
refused() { # WHAT CALL ERRNO SENTENCE
    head -c 4096 /dev/zero >"$work/tally"
    status=0
    DP_FAIL_TALLY=$work/tally DP_FAIL_WHO=launcher DP_FAIL_CALL=$2 DP_FAIL_AT=1 DP_FAIL_ON=1 DP_FAIL_ERRNO=$3 DP_FAIL_PATH=$work/none/ \
        LD_PRELOAD=$library timeout $((60 * scale)) "$train" $small --threads 2 $common --checkpoint "$work/none" \
        >"$work/out" 2>"$work/err" </dev/null || status=$?
    expect 1 err "nothing can be written to $work/none: $4" "$1"
    [ ! -s "$work/losses" ] || complain "$1: it has trained"
    left=$(find "$work/none" -type f)
    [ -z "$left" ] || complain "$1: left behind: $left"
}
refused 'a folder on a read-only disk' open 30 'Read-only file system'
refused 'a folder on a full disk' fsync 28 'No space left on device'

# A limit of file sizes is one more disk that fails, not the end.
rm -rf "$work/ck"
(ulimit -f 8 && exec "$train" $small --threads 1 ${common% --losses *} --checkpoint "$work/ck") >"$work/out" 2>"$work/err" </dev/null
status=$?
expect 1 err 'the last save failed: .* has no checkpoint' 'a limit of file sizes'
grep -q 'File too large' "$work/err" || complain 'a limit of file sizes is not named'

# Losses that the disk did not take, though the file did.
head -c 4096 /dev/zero >"$work/tally"
status=0
DP_FAIL_TALLY=$work/tally DP_FAIL_WHO=launcher DP_FAIL_CALL=fsync DP_FAIL_AT=1 DP_FAIL_PATH=$work/losses LD_PRELOAD=$library \
    timeout $((60 * scale)) "$train" $small --threads 2 $common >"$work/out" 2>"$work/err" </dev/null || status=$?
expect 1 err "$work/losses: Input/output error (DP_ERR_IO)" 'losses that are not on the disk'
[ ! -e "$work/losses" ] || complain 'losses that are not on the disk: a file is there'

# A report that memory was short for: each call from the n-th on fails, the first ones before the training.
at=4
found=0
status=18
while [ "$status" -ne 0 ] && [ "$at" -lt 60 ]; do
    at=$((at + 1))
    head -c 4096 /dev/zero >"$work/tally"
    rm -f "$work/losses"
    status=0
    DP_FAIL_TALLY=$work/tally DP_FAIL_WHO=launcher DP_FAIL_CALL=realloc DP_FAIL_AT=$at DP_FAIL_ON=1 LD_PRELOAD=$library \
        timeout $((60 * scale)) "$train" $small --threads 1 $common --report "$work/report" >"$work/out" 2>"$work/err" </dev/null || status=$?
    if grep -q 'no memory for all of the report' "$work/err"; then
        found=$((found + 1))
        [ "$status" -eq 1 ] && [ -s "$work/losses" ] || complain "a cut report: exit status $status, or no losses"
    fi
done
[ "$status" -eq 0 ] && grep -q '^memory ' "$work/report" && [ "$found" -gt 0 ] || complain "a report without memory: $found times, then status $status"
rm -f "$work/losses"

# A slow disk: steps do not wait for it; a save that finds the last one on its way is left out, and the last one is made.
rm -rf "$work/ck"
head -c 4096 /dev/zero >"$work/tally"
status=0
DP_FAIL_TALLY=$work/tally DP_FAIL_WHO=launcher DP_FAIL_CALL=fsync DP_FAIL_ON=1 DP_FAIL_SLEEP_MS=300 LD_PRELOAD=$library \
    timeout $((60 * scale)) "$train" $small --threads 2 $common --checkpoint "$work/ck" --every 1 --keep 0 --report "$work/report" \
    >"$work/out" 2>"$work/err" </dev/null || status=$?
same 'a slow disk'
grep -q 'is not saved: step [0-9]* is still being written' "$work/err" || complain 'a slow disk was not said'
left=$(grep -c 'is not saved: step [0-9]* is still being written' "$work/err")
grep -q "^saved .* $left of 8 checkpoints were left out" "$work/report" || complain "a slow disk: the report does not sum up $left: $(cat "$work/report")"
[ -f "$work/ck/step-00000008/model.safetensors.index.json" ] || complain 'a slow disk: the last checkpoint is not there'
rm -rf "$work/ck/step-00000008"
threads 2 $common --checkpoint "$work/ck" --every 100 --resume
same 'resumed after a slow disk'
finish
