#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_trace.sh: dualpipe trace on the published profile, on traces of ours and on damaged ones: what it prints, what it
# refuses, its exit codes, and how much memory it takes.
set -eu

subcommand=trace
. "$DP_TEST_SRCDIR/tests/integration/command.sh"

packed=$DP_TEST_DATA/trace/deepseek_v3_train_1f1b.json.gz
gzip -dc "$packed" >profile.json

draws() {
    "$dualpipe" schedule --method 1f1b --ranks 2 --microbatches 2 --format pdf >drawn 2>&1 || grep -v -q 'need the library cairo' drawn
}

# ---- overlap ----
expect 0 overlap profile.json
require out '^rank 0$'
require out '^  span  *129,012$'
require out '^  compute  *124,338  *96\.38 % of the span$'
require out '^  communication  *113,440  *96\.32 % of it hidden, 4,177 exposed$'
require out '^  stream 7  *927  *118,193 '
require out '^  stream 27  *40  *114,521 '
require out '^  stream 23  *16  *11,355 '
require out '^  communication  *20  *28 .* 20 of 132 SMs$'
require out '^  attn(F)  *4  *4,370'
require out '^  mlp(W)  *4  *3,540  *2,839$'
! grep -E '^  (forward only|passes|no grid|waits|transfers)' out || fail "all is known of the training profile"
cp out plain
# Of inference traces, what they do not say is said. Prefill: annotations of forwards on two streams. Decode: transfers that are
# issued and awaited on the stream that computes, by kernels without grids, under annotations that name no pass.
kernel() { # NAME STREAM TIME LENGTH ANNOTATION [GRID]
    printf '{"ph":"X","cat":"kernel","name":"%s","pid":0,"tid":%d,"ts":%d,"dur":%d,"args":{"stream":%d%s}},\n' "$1" "$2" "$3" "$4" "$2" "${6:+,\"grid\":[$6,1,1]}"
    printf '{"ph":"X","cat":"gpu_user_annotation","name":"%s","pid":0,"tid":%d,"ts":%d,"dur":%d},\n' "$5" "$2" "$3" "$4"
}
{
    echo '{"deviceProperties":[{"id":0,"numSms":132}],"traceEvents":['
    kernel gemm 7 0 100 'attn(F)' 108
    kernel gemm 7 100 100 'mlp(F)' 108
    kernel deep_ep::dispatch 27 50 100 'dispatch(F)' 24
    kernel norm 7 200 10 'norm' 108
    echo '{"ph":"M","name":"end","pid":0}]}'
} >prefill.json
{
    echo '{"deviceProperties":[{"id":0,"numSms":132}],"traceEvents":['
    kernel deep_ep::internode_ll::dispatch 7 0 5 'DISPATCH(0)'
    kernel gemm 7 5 100 'SHARED(0)' 132
    kernel deep_ep::internode_ll::dispatch_wait 7 105 7 'DISPATCH(0)'
    kernel gemm 7 112 50 'MLP(0)' 132
    echo '{"ph":"M","name":"end","pid":0}]}'
} >decode.json
expect 0 overlap prefill.json
require out '^  forward only: of 4 records none is of a backward; 1 say no pass$'
! grep -E '^  (passes|no grid|waits|transfers)' out || fail "more is unknown of prefill than is"
expect 0 overlap decode.json
require out '^  passes: not known, no record or annotation names a forward or a backward$'
require out '^  no grid: 0 of 2 kernels of computation, 2 of 2 of communication: which SMs they hold is not known$'
require out '^  waits: 1 kernel, 7, counted as what their class is: deep_ep::internode_ll::dispatch_wait$'
require out '^  transfers without a stream: 2 records of communication stand between computation on stream 7;$'
require out '^  SHARED(0)  *1  *100$'
expect 0 overlap decode.json --format json
require out '"passes":"unknown","without_pass":4,"without_grid":{"compute":0,"communication":2},"inlined_communication":2,"wait_kernels":1,"wait_kernels_time":7'
if grep -q 'define HAVE_ZLIB 1' "$DP_TEST_BUILDDIR/config.h"; then
    expect 0 overlap "$packed"
    sed 1d out >a
    sed 1d plain >b
    cmp -s a b || fail "the packed profile has other figures"
    head -c 100000 "$packed" >cut.gz
    expect 20 overlap cut.gz
    require err 'cut.gz: byte [0-9]* of what is unpacked: the gzip file is cut off'
    (head -c 50000 "$packed" && head -c 2000 /dev/zero && tail -c +52001 "$packed") >damaged.gz
    expect 20 overlap damaged.gz
    require err 'damaged.gz: byte [0-9]*'
