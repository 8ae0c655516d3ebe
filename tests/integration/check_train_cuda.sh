#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_cuda.sh: train_moe on CUDA through the fake driver of tests/fake_cuda: the same training as on the CPU, with ranks
# as threads and as processes, step by step and as a replayed graph, plugins swapped by name alone. The kernels are those of a
# GPU, compiled for the host; nothing here says anything about speed.
set -eu

. "$DP_TEST_SRCDIR/tests/integration/train.sh"
fakes=$DP_TEST_BUILDDIR/tests/fake_cuda/.libs
if [ ! -e "$fakes/libcuda_fake.so" ] || [ ! -e "$fakes/libcublaslt_fake.so" ]; then
    echo "SKIP: built without CUDA"
    exit 77
fi
export DUALPIPE_DEBUG="lib.cuda=$fakes/libcuda_fake.so,lib.cublaslt=$fakes/libcublaslt_fake.so,lib.cutlass=$fakes/libcutlass_fake.so,lib.cudnn=$fakes/libcudnn_fake.so,lib.nccl=$fakes/libnccl_fake.so"
model="--layers 2 --hidden 16 --heads 2 --kv-heads 1 --seq 8 --batch 1 --experts 4 --expert-hidden 8 --microbatches 4
    --warmup 2 --steps 3 --sample 0 --val-every 2 --quiet"

run() { # NAME OPTIONS...
    name=$1
    shift
    # shellcheck disable=SC2086
    "$train" $model --losses "$work/$name" "$@" >"$work/$name.out" 2>&1 || {
        echo "$name: train_moe $* failed: $(cat "$work/$name.out")"
        failures=$((failures + 1))
        : >"$work/$name"
    }
}

same() { # NAME NAME
    if [ ! -s "$work/$1" ] || ! cmp "$work/$1" "$work/$2"; then
        echo "$1 and $2 differ:"
        paste "$work/$1" "$work/$2"
        failures=$((failures + 1))
    fi
}

tells() { # DTYPE WHAT THE REPORT SAYS
    # shellcheck disable=SC2086
    "$train" ${model% --quiet} --steps 1 --threads 2 --device cuda --attention cuda --dtype "$1" 2>&1 | grep -q "$2" || {
        echo "the report of a run with --dtype $1 does not say \"$2\""
        failures=$((failures + 1))
    }
}

# Losses and norms of two runs to within a share of themselves; the files hold hexadecimal numbers.
close() { # NAME NAME SHARE
    for file in "$1" "$2"; do
        grep -v '^#' "$work/$file" | tr ' ' '\n' | while read -r number; do printf '%.17g\n' "$number"; done >"$work/$file.list"
    done
    paste "$work/$1.list" "$work/$2.list" | awk -v share="$3" '
        { d = $1 - $2; if (d < 0) d = -d; if (d > share * ($1 < 0 ? -$1 : $1)) bad = bad " " NR ":" $1 "/" $2 }
        END { if (NR < 9 || bad != "") { print NR " numbers, apart:" bad; exit 1 } }' || {
        echo "$1 and $2 are not within $3"
        failures=$((failures + 1))
    }
}

run cpu64 --threads 2 --dtype f64
run cuda64 --threads 2 --dtype f64 --device cuda
close cpu64 cuda64 1e-12
if long; then
    run cpu64tied --threads 2 --dtype f64 --tie-embeddings
    run cuda64tied --threads 2 --dtype f64 --tie-embeddings --device cuda
    close cpu64tied cuda64tied 1e-12
fi
run cpu32 --threads 2
run cuda32 --threads 2 --device cuda
close cpu32 cuda32 1e-5
if long; then
    run cuda64rounds --threads 2 --dtype f64 --tie-embeddings --accumulate 2 --device cuda
    run cuda64rounds_graph --threads 2 --dtype f64 --tie-embeddings --accumulate 2 --device cuda --graph
    same cuda64rounds cuda64rounds_graph
    # bf16 with masters in fp32: a run that goes on after its checkpoint has the bits of one that never stopped, with shards too.
    run cuda16whole --threads 2 --device cuda --dtype bf16 --attention cuda --steps 6 --checkpoint "$work/ck16" --every 2 --keep 0
    rm -r "$work/ck16/step-00000004" "$work/ck16/step-00000006"
    run cuda16resumed --threads 2 --device cuda --dtype bf16 --attention cuda --steps 6 --checkpoint "$work/ck16" --every 2 --resume \
        --zero 1
    same cuda16whole cuda16resumed
fi
run cuda16 --threads 2 --device cuda --dtype bf16 --attention cuda
if long; then
    run cuda16bits --threads 2 --device cuda --dtype bf16 --attention cuda --check-bits 1 --checkpoint "$work/ckbits" --every 1
    same cuda16 cuda16bits
    tells bf16 'products of experts: CUTLASS'
    tells f64 'products of experts: plain tiles'
