#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_kernel_faults.sh: the templates of an attention and of a MoE, and ep_exchange, keep the contract, and each of the
# faults that tests/mock/*_faults.sed write into them is caught by the case named here (another may catch it as well).
set -eu

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=0

complain() {
    echo "$*"
    cat "$log"
    failures=$((failures + 1))
}

# suite, plugin, fault (none: all has to be well), cases
try() {
    suite=$1 plugin=$2 fault=$3
    shift 3
    status=0
    MOCK_FAULT=$fault ${TEST_WRAPPER:-} "$DP_TEST_BUILDDIR/tests/conform/test_conform_$suite" \
        --plugin "$DP_TEST_MOCKS/$plugin.so" "$@" >"$log" 2>&1 || status=$?
    if [ "$fault" = none ]; then
        [ $status -eq 0 ] || complain "$plugin without a fault does not pass:"
    elif [ $status -ne 1 ] || ! grep -q "^FAILED  $1" "$log"; then
        complain "$1 does not catch $fault in $plugin:"
    fi
}

# KIND [SUITE]: each fault of the sed script has to be in the table below.
table() {
    kind=$1 of=${2:-$1}
    known=$(grep -o 'fault("[a-z_]*")' "$DP_TEST_SRCDIR/tests/mock/${kind}_faults.sed" | sort -u | cut -d'"' -f2)
    try "$of" "mock_${kind}_faults" none
    tried=
    while read -r fault case; do
        try "$of" "mock_${kind}_faults" "$fault" "$case"
        tried="$tried $fault"
    done
    for fault in $known; do
        case "$tried " in *" $fault "*) ;; *) complain "nobody tries the fault $fault of $kind" ;; esac
    done
}

table attention <<'END'
softmax_scale                 outputs_f64
no_inverse_rope               gradients_f64
wq_gets_no_gradient           gradients_f32
sees_the_next_token           outputs_see_the_past_and_themselves
sees_not_itself               outputs_f64
sequences_meet                outputs_see_the_past_and_themselves
wrong_kv_head                 outputs_f64
softmax_overflows             large_logits_do_not_overflow
theta_is_ignored              outputs_f64
eps_is_ignored                outputs_f32
norm_has_no_inner_gradient    gradients_are_those_of_its_own_loss
dx_is_added                   gradients_f64
dx_has_no_residual            gradients_f64
grads_are_overwritten         gradients_f64
norm_gradient_is_overwritten  gradients_f64
weights_read_scratch          weight_gradients_may_come_late
weights_read_work             weight_gradients_may_come_late
writes_behind_saved           outputs_f64
saved_is_too_small            gradients_f64
scratch_is_too_small          gradients_f64
reads_behind_params           outputs_f64
state_outside_of_saved        microbatches_in_flight_do_not_meet
runs_in_the_call              calls_are_enqueued
allocates_in_a_call           outputs_f64
sizes_writes_its_own_length   sizes_writes_what_the_caller_has
demands_its_own_sizeof        structs_may_grow
heads_need_not_divide         wrong_settings_are_refused
close_keeps_memory            nothing_is_left_behind
wk_and_wv_are_swapped         params_are_those_of_the_header
latents_are_not_noticed       latent_needs_the_capability
END

table latent attention <<'END'
queries_are_not_rotated            latent_outputs_f64
keys_are_not_rotated               latent_outputs_f64
no_inverse_rope_of_queries         latent_gradients_f64
no_inverse_rope_of_keys            latent_gradients_f64
first_elements_are_rotated         latent_outputs_f64
frequencies_of_the_whole_head      latent_outputs_f64
rotated_part_is_not_in_the_logits  latent_outputs_f64
scale_of_a_narrower_head           latent_outputs_f64
rotated_part_has_no_gradient       latent_gradients_f64
gradient_of_the_last_head_alone    latent_gradients_f64
sequences_add_to_one_key           latent_gradients_f64
common_key_keeps_no_gradient       latent_gradients_f64
eps_of_latents_is_ignored          latent_outputs_f64
latents_are_not_normalized         latent_outputs_f32
norm_of_latents_has_no_gradient    latent_gradients_are_those_of_its_own_loss
gain_of_latents_is_zero            latent_gradients_f32
up_weights_see_no_gain             latent_gradients_f64
up_weights_read_scratch            latent_weight_gradients_may_come_late
down_weights_read_rows             latent_gradients_f64
values_give_latents_no_gradient    latent_gradients_f64
state_outside_of_saved             latent_microbatches_in_flight_do_not_meet
END

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
io_inside_is_not_checked            short_structs_are_refused
top_k_may_be_anything               wrong_settings_are_refused
open_keeps_memory                   memory_that_runs_out_leaves_nothing
numbers_of_experts_are_local        ranks_share_the_experts
END

[ ! -x "$DP_TEST_BUILDDIR/tests/conform/test_conform_ep" ] || table ep <<'END'
tokens_in_reverse            rows_go_where_they_belong
weights_as_float             rows_go_where_they_belong
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

MOCK_REAL=$DP_TEST_BUILDDIR/.libs/dp_moe_cpu.so
export MOCK_REAL
try moe mock_moe_replicas none
try moe mock_moe_replicas replica_of_another_microbatch rows_go_to_replicas_in_turn
try moe mock_moe_replicas placement_is_ignored replicas_share_the_rows
try moe mock_moe_replicas groups_are_ignored groups_are_judged_by_several
try moe mock_moe_replicas one_group_more tokens_choose_from_few_groups
try moe mock_moe_replicas a_carrier_doubles_the_weights rows_may_be_carried_by_a_plugin

[ $failures -eq 0 ]
