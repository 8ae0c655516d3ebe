#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_what_if.sh: dualpipe trace what-if says of a run what the same run with a slow rank, a slow link or another cut takes.
set -eu

subcommand=
. "$DP_TEST_SRCDIR/tests/integration/command.sh"

value() {
    awk -v key="$1" '$1 == key {print $2; exit}' "$2"
}
# equal A B SHARE WHAT
equal() {
    awk -v a="$1" -v b="$2" -v share="$3" 'BEGIN {exit !(a > b * (1 - share) && a < b * (1 + share))}' || fail "$4: $1 is not $2: $(cat out)"
}

# ---- runs that were simulated: the order, the costs and the changes come back ----
layer=attention.F=4,attention.I=9,attention.W=2,dispatch.F=7,dispatch.I=7,mlp.F=5,mlp.I=5,mlp.W=5,combine.F=9,combine.I=6,LAYERS=4
for method in 1f1b gpipe zb1p zbv v-half v-min dualpipe dualpipev interleaved interleaved_overlap; do
    for run in "" "--cost $layer --lanes"; do
        sizes="--method $method --ranks 4 --microbatches 12 $run"
        expect 0 simulate $sizes --format trace --output run.json
        expect 0 simulate $sizes
        before=$(value step out)
        expect 0 simulate $sizes --rank-scale 1:1.5
        after=$(value step out)
        expect 0 trace what-if run.json --rank-scale 1:1.5
        equal "$(value measured out)" "$before" 1e-5 "$method $run: measured"
        equal "$(value simulated out)" "$before" 1e-4 "$method $run: simulated"
        equal "$(value step out)" "$after" 1e-4 "$method $run: a slow rank"
    done
done
# A rank that was slow may be mended, also one of two that hold the same stages.
sizes="--method dualpipe --ranks 4 --microbatches 12 --cost $layer --lanes"
expect 0 simulate $sizes
before=$(value step out)
expect 0 simulate $sizes --rank-scale 1:2 --format trace --output slow.json
expect 0 trace what-if slow.json --rank-scale 1:0.5
equal "$(value step out)" "$before" 1e-4 "a rank that is no longer slow"
# One micro-batch: a message down and one back; wherever the layers are, all of them follow each other.
expect 0 simulate --method 1f1b --ranks 2 --microbatches 1 --cost $layer --lanes --format trace --output one.json
expect 0 trace what-if one.json --link 0:1:2.5 --output there.txt
grep -q '^step .* 5 ms longer ' there.txt || fail "a slow link: $(cat there.txt)"
require there.txt '^what if  *a message between ranks 0 and 1 takes 2.5 ms$'
expect 0 trace what-if one.json --partition 6,2
equal "$(value step out)" "$(value simulated out)" 1e-6 "another cut"
require out 'stages have 6,2 parts instead of 4,4$'
# As many layers more as a rank is busy longer.
expect 0 simulate --method zb1p --ranks 4 --microbatches 8 --cost $layer --lanes --format trace --output four.json
expect 0 trace what-if four.json --partition 4,4,4,4 --rank-scale 0:1
equal "$(value step out)" "$(value simulated out)" 1e-9 "the same cut"
expect 0 trace what-if four.json --partition 6,4,2,4
awk '$1 ~ /^[0-3]$/ && NF == 7 {want = $1 == 0 ? 1.5 : $1 == 2 ? 0.5 : 1; if ($3 / $2 > want * 1.0001 || $3 / $2 < want * 0.9999) wrong = 1; n++}
    END {exit wrong || n != 4}' out || fail "busy with another cut: $(cat out)"

