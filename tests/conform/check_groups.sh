#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_groups.sh: the contract of dp.comm/1 as a backend of matched groups keeps it, ranks as threads and as processes. What is
# the inner backend's (exchanges, sums) is tried there.
set -eu

exec ${TEST_WRAPPER:-} "$DP_TEST_BUILDDIR/tests/conform/test_conform_comm" --plugin "$DP_TEST_MOCKS/mock_comm_groups.so" \
    messages_arrive_in_order_and_whole every_rank_talks_to_every_other unexpected_messages_are_protocol_errors \
    ends_that_differ_do_not_connect start_connects_what_is_new all_traffic_at_once groups_of_some_ranks \
    end_of_the_job_ends_all_waits killed_while_sending killed_while_receiving nothing_is_left_behind
