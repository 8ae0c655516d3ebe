#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_groups.sh: the contract of dp.comm/1 as backends of matched bundles keep it, ranks as threads and as processes.
set -eu

suite="${TEST_WRAPPER:-} $DP_TEST_BUILDDIR/tests/conform/test_conform_comm"
$suite --mode threads --plugin "$DP_TEST_MOCKS/mock_comm_matched.so"
exec $suite --mode processes --plugin "$DP_TEST_MOCKS/mock_comm_groups.so"
