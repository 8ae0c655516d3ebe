#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_attention_faults.sh: faults of an attention, and of a latent one, written into the template of that kind.
set -eu

. "$DP_TEST_SRCDIR/tests/conform/faults.sh"

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
drops_what_is_new             what_is_not_known_is_refused
apart_is_dropped              calls_may_be_made_in_halves
heads_need_not_divide         wrong_settings_are_refused
close_keeps_memory            nothing_is_left_behind
wk_and_wv_are_swapped         params_are_those_of_the_header
latents_are_not_noticed       latent_params_are_those_of_the_header
leaves_another_rounding       params_are_those_of_the_header
blocks_signals                params_are_those_of_the_header
handles_a_signal              params_are_those_of_the_header
changes_the_umask             params_are_those_of_the_header
changes_the_folder            params_are_those_of_the_header
sets_a_variable               params_are_those_of_the_header
closes_descriptor_zero        params_are_those_of_the_header
kernels_round_upward          outputs_f32
sixteen_heads                 outputs_f64
tokens_of_16_bits             outputs_f64
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
positions_begin_anew               latent_requests_go_on_from_step_to_step
cache_has_no_gain                  latent_requests_go_on_from_step_to_step
common_keys_are_not_kept           latent_requests_go_on_from_step_to_step
requests_have_one_slot             latent_requests_go_on_from_step_to_step
values_of_the_first_head           latent_requests_go_on_from_step_to_step
END

[ $failures -eq 0 ]
