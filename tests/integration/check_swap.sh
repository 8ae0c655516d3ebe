#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_swap.sh: the example swap_comm: transports swapped under a running pipeline, one, two joined and back, change no bit of a loss.
# DUALPIPE_DEBUG=hosts has ranks of this host count as several.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
swap=$DP_TEST_BUILDDIR/examples/swap_comm/swap_comm
lib=$DP_TEST_BUILDDIR/.libs

swapped() { # N COMM...: over N processes
    n=$1
    shift
    status=0
    timeout $((60 * scale)) "$dualpipe" run -n "$n" -- "$swap" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    [ "$status" -eq 0 ] || complain "$n ranks, $*: exit status $status"
    [ "$(grep -c ' loss ' "$work/out")" -eq 60 ] || complain "$n ranks, $*: not sixty steps"
}
same() { # N COMM...
    swapped "$@"
    cmp -s "$work/reference" "$work/out" || complain "$*: other losses: $(diff "$work/reference" "$work/out" | head -n 2)"
}

swapped 4 shm
cp "$work/out" "$work/reference"
same 4 auto
same 4 shm "$DP_TEST_MOCKS/mock_comm_groups.so" shm
# What auto takes by itself: a transport of a third party that says it is better.
own_path=$DUALPIPE_PLUGIN_PATH
mkdir "$work/plugins"
ln -s "$DP_TEST_MOCKS/mock_comm_groups.so" "$work/plugins/dp_comm_mine.so"
DUALPIPE_PLUGIN_PATH=$work/plugins:$own_path
export DUALPIPE_PLUGIN_PATH
same 4 auto shm auto
expect 0 err 'auto: ranks 0 and 1 talk over comm_mine' "the better one"
DUALPIPE_PLUGIN_PATH=$own_path
if [ -f "$lib/dp_comm_ofi.so" ]; then
    DUALPIPE_OFI_PROVIDER=tcp
    export DUALPIPE_OFI_PROVIDER
    same 4 shm ofi shm auto ofi
    DUALPIPE_DEBUG=hosts=a:a:b:b
    export DUALPIPE_DEBUG
    same 4 ofi auto shm+ofi ofi
    expect 0 err 'auto: ranks 0 and 1 talk over comm_shm, ranks 0 and 3 over comm_ofi' "what pairs use"
    same 4 ofi "$DP_TEST_MOCKS/mock_comm_far_groups.so" auto "shm+$DP_TEST_MOCKS/mock_comm_far_groups.so" auto
    unset DUALPIPE_DEBUG
fi

# Without a transport between hosts there is a sentence.
DUALPIPE_DEBUG=hosts=a:a:b:b
export DUALPIPE_DEBUG
status=0
timeout $((60 * scale)) "$dualpipe" run -n 4 -- "$swap" shm >"$work/out" 2>"$work/err" </dev/null || status=$?
expect 1 err 'comm_shm reaches ranks of one host only, and rank 2 is on another host than rank 0 (DUALPIPE_DEBUG=hosts says so): take auto' "shm alone"
status=0
timeout $((60 * scale)) "$dualpipe" run -n 4 -- "$swap" shm+shm >"$work/out" 2>"$work/err" </dev/null || status=$?
expect 1 err 'comm_shm+comm_shm: comm_shm, which is to reach other hosts, says that it reaches none' "shm between hosts"
finish
