#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_mixed_cuda.sh: ranks on GPUs of several hosts: peer memory within a host and NCCL between them, joined without a word
# about transports, keep the contract of dp.comm/1 and train to the bits of one host. Through the fakes of tests/fake_cuda;
# DUALPIPE_DEBUG=hosts says who counts as on which host.
set -eu
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
fakes=$DP_TEST_BUILDDIR/tests/fake_cuda/.libs
for plugin in device_cuda comm_cuda_ipc comm_nccl moe_cuda attention_cuda; do
    [ -e "$DP_TEST_BUILDDIR/.libs/dp_$plugin.so" ] && [ -e "$fakes/libnccl_fake.so" ] || {
        echo "skipped: this build has no $plugin"
        exit 77
    }
done
fake="lib.cuda=$fakes/libcuda_fake.so,lib.cublaslt=$fakes/libcublaslt_fake.so,lib.cutlass=$fakes/libcutlass_fake.so,lib.cudnn=$fakes/libcudnn_fake.so,lib.nccl=$fakes/libnccl_fake.so"
export CUDA_MODULE_LOADING=EAGER DUALPIPE_DEBUG="$fake"
small="--layers 4 --hidden 8 --heads 2 --kv-heads 1 --experts 4 --expert-hidden 8 --seq 8 --batch 1 --warmup 2 --steps 2
    --val-every 2 --sample 0 --microbatches 8 --device cuda"
joined='4 ranks on 2 hosts .* talk over comm_cuda_ipc within a host and comm_nccl between hosts'

# ---- the contract ----
conform() { # HOSTS MODE CASE...
    hosts=$1
    mode=$2
    shift 2
    DUALPIPE_DEBUG="$DUALPIPE_DEBUG,hosts=$hosts" "$DP_TEST_BUILDDIR/tests/conform/test_conform_mixed" comm_cuda_ipc comm_nccl --mode "$mode" \
        --device device_cuda "$@" >"$work/out" 2>&1 || complain "hosts $hosts, ranks as $mode"
}
DP_FAKE_NCCL_SHARE=1 conform a:b:a:b:b:a threads sums_follow_each_other all_traffic_at_once
DUALPIPE_DEBUG="$fake,nccl.same_gpu=1" conform a:a:b:b processes all_traffic_at_once

# ---- training ----
same() { # REFERENCE WHAT
    expect 0 err "$joined" "$2"
    cmp -s "$work/$1" "$work/losses" || complain "$2: other losses than $1"
    rm -f "$work/losses"
}
train() { # RANKS OPTIONS...: ranks as processes
    ranks "$@" --quiet --losses "$work/losses"
}
reference() { # NAME RANKS OPTIONS...: on one host
    name=$1
    shift
    train "$@" --comm cuda_ipc
    [ "$(grep -c '^[0-9]* 0x1\.[0-9a-f]*p' "$work/losses")" -eq 2 ] || complain "$name: not two steps with losses"
    mv "$work/losses" "$work/$name"
}
mixed() { # REFERENCE HOSTS OPTIONS...
    name=$1
    what=$*
    export DUALPIPE_DEBUG="$fake,hosts=$2,nccl.same_gpu=1" DUALPIPE_LOG=info
    shift 2
    train 4 "$@"
    unset DUALPIPE_LOG
    DUALPIPE_DEBUG=$fake
    same "$name" "$what"
}
reference one_replica 1
reference two_expert_ranks 4 --ep 2
mixed one_replica a:b:b:a --schedule zb1p
mixed two_expert_ranks a:b:a:b --ep 2
if long; then
    reference two_copies 4 --dp 2
    mixed two_copies a:a:b:b --dp 2 --schedule 1f1b
fi

# as threads; the report says it as well
export DUALPIPE_DEBUG="$fake,hosts=a:a:b:b" DP_FAKE_NCCL_SHARE=1 DUALPIPE_LOG=info
threads 4 --losses "$work/losses"
same one_replica threads
expect 0 out 'comm_cuda_ipc (0-1, 2-3) + comm_nccl (others)' "the report"
finish
