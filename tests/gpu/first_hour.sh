#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# first_hour.sh: what to run first on a machine with a GPU; ten minutes, one report on standard output.
#
#   make benches check TESTS= && ../tests/gpu/first_hour.sh [--emulated] [--short] [BUILD]
#
# BUILD is the build folder (default: the one you are in). --emulated runs on the emulated device instead, with sizes that it
# manages; --short leaves out what make check runs anyway. What each step printed stays in BUILD/first_hour/. Exit status: 0 when
# nothing failed, 77 without a GPU.
set -u

emulated=0 short=0 build=
for word in "$@"; do
    case $word in
    --emulated) emulated=1 ;;
    --short) short=1 ;;
    -*) echo "usage: first_hour.sh [--emulated] [--short] [BUILD]" >&2 && exit 2 ;;
    *) build=$word ;;
    esac
done
cd "${build:-.}" || exit 2
build=$PWD
source=$(cd "$(dirname "$0")/../.." 2>/dev/null && pwd) || source=
export DP_TEST_BUILDDIR="$build" DP_TEST_SRCDIR="${DP_TEST_SRCDIR:-$source}" DUALPIPE_PLUGIN_PATH="$build/.libs"
logs=$build/first_hour
rm -rf "$logs"
mkdir -p "$logs" || exit 2
train=$build/apps/train_moe/train_moe
cutlass=$build/.libs/moe_cuda_cutlass.so
if [ "$emulated" = 1 ]; then
    fakes=$build/tests/fake_cuda/.libs
    [ -e "$fakes/libcuda_fake.so" ] || { echo "SKIP: built without CUDA" && exit 77; }
    cutlass=$fakes/libcutlass_fake.so
    export DP_TEST_FAKE=1 DUALPIPE_DEBUG="lib.cuda=$fakes/libcuda_fake.so,lib.cublaslt=$fakes/libcublaslt_fake.so,lib.cutlass=$cutlass"
    DUALPIPE_DEBUG=$DUALPIPE_DEBUG,lib.cudnn=$fakes/libcudnn_fake.so,lib.nccl=$fakes/libnccl_fake.so
fi
start=$(date +%s)
summary=$logs/summary
failed=0

# Runs a command for at most so many seconds, and none when ten minutes are over (the emulated device has no hurry).
step() { # NAME SECONDS COMMAND...
    name=$1 limit=$2
    shift 2
    began=$(date +%s)
    if [ "$emulated" = 0 ] && [ $((began - start)) -gt 600 ]; then
        echo "$name: left out, ten minutes are over" | tee -a "$summary"
        return
    fi
    [ "$emulated" = 0 ] || limit=$((limit * 10))
    if [ ! -x "$1" ] && [ "$1" != env ]; then
        echo "$name: left out, $1 was not built" | tee -a "$summary"
        return
    fi
    timeout -k 5 "$limit" "$@" >"$logs/$name" 2>&1
    case $? in
    0) word=ok ;;
    77) word="skipped: $(tail -n 1 "$logs/$name" | cut -c 1-100)" ;;
    124 | 137) word="FAILED: not done after $limit s" ;;
    *) word=FAILED ;;
    esac
    echo "$name: $word, $(($(date +%s) - began)) s" | tee -a "$summary"
    case $word in
    FAILED*)
        failed=$((failed + 1))
        tail -n 12 "$logs/$name" | cut -c 1-200 | sed 's/^/    /'
        ;;
    esac
}

# A step whose figures belong into the report.
figures() { # NAME SECONDS COMMAND...
    step "$@"
    [ ! -e "$logs/$1" ] || sed 's/^/    /' "$logs/$1" | cut -c 1-160 | head -n 60
}

test_of() { # NAME SECONDS [ENVIRONMENT...]
    program=$build/tests/gpu/$1 limit=$2
    name=$1
    shift 2
    step "$name" "$limit" env "$@" "$program"
}

echo "== first hour of libdualpipe on $(uname -n), $(date -u +%Y-%m-%d)"
if [ "$emulated" = 1 ]; then
    echo "device: EMULATED (tests/fake_cuda): nothing here says anything about a GPU"
elif command -v nvidia-smi >/dev/null 2>&1; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv
else
    echo "device: nvidia-smi is not here"
fi
command -v nvcc >/dev/null 2>&1 && nvcc --version | tail -n 2
ldconfig -p 2>/dev/null | grep -E 'lib(cuda|cublasLt|cudnn|nccl|cupti)\.so\.[0-9]+ ' | sed 's/^/ /'
"$build/dualpipe" --version 2>/dev/null

"$train" --threads 1 --device cuda --layers 2 --hidden 16 --heads 2 --seq 8 --batch 1 --experts 4 --expert-hidden 8 --steps 1 --quiet \
    >"$logs/open" 2>&1 || {
    if grep -q 'no CUDA device' "$logs/open"; then
        echo "SKIP: $(grep -m 1 'no CUDA device' "$logs/open")"
        exit 77
    fi
    echo "a step of one rank: FAILED" | tee -a "$summary"
    failed=$((failed + 1))
    tail -n 12 "$logs/open" | sed 's/^/    /'
}

