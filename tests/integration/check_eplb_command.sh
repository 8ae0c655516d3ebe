#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_eplb_command.sh: dualpipe eplb: recorded answers through files and pipes, the way from one placement to the next, every
# format, and what is refused.
set -eu

subcommand=eplb
. "$DP_TEST_SRCDIR/tests/integration/command.sh"
golden=$DP_TEST_DATA/eplb
table() { # FILE KEY NEXT: the rows of a recorded case between two words
    awk -v from="$2" -v to="$3" '$1 == to { on = 0 } on { print } $1 == from { on = 1 }' "$1"
}
without_comments() {
    grep -v '^#' "$1" | tr '\t' ' '
}

# ---- recorded answers ----
for name in readme hier_zipf_float global_zipf_int one_hot big_int_above_2pow24 dsv3_prefill_lognormal_int; do
    case=$golden/stable/$name.txt
    field() {
        awk -v key="$1" '$1 == key { print $2; exit }' "$case"
    }
    table "$case" weights phy2log >loads.tsv
    table "$case" phy2log logcnt >wanted
    sizes="--replicas $(field replicas) --groups $(field groups) --nodes $(field nodes) --gpus $(field gpus)"
    expect 0 $sizes --format tsv --output made.tsv loads.tsv
    without_comments made.tsv >got
    cmp -s wanted got || fail "$name is not what was recorded"
    expect 0 $sizes --format tsv --policy "$(field policy)" loads.tsv
    without_comments out >got
    cmp -s wanted got || fail "$name with its policy given is not what was recorded"
    "$dualpipe" eplb $sizes --format tsv - <loads.tsv >piped
    cmp -s piped made.tsv || fail "$name through a pipe differs"
done

# ---- the case of the published readme, in every format ----
case=$golden/stable/readme.txt
table "$case" weights phy2log >loads.tsv
sizes="--replicas 16 --groups 4 --nodes 2 --gpus 8"
expect 0 $sizes loads.tsv
require out '2 layers of 12 experts: 16 replicas on 8 GPUs, 2 nodes; hierarchical policy, 4 groups'
require out '^layer 0: 5 6 | 5 7 | 8 4 | 3 4 | 10 9 | 10 2 | 0 1 | 11 1$'
require out '^before '
require out '^after '
[ "$(tail -n 1 out | cut -c 1-6)" = 'after ' ] || fail "the summary does not come last"
expect 0 $sizes --format json loads.tsv
cp out now.json
require out '"physical_to_logical":\['
require out ' \[5,6,5,7,8,4,3,4,10,9,10,2,0,1,11,1\]'
require out ' \[\[12,-1\],\[15,13\],'
require out ' \[1,2,1,1,2,2,1,1,1,1,2,1\]'
expect 0 $sizes --format svg loads.tsv
head_is out '<?xml'
expect 0 $sizes --format pdf --output picture.pdf loads.tsv
head_is picture.pdf '%PDF'
expect 0 $sizes --form png --output picture.png loads.tsv
[ "$(head -c 4 picture.png | tail -c 3)" = PNG ] || fail "picture.png is not a PNG"

# JSON in: loads as an array of arrays, and under a key; the command's own output as the placement in use.
awk 'BEGIN { printf "[" } { printf "%s[", (NR > 1 ? "," : ""); for (i = 1; i <= NF; i++) printf "%s%s", (i > 1 ? "," : ""), $i; printf "]" }
    END { print "]" }' loads.tsv >bare.json
{ printf '{"step": 4, "loads":' && cat bare.json && printf '}\n'; } >keyed.json
for file in bare.json keyed.json; do
    expect 0 $sizes --format json "$file"
    cmp -s out now.json || fail "$file gives another answer than the table"
done
expect 0 $sizes --from now.json loads.tsv
require out '^0 of 32 replicas move, in 0 of 2 layers'

# ---- few moves ----
awk '{ for (i = 1; i <= NF; i++) printf "%s%s", int($i * (1 + ((i * 7 + NR * 3) % 5 - 2) / 10)), (i < NF ? "\t" : "\n") }' loads.tsv >later.tsv
expect 0 $sizes --policy global --format tsv --output now.tsv loads.tsv
expect 0 $sizes --policy global --format json later.tsv
moves() {
    sed -n 's/^"moves":{"replicas":\([0-9]*\),.*/\1/p' out
}
expect 0 $sizes --policy global --from now.tsv --format json later.tsv
few=$(moves)
expect 0 $sizes --policy global --from now.tsv --bound 2 --format json later.tsv
none=$(moves)
[ "$none" -eq 0 ] || fail "a wide bound moves $none"
expect 0 $sizes --policy global --from now.tsv --threshold 2 --expert-bytes 1000 later.tsv
require out '^0 of 32 replicas move.*; 0 bytes'
[ "$few" -le 24 ] || fail "$few of 32 replicas move"

