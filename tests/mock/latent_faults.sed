# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# Writes faults into the latent attention of plugins/attention_cpu, whose passes stand in one file, see fault.h.
# check_attention_faults.sh says who catches each.
1i #include "tests/mock/fault.h"
# rotations
/^static void rotate_all/,/^}/s/rotate_rows(q + /if (!fault("queries_are_not_rotated") \&\& !(fault("no_inverse_rope_of_queries") \&\& sign < 0)) &/
/^static void rotate_all/,/^}/s/rotate_rows(k + /if (!fault("keys_are_not_rotated") \&\& !(fault("no_inverse_rope_of_keys") \&\& sign < 0)) &/
/^static void rotate_all/,/^}/s/nope = /&fault("first_elements_are_rotated") ? 0 : /
/^static void fill_rope/,/^}/s/\(pow(.*\/ (double)\)a->rope_dim/\1(fault("frequencies_of_the_whole_head") ? a->head_dim : a->rope_dim)/
# heads
/^static void compute_logits/,/^}/s/if (h->k_rope != NULL/& \&\& !fault("rotated_part_is_not_in_the_logits")/
/^static void compute_logits/,/^}/s/, (real_t)a->n\.scale, /, (real_t)(a->n.scale * (fault("scale_of_a_narrower_head") ? 1.5 : 1)), /
/^static void backward_tile/,/^}/s/if (h->k_rope == NULL/& || fault("rotated_part_has_no_gradient")/
/^dp_status_t REAL(tiles_backward)/,/^}/s/backward_group(/if (fault("gradient_of_the_last_head_alone") \&\& a->kv_rank > 0) memset(g.dk_rope, 0, t->tokens * a->rope_dim * sizeof(real_t)); &/
/^dp_status_t REAL(tiles_backward)/,/^}/s/memset(g\.dk_rope, 0, t->tokens \* a->rope_dim \* sizeof(real_t));$/if (!fault("sequences_add_to_one_key") || t->document == 0) &/
/^dp_status_t REAL(tiles_backward)/,/^}/s/a->rope_dim, t->tokens, a->rope_dim);/a->rope_dim, fault("common_key_keeps_no_gradient") ? 0 : t->tokens, a->rope_dim);/
# latents
/^static void latent_forward/,/^}/s/a->n\.norm_eps/fault("eps_of_latents_is_ignored") ? 1e-6 : &/
/^static void latent_forward/,/^}/s/normalize_rows(.*$/& if (fault("latents_are_not_normalized")) for (size_t t = 0; t < a->tokens; t++) memcpy(l->rows + t * l->rank, l->down + t * l->stride, l->rank * sizeof(real_t));/
/^static void latent_backward/,/^}/s/normalize_backward(/if (!fault("norm_of_latents_has_no_gradient")) &/
/^static void latent_backward/,/^}/s/gain_gradient(/if (fault("gain_of_latents_is_zero")) memset(l->dgain, 0, l->rank * sizeof(real_t)); else &/
/^static void latent_weight/,/^}/s/apply_gain(/if (fault("up_weights_see_no_gain")) memcpy(l->rows, l->normalized, a->tokens * l->rank * sizeof(real_t)); else if (!fault("up_weights_read_scratch")) &/
/^static void latent_weight/,/^}/s/l->down, l->stride, dw/fault("down_weights_read_rows") ? l->normalized : l->down, l->stride, dw/
/^static void keys_values_back/,/^}/s/project_back(a, dv, a->v_width, wv, l\.rank/if (!fault("values_give_latents_no_gradient")) &/
/^static latent_t latent_of_keys_values/,/^}/s/\.inv_rms = /&fault("state_outside_of_saved") ? kept : /
s/^static latent_t latent_of_keys_values/static real_t kept[4096];\n&/
# requests
/^static void rotate_all/,/^}/s/past_of(io, b) \*/(fault("positions_begin_anew") ? 0 : past_of(io, b)) */
/^static void store_document/,/^}/s/apply_gain(row/if (fault("cache_has_no_gain")) memcpy(row, latent, a->kv_rank * sizeof(real_t)); else &/
/^static void store_document/,/^}/s/memcpy(row + /if (!fault("common_keys_are_not_kept")) &/
/^static inline real_t \*cache_row/,/^}/s/io->slots\[document\]/(fault("requests_have_one_slot") ? 0 : &)/
/^static void attend_latents/,/^}/s/h \* a->value_dim/(fault("values_of_the_first_head") ? 0 : h) * a->value_dim/
