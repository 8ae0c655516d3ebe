# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# Writes faults into examples/plugin_template/moe/moe_mine.c, see fault.h. check_moe_faults.sh says who catches each.
1i #include "tests/mock/fault.h"
# the choice
/^static void choose/,/^}/s/m->scale \* scores\[s->chosen\[at\]\]/m->scale * (scores[s->chosen[at]] + (fault("bias_counts_in_weights") ? get(m, c->io.params, m->bias + (size_t)s->chosen[at]) : 0))/
/^static void choose/,/^}/s/m->normalize ? sum/m->normalize \&\& !fault("weights_are_not_normalized") ? sum/
s/left\[e\] > left\[best\]/(fault("ties_go_to_the_higher") ? left[e] >= left[best] : &)/
s/left\[e\] = scores\[e\] + get(m, c->io.params, m->bias + e)/left[e] = scores[e] + (fault("bias_is_ignored") ? 0 : 1) * get(m, c->io.params, m->bias + e)/
s/\*c->aux_loss += /*c->aux_loss = (fault("aux_loss_is_overwritten") ? 0 : *c->aux_loss) + /
# rows
/^static void take_combine(/,/^}/s/t->out\[j\] += s->weights\[at\]/t->out[j] += s->weights[fault("weights_of_another_row") ? i * m->k : at]/
/^static void take_combine(/,/^}/s/row_for(m, s, at, NULL)/row_for(m, s, fault("order_of_the_sum_depends_on_ranks") \&\& m->ranks > 1 ? (2 * i + 1) * m->k - 1 - at : at, NULL)/
/^static void take_combine(/,/^}/s/s->weights\[fault/s->weights[fault("order_of_the_sum_depends_on_ranks") \&\& m->ranks > 1 ? (2 * i + 1) * m->k - 1 - at : fault/
s/row->expert = s->chosen\[at\] % (int32_t)m->local/row->expert = fault("experts_are_dealt_in_turn") ? s->chosen[at] \/ (int32_t)m->ranks : s->chosen[at] % (int32_t)m->local/
s/const size_t p = (size_t)s->chosen\[at\] \/ m->local/const size_t p = fault("experts_are_dealt_in_turn") ? (size_t)s->chosen[at] % m->ranks : (size_t)s->chosen[at] \/ m->local/
s/s->sent\[(size_t)s->chosen\[at\] \/ m->local\]/s->sent[fault("experts_are_dealt_in_turn") ? (size_t)s->chosen[at] % m->ranks : (size_t)s->chosen[at] \/ m->local]/
s/m->pair_rows = m->tokens \* (/m->pair_rows = m->tokens * (fault("room_for_one_row_a_token") ? 1 : /
/^static dp_status_t transfer/,/^}/s/return status < 0 ? status : m->comm_vt->exchange_release/return status < 0 || fault("rows_are_never_released") ? status : m->comm_vt->exchange_release/
/^static dp_status_t transfer/,/^}/s/c->rows = rows;/& if (fault("rows_are_released_too_early")) { m->comm_vt->exchange_release(link->exchange, number, s); return launch(c, kernel, s); }/
/^static dp_status_t transfer/,/^}/s/const uint32_t number = link->number;/static uint32_t of_all[2]; const uint32_t number = fault("instances_share_a_number") ? of_all[link == \&m->back]++ : link->number;/
# gradients
s/const double factor = (double)c->aux_scale \* aux_factor(m)/const double factor = (fault("aux_loss_has_no_gradient") ? 0 : fault("aux_scale_is_ignored") ? 1 : (double)c->aux_scale) * aux_factor(m)/
s/factor \* (counts\[e\] - (m->gate/factor * (counts[e] - (!fault("aux_of_sigmoid_is_not_normalized") \&\& m->gate/
/^static void score_back/,/^}/s/along += w->dweights/if (!fault("normalization_has_no_gradient")) &/
/^static void score_back/,/^}/s/m->gate == DP_GATE_SOFTMAX; e++)/& if (!fault("softmax_has_no_cross_terms"))/
s/dscores\[e\] \* (1 - scores\[e\])/dscores[e] * (fault("sigmoid_slope_is_wrong") ? 1 + scores[e] : 1 - scores[e])/
s/w->dweights\[at\] = row->weight/w->dweights[at] = (fault("weights_have_no_gradient") ? 0 : 1) * row->weight/
s/glu_back_weight(m, c->io.grads, m->shared_at/if (!fault("shared_experts_get_no_gradient")) &/
/^static void run_experts_backward_input/,/^}/s/glu_back_input(m, c->io.params, m->shared_at/if (!fault("shared_experts_give_no_dx")) &/
s/add(m, c->io.grads, m->bias + e, t->counts\[e\])/if (!fault("counts_are_missing")) &/
s/add_outer(m, grads, at + 2 \* m->d \* f, /if (!fault("w_down_gets_no_gradient")) &/
/^static void glu_back_weight/,/^}/s/dy, m->d, weight)/dy, m->d, fault("w_down_gradient_has_no_weight") ? 1 : weight)/
/^static void add(/,/^}/s/get(m, grads, i) + value/(fault("grads_are_overwritten") ? 0 : 1) * &/
s/put(m, c->io\.dx, i \* m->d + j, /&(fault("dx_is_added") ? get(m, c->io.dx, i * m->d + j) : 0) + /
# memory
/^static size_t lay_out_saved/,/^}/s/s->chosen = /static int32_t kept[4096]; s->chosen = fault("state_outside_of_saved") ? kept : /
/^static void run_route(/,/^}/s/int32_t first = 0;/& if (fault("writes_behind_saved")) ((char *)c->io.saved)[m->saved_bytes] = 1;/
s/\.saved_bytes = m->saved_bytes/& - (fault("saved_is_too_small") ? 64 : 0)/
s/\.work_bytes = m->work_bytes/& - (fault("work_is_too_small") ? 64 : 0)/
/^static void run_experts_backward_weight/,/^}/s/const double \*n = s->x + r \* m->d/const double *n = fault("weights_read_work") ? w->own : s->x + r * m->d/
/^static void run_experts_backward_weight/,/^}/s/(void)w;/& if (fault("weights_read_scratch")) s->row_weight = t->act;/
# calls
/^static dp_status_t launch/,/^}/s/c->run = kernel;/& if (fault("runs_in_the_call")) return run(c); if (fault("allocates_in_a_call")) { void *p = c->moe->host->allocate(c->moe->host, 64, 64); if (p == NULL) return DP_OK; c->moe->host->release(c->moe->host, p); }/
s/DP_TAKE(m->host, "moe_mine: io", .*);/fault("demands_its_own_sizeof") \&\& io->struct_size != sizeof(*io) ? DP_ERR_INVALID : &/
s/DP_TAKE(m->host, "moe_mine: io.io", .*);/fault("io_inside_is_not_checked") ? (dp_status_t)(dp_sized_take(\&c->io, sizeof(c->io), call.io) * 0) : &/
s/DP_TAKE(host, "moe_mine: config", .*);/fault("drops_what_is_new") ? DP_OK : &/
s/c->top_k > c->experts/(!fault("top_k_may_be_anything") \&\& &)/
s/^        moe_close(m);/        if (!fault("open_keeps_memory")) &/
/^static dp_status_t moe_params/,/^}/s/\.expert = (int32_t)(m->rank \* m->local + e)/.expert = (int32_t)((fault("numbers_of_experts_are_local") ? 0 : m->rank * m->local) + e)/
# what it is asked for and does not do
s/c->apart != 0 || c->posted != 0)/(c->apart != 0 \&\& !fault("apart_is_dropped")) || (c->posted != 0 \&\& !fault("posted_is_dropped")))/
/m->shared = (size_t)c->shared_experts \* c->expert_hidden;/s/$/ if (fault("two_shared_experts_at_most") \&\& c->shared_experts > 2) m->shared = (size_t)2 * c->expert_hidden;/
