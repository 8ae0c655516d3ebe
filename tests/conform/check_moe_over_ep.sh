#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_moe_over_ep.sh: moe_cpu over ep_exchange keeps the contract of dp.moe/1, and all else that is demanded of moe_cpu
# alone: a row is sent once to a rank, ranks out of step are refused, a comm's refusal is passed on.
set -eu

MOCK_REAL=$DP_TEST_BUILDDIR/.libs/dp_moe_cpu.so MOCK_EP=$DP_TEST_BUILDDIR/.libs/dp_ep_exchange.so
export MOCK_REAL MOCK_EP
try() { # PROGRAM CASES...
    program=$DP_TEST_BUILDDIR/tests/$1
    shift
    ${TEST_WRAPPER:-} "$program" --plugin "$DP_TEST_MOCKS/mock_moe_over_ep.so" "$@"
}
try conform/test_conform_moe
# All but the one that looks for the plugin's file name in messages.
try unit/moe/test_moe_cpu $("$DP_TEST_BUILDDIR/tests/unit/moe/test_moe_cpu" --list |
    sed -n 's/^ *\([a-z_]*\) .*/\1/p' | grep -v refusals_name_the_setting)
