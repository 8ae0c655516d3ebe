#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_schedule_commands.sh: every form of schedule, verify, simulate and compare: what they print, what they refuse, and
# their exit codes.
set -eu

subcommand=
. "$DP_TEST_SRCDIR/tests/integration/command.sh"
golden=$DP_TEST_DATA/schedules

# ---- schedule ----
sizes="--ranks 4 --microbatches 8"
expect 0 schedule --method dualpipe $sizes
require out '^rank 3: F1.0 F1.1 F1.2 F0.0 I0.0 W0.0 F0.1 (F1.3|B0.1) (F0.2|B1.0)'
[ "$(grep -c '^rank' out)" -eq 4 ] || fail "text: not a line per rank"
expect 0 schedule --method dualpipe $sizes --rank 2
[ "$(grep -c '^rank' out)" -eq 1 ] || fail "--rank 2: not one line"
require out '^rank 2:'
expect 0 schedule --method 1f1b $sizes
require out '^rank 0: F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7$'

# The computing rows of the recorded schedules, numbered anew.
rows() {
    awk -F'\t' '!/^#/ && $3 !~ /^(RF|RB|SF|SB|C)$/ { if ($1 != rank) { rank = $1; n = 0 }
        print $1, n++, $3, $4, $5, $6, $7 }' "$1"
}
for file in "$golden"/dualpipe_r*.tsv "$golden"/dualpipev_r*.tsv "$golden"/1f1b_r*.tsv; do
    name=$(basename "$file" .tsv)
    only=
    case $name in *_infer) only=--forward-only ;; esac
    method=${name%%_*}
    ranks=$(echo "$name" | sed 's/.*_r\([0-9]*\)_.*/\1/')
    microbatches=$(echo "$name" | sed 's/.*_c\([0-9]*\).*/\1/')
    expect 0 schedule --method "$method" --ranks "$ranks" --microbatches "$microbatches" $only --format tsv --output made.tsv
    rows "$file" >wanted
    rows made.tsv >got
    cmp -s wanted got || fail "$name is not what was recorded"
    expect 0 verify made.tsv
    expect 0 verify "$file"
done

expect 0 schedule --method dualpipe $sizes --format tsv --comm
require out "	SF	"
require out "	RB	"
require out "	C	"
cp out comm.tsv
rows comm.tsv >with
expect 0 schedule --method dualpipe $sizes --format tsv
rows out >without
cmp -s with without || fail "--comm changes the computing rows"
expect 0 verify comm.tsv

expect 0 schedule --method dualpipev --ranks 2 --microbatches 4 --format csv
require out '^0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,'
[ "$(wc -l <out)" -eq 2 ] || fail "csv: not a row per rank"
for method in dualpipe zbv interleaved; do
    expect 0 schedule --method $method --ranks 4 --microbatches 8 --format csv --output file.csv
    expect 0 verify file.csv
done
printf '0F0,0B0\n1F0,1X0\n' >broken.csv
expect 20 verify broken.csv
require err "broken.csv:2: cell 2 '1X0'"

# There and back: tsv, csv, tsv.
for method in 1f1b zbv dualpipe interleaved; do
    expect 0 schedule --method $method --ranks 4 --microbatches 8 --format tsv --output one.tsv
    expect 0 schedule one.tsv --format csv --output two.csv
    expect 0 schedule two.csv --format tsv --output three.tsv
    sed 's/method=[^ ]*/method=custom/' one.tsv >wanted
    cmp -s wanted three.tsv || fail "$method: what came back from csv is another schedule"
done
expect 2 schedule one.tsv --ranks 4
expect 1 schedule no-such-file.tsv
# What PyTorch writes, and an order of transfers in which it would hang.
for file in "$DP_TEST_DATA"/torch/*.csv; do
    expect 0 verify "$file"
    require out '^transfers of the file checked  *[1-9]'
    expect 0 verify "$file" --transport group
    expect 0 simulate "$file" --format json
done
printf '0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_B0,1B0\n' >early.csv
expect 20 verify early.csv --transport group
require err "early.csv:2: cell 3 '1SEND_B0': it is sent before it is computed"
expect 20 verify early.csv
printf '0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n' >stuck.csv
expect 20 verify stuck.csv
require err 'dualpipe verify: stuck.csv: deadlock, a cycle of 2 waits: row 1, cell 2 (0B0) waits for row 2, cell 3 (1B0)'

# An order that PyTorch runs, whose messages wait long for their use: how many slots it takes, in the words of the file.
expect 0 schedule --method looped_bfs --ranks 2 --microbatches 10 --format csv --output bfs.csv
expect 0 verify bfs.csv
require out ', transport credits:5$'
require out '^fewest slots that are safe  *5, more than '
expect 0 simulate bfs.csv
require out ', transport credits:5$'
expect 0 verify bfs.csv --transport group
for command in verify simulate; do
    expect 20 $command bfs.csv --transport credits:2
    require err "dualpipe $command: bfs.csv: completes with 5 slots a channel, not with 2: deadlock, a cycle of 2 waits: "
    require err ': the message of row 1, cell 6 (0F5) to row 2 waits for row 2, cell 4 (1F3), which comes after the message of row 2, '
    grep '(line' err && fail "$command: names lines that bfs.csv does not have"
done
# As spreadsheets write it.
expect 0 schedule --method dualpipev --ranks 2 --microbatches 4 --format csv --output plain.csv
expect 0 schedule plain.csv --format tsv --output plain.tsv
sed 's/[^,]*/"&"/g' plain.csv >quoted.csv
sed 's/,/;/g; s/$/\r/' plain.csv >semicolons.csv
sed 's/[^,]*/"&"/g; s/,/;/g' plain.csv >both.csv
{ printf '\357\273\277'; cat plain.csv; } >mark.csv
for file in quoted semicolons both mark; do
    expect 0 schedule $file.csv --format tsv --output again.tsv
    cmp -s plain.tsv again.tsv || fail "$file.csv is another schedule"
