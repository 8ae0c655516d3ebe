#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# draw_eplb.sh: the picture of docs/eplb.md: recorded loads, placed.   make eplb-picture
# usage: draw_eplb.sh DUALPIPE TOP
set -eu
dualpipe=$1
top=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk '$1 == "phy2log" { on = 0 } on { print } $1 == "weights" { on = 1 }' \
    "$top/tests/data/eplb/stable/dsv3_prefill_lognormal_int.txt" >"$work/loads.tsv"
"$dualpipe" eplb --replicas 288 --groups 8 --nodes 4 --gpus 32 --format png --output "$top/docs/eplb.png" "$work/loads.tsv"