# ---- more ways ----
expect 0 $sizes --steps 200 --seed 3 --format tsv --output one.tsv loads.tsv
expect 0 $sizes --steps 200 --seed 3 --format tsv --output two.tsv loads.tsv
cmp -s one.tsv two.tsv || fail "the same steps and seed give another answer"
expect 0 $sizes --seconds 0.05 --format json loads.tsv
expect 0 --replicas 17 --gpus 5 --nodes 2 --distinct loads.tsv
require out 'global policy\|hierarchical policy'
expect 0 $sizes --decay 0.5 loads.tsv later.tsv
expect 0 $sizes --decay 0 --format tsv --output last.tsv loads.tsv later.tsv
expect 0 $sizes --format tsv --output only.tsv later.tsv
cmp -s last.tsv only.tsv || fail "--decay 0 is not the last file alone"

# ---- refused ----
expect 2 $sizes
expect 2 --gpus 8 loads.tsv
expect 2 --replicas 16 loads.tsv
expect 2 $sizes --policy best loads.tsv
require err 'policy'
expect 2 $sizes --format csv loads.tsv
expect 2 --replicas 11 --gpus 4 loads.tsv
require err '11 replicas for 12 experts'
expect 2 --replicas 16 --gpus 17 loads.tsv
expect 2 --replicas 16 --gpus 0 loads.tsv
expect 2 --replicas 99999999999 --gpus 4 loads.tsv
expect 2 $sizes --bound 1.1 loads.tsv
require err 'need --from'
expect 2 $sizes --from - -
expect 2 $sizes --from now.tsv --bound 0.5 loads.tsv
expect 2 $sizes --decay 1 loads.tsv
expect 2 $sizes --wrong loads.tsv
expect 2 $sizes --nodes
expect 1 $sizes nowhere.tsv
require err 'nowhere.tsv'
expect 1 $sizes --output nowhere/out loads.tsv
printf '1 2 3\n4 5\n' >bad.tsv
expect 2 --replicas 4 --gpus 2 bad.tsv
require err 'bad.tsv:2'
printf '1 2 x\n' >bad.tsv
expect 2 --replicas 4 --gpus 2 bad.tsv
require err 'bad.tsv:1:5'
printf '1 nan 3\n' >bad.tsv
expect 2 --replicas 4 --gpus 2 bad.tsv
printf '1 1e999 3\n' >bad.tsv
expect 2 --replicas 4 --gpus 2 bad.tsv
printf '1 -2 3\n' >bad.tsv
expect 2 --replicas 4 --gpus 2 bad.tsv
require err 'expert 1'
printf '1 1e38 3e38\n' >bad.tsv
expect 2 --replicas 4 --gpus 2 bad.tsv
: >bad.tsv
expect 2 --replicas 4 --gpus 2 bad.tsv
printf '[[1, 2], [3]]' >bad.json
expect 2 --replicas 4 --gpus 2 bad.json
printf '{"other": [[1, 2]]}' >bad.json
expect 2 --replicas 4 --gpus 2 bad.json
printf '[[1, "2"]]' >bad.json
expect 2 --replicas 4 --gpus 2 bad.json
for bad in '[[1, 2' '[[1, 2]' '[[1, 2]] x' '[]' '[[]]' '[[1, [2]]]' '[1, 2]' '[[1, NaN]]' '[[1, 1e999]]' '{"loads": [[1, 2]]' '{"loads": 3}' \
    '{"loads": [[1, 2]], "loads": [[1, 2]]}' '{"loads": [[1, 2]]} 3' '[[1, 2],]' '{}'; do
    printf '%s' "$bad" >bad.json
    expect 2 --replicas 4 --gpus 2 bad.json
    require err 'bad.json'
done
printf '{"x": {"loads": 1}, "weight": [[7]], "loads": [[4, 1], [1, 5]], "y": []}' >good.json
expect 0 --replicas 4 --gpus 2 good.json
printf '4 1\n1 5\n' >good.tsv
"$dualpipe" eplb --replicas 4 --gpus 2 good.json --format tsv >good.1
"$dualpipe" eplb --replicas 4 --gpus 2 good.tsv --format tsv >good.2
cmp -s good.1 good.2 || fail "JSON and text of the same loads differ"
printf '0 1 2 3\n' >bad.tsv
expect 2 $sizes --from bad.tsv loads.tsv
without_comments now.tsv | sed 's/^[0-9]*/12/' >bad.tsv
expect 2 $sizes --from bad.tsv loads.tsv
require err 'there is no expert 12'
without_comments now.tsv | sed 's/[0-9][0-9]*/0/g' >bad.tsv
expect 2 $sizes --from bad.tsv loads.tsv
require err 'is in no slot'

# ---- the examples of --help work as written ----
cp loads.tsv keep.tsv
"$dualpipe" eplb --help | sed ':a;/\\$/{N;s/ *\\\n */ /;ba}' | sed -n 's/^  \(dualpipe eplb .*\)/\1/p' >examples
[ "$(wc -l <examples)" -eq 4 ] || fail "--help has not four examples"
while read -r line; do
    set -- $line
    shift 2
    expect 0 "$@"
done <examples
cmp -s loads.tsv keep.tsv || fail "an example changed its input"

finish