done
expect 0 verify both.csv
printf '0F0;0B0\n"1F0";"1X0"\n' >broken.csv
expect 20 verify broken.csv
require err "broken.csv:2: cell 2 '1X0': no such operation"
printf '"0F0,0B0\n' >broken.csv
expect 20 verify broken.csv
require err "broken.csv:1: cell 1 '\"0F0,0B0': a stage number"
printf '(0F0;1B0,0F1\n' >broken.csv
expect 20 verify broken.csv
require err "broken.csv:1: cell 1 '(0F0;1B0': ')' is missing"

for format in svg png pdf; do
    expect 0 schedule --method dualpipe $sizes --format $format --output picture.$format
done
if [ -s picture.svg ]; then
    head_is picture.svg '<?xml'
    head_is picture.pdf '%PDF-'
    [ "$(head -c 4 picture.png | od -An -tx1 | tr -d ' \n')" = 89504e47 ] || fail "picture.png is no PNG"
fi
# SVG takes no cairo: text is text, every operation has a title, names are no tags.
expect 0 schedule --method 1f1b --ranks 4 --microbatches 6 --format svg --output picture.svg
[ "$(grep -c '<rect.*<title>rank [0-3]: [FB] [0-5], [0-9.]* to [0-9.]*</title></rect>' picture.svg)" -eq 48 ] || fail "48 operations have $(grep -c '<title>' picture.svg) titles"
require picture.svg '<text [^>]*>rank 3</text>'
expect 0 schedule --method 1f1b --ranks 2 --microbatches 2 --format tsv --output named.tsv
sed 's/method=1f1b/method=<b>\&/' named.tsv >mutant.tsv
expect 0 schedule mutant.tsv --format svg --output picture.svg
require picture.svg '>&lt;b&gt;&amp;: 2 ranks'
expect 0 schedule --method dualpipe $sizes --format svg --rank 1
expect 0 schedule --method dualpipe $sizes --format trace
require out '"traceEvents"'
expect 0 schedule --method dualpipe $sizes --format json
require out '"placement":"bidirectional"'

expect 2 schedule
require err 'method NAME or a schedule file is required'
expect 2 schedule --method dualpipe --ranks 4
require err 'microbatches M is required'
expect 2 schedule --method dualpipe --microbatches 4
require err 'ranks P is required'
expect 2 schedule --method nosuch $sizes
require err 'nosuch'
require err 'dualpipev'
expect 2 schedule --method dualpipe --ranks 3 --microbatches 8
expect 2 schedule --method dualpipe --ranks 4 --microbatches 6
expect 2 schedule --method dualpipe --ranks 4x --microbatches 8
require err 'whole number from 1 to 4096'
expect 2 schedule --method dualpipe --ranks 4097 --microbatches 8
expect 2 schedule --method dualpipe --ranks -1 --microbatches 8
expect 2 schedule --method dualpipe --ranks 99999999999999999999 --microbatches 8
expect 2 schedule --method dualpipe --ranks '' --microbatches 8
expect 2 schedule --method dualpipe --ranks 4 --microbatches 0
expect 2 schedule --method dualpipe --ranks 4 --microbatches 65537
expect 2 schedule --method dualpipe $sizes --format gif
require err 'text tsv csv json svg png pdf trace'
expect 2 schedule --method dualpipe $sizes --rank 4
require err 'there are 4 ranks'
expect 2 schedule --method dualpipe $sizes --rank 1 --format trace
expect 2 schedule --method dualpipe $sizes --comm
require err 'goes with --format tsv'
expect 2 schedule --method dualpipe $sizes --nonsense
require err 'unknown option --nonsense'
expect 2 schedule --method dualpipe $sizes -z
require err 'unknown option -z'
expect 2 schedule --method
require err 'a value is missing'
expect 2 schedule --method dualpipe $sizes --comm=1
require err 'takes no value'
expect 2 schedule --method dualpipe $sizes more
require err 'either --method and its sizes or the file more'
expect 1 schedule --method dualpipe $sizes --output no/such/folder/a.tsv
require err 'no/such/folder/a.tsv'
if [ -w /dev/full ]; then
    expect 1 schedule --method dualpipe $sizes --format tsv --output /dev/full
    require err 'No space left'
    [ -w /dev/full ] || fail "/dev/full was removed"
fi

# ---- what has no end, or takes long ----
expect 2 simulate --method dualpipe $sizes --costs /dev/zero
require err '/dev/zero: more than 64 MiB'
expect 2 verify /dev/zero
require err '/dev/zero: more than 512 MiB'
: >err
"$dualpipe" simulate --method 1f1b --ranks 64 --microbatches 65536 --cost F=1 >out 2>err &
long=$!
until grep -q '^dualpipe simulate: 8.4 million operations: this takes some 2.8 GiB of memory, and a while$' err; do
    kill -0 $long 2>/dev/null || {
        fail "nothing was said before what takes long"
        break
    }
    sleep 0.05
done
kill -KILL $long 2>/dev/null || true
wait $long 2>/dev/null || true

# ---- overlap ----
layer=attention.F=4,attention.I=9,attention.W=2,dispatch.F=7,dispatch.I=7,mlp.F=5,mlp.I=5,mlp.W=5,combine.F=9,combine.I=6,LAYERS=2
for command in schedule simulate; do
    expect 0 $command --method dualpipe $sizes --cost $layer --format json --output plain
    expect 0 $command --method dualpipe $sizes --cost $layer --format json --overlap canonical --output canonical
    cmp plain canonical || fail "$command: canonical is not what stands there without it"
done
step_of() { # OPTIONS...
    expect 0 simulate --method dualpipe $sizes --cost $layer --lanes "$@"
    awk '$1 == "step" { print $2 }' out
}
none=$(step_of --overlap none)
canonical=$(step_of)
planned=$(step_of --overlap planned)
[ "$(printf '%s\n%s\n%s\n' "$planned" "$canonical" "$none" | sort -g | tr '\n' ' ')" = "$planned $canonical $none " ] ||
    fail "steps: none $none, canonical $canonical, planned $planned"
