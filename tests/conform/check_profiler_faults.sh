#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_profiler_faults.sh: the suite of dp.profiler/1 catches faults: mock_profiler_ranges, which passes it whole, is seeded with
# one at a time.
set -eu

suite="${TEST_WRAPPER:-} $DP_TEST_BUILDDIR/tests/conform/test_conform_profiler"
failures=0

while read -r fault name; do
    out=$(DP_TEST_FAULT=$fault $suite "$name" 2>&1) || :
    case $out in
    *"FAILED  $name"*) ;;
    *)
        echo "$fault: $name does not catch it: $out"
        failures=$((failures + 1))
        ;;
    esac
done <<'LIST'
any_size_taken configs_are_judged
one_size_taken configs_are_judged
drops_what_is_new configs_are_judged
operation_cut work_belongs_to_its_operation
other_clock work_belongs_to_its_operation
youngest_first work_belongs_to_its_operation
outermost_counts the_innermost_range_counts
given_again what_was_given_is_forgotten
keeps_more what_finds_no_room_is_counted
lost_not_counted what_finds_no_room_is_counted
ranks_share ranks_get_their_own
allocates ranges_allocate_nothing
leaves_memory nothing_is_left_behind
LIST
echo "$failures failures"
[ "$failures" -eq 0 ]
