#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# draw_eplb.sh: the picture of docs/eplb.md: recorded loads, placed.   make eplb-picture
# usage: draw_eplb.sh DUALPIPE TOP
set -eu
dualpipe=$1
top=$2
"$dualpipe" eplb --replicas 288 --groups 8 --nodes 4 --gpus 32 --format png --output "$top/docs/eplb.png" "$top/docs/eplb/loads.tsv"
