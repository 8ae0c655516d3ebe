#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_ep_faults.sh: faults of expert parallelism, written into ep_exchange.
set -eu

. "$DP_TEST_SRCDIR/tests/conform/faults.sh"

table ep <<'END'
tokens_in_reverse            rows_go_where_they_belong
weights_as_float             rows_go_where_they_belong
weights_as_double            rows_go_where_they_belong
weights_of_the_first_choice  rows_go_where_they_belong
a_row_for_each_head          rows_go_where_they_belong
counts_are_by_rank           rows_go_where_they_belong
dweights_as_float            rows_go_where_they_belong
choices_in_reverse           rows_go_where_they_belong
nan_becomes_quiet            rows_go_where_they_belong
rows_are_dropped             more_rows_than_the_capacity_are_an_overflow
room_for_a_row_less          rows_go_where_they_belong
saved_is_too_small           rows_go_where_they_belong
scratch_is_too_small         rows_go_where_they_belong
state_outside_of_saved       microbatches_interleave
tokens_are_ignored           rows_go_where_they_belong
allocates_in_a_call          calls_and_weights_may_be_left_out
runs_in_the_call             calls_are_enqueued
a_dispatch_is_not_missed     calls_come_in_their_order
calls_may_be_repeated        calls_come_in_their_order
experts_are_not_counted      experts_that_are_not_there_are_refused
rows_may_be_null             pointers_that_are_missing_are_named
exchange_ids_of_its_own      instances_do_not_meet
drops_what_is_new            longer_structs_are_taken
drops_what_is_new_in_io      longer_structs_are_taken
memory_is_always_there       memory_that_runs_out_leaves_nothing
close_keeps_memory           nothing_is_left_behind
END

[ $failures -eq 0 ]