fi
close cpu32 cuda16 2e-2
mla="--attention-kind mla --q-rank 12 --kv-rank 10 --rope-dim 4"
run mla-cpu64 --threads 2 --dtype f64 $mla
run mla-cuda64 --threads 2 --dtype f64 $mla --device cuda
close mla-cpu64 mla-cuda64 1e-12
if long; then
    # Less kept and more computed, with the same bits.
    for level in cheap mlp full; do
        run "cuda64-$level" --threads 2 --dtype f64 --device cuda --recompute $level
        same cuda64 "cuda64-$level"
    done
    run mla-cuda64-full --threads 2 --dtype f64 $mla --device cuda --recompute full
    same mla-cuda64 mla-cuda64-full
fi
# Micro-batches of different length, packed with documents, as on the CPU.
lengths="--batch 3 --varlen --documents --aux-alpha 0.1"
run lengths-cpu64 --threads 2 --dtype f64 $lengths
run lengths-cuda64 --threads 2 --dtype f64 $lengths --device cuda
close lengths-cpu64 lengths-cuda64 1e-12
if long; then
    run lengths-cuda64-full --threads 2 --dtype f64 $lengths --device cuda --recompute full
    same lengths-cuda64 lengths-cuda64-full
    run mla-lengths-cpu64 --threads 4 --ep 2 --dtype f64 $lengths $mla
    run mla-lengths-cuda64 --threads 4 --ep 2 --dtype f64 $lengths $mla --device cuda
    close mla-lengths-cpu64 mla-lengths-cuda64 1e-12
    run varlen-cpu32 --threads 2 --batch 3 --varlen
    run varlen-cuda32 --threads 2 --batch 3 --varlen --device cuda
    close varlen-cpu32 varlen-cuda32 1e-5
fi
if [ -e "$DP_TEST_BUILDDIR/.libs/dp_attention_cudnn.so" ]; then
    run cudnn16 --threads 2 --device cuda --dtype bf16 --attention cudnn
    [ "$(grep -c 'start ranks as processes, or take attention_cuda' "$work/cudnn16.out")" -eq 1 ] || {
        echo "two ranks with cuDNN's streams in one process are not told once that they may stand still: $(cat "$work/cudnn16.out")"
        failures=$((failures + 1))
    }
    if long; then
        run cudnn16-full --threads 2 --device cuda --dtype bf16 --attention cudnn --recompute full
        same cudnn16 cudnn16-full
    fi
    close cpu32 cudnn16 2e-2
    if long; then
        run varlen-cudnn16 --threads 2 --batch 3 --varlen --device cuda --dtype bf16 --attention cudnn
        close varlen-cpu32 varlen-cudnn16 2e-2
    fi
    # cuDNN keeps no documents apart, and its plugin says what does
    if "$train" $model --threads 2 --device cuda --dtype bf16 --attention cudnn --documents >"$work/out" 2>&1 ||
        ! grep -q 'use attention_cpu or attention_cuda' "$work/out"; then
        echo "--dtype bf16 --documents is not refused by its attention plugin: $(cat "$work/out")"
        failures=$((failures + 1))
    fi
    if long; then
        run documents-cuda16 --threads 2 --device cuda --dtype bf16 --documents --attention cuda
        run documents-cpu32 --threads 2 --documents
        close documents-cpu32 documents-cuda16 2e-2
    fi
fi

run graph --threads 2 --device cuda --graph
same cuda32 graph
run shards --threads 2 --device cuda --graph --zero 1
same cuda32 shards
run odd --threads 1 --device cuda --graph
run serial --threads 1 --device cuda
same odd serial
grep -q "graph: experimental with several ranks" "$work/graph.out" && ! grep -q experimental "$work/odd.out" || {
    echo "two ranks with --graph are not told once that it is experimental, or one rank is: $(cat "$work/graph.out" "$work/odd.out")"
    failures=$((failures + 1))
}

# experts that move make a captured step be captured anew, while the other rank's kernels may be waiting already
run placed --threads 4 --ep 2 --device cuda --eplb 1 --skew 0.3 --bias-rate 0
run placed-graph --threads 4 --ep 2 --device cuda --eplb 1 --skew 0.3 --bias-rate 0 --graph
same placed placed-graph

"$DP_TEST_BUILDDIR/dualpipe" run -n 2 -- "$train" $model --device cuda --losses "$work/processes" >"$work/out" 2>&1 || {
    echo "processes: $(cat "$work/out")"
    failures=$((failures + 1))
}
same cuda32 processes

