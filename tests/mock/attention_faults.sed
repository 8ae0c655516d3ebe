# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# Writes faults into examples/plugin_template/attention/attention_mine.c, see fault.h. check_attention_faults.sh says who
# catches each.
1i #include <fenv.h>\
#include <signal.h>\
#include <sys/stat.h>\
#include <unistd.h>\
#include "tests/mock/fault.h"
# what is computed
s/a->scale = 1 \/ sqrt/a->scale = (fault("softmax_scale") ? 0.7 : 1) \/ sqrt/
/^static double \*key(/,/^}/s/h \/ (a->heads \/ a->kv_heads)/(fault("wrong_kv_head") ? h % a->kv_heads : &)/
/^static double \*value(/,/^}/s/h \/ (a->heads \/ a->kv_heads)/(fault("wrong_kv_head") ? h % a->kv_heads : &)/
/^static void run_forward/,/^}/s/for (size_t t = 0; t < a->tokens; t++) {/for (int twice = 0; twice < 2; twice++) &/
/^static void attend(/,/^}/s/u <= t;/u <= t + (size_t)(fault("sees_the_next_token") \&\& t % a->sequence + 1 < a->sequence);/
/^static void attend_back(/,/^}/s/u <= t;/u <= t + (size_t)(fault("sees_the_next_token") \&\& t % a->sequence + 1 < a->sequence);/
/^static void attend/,/^}/s/u <= t + /u + (fault("sees_not_itself") \&\& t % a->sequence > 0) <= t + /
/^static void attend(/,/^}/s/const size_t first = /& fault("sequences_meet") ? 0 : /
/^static void attend_back(/,/^}/s/size_t u = /&fault("sequences_meet") ? 0 : /
/^static void attend(/,/^}/s/, max = -INFINITY/, max = fault("softmax_overflows") ? 0 : -INFINITY/
/^static void attend(/,/^}/s/max = fmax(max, /max = fmax(max, fault("softmax_overflows") ? 0 : /
s/a->theta = .*;/& if (fault("theta_is_ignored")) a->theta = 10000;/
s/a->eps = .*;/& if (fault("eps_is_ignored")) a->eps = 1e-6;/
# gradients
/^static void run_backward_input/,/^}/s/rotate(a, d[qk].*;/if (!fault("no_inverse_rope")) &/
s/add_outer(a, io->grads, a->wq,/if (!fault("wq_gets_no_gradient")) &/
s/along += dn/along += (fault("norm_has_no_inner_gradient") ? 0 : 1) * dn/
s/put(a, io->dx, t \* a->d + i, /&(fault("dx_is_added") ? get(a, io->dx, t * a->d + i) : 0) + /
s/s\.dy\[t \* a->d + i\] + s\.rstd/(fault("dx_has_no_residual") ? 0 : 1) * &/
/^static void add_outer/,/^}/s/get(a, grads/(fault("grads_are_overwritten") ? 0 : 1) * &/
s/get(a, io->grads, a->norm + i)/(fault("norm_gradient_is_overwritten") ? 0 : 1) * &/
# memory
/^static void run_backward_weight/,/^}/s/lay_out_saved(.*;/& if (fault("weights_read_scratch")) s.q = (double *)io->scratch + a->d;/
s/add_outer(a, io->grads, a->wo, /&fault("weights_read_work") ? (double *)io->work + t : /
s/^    double \*n = (double \*)io->scratch, \*out = n;/& if (fault("writes_behind_saved")) ((char *)io->saved)[lay_out_saved(a, NULL, \&(saved_t){0})] = 1;/
s/\.saved_bytes = .*NULL, &none)/& - (fault("saved_is_too_small") ? 8 : 0)/
s/\.scratch_bytes = scratch_bytes(a)/& - (fault("scratch_is_too_small") ? 8 : 0)/
/^static void run_forward/,/^}/s/put(a, io->y, .*;/& if (fault("reads_behind_params")) put(a, io->y, 0, get(a, io->y, 0) + 0 * get(a, io->params, a->count));/
/^static size_t lay_out_saved/,/^}/s/return at \* sizeof/if (fault("state_outside_of_saved")) { static double kept[4096]; s->rstd = kept; } &/
# calls
s/return a->device_vt->launch(s, run, /if (fault("runs_in_the_call")) return run(\&c); &/
/^static dp_status_t enqueue/,/^}/s/c\.run = pass;/& if (fault("allocates_in_a_call")) { void *m = a->host->allocate(a->host, 64, 64); if (m == NULL) return DP_OK; a->host->release(a->host, m); }/
/^static dp_status_t attn_sizes/,/^}/s/dp_sized_put(sizes_out, &sizes)/if (fault("sizes_writes_its_own_length")) memcpy(sizes_out, \&sizes, sizeof(sizes)); else &/
s/DP_TAKE(host, "attention_mine: config", .*);/fault("demands_its_own_sizeof") \&\& c->struct_size != sizeof(*c) ? DP_ERR_INVALID : fault("drops_what_is_new") ? DP_OK : &/
s/c->kv_rank != 0 ||/(!fault("latents_are_not_noticed") \&\& c->kv_rank != 0) ||/
s/c->kv_heads == 0 ||/(!fault("latents_are_not_noticed") \&\& c->kv_heads == 0) ||/
s/^        c->apart != 0)/        (c->apart != 0 \&\& !fault("apart_is_dropped")))/
s/c->heads % c->kv_heads != 0/(!fault("heads_need_not_divide") \&\& c->kv_heads != 0 \&\& &)/
s/a->kv_heads = config->kv_heads;/& if (fault("latents_are_not_noticed") \&\& a->kv_heads == 0) a->kv_heads = a->heads;/
/^static void attn_close/,/^}/s/if (a != NULL)/if (a != NULL \&\& !fault("close_keeps_memory"))/
/^static dp_status_t attn_params/,/^}/s/"wk", \.offset = a->wk/"wk", .offset = fault("wk_and_wv_are_swapped") ? a->wv : a->wk/
# state of the thread and the process
/^    \*attention_out = a;/s/$/ if (fault("leaves_another_rounding")) fesetround(FE_UPWARD);/
/^    \*attention_out = a;/s/$/ if (fault("blocks_signals")) { sigset_t all; sigfillset(\&all); sigprocmask(SIG_BLOCK, \&all, NULL); }/
/^    \*attention_out = a;/s/$/ if (fault("handles_a_signal")) signal(SIGPIPE, SIG_IGN);/
/^    \*attention_out = a;/s/$/ if (fault("changes_the_umask")) umask(0);/
/^    \*attention_out = a;/s/$/ if (fault("changes_the_folder") \&\& chdir("\/") != 0) return DP_ERR_IO;/
/^    \*attention_out = a;/s/$/ if (fault("sets_a_variable")) setenv("PATH", ".", 1);/
/^    \*attention_out = a;/s/$/ if (fault("closes_descriptor_zero")) close(0);/
/^static void run_forward/,/^}/s/double \*n = (double \*)io->scratch/if (fault("kernels_round_upward")) fesetround(FE_UPWARD); &/
# what is small in small cases
/^static double \*key(/,/^}/s/h \/ (/(fault("sixteen_heads") ? h % 16 : h) \/ (/
/a->tokens = config->shape->batch/s/$/ if (fault("tokens_of_16_bits")) a->tokens = (a->tokens \& 0xffff) > 0 ? a->tokens \& 0xffff : 1;/