[ "$planned" != "$canonical" ] || fail "planned is not shorter than canonical"
[ "$(step_of --overlap planned)" = "$planned" ] || fail "two plans of one request differ"
expect 0 schedule --method dualpipe $sizes --overlap none
grep '|' out && fail "pairs are left"
expect 0 schedule --method dualpipe $sizes --cost $layer --overlap planned --format tsv --output planned.tsv
expect 0 verify planned.tsv
expect 0 simulate planned.tsv --cost $layer --lanes
[ "$(awk '$1 == "step" { print $2 }' out)" = "$planned" ] || fail "the plan in a file has another step"
expect 2 simulate planned.tsv --overlap none
require err 'it has braids'
expect 2 schedule --method dualpipe $sizes --cost $layer --overlap planned --format csv
require err 'cannot say which segments'
expect 2 simulate --method dualpipe $sizes --overlap planned
require err 'needs costs of segments'
# By segments where there are costs of them.
expect 0 simulate --method dualpipe $sizes --cost $layer --lanes --format json --output lanes
expect 0 simulate --method dualpipe $sizes --cost $layer --format json --output plain
cmp plain lanes || fail "costs of segments without --lanes are another run"
require plain '"model":"lanes"'
expect 0 simulate --method dualpipe $sizes --cost $layer --operations --format json --output turns
require turns '"model":"operations"'
expect 0 simulate --method dualpipe $sizes --cost F=50,I=54,W=14,B=56,FB=62 --format json --output given # as $layer makes them
grep -v pair turns | cmp - given || fail "--operations is not the run by F to FB: $(diff turns given)"
expect 2 simulate --method dualpipe $sizes --cost $layer --operations --lanes
expect 2 simulate --method dualpipe $sizes --cost $layer --operations --overlap planned
require err 'either --operations or --overlap planned'
expect 2 simulate --method dualpipe $sizes --lanes
expect 2 simulate --method dualpipe $sizes --memory-cap 4
require err 'go with --overlap planned'
expect 2 schedule --method dualpipe $sizes --overlap best
require err 'there are canonical none planned'
expect 20 schedule --method dualpipe $sizes --cost $layer --overlap planned --memory-cap 0.25
expect 0 compare $sizes --cost $layer --overlap planned --memory-cap 8 --format json
expect 0 simulate --method dualpipe $sizes --cost $layer --forward-only --overlap planned

# Forwards two by two in the published orders, and planned: shorter, and the same from a file.
serving="--cost project.F=1,attention.F=3,shared.F=6,mlp.F=2,dispatch.F=4,combine.F=6,LAYERS=4"
for kind in prefill decode; do
    expect 0 simulate --method 1f1b --ranks 1 --microbatches 8 --inference $kind $serving
    published=$(awk '$1 == "step" { print $2 }' out)
    expect 0 simulate --method 1f1b --ranks 1 --microbatches 8 --inference $kind $serving --overlap planned
    require out "^ *$published in the published order, 1[.][0-9]* times as long"
    planned=$(awk '$1 == "step" { print $2 }' out)
    awk -v a="$planned" -v b="$published" 'BEGIN { exit !(a < b) }' || fail "$kind: planned $planned, published $published"
done
expect 0 schedule --method 1f1b --ranks 1 --microbatches 8 --inference prefill $serving --overlap planned --format tsv --output planned.tsv
require planned.tsv '[+]a'
expect 0 verify planned.tsv
expect 0 simulate planned.tsv $serving --lanes
[ "$(awk '$1 == "step" { print $2 }' out)" = "$planned" ] || fail "the planned forwards in a file have another step"
sed 's/[+]a/a/' planned.tsv >mutant.tsv
expect 20 simulate mutant.tsv $serving --lanes
require err 'one letter for every segment'
expect 2 simulate --method 1f1b --ranks 1 --microbatches 8 --inference prefill $serving --overlap none
# A picture of them has a box for each segment, half of them in a second colour; one of training has none of it.
if [ -s picture.svg ]; then
    boxes() { # FILE: how many are filled with the second colour
        grep -c '<rect.*fill="#abcff7"' "$1" || :
    }
    expect 0 simulate --method 1f1b --ranks 1 --microbatches 8 --inference prefill $serving --format svg --output served.svg
    [ "$(boxes served.svg)" -eq $((8 * 4 / 2 * 6 + 1)) ] || fail "$(boxes served.svg) boxes have the second colour"
    expect 0 simulate --method 1f1b --ranks 1 --microbatches 8 $serving --forward-only --lanes --format svg --output alone.svg
    [ "$(boxes alone.svg)" -eq 0 ] || fail "micro-batches one by one have two colours"
fi

# What backwards compute once more: of segments it has a price, and the memory it takes is counted.
expect 0 simulate --method dualpipe $sizes --cost $layer --lanes --recompute full
require out 'most held  backwards$'
require out '^   1 .* 2$'
expect 0 simulate --method dualpipe $sizes --recompute full
require out '^costs .*,R=1, '
expect 2 simulate --method dualpipe $sizes --recompute mlp
expect 2 simulate --method dualpipe $sizes --recompute most
expect 0 compare $sizes --cost $layer --recompute cheap --format json
require out '"peak_backward_buffers":'