fi
"$dualpipe" trace overlap - <profile.json >out
require out '^standard input: 14240 events, 983 records on 1 device'
expect 0 overlap profile.json --gaps 0
! grep -q 'longest of' out || fail "--gaps 0 shows some"
expect 0 overlap profile.json --gaps 2
[ "$(grep -c '^             until' out)" -eq 2 ] || fail "--gaps 2 does not show 2"
# Everything is communication: nothing hides it.
expect 0 overlap profile.json --comm .
require out '0\.00 % of it hidden'
expect 0 overlap profile.json --comm 'flash|per_token_cast'
! grep -q '113,440' out || fail "--comm adds nothing"
expect 0 overlap profile.json --format json --output figures.json
require figures.json '"span":129012,'
for format in svg png pdf; do
    if [ $format = svg ] || draws; then
        expect 0 overlap profile.json --format $format --output picture.$format
    else
        expect 1 overlap profile.json --format $format --output picture.$format
        require err 'pictures need the library cairo (Debian: libcairo2 '
    fi
done
! readelf -d "$dualpipe" | grep 'NEEDED.*\(cairo\|X11\)' || fail "dualpipe needs a drawing library to start"
if draws; then
    head_is picture.svg '<?xml'
    head_is picture.pdf '%PDF'
    [ "$(wc -c <picture.svg)" -lt 1000000 ] || fail "the picture has every box in it"
fi

# ---- what figures leave open is said ----
! grep -E '^(left out|counted as compute)|records? at time 0' plain || fail "there is nothing to say of the training profile"
# DeepSeek's kernels under the names of a library that is known, and of one that is not.
sed 's/dpsk::ep::/uccl::/g' profile.json >uccl.json
expect 0 overlap uccl.json
require out '^rank 0  *129,012  *96.38 %  *113,440  *96.32 %'
sed 's/dpsk::ep::/acme::/g' profile.json >acme.json
expect 0 overlap acme.json
require out '^rank 0  *129,012  *99\.61 %  *0 '
require out '^counted as compute, named like communication: 24 kernels, [0-9,]* us; --comm NAME adds them$'
require out '^  *[0-9,]* us  *8  acme::internode::combine<false, .*>$'
expect 0 overlap acme.json --comm 'acme::internode' --comm 'acme::cuda'
require out '^rank 0  *129,012  *96.38 %  *113,440  *96.32 %'
! grep 'named like communication' out || fail "communication that is known is said to be none"
expect 0 overlap acme.json --format json
require out '"like_communication":\[$'
require out '{"name":"void acme::internode::combine<.*","kernels":8,"time":[0-9.]*}'
expect 0 view acme.json --output acme.html
require err '^dualpipe trace: acme.json: counted as compute, named like communication: 24 kernels, '
require acme.html '"notes":\["counted as compute, named like communication: 24 kernels, '
if draws; then
    expect 0 overlap acme.json --format svg --output acme.svg
    require err 'named like communication: 24 kernels, '
