#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_search_memory.sh: dualpipe search with layers to cut, ranks of different memory, and the frontier: what it says is what
# verify and simulate say of the files that it writes.
set -eu

subcommand=
. "$DP_TEST_SRCDIR/tests/integration/command.sh"

sizes="--ranks 4 --microbatches 12"
bytes="--activation-bytes 4GiB --weight-bytes 20GiB"
layers="--layers 1x13,3 --chunks 2,3"
option() { # NAME: of the last lines of out
    sed -n "s/^\(--$1 \)/\1/p" out
}

# ---- a rank with less memory ----
expect 0 search $sizes $bytes --memory 60GiB --seconds 0.5 --placement v --output all.tsv
expect 0 simulate all.tsv $bytes --memory 60GiB
expect 20 simulate all.tsv $bytes --memory 60GiB,0:30GiB
require err 'does not fit on rank 0 by .* 30 GiB are there$'
expect 20 verify all.tsv $bytes --memory 60GiB,0:30GiB
expect 0 search $sizes $bytes --memory 60GiB,0:30GiB --seconds 0.5 --placement v --output one.tsv
expect 0 simulate one.tsv $bytes --memory 60GiB,0:30GiB
expect 0 verify one.tsv $bytes --memory 0:30GiB
expect 20 search $sizes $bytes --memory 60GiB,3:21GiB --seconds 0.3
require err 'no schedule fits the memory; .* comes nearest: rank 3 holds '

# ---- with layers to cut, which such a rank gets fewer of ----
expect 0 search $sizes $bytes $layers --memory 60GiB,3:21GiB --seconds 1 --output cut.tsv
require out '^runners-up '
scale=$(option stage-scale) partition=$(option partition)
found=$(sed -n 's/^found  *\([0-9.]*\) .*/\1/p' out)
expect 0 simulate cut.tsv $bytes $partition $scale --memory 60GiB,3:21GiB
awk -v want="$found" '$1 == "step" {d = $2 / want - 1; exit !(d < 1e-5 && d > -1e-5)}' out || fail "search: found $found: $(cat out)"
expect 0 verify cut.tsv $bytes $partition --memory 60GiB,3:21GiB
expect 20 verify cut.tsv $bytes --memory 60GiB,3:21GiB
expect 0 search $sizes --cost attention.F=4,attention.I=9,attention.W=2,dispatch.F=7,dispatch.I=7,mlp.F=5,mlp.I=5,mlp.W=5,combine.F=9,combine.I=6,LAYERS=4 \
    --layers 1x13,3 --seconds 2 --output lanes.tsv
require out '^--partition [0-9,]*$'
expect 0 verify lanes.tsv

# ---- the frontier: each row fits the memory that it says and no less, and more memory is a shorter step ----
rows() { # OPTIONS: of every row
    cp out rows.csv
    awk -F, 'NR > 2 && !($1 > memory && $2 < step) {exit 1} {memory = $1; step = $2} END {exit NR < 3}' rows.csv ||
        fail "the frontier is none: $(cat rows.csv)"
    k=0
    sed 1d rows.csv >each
    while IFS=, read -r memory step rest; do
        k=$((k + 1))
        partition=${rest##*,} scale=
        if [ -n "$partition" ]; then
            partition=$(echo "$partition" | tr ' ' ,)
            scale="--stage-scale $(echo "$partition" | awk -F, '{at = 0
                for (s = 1; s <= NF; s++) {sum = 0; for (l = 0; l < $s; l++) sum += ++at == 14 ? 3 : 1; printf "%s%.9g", (s > 1 ? "," : ""), sum * NF / 16}}')"
        fi
        expect 0 simulate rows-$k.tsv $1 ${partition:+--partition $partition} $scale --memory "$memory"
        awk -v want="$step" '$1 == "step" {d = $2 / want - 1; exit !(d < 1e-5 && d > -1e-5)}' out || fail "row $k takes $step: $(cat out)"
        expect 20 verify rows-$k.tsv $1 ${partition:+--partition $partition} --memory "$(echo "$memory" | awk '{printf "%.0f", $1 * 0.999}')"
    done <each
}
expect 0 search $sizes $bytes --frontier --format csv --weights 2 --seconds 3 --output rows.tsv
rows "$bytes"
expect 0 search $sizes $bytes $layers --frontier --format csv --seconds 3 --memory 60GiB --output rows.tsv
rows "$bytes"
expect 0 search $sizes --frontier --format csv --seconds 2 --memory-cap 6 --output held.tsv
sed 1d out >each
k=0
while IFS=, read -r memory step rest; do
    k=$((k + 1))
    expect 0 verify held-$k.tsv --memory-cap "$memory"
done <each
[ $k -ge 2 ] || fail "the frontier has $k rows: $(cat each)"
expect 0 search $sizes $bytes --frontier --seconds 1
require out '^ *GiB  *step  *gain per unit '
expect 0 search $sizes --frontier --seconds 1 --format json
python3 -c 'import json; x = json.load(open("out"))["rows"]; assert x[0]["gain"] is None and all(a["memory"] < b["memory"] and b["gain"] > 0 for a, b in zip(x, x[1:]))' ||
    fail "frontier: $(cat out)"
expect 0 search $sizes --frontier --seconds 1 --format markdown
require out '^| memory | step_time | gain '
if "$dualpipe" compare $sizes --format svg --output a.svg 2>/dev/null; then
    expect 0 search $sizes --frontier --seconds 1 --picture b.svg
    head_is b.svg '<?xml'
    expect 2 search $sizes --frontier --seconds 1 --picture b.txt
fi

# ---- refusals ----
expect 2 search $sizes --picture b.svg
require err '.--picture goes with --frontier'
expect 2 search $sizes --format csv
expect 2 search $sizes $bytes --memory 60GiB,4:30GiB
require err 'memory 4:...: there are 4 ranks'
for list in 60GiB,70GiB 3: 3:x x:3 60GiB, 3:1,3:2 -1:3 3:0 99999:1; do
    expect 2 search $sizes $bytes --memory $list
done
expect 2 search $sizes --memory 3:30GiB
require err 'memory goes with --activation-bytes'
expect 2 search $sizes --layers 1x13 --stage-scale 1,1,1,1
expect 2 search $sizes --layers 1x3
require err '3 layers on 4 ranks'
expect 0 compare $sizes $bytes --memory 60GiB,3:30GiB
require out '^zb1p .*does not fit on rank 3 by 6 GiB: it holds 36 GiB at once, 30 GiB are there'
require out '^v-min .*x  *28$'
expect 2 simulate all.tsv --partition 4,4,4,4
require err 'partition goes with --activation-bytes'
expect 2 simulate all.tsv $bytes --partition 4,4,4
require err 'has 3 numbers, .* has 8 stages'
for list in 4,4,4,0 4,,4 4,4,4,4, 1.5; do
    expect 2 simulate all.tsv $bytes --partition $list
done
finish
