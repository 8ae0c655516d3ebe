#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_finite.sh: train_moe --check-finite ends where the first value is not finite, and says in which operation and
# micro-batch; it changes no bit of a run in which all are.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

common="--steps 6 --val-every 0 --sample 0 --quiet"
ranks 4 $common --losses "$work/plain"
ranks 4 $common --losses "$work/checked" --check-finite
[ "$status" -eq 0 ] || complain "exit status $status"
cmp -s "$work/plain" "$work/checked" || complain "other losses with --check-finite"

# Weights grow a millionfold each step, until a product overflows on the first stage, which ranks 0 and 3 both have; without
# the option the last one's loss is told, by either of them.
grow="--steps 60 --lr 1000 --min-lr 1000 --weight-decay 1000 --clip 0 --warmup 0 --val-every 0 --sample 0 --quiet"
ranks 4 $grow --check-finite
expect 16 err 'rank [03]: step [0-9]*: [a-z]*(F) of stage 0, chunk [01], micro-batch [0-7]: the output is not finite: element [0-9]* of 64 is ' "overflow"
ranks 4 $grow
expect 16 err 'rank [03]: step [0-9]*: the loss of micro-batch' "overflow without --check-finite"
finish