fi
# Events with impossible times: what nobody looks at, then a kernel.
sed 's/"traceEvents": \[/&{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":1,"ts":5,"dur":-3},{"ph":"i","name":"mark","pid":1,"ts":"now"},{"ph":"C","name":"mem","pid":1,"ts":9223372036854775807},/' profile.json >host.json
expect 0 overlap host.json
require out '^host.json: 14243 events, 983 records'
require out '^rank 0  *129,012  *96.38 %  *113,440  *96.32 %'
require out '^left out: 3 events with impossible times, none of a device or an annotation; byte [0-9]*: it ends before it begins, or never$'
expect 0 merge host.json --output merged_host.json
require merged_host.json '"ts":"now"'
sed 's/"traceEvents": \[/&{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":5,"dur":-5},/' profile.json >kernel.json
expect 0 overlap kernel.json --format json
require out '"events":14241,"broken":1,"broken_records":1,'
expect 0 costs kernel.json --output kernel.txt
require err '^dualpipe trace: kernel.json: left out: 1 event with impossible times, 1 of a device or an annotation; byte '
sed 1d kernel.txt >a
"$dualpipe" trace costs profile.json | sed 1d | cmp -s - a || fail "an event that is left out changes costs"
# A record at time 0, decades before all others.
sed 's/"traceEvents": \[/&{"ph":"X","cat":"kernel","name":"zero","pid":0,"tid":7,"ts":0,"dur":5,"args":{"stream":7}},/' profile.json >zero.json
expect 0 overlap zero.json
require out '^rank 0: 1 record at time 0 before all others, or longer than all others reach, such as zero at 0, 5 us; the figures count it$'
# Devices of other profilers, and more by name.
name() { # WHAT PID TID NAME
    printf '{"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"name":"%s"}},\n' "$@"
}
bare() { # NAME PID TID TIME LENGTH
    printf '{"ph":"X","name":"%s","pid":%d,"tid":%d,"ts":"%d.000","dur":%d},\n' "$@"
}
{
    echo '['
    bare MatMulV2 3 2 1000 100
    bare hcom_allReduce__428_0_1 4 9 1050 100
    bare Notify_Wait 4 10 1000 900
    name process_name 3 0 'Ascend Hardware'
    name process_name 4 0 Communication
    name thread_name 4 9 'Group 0 Communication'
    echo '{"ph":"M","name":"end","pid":3}]'
} >npu.json
expect 0 overlap npu.json
require out '^device 3  *150  *66.67 %  *100  *50.00 %'
expect 0 merge npu.json npu.json --output npus.json
expect 0 overlap npus.json
[ "$(grep -c '^rank [01]  *150  *66.67 %  *100  *50.00 %' out)" -eq 2 ] || fail "merged NPUs have other figures"
echo '[{"ph":"X","cat":"hpu_op","name":"gemm","pid":1,"tid":9,"ts":5,"dur":50},{"ph":"X","cat":"odd_op","name":"nccl","pid":1,"tid":9,"ts":30,"dur":50}]' >hpu.json
expect 20 overlap hpu.json
require err '--device adds more'
expect 0 overlap hpu.json --device hpu_op --device '^odd'
require out '^device 1  *75  *66.67 %  *50  *50.00 %'

# ---- costs ----
expect 0 costs profile.json --output costs.txt
require costs.txt '^LAYERS=4$'
require costs.txt '^attention.F=4.36'
require costs.txt '^combine.F=8.684$'
require costs.txt '^FB=129.012$'
"$dualpipe" compare --ranks 8 --microbatches 40 --costs costs.txt >out || fail "compare does not read the costs"
require out '^dualpipe '
"$dualpipe" simulate --method dualpipe --ranks 8 --microbatches 40 --costs costs.txt >out || fail "simulate does not read the costs"
expect 0 costs profile.json --layers 2
require out '^LAYERS=2$'
require out '^FB=64.506$'
expect 0 costs profile.json --annotation 'mlp.F=^mlp.F.$' --annotation 'attention.F=attn.F'
sed '/^# Measured/d' out >a
sed '/^# Measured/d' costs.txt >b
cmp -s a b || fail "annotations given change what they mean already"
expect 0 costs profile.json --annotation 'mlp.W=attn.W'
! grep -q '^attention.W=' out || fail "--annotation does not come first"
# What was put into a simulation comes out of its trace.
costs=F=2,I=1.5,W=0.5,FB=3.2,HOP=0.1
for method in dualpipe dualpipev zbv; do
    "$dualpipe" simulate --method $method --ranks 4 --microbatches 8 --cost $costs --format trace --output sim.json
    expect 0 costs sim.json --output sim.txt
    for line in F=2 I=1.5 W=0.5 HOP=0.1; do
        require sim.txt "^$line\$"
    done
    [ $method = zbv ] || require sim.txt '^FB=3.2$'
    "$dualpipe" compare --ranks 4 --microbatches 8 --costs sim.txt >out || fail "compare does not read costs of a simulation"
