#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# failing_calls.sh: of the calls of 52 functions of libc that a training run makes with a checkpoint after each step, those of
# rank 0 (the hub), of rank 1 and of the launcher fail in turn, once and from then on: how often the run went on, ended with an
# error and a sentence, crashed, hung, failed without a word, or left something behind (the last four: exit status 1).
# Run in the build folder, after `make check TESTS=`:   ../bench/failing_calls.sh [MOST [WHO]]
# MOST calls of each function, from the first to the last [24; 0: all]; WHO: 0, 1, launcher [0,1,launcher].
set -eu

DUALPIPE_TIMEOUT_SCALE=0.1 # so that what waits for the one that failed does not wait long
OPENBLAS_NUM_THREADS=1
DUALPIPE_PLUGIN_PATH=$PWD/.libs
export DUALPIPE_TIMEOUT_SCALE OPENBLAS_NUM_THREADS DUALPIPE_PLUGIN_PATH

exec tests/fault/failing_sweep --who "${2:-0,1,launcher}" --most "${1:-24}" "$PWD/tests/fault/.libs/failing_calls.so" \
    ./dualpipe run --grace 2 -n 2 -- apps/train_moe/train_moe --layers 2 --hidden 8 --heads 2 --kv-heads 1 --experts 4 \
    --expert-hidden 8 --seq 8 --batch 1 --microbatches 4 --steps 2 --sample 0 --val-every 0 --data "$(dirname "$0")/../README.md" \
    --losses %D/losses --trace %D/trace.json --checkpoint %D/saved --every 1
