#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_run.sh: a whole run of the trainer: it learns, reports, draws, traces and writes text; what it refuses, it
# refuses with the reason.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
. "$DP_TEST_SRCDIR/bench/report_step.sh"

# A text that is easy to learn and far from its bytes' frequencies.
awk 'BEGIN { for (i = 0; i < 3000; i++) printf "the quick brown fox jumps over the lazy dog; " }' >"$work/text"
run="--data $work/text --steps 60 --lr 0.02 --hidden 16 --seq 32 --batch 2 --val-every 30 --sample 60 --out $work/run"

ranks 4 --ep 2 $run
expect 0 out '^trained  *60 steps' "a run"
for line in model text layout memory 'cores\|overlap' step bubble curve trace page costs losses; do
    grep -q "^\($line\) " "$work/out" || complain "no line on \"$line\""
done
grep -q '^\[[0-9]' "$work/out" && complain "other ranks than the first print"
grep -v "$work" "$work/out" | grep '.\{81\}' && complain "a line of more than 80 columns"
sed ':all;N;$!b all;s/\n            / /g' "$work/out" >"$work/joined"
awk '/^loss / { if ($2 + 0 > 5 && $5 + 0 < 1.5 && $11 + 0 < 1.5 && $(NF - 3) + 0 > 2.5) good = 1 } END { exit !good }' \
    "$work/joined" || complain "the loss did not fall below that of guessing"
f=$(sed -n 's/^F=//p' "$work/run/costs.txt")
grep -q "with F $(printf '%.3g' "$f")," "$work/joined" || complain "F is $f in the costs, and not in the report"
for file in report.txt losses.txt trace.json trace.html costs.txt; do
    [ -s "$work/run/$file" ] || complain "$file is missing or empty"
done
"$DP_TEST_BUILDDIR/dualpipe" simulate --method dualpipe --ranks 2 --microbatches 8 --costs "$work/run/costs.txt" >"$work/out" ||
    complain "the measured costs cannot be simulated"
grep -q '^pair .* hidden' "$work/out" || complain "the measured costs have no segments"
# One step: the report's, as the command simulates it; with even stages, as it compares.
sed -n 's/^step  *\(.*simulated \)\{0,1\}\([0-9.]*\) ms.*; \([0-9.]*\) ms if all stages.*/\2 \3/p' "$work/joined" >"$work/said"
{
    awk '/^step / { printf "%.1f ", $2 }' "$work/out"
    "$DP_TEST_BUILDDIR/dualpipe" compare --ranks 2 --microbatches 8 --costs "$work/run/costs.txt" 2>/dev/null |
        awk '$1 == "dualpipe" { printf "%.1f\n", $2 }'
} | diff - "$work/said" >"$work/differ" || complain "other steps in the report than simulated and compared: $(cat "$work/differ")"
"$DP_TEST_BUILDDIR/dualpipe" trace costs "$work/run/trace.json" >"$work/out" || complain "the trace has no costs"
grep -v STAGE_SCALE "$work/out" >"$work/traced"
grep -v STAGE_SCALE "$work/run/costs.txt" | cmp -s - "$work/traced" || complain "the trace has other costs than the run"
grep -q 'median step' "$work/run/report.txt" && complain "the report has two medians of a step"
grep -q '^overlap ' "$work/run/report.txt" || grep -q 'more ranks than cores' "$work/run/trace.html" ||
    complain "the page does not say that ranks waited for cores"
[ -s "$work/run/curve.svg" ] || complain "no picture of the loss"
# What the benches read the step from: with more ranks than cores, and with a core for each.
printf 'cores       88 %% of their time spent computing: 4 ranks share 2 cores; 12.5 ms a\n            step (median of 7)\n' >"$work/shared"
printf 'step        measured 8.25 ms\n            (median of 7); simulated 8.0 ms, with F 1\n' >"$work/alone"
[ "$(report_step "$work/shared") $(report_step "$work/alone")" = "12.5 8.25" ] || complain "bench/report_step.sh finds other steps"
report_step "$work/run/report.txt" >"$work/out" 2>"$work/err" || complain "bench/report_step.sh finds no step in the report"
grep -q 'Written by the model' "$work/run/report.txt" || complain "the report has no sample"
if [ -x "$DP_TEST_BUILDDIR/tests/integration/trace_facts" ]; then
    "$DP_TEST_BUILDDIR/tests/integration/trace_facts" "$work/run/trace.json" 4 >"$work/out" 2>"$work/err"
    status=$?
    [ "$status" -eq 0 ] || [ "$status" -eq 77 ] || complain "the trace is not in order"
