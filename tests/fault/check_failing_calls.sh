#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_failing_calls.sh: a call of libc that fails, of memory, files, threads or sockets, in a rank, in rank 0 (the hub) or in
# the launcher of a training run, costs an error with a sentence or nothing at all: no crash, no hang, nothing left behind.
# A sample here; bench/failing_calls.sh tries them all.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

library=$DP_TEST_BUILDDIR/tests/fault/.libs/failing_calls.so
case " $CFLAGS " in
*-fsanitize*)
    echo "skipped: a sanitizer has its own malloc"
    exit 77
    ;;
esac
tiny="--layers 2 --hidden 8 --heads 2 --kv-heads 1 --experts 4 --expert-hidden 8 --seq 8 --batch 1 --microbatches 4 --steps 2
    --sample 0 --val-every 0 --data $DP_TEST_SRCDIR/README.md --losses %D/losses --checkpoint %D/saved --every 1"

DUALPIPE_TIMEOUT_SCALE=$(awk "BEGIN { print 0.1 * $scale }") # what waits for the one that failed need not wait long
export DUALPIPE_TIMEOUT_SCALE
sample() { # WHO CALLS
    "$DP_TEST_BUILDDIR/tests/fault/failing_sweep" --who "$1" --calls "$2" --most 2 --limit $((20 * scale)) "$library" \
        "$dualpipe" run --grace 1 -n 2 -- "$train" $tiny >"$work/out" 2>"$work/err" || complain "in $1"
    tail -n 1 "$work/out"
}
sample 0 malloc,posix_memalign,mmap,pthread_create,open,pwrite,rename,dlopen
sample 1 calloc,memfd_create,socket,posix_fallocate,fsync
sample launcher fork,pipe2,signalfd,execvp,poll,read,memfd_create

# Whatever becomes of the picture (fontconfig below cairo crashes where memory is short), all else is written.
head -c 4096 /dev/zero >"$work/tally"
(
    ulimit -c 0
    export DP_FAIL_TALLY="$work/tally" DP_FAIL_WHO=launcher DP_FAIL_CALL=malloc DP_FAIL_ON=1 DP_FAIL_FROM=libfontconfig
    LD_PRELOAD=$library "$train" --threads 2 $(echo "$tiny" | sed 's/--losses.*//') --out "$work/files" >"$work/out" 2>"$work/err"
)
for file in losses.txt costs.txt trace.json report.txt; do
    [ -s "$work/files/$file" ] || complain "$file was not written before the picture"
done
finish
