# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# Writes faults into plugins/moe/dispatch.c and plugins/ep_exchange/ep_exchange.c, which stand in one file, see fault.h.
# check_ep_faults.sh says who catches each.
1i #include "tests/mock/fault.h"
# rows on their way
/^void moe_dispatch_place/,/^}/s/v->place\[i\] = counts\[v->replica\[i\]\]++;/{ const size_t o = fault("tokens_in_reverse") ? all - 1 - i : i; v->place[o] = counts[v->replica[o]]++; }/
/^void moe_dispatch_pack/,/^}/s/(const char \*)weights + at \* v->weight_bytes/(const char *)weights + (at - (fault("weights_of_the_first_choice") ? (size_t)j : 0)) * v->weight_bytes/
/^void moe_dispatch_pack/,/^}/s/memcpy(&head->weight, .*;/{ & if (fault("weights_as_float") \&\& v->weight_bytes == 8) head->weight = (double)(float)head->weight; if (fault("weights_as_double") \&\& v->weight_bytes == 4) { float w; volatile double d; memcpy(\&w, \&head->weight, 4); d = w; w = (float)d; memcpy(\&head->weight, \&w, 4); } }/
/^void moe_dispatch_fan_out/,/^}/s/moe_dispatch_row(v, p, head->row)/moe_dispatch_row(v, p, fault("a_row_for_each_head") ? next[p] : head->row)/
/^static dp_status_t take_out/,/^}/s/memcpy(t->counts_out/if (fault("counts_are_by_rank")) for (int32_t c = 0; c < t->n.local * t->n.ranks; c++) t->counts_out[c % t->n.ranks * t->n.local + c \/ t->n.ranks] = v.cells[c]; else &/
/^static dp_status_t pack_back/,/^}/s/? t->dweights\[at\]/? fault("dweights_as_float") ? (double)(float)t->dweights[at] : t->dweights[at]/
/^static dp_status_t take_back/,/^}/s/moe_dispatch_returned(&v, at, /moe_dispatch_returned(\&v, fault("choices_in_reverse") ? all - 1 - at : at, /
/^static dp_status_t take_back/,/^}/s/if (t->dweights_out/if (fault("nan_becomes_quiet") \&\& v.data_bytes % 4 == 0) for (size_t w = 0; w < v.data_bytes; w += 4) { uint32_t u; memcpy(\&u, to + w, 4); if ((u << 1) > 0xff000000u) u |= 1u << 22; memcpy(to + w, \&u, 4); }\n        &/
# room
/^static dp_status_t check_room/,/^}/s/if (v->out_heads/if (fault("rows_are_dropped") \&\& v->out_heads[p] > t->n.pair_rows)\n            v->out_heads[p] = t->n.pair_rows;\n        else &/
/^static dp_status_t pack_out/,/^}/s/return status;/for (int32_t p = 0; p < t->n.ranks \&\& fault("rows_are_dropped"); p++) if (v.out_counts[p] > t->n.pair_rows + MOE_LIST_ROWS(v.out_heads[p], t->n.row_bytes)) v.out_counts[p] = t->n.pair_rows + MOE_LIST_ROWS(v.out_heads[p], t->n.row_bytes);\n    &/
s/\.rows = (uint32_t)ep->n\.rows/& - fault("room_for_a_row_less")/
s/\.saved_bytes = ep->saved\.bytes/& - 64 * (size_t)fault("saved_is_too_small")/
s/\.scratch_bytes = ep->scratch\.bytes/& - 64 * (size_t)fault("scratch_is_too_small")/
# calls
/^static dp_status_t exchange_rows(/,/^}/s/t\.saved = io->saved;/t.saved = fault("state_outside_of_saved") ? kept[ep->n.rank] : io->saved;/
/^static dp_status_t exchange_rows(/,/^}/s/if (io->tokens > 0)/if (io->tokens > 0 \&\& !fault("tokens_are_ignored"))/
/^static dp_status_t exchange_rows(/,/^}/s/DO(launch_task(ep, out ? pack_out/if (fault("allocates_in_a_call")) ep->host->release(ep->host, ep->host->allocate(ep->host, 64, 64));\n    &/
/^static dp_status_t launch_task/,/^}/s/return /return fault("runs_in_the_call") ? kernel((void *)t) : /
/^static dp_status_t find_mark/,/^}/s/if (ours && mark/if (fault("a_dispatch_is_not_missed"))\n        return DP_OK;\n    &/
/^static dp_status_t find_mark/,/^}/s/mark->call < t->call/(& || fault("calls_may_be_repeated"))/
/^static dp_status_t count_choices/,/^}/s/if (e < 0/if (!fault("experts_are_not_counted") \&\& (e < 0/
/^static dp_status_t count_choices/,/^}/s/e >= n->replicas)/e >= n->replicas))/
s/: io->rows == NULL /: io->rows == NULL \&\& !fault("rows_may_be_null") /
s/DP_TAKE(ep->host, PLUGIN, dp_ep_io_t, .*);/fault("drops_what_is_new_in_io") ? DP_OK : &/
# open and close
s/DP_TAKE(host, PLUGIN, dp_ep_config_t, .*);/fault("drops_what_is_new") ? DP_OK : &/
s/\.exchange_id = config->exchange_id/.exchange_id = fault("exchange_ids_of_its_own") ? 0 : config->exchange_id/
/^static dp_status_t ep_open/,/^}/s/if (ep == NULL)/if (ep == NULL \&\& !fault("memory_is_always_there"))/
/^static void ep_close/,/^}/s/if (ep != NULL)/if (ep != NULL \&\& !fault("close_keeps_memory"))/
s/^static dp_status_t find_mark/_Alignas(64) static char kept[8][1 << 16];\n&/
