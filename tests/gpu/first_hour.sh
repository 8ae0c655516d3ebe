#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# first_hour.sh: what to run first on a machine with a GPU, in three calls of less than ten minutes (docs/gpu.md).
#
#   first_hour.sh CALL [--seconds N] [--keep DIR] [--old KIT] [--emulated] [--short]
#
#   1  figures, and one test of each kernel
#   2  what can hang: transports as threads and processes, graphs, kernels under compute-sanitizer
#   3  the figures again, those of KIT (an older kit's folder, or the figures file of an earlier call) beside them
#
# --seconds N    what the call has (520): a step gets no more than what is left, and none begins in the last seconds
# --keep DIR     leaves DIR/logs.tgz and DIR/figures, after each step; otherwise they are in BUILD/first_hour
# --emulated     on the emulated device, with sizes that it manages; says nothing about a GPU
# --short        a few steps of each kind
#
# In a kit it runs the kit's programs, elsewhere those of the build folder you are in. The report has less than 12,000 characters,
# figures last. Exit status: 0 when nothing failed, 77 without a GPU.
set -u

usage() {
    sed -n 's/^#   first_hour/usage: first_hour/p' "$0" >&2
    exit 2
}

call=${1-} seconds=520 keep= old= emulated=0 short=0
case $call in [123]) shift ;; *) usage ;; esac
while [ $# -gt 0 ]; do
    case $1 in
    --seconds | --keep | --old) [ $# -ge 2 ] || usage ;;
    esac
    case $1 in
    --seconds) seconds=$2 && shift ;;
    --keep) keep=$2 && shift ;;
    --old) old=$2 && shift ;;
    --emulated) emulated=1 ;;
    --short) short=1 ;;
    *) usage ;;
    esac
    shift
done
case $seconds in '' | *[!0-9]*) usage ;; esac
[ "$call" != 3 ] || [ -e "$old" ] || { echo "first_hour.sh: call 3 needs --old KIT, a folder or a figures file" >&2 && exit 2; }
[ ! -e "$old" ] || old=$(realpath "$old")

now_ms() {
    echo $(($(date +%s%N) / 1000000))
}

start=$(now_ms)
here=$(cd "$(dirname "$0")" && pwd)
if [ -d "$here/.libs" ]; then
    K=$here
    build=$here
else
    build=${DP_TEST_BUILDDIR:-$PWD}
    export DP_TEST_BUILDDIR="$build" DP_TEST_SRCDIR="${DP_TEST_SRCDIR:-$here/../..}"
fi
if [ -n "$keep" ]; then
    mkdir -p "$keep" || exit 2
    work=$(mktemp -d) || exit 2
    logs=$work/logs
else
    work=
    logs=$build/first_hour
    rm -rf "$logs"
fi
mkdir -p "$logs" || exit 2
: >"$logs/figures" >"$logs/failed"

# A start takes seconds where others wait for theirs; a test must not fail for that.
scale=${DUALPIPE_TIMEOUT_SCALE:-3}
export DUALPIPE_TIMEOUT_SCALE="$scale" CK_DEFAULT_TIMEOUT="${CK_DEFAULT_TIMEOUT:-10}" CK_TIMEOUT_MULTIPLIER="${CK_TIMEOUT_MULTIPLIER:-4}"
debug=${DUALPIPE_DEBUG-}
if [ "$emulated" = 1 ]; then
    fakes=$build/tests/fake_cuda/.libs
    [ -e "$fakes/libcuda_fake.so" ] || { echo "SKIP: the emulated device is not here" && exit 77; }
    export DP_TEST_FAKE=1
    debug=$debug${debug:+,}lib.cuda=$fakes/libcuda_fake.so,lib.cublaslt=$fakes/libcublaslt_fake.so,lib.cutlass=$fakes/libcutlass_fake.so
    debug=$debug,lib.cudnn=$fakes/libcudnn_fake.so,lib.nccl=$fakes/libnccl_fake.so
    seconds=$((seconds * ${scale%%.*}))
else
    scale=1
fi

# ---- steps ----

# What is printed is counted: the whole report has to fit.
say() {
    echo "$*" | cut -c 1-150 | tee -a "$logs/report"
}

left_s() {
    echo $((seconds - ($(now_ms) - start) / 1000))
}