# ---- verify ----
"$dualpipe" schedule --method dualpipe $sizes --format tsv >good.tsv
expect 0 verify good.tsv
require out 'accepted: dualpipe, 4 ranks, 8 micro-batches'
require out 'most activations on a rank  *5$'
require out 'most backwards alive on a rank  *2$'
expect 0 verify good.tsv --transport group
expect 0 verify good.tsv --transport credits:3
expect 0 verify good.tsv --memory-cap 5
expect 20 verify good.tsv --memory-cap 4
require err 'rank 0 holds 5 micro-batches'
# 1f1b on 3 ranks: 3, 2 and 1 micro-batches; with two directions the weights count twice.
"$dualpipe" schedule --method 1f1b --ranks 3 --microbatches 4 --format tsv >line.tsv
expect 0 verify line.tsv --activation-bytes 6e9 --weight-bytes 30GiB --memory 80GiB
require out '^rank .* GiB$'
expect 0 verify line.tsv --activation-bytes 10 --weight-bytes 100 --memory 130
require out '^ *0  *3  *0  *130$'
require out '^ *1  *2  *0  *120$'
require out '^ *2  *1  *0  *110$'
expect 20 verify line.tsv --activation-bytes 10 --weight-bytes 100 --memory 129
require err 'does not fit on rank 0 by 1 bytes: it holds 130 bytes at once, 129 bytes are there'
expect 0 verify good.tsv --weight-bytes 7
require out '^ *3  *5  *0\{0,1\}1*  *14$'
# By hand: both weight gradients are put off, and before the second I both activations are held besides.
cat >late.tsv <<'EOF'
# method=custom ranks=1 microbatches=2 chunks=1 placement=line
0	0	F	0	0	-1	-1	-1	-1
0	1	F	0	1	-1	-1	-1	-1
0	2	I	0	0	-1	-1	-1	-1
0	3	I	0	1	-1	-1	-1	-1
0	4	W	0	0	-1	-1	-1	-1
0	5	W	0	1	-1	-1	-1	-1
EOF
expect 0 verify late.tsv --activation-bytes 10 --deferred-bytes 3
require out '^ *0  *2  *2  *26$'
expect 2 verify late.tsv --activation-bytes -1
expect 2 verify late.tsv --weight-bytes many
status=0
"$dualpipe" verify - <good.tsv >out 2>err || status=$?
[ "$status" -eq 0 ] || fail "verify -: $(cat err)"
expect 2 verify
require err 'a schedule file is required'
expect 2 verify good.tsv good.tsv
expect 2 verify good.tsv --transport credits:0
expect 2 verify good.tsv --transport credits
expect 2 verify good.tsv --transport pigeon
expect 2 verify good.tsv --memory-cap -1
expect 2 verify good.tsv --memory-cap many
expect 2 verify good.tsv --ranks 4
expect 1 verify no-such-file.tsv
require err 'no-such-file.tsv'
expect 1 verify "$work"

awk 'NR != 6' good.tsv >missing.tsv
expect 20 verify missing.tsv
awk '{ print } NR == 6' good.tsv >doubled.tsv
expect 20 verify doubled.tsv
awk 'BEGIN { FS = OFS = "\t" } NR == 6 { $5 = 77 } { print }' good.tsv >stranger.tsv
expect 20 verify stranger.tsv
awk 'NR == 6 { print "0\tnonsense"; next } { print }' good.tsv >broken.tsv
expect 20 verify broken.tsv
require err 'broken.tsv:6'
: >empty.tsv
expect 20 verify empty.tsv
head -c 3000 /dev/urandom >noise.tsv
expect 20 verify noise.tsv
# Rank 0 wants a backward first that rank 1 does after a forward which rank 0 makes later.
printf '# method=custom ranks=2 microbatches=2 chunks=1 placement=line\n' >circle.tsv
n=0
for row in '0 F 0' '0 B 0' '0 F 1' '0 B 1' '1 F 0' '1 F 1' '1 B 0' '1 B 1'; do
    set -- $row
    [ "$1" = "${last-0}" ] || n=0
    last=$1
    printf '%s\t%s\t%s\t0\t%s\t-1\t-1\t-1\t-1\n' "$1" "$n" "$2" "$3" >>circle.tsv
    n=$((n + 1))
done
expect 20 verify circle.tsv
require err 'cycle'
expect 20 simulate circle.tsv

# ---- simulate ----
# Slots as they are needed, where the command line leaves it open.
expect 0 simulate --method Looped_BFS --ranks 8 --microbatches 40
require out 'transport credits:5$'
expect 20 simulate --method looped_bfs --ranks 8 --microbatches 40 --transport credits:4
expect 0 simulate --method looped_bfs --ranks 8 --microbatches 40 --transport group
expect 0 partition --layers 1x32 --method InterleavedZeroBubble --ranks 8 --microbatches 16
expect 0 simulate --method zb-h2 --ranks 4 --microbatches 12 --no-barrier --format json
require out '"method":"zb2p".*"ranks":4'
require out '"step_time":36,'
for case in '1f1b 4 20 9' '1f1b 8 20 21' '1f1b 8 40 21' '1f1b 16 64 45' 'dualpipe 4 20 2' 'dualpipe 8 20 6' \
    'dualpipe 8 40 6' 'dualpipe 16 64 14' 'dualpipev 4 20 3' 'dualpipev 8 20 7' 'dualpipev 8 40 7' 'dualpipev 16 64 15'; do
    set -- $case
    expect 0 simulate --method "$1" --ranks "$2" --microbatches "$3" --cost F=1,I=1,W=1,B=2,FB=3,HOP=0 --format json
    require out "\"step_time\":$((3 * $3 + $4)),"
    require out "\"formula_bubble\":$4,"
    require out "\"bubble\":\[$4\(,$4\)*\]"
done
expect 0 simulate --method dualpipe --ranks 8 --microbatches 20
require out '^step  *66$'
require out '^formula  *6 idle'
expect 0 simulate --method dualpipe --ranks 8 --microbatches 20 --cost HOP=0.5
require out 'differs from the run'
expect 0 simulate good.tsv --format json
require out '"method":"dualpipe"'
require out '"peak_activations":\[5,5,5,5\]'
# Rank 1 takes 2.5: F0 1-3.5, B0 3.5-8.5, F1 8.5-11, B1 11-16; rank 0: B1 16-18
expect 0 simulate --method 1f1b --ranks 2 --microbatches 2 --stage-scale 1,2.5 --format json
require out '"step_time":18,'
expect 0 simulate --method 1f1b --ranks 2 --microbatches 2 --rank-scale 1:2.5 --format json
require out '"rank_scale":\[1,2.5\],'
require out '"step_time":18,'
expect 0 simulate good.tsv --rank-scale 3:1,0:2
require out '^ranks  *0: 2 times the costs$'
expect 2 simulate good.tsv --rank-scale 4:2
require err 'there are 4 ranks, from 0'
for list in '' 1 1: 1:0 1:-2 1:x -1:2 1:2, 1:2,1:3 4096:2 '1:2;2:3' 99999999999999999999:2; do
    expect 2 simulate --method 1f1b --ranks 2 --microbatches 2 --rank-scale "$list"
