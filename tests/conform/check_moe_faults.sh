#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_moe_faults.sh: faults of a MoE, written into the template of that kind, and of replicas, around moe_cpu.
set -eu

. "$DP_TEST_SRCDIR/tests/conform/faults.sh"

table moe <<'END'
bias_counts_in_weights              bias_is_for_the_choice_alone
weights_are_not_normalized          outputs_f64
ties_go_to_the_higher               ties_go_to_the_lower_expert
bias_is_ignored                     outputs_f64
aux_loss_is_overwritten             outputs_f64
weights_of_another_row              outputs_f64
order_of_the_sum_depends_on_ranks   bits_do_not_depend_on_the_group
experts_are_dealt_in_turn           ranks_share_the_experts
room_for_one_row_a_token            outputs_f64
rows_are_never_released             microbatches_in_flight_do_not_meet
rows_are_released_too_early         outputs_f64
instances_share_a_number            instances_do_not_meet
aux_loss_has_no_gradient            gradients_f64
aux_scale_is_ignored                gradients_f64
aux_of_sigmoid_is_not_normalized    gradients_f64
normalization_has_no_gradient       gradients_f64
softmax_has_no_cross_terms          gradients_f64
sigmoid_slope_is_wrong              gradients_are_those_of_its_own_loss
weights_have_no_gradient            gradients_f64
shared_experts_get_no_gradient      gradients_f32
shared_experts_give_no_dx           gradients_f64
two_shared_experts_at_most          outputs_f64
counts_are_missing                  gradients_f64
w_down_gets_no_gradient             gradients_f64
w_down_gradient_has_no_weight       gradients_f64
grads_are_overwritten               gradients_f64
dx_is_added                         gradients_f64
state_outside_of_saved              microbatches_in_flight_do_not_meet
writes_behind_saved                 outputs_f64
saved_is_too_small                  outputs_f64
work_is_too_small                   gradients_f64
weights_read_work                   weight_gradients_may_come_late
weights_read_scratch                weight_gradients_may_come_late
runs_in_the_call                    calls_are_enqueued
allocates_in_a_call                 outputs_f64
demands_its_own_sizeof              structs_may_grow
drops_what_is_new                   what_is_not_known_is_refused
io_inside_is_not_checked            short_structs_are_refused
top_k_may_be_anything               wrong_settings_are_refused
open_keeps_memory                   memory_that_runs_out_leaves_nothing
numbers_of_experts_are_local        ranks_share_the_experts
apart_is_dropped                    shared_experts_may_be_called_apart
posted_is_dropped                   rows_may_be_posted
END

MOCK_REAL=$DP_TEST_BUILDDIR/.libs/dp_moe_cpu.so
export MOCK_REAL
try moe mock_moe_replicas none
try moe mock_moe_replicas replica_of_another_microbatch rows_go_to_replicas_in_turn
try moe mock_moe_replicas placement_is_ignored replicas_share_the_rows
try moe mock_moe_replicas groups_are_ignored groups_are_judged_by_several
try moe mock_moe_replicas one_group_more tokens_choose_from_few_groups
try moe mock_moe_replicas rows_are_not_awaited rows_may_be_posted
try moe mock_moe_replicas posted_rows_are_overwritten rows_may_be_posted
try moe mock_moe_replicas a_plugin_doubles_the_weights a_plugin_may_do_dispatch_and_combine

[ $failures -eq 0 ]