state_and_session() { # FILE: of /proc/N/stat; nothing where the process is gone
    read -r stat 2>/dev/null <"$1" || return 0
    # shellcheck disable=SC2086
    set -- ${stat##*) }
    echo "$1 $4"
}

# Whatever a step has started, also in other process groups, as Check's tests are.
end_session() { # LEADER
    for file in /proc/[0-9]*/stat; do
        case $(state_and_session "$file") in
        Z*) ;;
        *" $1")
            file=${file#/proc/}
            kill -KILL "${file%/stat}" 2>/dev/null
            ;;
        esac
    done
}

save() {
    [ -n "$keep" ] || return 0
    cp "$logs/figures" "$keep/figures"
    tar czf "$keep/logs.new" -C "$work" logs 2>/dev/null && mv "$keep/logs.new" "$keep/logs.tgz"
}

# Runs a command, alone on the device.
step() { # NAME SECONDS COMMAND...
    name=$1 limit=$(($2 * ${scale%%.*}))
    shift 2
    program=$1
    [ "$program" != env ] || for program in "$@"; do
        case $program in env | [A-Za-z_]*=*) ;; *) break ;; esac
    done
    left=$(left_s)
    word=
    command -v "$program" >/dev/null 2>&1 || word="left out, $(basename "$program") is not here"
    [ "$left" -ge 5 ] || word="left out, no time"
    if [ -n "$word" ]; then
        say "$name: $word"
        return 1
    fi
    [ "$left" -ge $((limit + 3)) ] || limit=$((left - 3))
    began=$(now_ms)
    late=0
    setsid "$@" >"$logs/$name" 2>&1 </dev/null &
    leader=$!
    while state=$(state_and_session "/proc/$leader/stat") && [ -n "${state%%Z*}" ]; do
        [ $(($(now_ms) - began)) -lt $((limit * 1000)) ] || { late=1 && break; }
        sleep 0.1
    done
    end_session "$leader"
    wait "$leader" 2>/dev/null
    status=$?
    leader=
    took=$(($(now_ms) - began))
    word=ok
    [ "$status" -eq 0 ] || word="FAILED ($status)"
    [ "$status" -ne 77 ] || word="skipped: $(tail -n 1 "$logs/$name")"
    [ "$late" -eq 0 ] || word="FAILED: not done after $limit s"
    say "$name: $word, $((took / 1000)).$((took / 100 % 10)) s"
    case $word in FAILED*) echo "$name" >>"$logs/failed" ;; esac
    if [ "$(wc -c <"$logs/$name")" -gt 262144 ]; then
        tail -c 262144 "$logs/$name" >"$logs/tail" && mv "$logs/tail" "$logs/$name"
    fi
    save
    [ "$word" = ok ]
}