done
expect 0 simulate --method 1f1b --ranks 2 --microbatches 2 --no-barrier --transport group
require out 'no barrier'
for format in svg png pdf trace; do
    expect 0 simulate good.tsv --cost F=1,B=2,FB=2.5,HOP=0.1 --format $format --output run.$format
    [ -s run.$format ] || fail "run.$format is empty"
done
expect 2 simulate
expect 2 simulate good.tsv --method dualpipe
require err 'either --method'
expect 2 simulate good.tsv --chunks 2
for cost in F=-1 F=x F= F Q=1 F=1,F=2 F=1, ,F=1 '' F=nan F=inf F=1e999 'F=1;B=2'; do
    expect 2 simulate good.tsv --cost "$cost"
done
expect 2 simulate good.tsv --cost F=1e300
# A message takes the link for a unit and arrives a unit later; forwards end at 1, 2, 3 and leave then.
expect 0 simulate --method gpipe --forward-only --ranks 2 --microbatches 3 --cost HOP=1,BYTES=8,BANDWIDTH=8 \
    --transport credits:3 --format json
require out '"step_time":6,'
expect 0 simulate --method gpipe --forward-only --ranks 2 --microbatches 3 --cost BYTES=16,BANDWIDTH=8 --format json
require out '"step_time":8,'
# Costs from a file, flags before it, and out of segments.
cat >costs.txt <<'EOF'
# measured
attention.F=1
attention.I = 1
attention.W=1	# with blanks

dispatch.F=1
dispatch.I=1
mlp.F=1
mlp.I=1
mlp.W=1
combine.F=1
combine.I=1
HOP=3
BARRIER=0
EOF
expect 0 simulate good.tsv --costs costs.txt
require out '^costs  *F=4,I=4,W=2,B=5,FB=6,HOP=3, transport credits:2, no barrier$'
require out '^pair  *6, with 4 of dispatch and combine: 4 hidden (100.0 %), 0 exposed$'
# a cost that is given as 0 takes no time; one that is not given is a sum
expect 0 simulate good.tsv --cost F=1,I=2,W=3 --no-barrier
require out '^costs  *F=1,I=2,W=3,B=5,FB=6,HOP=0,'
expect 0 simulate good.tsv --cost F=1,I=2,W=3,B=0,FB=0 --no-barrier
require out '^costs  *F=1,I=2,W=3,B=0,FB=0,HOP=0,'
expect 0 simulate good.tsv --cost HOP=0,FB=7,BARRIER=1 --costs costs.txt --format json
require out '"costs":{"F":4,"I":4,"W":2,"B":5,"FB":7,"HOP":0,"BYTES":0,"BANDWIDTH":0,"R":0}'
require out '"barrier":true'
require out '"pair":{"time":6,"communication":4,"hidden":4}'
expect 0 simulate good.tsv --costs costs.txt --cost LAYERS=3
require out '^costs  *F=12,I=12,W=6,'
printf 'F=2\nSTAGE_SCALE=1,2.5\n' >scaled.txt
expect 0 simulate --method 1f1b --ranks 2 --microbatches 2 --costs scaled.txt --cost F=1 --format json
require out '"step_time":18,'
[ ! -s err ] || fail "scales that fit: $(cat err)"
expect 0 simulate --method zbv --ranks 2 --microbatches 4 --costs scaled.txt
require err 'scaled.txt: the scales of 2 stages are left out, zbv on 2 ranks has 4$'
expect 0 compare --ranks 2 --microbatches 2 --costs scaled.txt
require err 'scaled.txt: the scales of 2 stages are left out: schedules cut the model differently$'
expect 0 search --ranks 2 --microbatches 2 --costs scaled.txt --seconds 0
require err 'left out'
"$dualpipe" simulate --method 1f1b --ranks 2 --microbatches 2 --costs - --format json <scaled.txt >out || fail "--costs -"
require out '"step_time":24,'
expect 0 compare --ranks 2 --microbatches 2 --costs costs.txt
expect 1 simulate good.tsv --costs no-such-file.txt
refused() { # LINE TEXT-OF-FILE
    printf "$2" >bad.txt
    expect 2 simulate good.tsv --costs bad.txt
    require err "bad.txt:$1: "
}
refused 2 'F=1\nQ=2\n'
refused 3 'F=1\n# F=2\nF=3'
refused 1 'F\n'
refused 1 'F=-1\n'
refused 2 '\nI=1 2\n'
refused 1 '=1\n'
refused 1 'mlp.X=1\n'
refused 1 'STAGE_SCALE=1,,2\n'
refused 2 'STAGE_SCALE=1\nSTAGE_SCALE=1\n'
refused 1 'F=1\000\n'
for cost in LAYERS=2 mlp.F=1,LAYERS=0 mlp.F=1,LAYERS=1.5 mlp.F=1,mlp.F=2; do
    expect 2 simulate good.tsv --cost "$cost"
done
# A segment's R says what I and B take more, of which nothing is known without the segments.
for key in LAYERS attention.R mlp.R; do
    expect 2 simulate good.tsv --cost F=1,I=1,W=1,$key=2
    require err "^dualpipe simulate: $key goes with costs of segments, such as "
done
printf 'F=1\nI=1\nW=1\nmlp.R=2\n' >lone-r.txt
expect 2 simulate good.tsv --costs lone-r.txt
expect 2 simulate good.tsv --costs lone-r.txt --recompute full
expect 2 simulate good.tsv --stage-scale 1,2
require err '2 numbers'
expect 2 simulate good.tsv --stage-scale 1,,1,1
expect 2 simulate good.tsv --stage-scale ''
expect 2 simulate good.tsv --format tsv
expect 1 simulate no-such-file.tsv
expect 20 simulate missing.tsv