done
expect 0 overlap sim.json
require out '^rank 3$'
# So do segments, what is recomputed among them: it counts neither as a forward nor into I and B.
costs=attention.F=5,attention.I=7,attention.W=3,mlp.F=9,mlp.I=9,mlp.W=9,LAYERS=2
for method in zb1p 1f1b; do
    "$dualpipe" simulate --method $method --ranks 4 --microbatches 8 --lanes --recompute mlp --cost $costs --format trace |
        "$dualpipe" trace costs - >recomputed.txt || fail "trace costs does not read a run of $method that recomputes"
    for line in $(echo $costs | tr , ' ') mlp.R=6 F=28 I=32 W=24 R=12; do
        require recomputed.txt "^$line\$"
    done
done
require recomputed.txt '^B=56$'
"$dualpipe" simulate --method zb1p --ranks 4 --microbatches 8 --lanes --recompute full --cost $costs --format trace --output recomputed.json
expect 0 view recomputed.json --output recomputed.html
for segment in attention mlp; do
    require recomputed.html "\"$segment F\",0\]"
    require recomputed.html "\"$segment R\",1\]"
done

# ---- merge ----
sed 's/"rank": 0/"rank": 5/' profile.json >other.json
expect 0 merge profile.json other.json --output both.json
expect 0 overlap both.json
require out '1966 records on 2 devices'
require out '^rank 0$'
require out '^rank 5$'
[ "$(grep -c '^  communication  *113,440  *96.32 % of it hidden' out)" -eq 2 ] || fail "merged ranks have other figures"
[ "$(grep -c '^  attn(F)  *4  *4,370' out)" -eq 2 ] || fail "merged ranks have other annotations"
# Both have a rank 0.
expect 2 merge both.json sim.json --align start --output all.json
require err 'sim.json has a rank 0, and so has a file before it'
[ ! -e all.json ] || fail "a failure leaves its output"
expect 2 merge profile.json profile.json
require err 'is of rank 0, and so is a file before it'
expect 2 merge profile.json -
expect 2 merge profile.json other.json --output other.json
require err 'would be overwritten'
[ -s other.json ] || fail "a trace was overwritten"
# A shift of clocks is kept to the nanosecond.
event='{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":1,"ts":5.001,"dur":1}'
echo "{\"baseTimeNanoseconds\":1000000,\"traceEvents\":[$event]}" >early.json
echo "{\"baseTimeNanoseconds\":1002500,\"traceEvents\":[$event,{\"ph\":\"s\",\"id\":3,\"pid\":\"a\",\"ts\":1}]}" >late.json
expect 0 merge early.json late.json
require out '"pid":1,"tid":1,"ts":5.001,"dur":1'
require out '"pid":2,"tid":1,"ts":7.501,"dur":1'
require out '"id":4294967299,"pid":3,"ts":3.500'
expect 0 merge early.json late.json --align start --output out.json
[ "$(grep -c '"ts":5.001,' out.json)" -eq 2 ] || fail "starts are not aligned: $(cat out.json)"

# ---- view ----
expect 0 view profile.json --output page.html
require page.html '<!DOCTYPE html>'
require page.html '"span":129012000'
! grep -q -e 'https\{0,1\}://' -e '@DATA@' page.html || fail "the page refers to something outside"
cp page.html given.html
mkdir -p beside
cp profile.json beside/run.json
expect 0 view beside/run.json
[ "$(cat out)" = beside/run.html ] || fail "view does not say where the page is: $(cat out)"
sed 's/run.json/profile.json/' beside/run.html | cmp -s - given.html || fail "the page beside its trace is another one"
expect 2 view -
# Names are no markup.
echo '[{"ph":"X","cat":"kernel","name":"</script><b>&\u2028é","pid":0,"tid":1,"ts":5,"dur":1}]' >odd.json
expect 0 view odd.json --output odd.html
[ "$(grep -c '</script>' odd.html)" -eq 2 ] || fail "a name ends the data"
expect 0 overlap odd.json --format json --comm script
require out '</script><b>&'

# ---- what is refused ----
expect 2
expect 2 nothing profile.json
expect 2 overlap
expect 2 overlap profile.json other.json
expect 2 overlap profile.json --comm '('
expect 2 overlap profile.json --device '('
expect 2 costs profile.json --comm acme
expect 2 overlap profile.json --format html
expect 2 overlap profile.json --gaps -1
expect 2 overlap profile.json --align clock
expect 2 costs profile.json --annotation attn=x
expect 2 costs profile.json --annotation 'F=x'
expect 2 overlap profile.json --memory 0
expect 1 overlap missing.json
require err 'missing.json: No such file'
expect 1 overlap .
expect 1 overlap profile.json --output /nowhere/out
if [ -c /dev/full ]; then
    expect 1 overlap profile.json --output /dev/full
    expect 1 view profile.json --output /dev/full
    expect 1 merge profile.json other.json --output /dev/full