# ---- a run of the engine beside the same with a rank or a link that is slow: machines are busy at times ----
told() { # METHOD OPTION: what-if with it beside the run in uneven.txt, in units of cost, which the two runs share
    expect 0 trace what-if even/trace.json $2
    awk -v m=$1 -v option="$2" '/sleeps/ {unit[FILENAME] = $(NF - 1)} $1 == m {measured[FILENAME] = $3} FILENAME == "out" && $1 == "step" {told = $2}
        END {off = told / unit["even.txt"] / (measured["uneven.txt"] / unit["uneven.txt"]) - 1
             printf "%s, %s: what-if is %.2f %% off\n", m, option, 100 * off
             exit !(off > -0.03 && off < 0.03)}' even.txt uneven.txt out
}
slow_rank() {
    expect 0 demo --ranks 4 --microbatches 8 --methods $1 --seconds 0.8 --output even
    cp out even.txt
    expect 0 demo --ranks 4 --microbatches 8 --methods $1 --seconds 1.2 --rank-scale 2:1.5 --output uneven
    cp out uneven.txt
    told $1 "--rank-scale 2:1.5"
}
# A comm plugin keeps messages between ranks 1 and 2 for 10 ms, as many as 2 or 3 segments take.
slow_link() {
    path=${DUALPIPE_PLUGIN_PATH-}
    export DUALPIPE_PLUGIN_PATH="$work/plugins:$path"
    expect 0 demo --ranks 4 --microbatches 8 --methods $1 --seconds 0.8 --output even
    cp out even.txt
    export DP_TEST_LINK=1:2:10
    expect 0 demo --ranks 4 --microbatches 8 --methods $1 --seconds 0.8 --output uneven
    cp out uneven.txt
    unset DP_TEST_LINK
    export DUALPIPE_PLUGIN_PATH="$path"
    told $1 "--link 1:2:10"
}
mkdir plugins
cp "$DP_TEST_BUILDDIR/tests/mock/.libs/mock_comm_link.so" plugins/dp_comm_shm.so
for slow in slow_rank slow_link; do
    for try in 1 2 3 4; do
        close=yes
        for method in 1f1b dualpipe zbv; do
            $slow $method || close=no
        done
        [ $close = yes ] && break
    done
    [ $close = yes ] || fail "what-if is more than 3 % off a run with a $slow"
done

# ---- refusals ----
expect 2 trace what-if run.json
require err 'one of --rank-scale, --link, --partition'
expect 2 trace what-if run.json --rank-scale 4:2
require err 'rank 4: the run has 4'
expect 2 trace what-if run.json --link 0:2:1
require err 'send each other nothing'
for link in 0:1 0:1: 0:1:-1 0:1:x 0:x:1 :1:1 0:1:1,; do
    expect 2 trace what-if run.json --link $link
done
for list in 4,4,4 4,4,4,4,4 4,4,4,5 4,4,4,0 4,4,4,4, 4,4,,8 16 1.5,2,2,2; do
    expect 2 trace what-if four.json --partition $list
done
expect 0 simulate --method 1f1b --ranks 2 --microbatches 4 --format trace --output whole.json
expect 20 trace what-if whole.json --partition 1,1
require err 'does not have all segments'
expect 2 trace costs run.json --rank-scale 1:2
expect 0 demo --inference prefill --seconds 0.1 --output served
expect 20 trace what-if served/trace.json --rank-scale 0:2
require err 'forwards alone'
expect 0 simulate --method dualpipev --ranks 4 --microbatches 8 --cost $layer --overlap planned --format trace --output planned.json
expect 20 trace what-if planned.json --rank-scale 0:2
require err 'as planned orders do'
expect 20 trace what-if "$DP_TEST_DATA/trace/deepseek_v3_train_1f1b.json.gz" --rank-scale 0:2
require err 'no span of ours'
# Numbers that no run has.
expect 0 simulate --method dualpipe --ranks 4 --microbatches 8 --format trace --output two.json
for change in 's/"chunk":1/"chunk":5/' 's/"mb":3/"mb":60000/' 's/"stage":2/"stage":1/' 's/"step":0/"step":2000000/2' \
    's/"stage":3/"stage":8000/' 's/"segment":0/"segment":32000/' 's/"pair":[0-9]*/"pair":7/'; do
    for run in two.json four.json slow.json; do
        sed "$change" "$run" >changed.json
        status=0
        "$dualpipe" trace what-if changed.json --rank-scale 0:2 >out 2>err || status=$?
        [ "$status" -eq 0 ] || [ "$status" -eq 20 ] || fail "$run with $change: exit code $status: $(cat err)"
    done
done
sed '/"pid":1,/d' four.json >three.json
expect 20 trace what-if three.json --rank-scale 0:2
finish
