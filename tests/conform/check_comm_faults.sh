#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_comm_faults.sh: the suite of dp.comm/1 catches faults. mock_comm_matched and mock_comm_threads, which pass it whole
# (check_groups.sh, and here), are seeded with one fault at a time, by name; the cases that are named must fail.
#
# Faults that no suite can catch, because nothing that a caller sees is different:
#   number_ignored   both ends count their calls and refuse any other number (any_number_taken), so what is on the wire
#                    cannot differ
# Faults of tables that are gone: abort of an instance ignored or missing, a barrier that is empty or does half; a job's abort
# that is ignored is aborts_ignored.
set -eu

suite="${TEST_WRAPPER:-} $DP_TEST_BUILDDIR/tests/conform/test_conform_comm --mode threads"
work=$(mktemp -d)
trap 'rm -rf "$work"; rm -f /dev/shm/mock_comm_*' EXIT
seeds=0

# Each seed is tried in the background, some at a time: most of them wait.
try() { # FUNCTION PLUGIN FAULT ...
    seeds=$((seeds + 1))
    "$@" "$work/$seeds" >"$work/$seeds.verdict" 2>&1 &
    [ $((seeds % 6)) -ne 0 ] || wait
}
run() { # PLUGIN FAULT CASES OUT
    DP_TEST_FAULT=$2 $suite --plugin "$DP_TEST_MOCKS/$1.so" $3 >"$4" 2>&1
}
fails() { # PLUGIN FAULT CASES OUT: each of the cases fails
    run "$@" || :
    for name in $3; do
        grep -q "^FAILED  $name," "$4" || echo "$1 with $2: $name does not catch it: $(cat "$4")"
    done
}
passes() { # PLUGIN FAULT CASES OUT
    run "$@" || echo "$1 with $2 is said to be sound: $(cat "$4")"
}
refused() { # PLUGIN FAULT WORDS OUT: whoever loads the table says what is wrong with it
    run "$1" "$2" "" "$4" && echo "$1 with $2 is loaded" || grep -q "$3" "$4" || echo "$1 with $2: $(cat "$4")"
}
caught() { # PLUGIN FAULT CASE...
    plugin=$1 fault=$2
    shift 2
    try fails "$plugin" "$fault" "$*"
}
equivalent() { # PLUGIN FAULT CASE...
    plugin=$1 fault=$2
    shift 2
    try passes "$plugin" "$fault" "$*"
}
$suite --plugin "$DP_TEST_MOCKS/mock_comm_threads.so" >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }

# what a table holds
m=mock_comm_matched
try refused $m bundle_begin_is_missing "dp.comm/1 has no bundle_begin"
try refused $m a_function_is_missing "dp.comm/1 has no release"
try refused $m posts_without_waits "dp.comm/1 has no exchange_wait"

# what a message is
caught $m tag_ignored a_message_of_another_step_is_refused a_message_of_another_microbatch_is_refused \
    a_message_of_another_size_is_refused
caught $m step_ignored a_message_of_another_step_is_refused
caught $m microbatch_ignored a_message_of_another_microbatch_is_refused
caught $m bytes_ignored a_message_of_another_size_is_refused
caught $m wrong_tag_sent messages_arrive_in_order_and_whole
equivalent $m number_ignored messages_arrive_in_order_and_whole a_message_of_another_step_is_refused
caught $m any_number_taken mistakes_with_channels_are_refused

# slots and credits
caught $m credit_lost a_slot_is_kept_until_its_release_runs
caught $m slot_overwritten a_slot_is_kept_until_its_release_runs
caught $m release_at_the_call a_slot_is_kept_until_its_release_runs
caught $m any_release_taken releases_out_of_order_are_refused
caught $m byte_behind_the_slot a_message_keeps_to_its_slot
caught $m slot_bytes_sent a_send_reads_no_further_than_its_bytes
caught $m from_given_back_early from_belongs_to_the_sender_again_behind_the_send
caught $m returns_before_landed messages_arrive_in_order_and_whole
caught $m memory_bytes_is_0 start_connects_what_is_new