# ---- hosts ----
printf 'RANKS_PER_HOST=2\nNEAR.HOP=0.5\nFAR.HOP = 5 # one way\nFAR.BANDWIDTH=2\n' | sed 's/ = /=/' >links.txt
expect 0 simulate --method 1f1b --ranks 4 --microbatches 1 --cost F=1,B=2,BYTES=10,HOP=100 --topology links.txt
require out '^step       34$'
require out '^hosts      0 0 1 1: within HOP 0.5, BANDWIDTH 0; between HOP 5, BANDWIDTH 2'
printf 'HOSTS=0,1,0,1\nNEAR.HOP=0.5\nFAR.HOP=5\nFAR.BANDWIDTH=2\n' >turns.txt
expect 0 simulate --method 1f1b --ranks 4 --microbatches 1 --cost F=1,B=2,BYTES=10 --topology turns.txt --format json
require out '"hosts":\[0,1,0,1\]'
require out '"step_time":72'
expect 2 simulate --method 1f1b --ranks 2 --microbatches 1 --topology turns.txt
require err 'the topology has 4 ranks in HOSTS, the schedule has 2'
expect 1 simulate --method 1f1b --ranks 2 --microbatches 1 --topology no_such_file
for line in 'FAR.HOP=-1' 'FAR.HOP=x' 'FAR=1' 'HOSTS=0,x' 'HOSTS=0,' 'RANKS_PER_HOST=0' 'RANKS_PER_HOST=1.5' 'just words'; do
    printf 'NEAR.HOP=1\n%s\n' "$line" >wrong.txt
    expect 2 simulate --method 1f1b --ranks 2 --microbatches 1 --topology wrong.txt
    require err 'wrong.txt:2: '
done
printf 'FAR.HOP=1\nFAR.HOP=1\nHOSTS=0,1\n' >wrong.txt
expect 2 simulate --method 1f1b --ranks 2 --microbatches 1 --topology wrong.txt
require err 'wrong.txt:2: FAR.HOP is there twice'
printf 'FAR.HOP=1\n' >wrong.txt
expect 2 simulate --method 1f1b --ranks 2 --microbatches 1 --topology wrong.txt
require err 'HOSTS=0,0,1,1 or RANKS_PER_HOST=2 is required'
# blocks cross between hosts once, mirrors twice, turns three times
expect 0 compare --ranks 4 --microbatches 1 --cost F=1,B=2,BYTES=10 --topology links.txt
require out '^1f1b, blocks  *34 '
require out '^1f1b, mirrors  *53 '
require out '^1f1b, in turn  *72 '
expect 0 compare --ranks 4 --microbatches 1 --cost F=1,B=2,BYTES=10 --topology turns.txt --format json
require out '"method":"1f1b","chunks":0,"fits":true,"placing":"as given","step_time":72'

# ---- compare ----
expect 0 compare --ranks 8 --microbatches 20
sed '/^these do not fit/,/^$/d' out | awk 'length > 80 { exit 1 }' || fail "compare: a line of more than 80 columns"
awk '/^schedule / { table = 1; next } table && NF == 0 { exit } table { print $1 }' out >order
[ "$(sed -n 1p order)" != 1f1b ] || fail "compare: 1f1b comes first"
require order '^dualpipe$'
awk '/^schedule / { table = 1; next } table && NF == 0 { exit }
     table { print $2 }' out >steps
sort -c -n steps || fail "compare: not ordered by step time"
expect 0 compare --ranks 3 --microbatches 20
require out 'these do not fit'
require out '^dualpipe  .*even'
expect 0 compare --ranks 8 --microbatches 20 --memory-cap 8 --format json
require out '"method":"dualpipe","chunks":0,"fits":false,"reason":"rank 0 holds 9 '
require out '"method":"1f1b","chunks":0,"fits":true,"step_time":81,'
# In bytes: dualpipe holds 9 x 2 and twice 20, zb2p 15 x 2 and 20, v-half 5 x 2 and 20.
expect 0 compare --ranks 8 --microbatches 20 --activation-bytes 2GiB --weight-bytes 20GiB --memory 50GiB
require out '^schedule .* weights  *GiB$'
require out '^zb2p  *67  *+20.9% .* 1x  *50$'
require out '^1f1b  *81  *+0.0% .* 1x  *36$'
require out '^dualpipe  *does not fit on rank 0 by 8 GiB: it holds 58 GiB at once, 50 GiB are there$'
require out '^gpipe  *does not fit on rank 0 by 10 GiB: '
require out '^v-half holds 17 % less than zbv and takes 11 % more time[.]$'
expect 0 compare --ranks 8 --microbatches 20 --activation-bytes 2GiB --weight-bytes 20GiB --memory 50GiB --format csv
require out '^method,chunks,fits,step_time,gain,bubble,formula_bubble,peak_activations,peak_backward_buffers,weight_copies,slots,bytes$'
require out '^v-half,0,true,70.5,0.148936170212766,10.5,10.5,5,[0-9.]*,1,2,32212254720$'
require out '^dualpipe,0,false,,,,,,,,,$'
expect 0 compare --ranks 8 --microbatches 20 --activation-bytes 2GiB --weight-bytes 20GiB --memory 58GiB,3:28GiB
require out '^dualpipe  *does not fit on rank 3 by 30 GiB: it holds 58 GiB at once, 28 GiB are there$'
require out '^1f1b  *does not fit on rank 3 by 2 GiB: it holds 30 GiB at once, 28 GiB are there$'
expect 0 compare --ranks 8 --microbatches 20 --activation-bytes 2GiB --weight-bytes 20GiB --memory 58GiB,3:30GiB
require out '^1f1b  *81 '
expect 0 compare --ranks 8 --microbatches 20 --format markdown
[ "$(awk -F'|' '/^[|]/ { print NF }' out | sort -u)" = 14 ] || fail "markdown: rows of different lengths: $(cat out)"
require out '^| 1f1b | 0 | true | 81 | 0 | 21 | 21 | 8 |'
require out '^- v-half holds 38 %'
expect 2 compare --ranks 8 --microbatches 20 --memory 50GiB
require err '[-]-memory goes with --activation-bytes'
for size in 50Gi GiB -1 1e; do
    expect 2 compare --ranks 8 --microbatches 20 --weight-bytes $size
    require err "as 80GiB, is expected"