# matched groups instead of puts: other lists, other streams, the same bits
if [ -e "$fakes/libnccl_fake.so" ]; then
    DP_FAKE_NCCL_SHARE=1 && export DP_FAKE_NCCL_SHARE
    run nccl --threads 2 --device cuda --comm nccl
    same cuda32 nccl
    run experts --threads 4 --ep 2 --device cuda
    run nccl-experts --threads 4 --ep 2 --device cuda --comm nccl
    same experts nccl-experts
    unset DP_FAKE_NCCL_SHARE
    DUALPIPE_DEBUG=$DUALPIPE_DEBUG,nccl.same_gpu=1 "$DP_TEST_BUILDDIR/dualpipe" run -n 2 -- "$train" $model --device cuda --comm nccl \
        --losses "$work/nccl-processes" >"$work/out" 2>&1 || {
        echo "processes over NCCL: $(cat "$work/out")"
        failures=$((failures + 1))
    }
    same cuda32 nccl-processes
    if long; then
        # exchanges of the rows that there are need streams that hold up nothing: as many queues as a device has do
        DP_FAKE_QUEUES=32 DUALPIPE_DEBUG=$DUALPIPE_DEBUG,nccl.same_gpu=1 "$DP_TEST_BUILDDIR/dualpipe" run -n 4 -- "$train" $model --ep 2 --device cuda \
            --comm nccl --losses "$work/nccl-queues" >"$work/out" 2>&1 || {
            echo "processes with 32 queues over NCCL: $(cat "$work/out")"
            failures=$((failures + 1))
        }
        same experts nccl-queues
        # one-sided channels run the program of puts; auto that of bundles, over windows or, for all, groups
        for channels in signals auto auto:1; do
            windowless=${channels#*:}
            DP_FAKE_NCCL_VERSION=22907 DUALPIPE_DEBUG=$DUALPIPE_DEBUG,nccl.channels=${channels%:*} DP_FAKE_NCCL_WINDOWLESS=${windowless#"$channels"} \
                DP_FAKE_NCCL_SHARE=1 DUALPIPE_LOG=info \
                "$DP_TEST_BUILDDIR/dualpipe" run -n 4 -- "$train" $model --ep 2 --device cuda --comm nccl \
                --losses "$work/nccl-puts" >"$work/out" 2>&1 || {
                echo "processes over channels $channels of NCCL: $(cat "$work/out")"
                failures=$((failures + 1))
            }
            same experts nccl-puts
            case $channels in
            signals) told=0 what="channels are" ;;
            auto) told=2 what="channels are one-sided" ;;
            *) told=2 what="channels are NCCL's groups; rank [0-9]*: NCCL makes no windows" ;;
            esac
            [ "$(grep -c "$what" "$work/out")" -eq "$told" ] || { # each of two pipelines
                echo "channels $channels of NCCL: not said $told times that $what: $(cat "$work/out")"
                failures=$((failures + 1))
            }
        done
    fi
fi

# as processes: the serial run beside it would make 8 devices of one process, which is more than there are queues for
"$DP_TEST_BUILDDIR/dualpipe" run -n 4 -- "$train" $model --ep 2 --device cuda --dtype f64 --verify >"$work/out" 2>&1 || {
    echo "verify: $(cat "$work/out")"
    failures=$((failures + 1))
}
run tuned --threads 1 --device cuda --comm-sms auto --steps 1

if long; then
    # streams that share hardware queues: ranks as threads train, or are refused with the reason; processes have separate queues
    DP_FAKE_QUEUES=12 CUDA_DEVICE_MAX_CONNECTIONS=12 run queues --threads 2 --device cuda
    same cuda32 queues
    DP_FAKE_QUEUES=32 run queues-experts --threads 4 --ep 2 --device cuda
    same experts queues-experts
    for many in "8 2" "12 4" "32 8"; do
        queues=${many% *} threads=${many#* }
        # shellcheck disable=SC2086
        if DP_FAKE_QUEUES=$queues CUDA_DEVICE_MAX_CONNECTIONS=$queues "$train" $model --microbatches 8 --threads "$threads" --ep 2 \
            --device cuda >"$work/out" 2>&1; then
            echo "$threads ranks as threads with $queues queues: exit code 0"
            failures=$((failures + 1))
        fi
        grep -q "and it has $queues hardware queues" "$work/out" || {
            echo "$threads ranks as threads with $queues queues: $(cat "$work/out")"
            failures=$((failures + 1))
        }
    done
    DP_FAKE_QUEUES=1 "$DP_TEST_BUILDDIR/dualpipe" run -n 2 -- "$train" $model --device cuda --losses "$work/one-queue" >"$work/out" 2>&1 || {
        echo "processes with one queue each: $(cat "$work/out")"
        failures=$((failures + 1))
    }
    same cuda32 one-queue
fi

# a launch that waits for its kernel, as debugging tools have it
CUDA_LAUNCH_BLOCKING=1 run blocking --threads 1 --device cuda
same serial blocking

# a device that is not there
if DUALPIPE_DEBUG=lib.cuda=/nonexistent/libcuda.so "$train" --threads 1 --device cuda --steps 1 >"$work/out" 2>&1; then
    echo "training without a driver: exit code 0"
    failures=$((failures + 1))
fi
grep -q 'no CUDA device' "$work/out" || {
    echo "no word of a CUDA device that is missing: $(cat "$work/out")"
    failures=$((failures + 1))
}

echo "$failures failures"
[ "$failures" -eq 0 ]