# One line for each figure that a bench has printed: name, value, unit, share of its limit, which limit that is.
read_figures() { # STEP LOG
    awk -v step="$1" '
        # the limits, and what does not multiply, once
        function put(name, value, unit, share, limit) {
            if (step !~ /_grouped$/ || name ~ /^experts/)
                print step "." name "\t" value "\t" unit "\t" share "\t" limit
        }
        $1 == "copy" && $3 == "GB/s" { put($1, $2, $3, "-", "-") }
        $1 == "product" && $3 == "TFLOP/s" { put($1, $2, $3, "-", "-") }
        $1 == "core" || $1 == "block" && $4 == "ms" { put($1 "_" $2, $3, "ms", $7 == "" ? "-" : $7, $7 == "" ? "-" : "product") }
        $1 ~ /^(route|dispatch|experts|combine)/ && $2 + 0 > 0 && NF >= 4 {
            put($1, $2, "ms", $6 == "" ? "-" : $6, $5 == "" ? "-" : $5)
        }
        /^hidden communication/ { put("hidden", $3, "%", $3 / 100, "all-to-all") }
        /^compute lane busy/ { put("busy", $4, "%", $4 / 100, "window") }
        /^slowdown of computation/ { put("slowdown", $NF, "x", "-", "-") }
        /^ *[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$/ { size = $1; rate = $3; share = $4 }
        /^exchange of/ { for (i = 1; i < NF; i++) if ($i == "GB/s") put("exchange", $(i - 1), $i, $(i + 4), "copy") }
        /^torch\./ { put(substr($1, 7), $2, $3, NF > 3 ? $4 : "-", NF > 4 ? $5 : "-") }
        END { if (size) put("message_" size, rate, "GB/s", share, "copy") }' "$2"
}

bench_of() { # FOLDER NAME SECONDS WAY PROGRAM ARGUMENTS...
    folder=$1 name=$2 limit=$3 way=$4 program=$5
    shift 5
    way=$debug${debug:+${way:+,}}$way
    step "$name" "$limit" env DUALPIPE_PLUGIN_PATH="$folder/.libs" ${way:+DUALPIPE_DEBUG="$way"} "$folder/bench/$program" "$@"
}

# A bench of this kit, and in call 3 the older kit's just before it.
bench() { # NAME SECONDS WAY PROGRAM ARGUMENTS...
    title=$1
    if [ "$call" = 3 ] && [ -d "$old" ]; then
        shift
        bench_of "$old" "old_$title" "$@" && read_figures "$title" "$logs/old_$title" >>"$logs/figures.old"
        set -- "$title" "$@"
    fi
    bench_of "$build" "$@" && read_figures "$title" "$logs/$title" >>"$logs/figures"
    save
}

# ---- the end ----

keeper=
leader=
# shellcheck disable=SC2317 # called by traps
finish() {
    trap - EXIT TERM INT
    [ -z "$leader" ] || { end_session "$leader" && say "ended from outside, in the step $name"; }
    [ -z "$keeper" ] || kill "$keeper" 2>/dev/null
    {
        echo "== results of call $call: $(grep -c ': ok, ' "$logs/report") ok, $(grep -c . "$logs/failed") failed," \
            "$(grep -c ': skipped' "$logs/report") skipped, $(grep -c ': left out' "$logs/report") left out;" \
            "$((($(now_ms) - start) / 1000)) of $seconds s"
        echo "figure                                       value unit     share of limit${old:+      old  share}"
        sort "$logs/figures.old" 2>/dev/null >"$logs/before"
        # in their order
        awk -F '\t' -v both="$old" 'NR == FNR && FILENAME ~ /before$/ { value[$1] = $2; share[$1] = $4; next }
            { printf "%-41s %8s %-7s %6s %-10s", $1, $2, $3, $4, $5 }
            both != "" { printf " %8s %6s", $1 in value ? value[$1] : "-", $1 in share ? share[$1] : "-" }
            { print "" }' "$logs/before" "$logs/figures" | head -c 5600
    } >"$logs/end"
    room=$((11800 - $(wc -c <"$logs/report") - $(wc -c <"$logs/end")))
    while read -r name; do
        echo "-- $name"
        grep . "$logs/$name" | tail -n 4 | cut -c 1-180
    done <"$logs/failed" >"$logs/failures"
    [ "$room" -lt 100 ] || head -c "$room" "$logs/failures"
    cat "$logs/end"
    save
    [ -s "$logs/failed" ] || status=0
    [ ! -s "$logs/failed" ] || status=1
    [ -z "$work" ] || rm -rf "$work"
    exit "$status"
}

# ---- the machine ----

say "== call $call of libdualpipe on $(uname -n), $(date -u +%Y-%m-%dT%H:%M)"
: >"$logs/figures.old"
[ ! -f "$old" ] || cp "$old" "$logs/figures.old"
{
    if [ "$emulated" = 1 ]; then
        echo "device: EMULATED (tests/fake_cuda): nothing here says anything about a GPU"
    elif command -v nvidia-smi >/dev/null 2>&1; then
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader
    else
        echo "device: nvidia-smi is not here"
    fi
    command -v nvcc >/dev/null 2>&1 && nvcc --version | tail -n 1
    "$build/dualpipe" --version
} >"$logs/machine" 2>&1
# shellcheck source=/dev/null
[ ! -e "$build/env.sh" ] || . "$build/env.sh" >>"$logs/machine" 2>&1
[ -z "$debug" ] || export DUALPIPE_DEBUG="$debug"
export DUALPIPE_PLUGIN_PATH="$build/.libs"
head -n 12 "$logs/machine" | cut -c 1-120 | tee -a "$logs/report"
save

tests=$build/tests/gpu
train=$build/apps/train_moe/train_moe
model="--layers 2 --hidden 64 --heads 2 --seq 32 --batch 1 --experts 4 --expert-hidden 32 --microbatches 4 --warmup 1 --steps 2
    --sample 0 --val-every 2 --quiet --device cuda --dtype bf16"
attention= moe= overlap="--layers 2" p2p=
if [ "$emulated" = 1 ]; then
    model="$model --hidden 16 --seq 8 --expert-hidden 8 --steps 1"
    attention="--sequence 32 --hidden 32 --heads 2 --head-dim 16 --value-dim 16 --product 64 --iterations 1"
    moe="--tokens 32 --hidden 64 --expert-hidden 32 --experts 4 --top-k 2 --turns 1"
    overlap="--tokens 16 --hidden 32 --heads 2 --head-dim 16 --value-dim 8 --q-rank 16 --kv-rank 8 --rope-dim 8 --experts 4 --top-k 2
        --expert-hidden 16 --steps 1 --layers 1"
    p2p="--most 65536 --repeats 1"
fi

# The first start, which also says whether there is a device at all.
# shellcheck disable=SC2086
step start 30 "$train" --threads 1 $model --attention cuda || {
    if grep -q 'no CUDA device' "$logs/start"; then
        echo "SKIP: $(grep -m 1 'no CUDA device' "$logs/start")"
        [ -z "$work" ] || rm -rf "$work"
        exit 77
    fi
}
trap finish EXIT TERM INT

# While a process has a context, others start sooner.
python3 -c '
import ctypes, sys, time
cuda, context = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
print(cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), flush=True)
time.sleep(float(sys.argv[2]))' "$([ "$emulated" = 1 ] && echo "$fakes/libcuda_fake.so" || echo libcuda.so.1)" "$seconds" \
    >"$logs/keeper" 2>&1 </dev/null &