fi
expect 20 overlap /dev/null
require err 'byte 0: the file ends'
head -c 1000000 profile.json >cut.json
expect 20 overlap cut.json --output never.txt
require err 'cut.json: byte 1000000: the file ends where .* is required: it was cut off'
[ ! -e never.txt ] || fail "a failure leaves its output"
(head -c 500000 profile.json && printf '\377\000garbage' && tail -c 100000 profile.json) >damaged.json
expect 20 overlap damaged.json
require err 'damaged.json: byte 5[0-9]*:'
# An array whose end is missing is read, and said to be.
echo "[$event,$event," >open.json
expect 0 overlap open.json
require err 'may be cut off'
require out '2 events, 2 records'
echo '{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1}]}' >host.json
expect 20 overlap host.json
require err 'none is a record of a device'
expect 20 costs odd.json
require err 'give --annotation'
awk 'BEGIN { for (i = 0; i < 100000; i++) printf "[" }' >deep.json
expect 20 overlap deep.json
require err 'byte [0-9]*: '
awk 'BEGIN { printf "{\"traceEvents\":[{\"args\":"; for (i = 0; i < 100000; i++) printf "{\"a\":" }' >deep.json
expect 20 overlap deep.json
require err 'byte [0-9]*: nested more than'

# ---- memory ----
# Mostly what is not kept, as in real traces, and a name of a megabyte; 40 MB here, DP_TRACE_MB of them by hand.
mb=${DP_TRACE_MB:-40}
awk -v mb="$mb" 'BEGIN {
    printf "{\"traceEvents\":[\n{\"ph\":\"i\",\"name\":\""
    for (i = 0; i < 100000; i++) printf "long name "
    printf "\"}"
    stack = ""
    for (i = 0; i < 40; i++) stack = stack "torch/nn/modules/module.py(1518): _wrapped_call_impl;"
    for (i = 0; bytes < mb * 1e6; i++) {
        line = sprintf(",\n{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"aten::op%d\",\"pid\":1,\"tid\":1,\"ts\":%d,\"dur\":5,\"args\":{\"Call stack\":\"%s\",\"Input Dims\":[[4096,7168],[7168]]}}", i % 97, i * 10, stack)
        line = line sprintf(",\n{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"kernel%d\",\"pid\":0,\"tid\":7,\"ts\":%d,\"dur\":7,\"args\":{\"stream\":7,\"correlation\":%d,\"grid\":[112,1,1]}}", i % 13, i * 10, i)
        printf "%s", line
        bytes += length(line)
    }
    print "]}" }' >large.json
limited() { # KIBIBYTES ARGUMENTS...
    (ulimit -v "$1" && shift && exec "$dualpipe" trace "$@") >out 2>err
}
case " ${CFLAGS:-} " in
*sanitize*) echo "sanitizers take a separate address space: its limit is not tried" ;;
*)
    # What the program and its libraries take, and 24 MB.
    kib=16000
    while [ $kib -lt 1000000 ] && ! limited $kib overlap odd.json; do
        kib=$((kib + 4000))
    done
    kib=$((kib + 24000))
    limited $kib overlap large.json || fail "overlap of $mb MB in $kib KiB of address space: $(cat err)"
    require out ' records on 1 device'
    limited $kib merge large.json --output merged.json || fail "merge of $mb MB in $kib KiB of address space: $(cat err)"
    limited $kib view large.json --output large.html || fail "view of $mb MB in $kib KiB of address space: $(cat err)"
    ;;
esac
awk 'BEGIN {
    for (i = 0; i < 50000; i++)
        printf "%s{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"pid\":0,\"tid\":7,\"ts\":%d,\"dur\":7}", (i > 0 ? "," : "["), i }' >many.json
expect 1 overlap many.json --memory 1
require err 'take more than the 1 MiB that they may (--memory)'

finish