done
expect 0 simulate --method dualpipe --ranks 8 --microbatches 20 --activation-bytes 2GiB --weight-bytes 20480MiB --memory 58GiB
require out 'most held  *GiB$'
require out '^   3 .* 9  *58$'
expect 20 simulate --method dualpipe --ranks 8 --microbatches 20 --activation-bytes 2GiB --weight-bytes 20GiB --memory 57.9GiB
require err 'dualpipe: does not fit on rank 0 by 102.4 MiB: it holds 58 GiB at once, 57.9 GiB are there'
expect 0 simulate --method dualpipe --ranks 4 --microbatches 8 --activation-bytes 1 --format json
require out '"bytes":\[5,5,5,5\]'
expect 20 compare --ranks 8 --microbatches 20 --memory-cap 0.25 --format svg
status=0
"$dualpipe" compare --ranks 8 --microbatches 20 --memory-cap 0.25 >out 2>err || status=$?
[ "$status" -eq 20 ] || fail "compare where nothing fits: exit code $status"
for format in svg png pdf; do
    expect 0 compare --ranks 4 --microbatches 8 --cost HOP=0.1 --format $format --output all.$format
    [ -s all.$format ] || fail "all.$format is empty"
done
# Why, from figures: docs/schedules.md has those of these sizes. Sentences go on in the next line.
why() { # OPTIONS...
    expect 0 compare --ranks 8 --microbatches "$@"
    tr '\n' ' ' <out >said
}
why 20
require said ' v-half holds 38 % less than zbv and takes 11 % more time[.] '
grep -q "formula's\|though idle" said && fail "compare: a reason for what needs none"
# zb1p takes 67 whatever B is, 1f1b 27 (F + B)
why 20 --cost F=1,I=1,W=1,B=1.4
require said ' zb1p is slower than 1f1b, though idle less: I and W apart cost 2, B in one 1[.]4[.] '
why 20 --cost F=1,I=1,W=1,B=1.5
grep -q ' zb1p is slower' said && fail "compare: zb1p is faster here"
why 24 --cost FB=2
require said " interleaved_overlap[^.]*: idle is not the formula's, which counts F and B of a pair in turn[.] "
require said ' interleaved_overlap,2 is faster than [^.]*, though idle more: an overlapped pair costs 2, F and B in turn 3[.] '
why 24 --cost HOP=0.25
require said " interleaved[^.]*: idle is not the formula's, which counts no transfers[.] "
why 24 --cost F=1,I=1.2,W=0.8
require said " zbv[^.]*: idle is not the formula's, which counts equal F, I and W[.] "
why 16 --cost $layer
require out '^run by segments on lanes'
require said ' Without dispatch and combine [^.]* would take [0-9.]* ([0-9]* % less), [^.]* [0-9.]* ([0-9]* % less)[.] '
expect 0 compare --ranks 160 --microbatches 160 --cost HOP=0.25 # too long to run again
grep -q "formula's" out && fail "compare: ran again"
why 40 --chunks 4
require said ' interleaved_zb,4 needs 4 slots a channel, others 2[.] '
require said ' looped_bfs,4 needs 5 slots a channel, others 2[.] '
grep -q '[a-z],2 ' said && fail "compare: --chunks 4 leaves 2 chunks"
why 40 --chunks 8,3 --transport credits:5
require out '^interleaved_zb,8  *120.875 '
require out '^interleaved,3 '
grep -q 'slots a channel' said && fail "compare: slots were asked for"
expect 0 compare --ranks 8 --microbatches 40 --transport credits:4
require out '^looped_bfs,2  *.*deadlock'
for list in 0 2, ,2 2,x 65 1,2,3,4,5,6,7,8,9; do
    expect 2 compare --ranks 8 --microbatches 40 --chunks $list
    require err "--chunks $list: at most 8 numbers from 1 to 64"
done
expect 2 compare --ranks 4
expect 2 compare --ranks 4 --microbatches 8 --method dualpipe

# ---- partition ----
expect 0 partition --layers 0.5,1x30,6 --method dualpipe --ranks 4 --microbatches 12
[ "$(awk '$3 == "to" {n++; s += $4 - $2 + 1} END {print n, s}' out)" = "4 32" ] || fail "partition: $(cat out)"
step=$(awk '$1 == "step" {print $2}' out)
scales=$(sed -n 's/^--stage-scale //p' out)
[ "$(sed -n 's/^--partition //p' out)" = "$(awk '$3 == "to" {printf "%s%d", n++ ? "," : "", $4 - $2 + 1}' out)" ] || fail "partition: its list: $(cat out)"
awk 'NR == 2 {even = $1} $1 == "step" {step = $2} END {exit !(step < 0.95 * even)}' out || fail "partition: no gain: $(cat out)"
expect 0 simulate --method dualpipe --ranks 4 --microbatches 12 --stage-scale "$scales"
awk -v want="$step" '$1 == "step" {d = $2 / want - 1; exit !(d < 1e-5 && d > -1e-5)}' out || fail "partition: its scales take another step: $(cat out)"
expect 0 partition --layers 1x12 --method 1f1b --ranks 2 --microbatches 8 --rank-scale 1:2
[ "$(sed -n 's/^--partition //p' out)" = 8,4 ] || fail "partition: a rank half as fast: $(cat out)"
expect 0 partition --layers 1x8 --method 1f1b --ranks 8 --microbatches 8
expect 2 partition --layers 1x7 --method 1f1b --ranks 8 --microbatches 8
expect 2 partition --layers 1,,2 --method 1f1b --ranks 2 --microbatches 8
expect 2 partition --layers 1x0 --method 1f1b --ranks 2 --microbatches 8
expect 2 partition --layers 1,-2 --method 1f1b --ranks 2 --microbatches 8
expect 2 partition --layers 0,1 --method 1f1b --ranks 2 --microbatches 8
expect 2 partition --layers 1x99999999999 --method 1f1b --ranks 2 --microbatches 8
expect 2 partition --method 1f1b --ranks 2 --microbatches 8
expect 2 partition --layers 1x8 --method 1f1b --ranks 2 --microbatches 8 --stage-scale 1,2
expect 0 partition --help
! grep -q -e --stage-scale out || fail "partition --help lists --stage-scale, which it refuses"
# In compare every method gets its own cut, however many stages it has: the step of partition.
expect 0 compare --ranks 4 --microbatches 8 --layers 1x17,3.5 --rank-scale 1:1.1
cp out cut
[ "$(grep -c '^[a-z0-9-]*  .*[12]x$' cut)" -ge 8 ] || fail "compare --layers: $(cat cut)"
for method in dualpipe dualpipev zbv 1f1b; do
    expect 0 partition --layers 1x17,3.5 --method $method --ranks 4 --microbatches 8 --rank-scale 1:1.1
    [ "$(awk -v m=$method '$1 == m {print $2}' cut)" = "$(awk '$1 == "step" {print $2}' out)" ] || fail "compare --layers, $method: $(cat cut out)"