echo "== contract, kernels beside their CPU twins, partitions (all kernels loaded at once)"
if [ "$short" = 1 ]; then
    step partitions 30 env CK_RUN_CASE=partitions "$build/tests/gpu/test_device_cuda"
else
    for name in test_conform_device_cuda test_device_cuda test_kernels; do
        test_of "$name" 40 CUDA_MODULE_LOADING=EAGER
    done
    for name in test_attention_cuda test_attention_cudnn test_moe_cuda test_comm_cuda_ipc; do
        test_of "$name" 60 CUDA_MODULE_LOADING=EAGER
    done
    test_of test_hook_cupti 20 CUDA_MODULE_LOADING=EAGER
fi

echo "== training: one rank, two ranks as threads, kernels loaded at first use, blocking launches"
model="--layers 2 --hidden 64 --heads 2 --seq 32 --batch 1 --experts 4 --expert-hidden 32 --microbatches 4 --warmup 1 --steps 2
    --sample 0 --val-every 2 --quiet --device cuda --dtype bf16 --attention cuda"
[ "$emulated" = 0 ] || model="$model --hidden 16 --seq 8 --expert-hidden 8 --steps 1"
# shellcheck disable=SC2086
{
    step train_one 20 "$train" --threads 1 $model
    step train_threads 20 env CUDA_MODULE_LOADING=LAZY "$train" --threads 2 $model
    step train_blocking 20 env CUDA_LAUNCH_BLOCKING=1 "$train" --threads 1 $model
    step train_partition 20 "$train" --threads 1 --comm-sms 20 $model
}

echo "== figures"
attention= moe= overlap= p2p=
if [ "$emulated" = 1 ]; then
    attention="--sequence 32 --hidden 32 --heads 2 --head-dim 16 --value-dim 16 --product 64 --iterations 1"
    moe="--tokens 32 --hidden 64 --expert-hidden 32 --experts 4 --top-k 2 --turns 1"
    overlap="--tokens 16 --hidden 32 --heads 2 --head-dim 16 --value-dim 8 --q-rank 16 --kv-rank 8 --rope-dim 8 --experts 4 --top-k 2 --expert-hidden 16 --steps 1 --layers 1"
    p2p="--most 65536 --repeats 1"
fi
# shellcheck disable=SC2086
{
    figures attention_partition 40 "$build/bench/gpu_attention" $attention
    figures attention_share 40 env DUALPIPE_DEBUG="${DUALPIPE_DEBUG-},cudnn.share=1" "$build/bench/gpu_attention" $attention
    figures moe_grouped 40 "$build/bench/gpu_moe" $moe
    [ "$short" = 1 ] || figures attention_whole 40 "$build/bench/gpu_attention" --comm-sms 0 $attention
    [ "$short" = 1 ] || figures moe_cublaslt 40 env DUALPIPE_DEBUG="${DUALPIPE_DEBUG-},moe_cuda.products=cublaslt" "$build/bench/gpu_moe" $moe
    [ "$short" = 1 ] || [ ! -e "$cutlass" ] ||
        figures moe_cutlass 40 env DUALPIPE_DEBUG="${DUALPIPE_DEBUG-},moe_cuda.products=cutlass" "$build/bench/gpu_moe" $moe
    [ "$short" = 1 ] || figures moe_wgmma 40 env DUALPIPE_DEBUG="${DUALPIPE_DEBUG-},moe_cuda.products=wgmma" "$build/bench/gpu_moe" $moe
    figures overlap 90 "$build/bench/gpu_overlap" ${overlap:---layers 2}
    figures p2p 40 "$build/bench/gpu_p2p" $p2p
}

if [ "$short" = 0 ]; then
    echo "== NCCL with several processes on one GPU, graphs last"
    test_of test_comm_nccl 90
    # shellcheck disable=SC2086
    step train_graph 20 "$train" --threads 1 --graph $model
fi

echo "== results"
cat "$summary"
cat <<'END'
== what to look at
R8   attention_partition beside attention_share, "core forward" and "core backward" as shares of the product: a plan for 132
     multiprocessors on 112 runs a second wave (0.59 of the speed) where kernels are persistent. attention_whole is the limit.
     If the share's plan is refused or no faster, leave DUALPIPE_DEBUG=cudnn.share away.
R10  moe_wgmma beside moe_grouped: if it is not at 1.3 of it, look with ncu for MEMBAR before FENCE.VIEW.ASYNC in its loop;
     any difference in test_moe_cuda between the two is a race, not rounding.
R3   test_comm_nccl: sums_and_exchanges_fit_into_the_share must not hang.
R1   train_threads: a hang here is a library kernel that was loaded in a step.
next compute-sanitizer --tool memcheck, racecheck, synccheck on test_moe_cuda and test_comm_cuda_ipc;
     gpu_overlap --trace FILE, then dualpipe trace on it. Enter what was seen, with date and machine, into docs/gpu.md.
END
[ "$failed" -eq 0 ]