keeper=$!

# ---- calls ----

# shellcheck disable=SC2086
figures() {
    bench attention_partition 30 "" gpu_attention $attention
    [ "$short" = 1 ] || bench attention_whole 30 "" gpu_attention --comm-sms 0 $attention
    bench moe 30 "" gpu_moe $moe
    bench moe_grouped 30 moe_cuda.products=grouped gpu_moe $moe
    [ "$short" = 1 ] || bench moe8 30 "" gpu_moe $moe --experts 8
    [ "$call" = 3 ] || [ "$emulated" = 1 ] || {
        step torch 60 python3 "$build/bench/gpu_torch.py" && read_figures torch "$logs/torch" >>"$logs/figures"
    }
    bench overlap 60 "" gpu_overlap $overlap
    bench p2p 30 "" gpu_p2p $p2p
}

# shellcheck disable=SC2086
kernels() {
    step train_threads 30 "$train" --threads 2 $model --attention cuda
    step train_partition 30 "$train" --threads 1 --comm-sms 20 $model --attention cuda
    step train_cudnn 30 "$train" --threads 1 $model --attention cudnn
    [ "$short" = 1 ] || step test_partitions 40 env CK_RUN_CASE=partitions "$tests/test_device_cuda"
    step test_moe_ways 90 "$tests/test_moe_cuda" each_way_of_multiplying ${ways-}
    step test_attention_cudnn 60 "$tests/test_attention_cudnn" ${shapes-refusals_name_the_setting}
    [ "$short" = 1 ] || step test_attention_cuda 60 "$tests/test_attention_cuda" blocks_of_scores_add_up heads_of_many_widths
    [ "$short" = 1 ] || step test_kernels 60 "$tests/test_kernels"
    [ "$short" = 1 ] || step test_device_cuda 60 "$tests/test_conform_device_cuda"
    [ "$short" = 1 ] || step test_hook_cupti 30 "$tests/test_hook_cupti"
}

# shellcheck disable=SC2086
hang() {
    for case in messages_arrive_in_order_and_whole ${more-}; do
        step "ipc_threads_$case" 40 "$tests/test_comm_cuda_ipc" --plugin comm_cuda_ipc --device device_cuda --mode threads $case
        step "ipc_processes_$case" 40 "$tests/test_comm_cuda_ipc" --plugin comm_cuda_ipc --device device_cuda --mode processes $case
    done
    step ipc_killed 40 "$tests/test_comm_cuda_ipc" --plugin comm_cuda_ipc --device device_cuda --mode processes \
        killed_while_receiving
    for case in sums_follow_each_other ${more-}; do
        step "nccl_processes_$case" 60 "$tests/test_comm_nccl" --plugin comm_nccl --device device_cuda --mode processes $case
    done
    step train_blocking 30 env CUDA_LAUNCH_BLOCKING=1 "$train" --threads 1 $model --attention cuda
    [ "$emulated" = 1 ] || step memcheck 150 compute-sanitizer --tool memcheck --target-processes all --error-exitcode 1 \
        "$tests/test_moe_cuda" each_way_of_multiplying ${ways-}
    step train_graph 30 "$train" --threads 1 --graph $model --attention cuda
}

if [ "$short" = 0 ]; then
    more="exchanges_bring_every_row all_traffic_at_once a_group_leaves_nothing_behind"
    ways="each_way_takes_any_length larger_products calls_can_be_captured"
    shapes="shapes_of_models micro_batches_of_any_length"
fi
case $call in
1) figures && kernels ;;
2) hang ;;
3) figures ;;
esac