# bundles and streams
caught $m bundle_begin_fails messages_arrive_in_order_and_whole
caught $m bundle_end_waits_for_nothing a_bundle_takes_several_channels messages_arrive_in_order_and_whole
caught $m calls_block no_peer_holds_up_another
caught $m one_lock_over_all no_peer_holds_up_another

# exchanges
caught $m capacity_less the_capacity_can_be_used
caught $m overflow_is_cut too_many_rows_are_an_overflow
caught $m counts_read_at_the_call rows_and_counts_are_read_when_the_stream_gets_there
caught $m rows_read_at_the_call rows_and_counts_are_read_when_the_stream_gets_there
caught $m exchange_overwrites rows_are_kept_until_their_release_runs
caught $m capacity_sent a_read_of_rows_goes_no_further_than_its_counts

# sums
caught mock_comm_threads integers_are_doubles sums_have_the_bits_of_a_serial_sum
caught $m sum_reversed sums_have_the_bits_of_a_serial_sum
caught $m other_bits_on_one_rank sums_have_the_bits_of_a_serial_sum
caught $m only_the_first_piece_summed sums_have_the_bits_of_a_serial_sum
caught $m staging_is_shared instances_sum_side_by_side
caught $m sum_from_zero a_sum_begins_with_rank_0
caught $m sum_reversed parts_have_the_bits_of_a_sum
caught $m part_of_another parts_have_the_bits_of_a_sum
caught $m nothing_is_gathered parts_are_gathered
caught $m parts_not_compared parts_that_differ_are_found_out

# what steps may not do, deadlines, the end
caught $m allocates_host_memory steps_allocate_nothing
caught $m allocates_device_memory steps_allocate_nothing
caught $m allocates_by_malloc steps_allocate_nothing
caught $m prints messages_arrive_in_order_and_whole
caught $m own_deadline a_late_peer_is_waited_for
caught $m no_deadline a_peer_that_never_comes_is_a_timeout
caught $m waits_are_slow waits_end_at_once
caught $m aborts_ignored end_of_the_job_ends_every_wait
caught $m close_of_null_crashes a_group_leaves_nothing_behind
caught $m leaves_host_memory a_group_leaves_nothing_behind
caught $m leaves_device_memory a_group_leaves_nothing_behind
caught $m leaves_a_thread a_group_leaves_nothing_behind
caught $m leaves_a_descriptor a_group_leaves_nothing_behind
caught $m leaves_a_name a_group_leaves_nothing_behind
caught $m drops_what_is_new longer_configs_are_taken

# one-sided
o=mock_comm_threads
caught $o no_credit credits_are_the_slots a_slot_is_kept_until_its_release_runs
caught $o credit_more credits_are_the_slots a_slot_is_kept_until_its_release_runs
caught $o credit_less credits_are_the_slots
caught $o credit_lost a_slot_is_kept_until_its_release_runs
caught $o large_sends_need_the_receiver progress_needs_no_caller
caught $o messages_leave_in_waits progress_needs_no_caller
caught $o credits_leave_in_waits progress_needs_no_caller
caught $o rows_leave_at_the_wait a_post_waits_for_no_peer
caught $o post_waits_for_peers a_post_waits_for_no_peer
caught $o published_early messages_arrive_in_order_and_whole
caught $o release_at_the_call a_slot_is_kept_until_its_release_runs
caught $o step_ignored a_message_of_another_step_is_refused
caught $o exchange_overwrites rows_are_kept_until_their_release_runs
caught $o exchange_credit_more rows_are_kept_until_their_release_runs
caught $o exchange_published_early exchanges_bring_every_row
caught $o exchange_release_at_the_call rows_are_kept_until_their_release_runs
caught $o wait_waits_for_nothing posted_exchanges_bring_every_row
caught $o any_wait_taken mistakes_with_posts_are_refused
caught $o released_before_the_wait mistakes_with_posts_are_refused
caught $o posts_more_than_slots mistakes_with_posts_are_refused
caught $o capacity_more too_many_rows_are_an_overflow
caught $o sum_reversed sums_have_the_bits_of_a_serial_sum
caught $o sum_own_first sums_have_the_bits_of_a_serial_sum
caught $o gathered_early sums_follow_each_other

wait
cat "$work"/*.verdict
echo "$seeds seeds"
[ -z "$(cat "$work"/*.verdict)" ]
