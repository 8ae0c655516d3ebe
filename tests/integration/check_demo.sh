#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_demo.sh: dualpipe demo runs schedules with the engine, writes what can be looked at, and shows what the simulator says.
set -eu

subcommand=
. "$DP_TEST_SRCDIR/tests/integration/command.sh"

expect 0 demo --ranks 4 --microbatches 8 --methods dualpipe,1f1b,zbv --seconds 0.4 --output shown
for method in dualpipe 1f1b zbv; do
    grep -q "^$method  " out || fail "no row of $method: $(cat out)"
done
awk 'length > 80 { exit 1 }' out || fail "a line of more than 80 columns"
head -n 1 shown/trace.html | grep -qi '<!doctype html>' || fail "trace.html is no page"
grep -q "dualpipe, executed: 4 ranks, 8 micro-batches" shown/trace.html || fail "trace.html does not say what was run"
grep -q '"traceEvents"' shown/trace.json || fail "trace.json is no trace"
if "$dualpipe" simulate --method 1f1b --ranks 2 --microbatches 2 --format png --output there.png 2>/dev/null; then
    [ "$(head -c 4 shown/executed.png | od -An -tx1 | tr -d ' \n')" = 89504e47 ] || fail "executed.png is no PNG"
fi
# Every segment of the step is in the trace: 8 micro-batches on 4 ranks, F and I of four segments, W of two.
spans=$(grep -c '"name":"\(attention\|dispatch\|mlp\|combine\)' shown/trace.json)
[ "$spans" -eq $((8 * 4 * 10)) ] || fail "trace.json has $spans segments"
# Simulated and measured: the simulated step is that of the command, less what small messages save that leave from the lane that made
# them; and sleeping takes no less than the sleep: a rank computes 8 x 6 units.
unit=$(sed -n 's/.* a unit of cost sleeps \([0-9.]*\) ms$/\1/p' out)
cp out table
cost=attention.F=1,attention.I=1,attention.W=1,mlp.F=1,mlp.I=1,mlp.W=1,dispatch.F=.5,dispatch.I=.5,combine.F=.5,combine.I=.5
for method in dualpipe 1f1b; do
    expect 0 simulate --method $method --ranks 4 --microbatches 8 --cost $cost --operations --format json
    step=$(sed -n 's/.*"step_time":\([0-9.]*\),.*/\1/p' out)
    awk -v method=$method -v step="$step" -v unit="$unit" '$1 == method {
        found = 1
        off = $2 / (step * unit) - 1
        if (off > 0.01 || off < -0.05) { print method ": " $2 " ms shown, " step * unit " simulated"; wrong = 1 }
        if ($3 < 8 * 6 * unit * 0.98) { print method ": measured " $3 " ms, less than its segments sleep"; wrong = 1 }
    } END { exit wrong || !found }' table || fail "$method: the row is wrong"
done
expect 0 demo --ranks 2 --microbatches 4 --methods zb1p --seconds 0.1 --cost attention.F=2,attention.I=2,LAYERS=2 --output other
require out '^zb1p .* -  *-$'

# Two micro-batches that are served: of 8 x 4 layers of 2.5 units and 2 x 0.5 of the all-to-all nothing but the ends is idle.
for kind in prefill decode; do
    expect 0 demo --inference $kind --seconds 0.6 --output served
    awk -v kind=$kind '$1 == kind { step = $2; measured = $3 } /^one by one/ { alone = $4 } /sleeps/ { unit = $(NF - 1) }
        END { exit !(step > 79.8 * unit && step < 80 * unit * 1.03 && measured > 0.98 * step && alone > 1.15 * step) }' out ||
        fail "$kind: $(cat out)"
    # a segment each, at least: attention (in two for decode), dispatch, mlp, shared, combine, sum
    spans=$(grep -c '"name":"\(project\|attention\|dispatch\|mlp\|shared\|combine\|sum\)' served/trace.json)
    [ "$spans" -eq $((8 * 4 * $([ $kind = decode ] && echo 7 || echo 6))) ] || fail "$kind: trace.json has $spans segments"
done
# Layers cut finer are trained as well: each cost that is given has its segment.
expect 0 demo --ranks 2 --microbatches 4 --methods dualpipe --seconds 0.2 --output finer \
    --cost project.W=1,attention.F=1,attention.I=1,mlp.F=1,mlp.I=1,shared.I=1,dispatch.F=1,dispatch.I=1,combine.F=1,combine.I=1
[ "$(grep -c '"name":"project W' finer/trace.json)" -eq 8 ] && [ "$(grep -c '"name":"shared I' finer/trace.json)" -eq 8 ] ||
    fail "finer: $(grep -o '"name":"[a-z]* [FIW]' finer/trace.json | sort | uniq -c)"
# A rank that sleeps twice as long: the steady state is its.
expect 0 demo --ranks 2 --microbatches 8 --methods 1f1b --seconds 0.4 --rank-scale 1:2 --output slow
awk '/sleeps/ { unit = $(NF - 1) } $1 == "1f1b" { simulated = $2; measured = $3 }
    END { least = 8 * 12 * unit; exit !(simulated > 0.999 * least && simulated < 1.5 * least && measured > 0.98 * least) }' out ||
    fail "a slow rank: $(cat out)"
expect 2 demo --ranks 2 --rank-scale 2:2
expect 2 demo --rank-scale 8:2
expect 2 demo --inference prefill --methods 1f1b
expect 2 demo --inference training
expect 2 demo --methods nosuch
require err 'nosuch'
expect 2 demo --ranks 3 --methods dualpipe
expect 2 demo --methods ,
expect 2 demo --methods dualpipe,
expect 2 demo --stage-scale 1,1
expect 0 demo --help
! grep -q -e --stage-scale out || fail "demo --help lists --stage-scale, which it refuses"
expect 2 demo --cost attention.F=0
expect 2 demo more
expect 1 demo --ranks 2 --microbatches 4 --seconds 0.1 --methods 1f1b --output no/such/folder
DUALPIPE_PLUGIN_PATH=/nonexistent
expect 1 demo
head -n 1 out >usual
expect 1 demo --seconds 10
head -n 1 out | cmp - usual || fail "without --seconds it does not take 10 s: $(cat usual)"
expect 1 demo --ranks 2 --microbatches 4 --seconds 0.1 --methods 1f1b
require err "plugin '.*' not found"

finish
