#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_mixed.sh: two transports joined keep the contract of dp.comm/1: with hosts side by side, interleaved, of different sizes
# and with one rank; both one-sided, both matched, and one of each; ranks as threads and as processes.
set -eu

suite="${TEST_WRAPPER:-} $DP_TEST_BUILDDIR/tests/conform/test_conform_mixed"
mock() {
    echo "$DP_TEST_MOCKS/mock_comm_$1.so"
}
try() { # HOSTS NEAR FAR MODE
    echo "# hosts $1: $2 + $3, $4"
    DUALPIPE_DEBUG=hosts=$1 $suite "$2" "$3" --mode "$4"
}

try a:a:b:b comm_shm "$(mock far)" threads
try a:b:a:b:b:a comm_shm "$(mock far)" threads
try a:b:a:b:b:a comm_shm "$(mock far_matched)" threads
try a:a:b "$(mock matched)" "$(mock far)" threads
try a:b:a:c "$(mock matched)" "$(mock far_matched)" threads
try a:a:b:b comm_shm "$(mock far_groups)" processes