done
# 16 stages and 9 layers: methods of four chunks do not fit, and say so.
expect 0 compare --ranks 4 --microbatches 8 --layers 1x9
require out '^interleaved,4  *partition: 9 layers on 16 stages'
expect 0 compare --ranks 2 --microbatches 4 --layers 1x7,2 --cost $layer --overlap planned
require out '^dualpipev  '
expect 2 compare --ranks 4 --microbatches 8 --layers 1x9 --stage-scale 1,1,1,2
require err 'either --stage-scale or --layers'
expect 2 compare --ranks 4 --microbatches 8 --layers 1x9,

# ---- search ----
expect 0 search --ranks 4 --microbatches 12 --memory-cap 5 --seconds 1 --output found.tsv
require out '^best built-in  37  interleaved_zb, 4 chunks$'
require out '^tried  *[0-9]* lists, [1-9][0-9]* a second$'
found=$(sed -n 's/^found  *\([0-9.]*\) .*/\1/p' out)
awk -v found="$found" 'BEGIN { exit !(found > 35.9 && found <= 37) }' || fail "search: found a step of $found"
expect 0 verify found.tsv --memory-cap 5
expect 0 simulate found.tsv --format json
step=$(sed -n 's/.*"step_time":\([0-9.]*\),.*/\1/p' out)
[ "$step" = "$found" ] || fail "search: said $found, the file takes $step"
expect 0 search --ranks 2 --microbatches 4 --seconds 0 --output found.csv
[ "$(head -c 4 found.csv)" = 0F0, ] || fail "search: found.csv is no csv"
expect 0 verify found.csv
expect 20 search --ranks 4 --microbatches 8 --memory-cap 0.1 --seconds 0.5 --output none.tsv
[ ! -e none.tsv ] || fail "search: wrote a file though nothing fits"
expect 1 search --ranks 2 --microbatches 4 --seconds 0.1 --output no/such/folder/a.tsv
expect 0 search --ranks 4 --microbatches 8 --seconds 0.2 --placement v --output v.tsv
require v.tsv 'placement=v'
expect 0 search --ranks 4 --microbatches 8 --seconds 0.2 --cost F=1,I=1,W=1,FB=2
require out 'best built-in .*interleaved_overlap\|best built-in .*dualpipev'
expect 0 search --ranks 4 --microbatches 8 --seconds 0.2 --cost F=1,I=1,W=1,FB=2 --weights 2 --placement bidirectional
require out 'best built-in .*dualpipe$'
expect 20 search --ranks 4 --microbatches 8 --seconds 0.2 --weight-bytes 10 --activation-bytes 1 --memory 10
expect 0 search --ranks 4 --microbatches 8 --seconds 0.2 --weight-bytes 10 --activation-bytes 1 --memory 14
require out '^found .*holds 1[1-4]\(\.[0-9]*\)\{0,1\} bytes$'
expect 2 search --ranks 4 --microbatches 8 --weight-bytes 10
require err 'go together'
expect 0 search --ranks 4 --microbatches 8 --seconds 0.2 --stage-scale 1,1,1,2
require out ' 1 chunk per rank (line)'
expect 0 search --ranks 4 --microbatches 8 --seconds 1 --cost $layer --lanes --output lanes.tsv
require out 'sets of rules, '
expect 2 search --ranks 4 --microbatches 8 --seconds 1 --cost $layer --output lanes.csv
require err 'in .tsv, or --operations, is required'
expect 0 search --ranks 4 --microbatches 8 --seconds 0.2 --cost $layer --operations --output turns.csv
expect 0 verify lanes.tsv
expect 0 search --ranks 4 --microbatches 8 --seconds 0.2 --rank-scale 2:1.5 --output slow.tsv
found=$(sed -n 's/^found  *\([0-9.]*\) .*/\1/p' out)
expect 0 simulate slow.tsv --rank-scale 2:1.5
require out "^step  *$found\$"
expect 0 compare --ranks 4 --microbatches 8 --rank-scale 2:1.5
slow=$(awk '$1 == "1f1b" {print $2, $3}' out)
expect 2 compare --ranks 4 --microbatches 8 --rank-scale 4:1.5
expect 0 compare --ranks 4 --microbatches 8 --stage-scale 1,1,1.5,1
[ "$(awk '$1 == "1f1b" {print $2, $3}' out)" = "$slow" ] || fail "compare: a slow rank of 1f1b is a slow stage: $slow, $(cat out)"
expect 0 compare --ranks 4 --microbatches 8 --stage-scale 1,1,1,2
require out 'zb1p'
require out 'zbv .*--stage-scale has 4 numbers'
expect 2 search --ranks 4
expect 2 search --ranks 4 --microbatches 8 --seconds -1
expect 2 search --ranks 4 --microbatches 8 --cost F=-2
expect 2 search --ranks 4 --microbatches 8 --cost F=1e300 --seconds 0.1
expect 2 search --ranks 4 --microbatches 8 --format tsv

# Files without an end are read up to what their format may take.
for endless in /dev/zero /dev/full; do
    expect 2 simulate --method 1f1b --ranks 2 --microbatches 4 --costs $endless
    require err "$endless: more than 64 MiB"
    expect 2 simulate --method 1f1b --ranks 2 --microbatches 4 --cost F=1 --topology $endless
    require err "$endless: more than 1 MiB"
done
expect 0 simulate --method 1f1b --ranks 16 --microbatches 65536 --cost F=1
require err 'dualpipe simulate: 2.1 million operations: this takes some 0.7 GiB of memory, and a while'

finish
