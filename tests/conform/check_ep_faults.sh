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
a_row_for_each_head          a_token_may_choose_several_experts_of_a_rank
counts_are_by_rank           rows_go_where_they_belong
dweights_as_float            rows_go_where_they_belong
choices_in_reverse           rows_go_where_they_belong
nan_becomes_quiet            rows_go_where_they_belong
rows_are_dropped             more_rows_than_the_capacity_are_an_overflow
room_for_a_row_less          one_expert_may_get_everything
saved_is_too_small           rows_go_where_they_belong
scratch_is_too_small         rows_go_where_they_belong
state_outside_of_saved       microbatches_interleave
tokens_are_ignored           ranks_bring_what_tokens_they_have
allocates_in_a_call          calls_and_weights_may_be_left_out
runs_in_the_call             calls_are_enqueued
a_dispatch_is_not_missed     a_call_needs_its_dispatch
calls_may_be_repeated        a_call_is_made_once
experts_are_not_counted      experts_that_are_not_there_are_refused
rows_may_be_null             pointers_that_are_missing_are_named
exchange_ids_of_its_own      instances_do_not_meet
demands_its_own_sizeof       structs_may_grow
wishes_may_be_anything       wrong_settings_are_refused
wishes_are_ignored           wrong_settings_are_refused
memory_is_always_there       memory_that_runs_out_leaves_nothing
close_keeps_memory           nothing_is_left_behind
short_io_is_taken            short_structs_are_refused
sizes_writes_its_own_length  sizes_writes_what_the_caller_has
END

[ $failures -eq 0 ]