fi

# Files of custom names, nothing on standard output.
threads 2 $run --out "" --curve "$work/c.svg" --trace "$work/t.json" --losses "$work/l.txt" --report "$work/r.txt" --quiet
[ "$status" -eq 0 ] && [ ! -s "$work/out" ] || complain "--quiet: status $status, or it spoke"
report_step "$work/r.txt" >"$work/out" 2>"$work/err" || complain "bench/report_step.sh finds no step in the report of 2 ranks"
for file in c.svg t.json t.html l.txt r.txt; do
    [ -s "$work/$file" ] || complain "$file is missing or empty"
done
grep -q '<svg' "$work/c.svg" || complain "c.svg is not SVG"
readelf -d "$DP_TEST_BUILDDIR/apps/train_moe/train_moe" | grep 'NEEDED.*cairo' && complain "a trainer needs a drawing library to start"

# Refusals: before anything is trained, with the reason.
refused() { # STATUS PATTERN N OPTIONS...
    wanted=$1
    pattern=$2
    shift 2
    ranks "$@"
    expect "$wanted" err "$pattern" "$*"
}
refused 2 'at least one layer' 4 --layers 3
refused 2 '3 were started' 3 --ep 2
refused 2 'even' 3 --schedule dualpipe
refused 2 'micro-batches' 4 --microbatches 6
refused 2 'no-such-method' 2 --schedule no-such-method
refused 2 'are too few for sequences' 2 --seq 100000
refused 2 '/nowhere/text' 1 --data /nowhere/text
refused 2 'drawn as SVG' 2 --curve loss.png
refused 2 'has more than 268435456 losses' 1 --microbatches 65536 --accumulate 65536
refused 11 'no_such_plugin' 2 --moe moe_no_such_plugin
refused 1 '/nowhere' 1 --losses /nowhere/losses
threads 2 --lr x
expect 2 err '--lr x: a number from 0 to 1000 is expected' 'a bad option'
status=0
"$train" --help >"$work/out" 2>"$work/err" || status=$?
expect 0 out '--microbatches' '--help'
[ -s "$work/err" ] && complain "--help wrote to standard error"
grep '.\{81\}' "$work/out" && complain "--help has lines of more than 80 columns"

# What cannot be shown or written is no success, whoever finds out first; the cause is named.
for options in --quiet "--losses $work/l.txt" --verify --help; do
    status=0
    [ "$options" = --quiet ] && options='--quiet --losses /dev/full'
    "$train" $small --threads 2 --steps 2 --val-every 0 --sample 0 $options >/dev/full 2>"$work/err" </dev/null || status=$?
    expect 1 err '\(standard output\|/dev/full\): No space left on device' "a full disk, $options"
    grep -q Success "$work/err" && complain "a full disk, $options: Success"
done
# Nothing is trained, and nothing is written.
threads 2 --verify --out "$work/none"
[ "$status" -eq 0 ] && [ ! -e "$work/none" ] || complain "--verify --out: exit status $status, or files"

# Before the training no file lies there empty, and an old one stays.
echo old >"$work/old"
threads 2 --steps 1 --microbatches 1 --schedule dualpipe --losses "$work/old" --curve "$work/new"
[ "$status" -ne 0 ] && [ "$(cat "$work/old")" = old ] && [ ! -e "$work/new" ] || complain "outputs before the training"

# What is wrong with the whole job is said once.
once() { # PATTERN OPTIONS...
    pattern=$1
    shift
    ranks 4 "$@"
    expect 2 err "$pattern" "$*"
    [ "$(grep -c -e "$pattern" "$work/err")" -eq 1 ] || complain "$*: not once"
}
once 'unknown option --nope' --nope
once '/nope: No such file' --data /nope
once 'is 3 ranks, but 4 were started' --pp 3

# Ranks that were started differently learn what differs.
status=0
timeout $((60 * scale)) "$dualpipe" run -n 2 -- sh -c "exec $train $small --steps 1 --lr 0.00\$((RANK + 1))" \
    >"$work/out" 2>"$work/err" </dev/null || status=$?
expect 10 err 'lr' 'ranks with different learning rates'

# A number that is none stops the run and says where it was.
MOCK_REAL=$DP_TEST_BUILDDIR/.libs/dp_attention_cpu.so
MOCK_POKE=nan:0:3
export MOCK_REAL MOCK_POKE
ranks 2 --steps 8 --val-every 0 --quiet --attention "$DP_TEST_MOCKS/mock_attention_poke.so"
expect 16 err 'rank [01]: step 3: ' 'not a number in step 3'

finish
