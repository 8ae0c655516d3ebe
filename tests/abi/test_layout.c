/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_layout.c: sizes and offsets of everything that crosses the plugin ABI, and of what trainers
 * hand to the library by headers that are newer than those of frozen/, against the list of the
 * current major and minor in tests/data/abi. Within a major, members are appended: lines may join
 * that list, offsets never change.
 *     tests/abi/test_layout --print > tests/data/abi/layout-2.0.tsv      after a change that a new
 *                                                                        minor allows */
#include <dualpipe/attention.h>
#include <dualpipe/checkpoint.h>
#include <dualpipe/model.h>
#include <dualpipe/moe.h>
#include <dualpipe/overlap.h>
#include <dualpipe/profiler.h>
#include <dualpipe/search.h>
#include <dualpipe/state.h>
#include <dualpipe/trace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"

#define TYPE(type)                                                                                                     \
    {                                                                                                                  \
#type, "", sizeof(type)                                                                                        \
    }
#define MEMBER(type, member)                                                                                           \
    {                                                                                                                  \
#type, "." #member, offsetof(type, member)                                                                     \
    }

/* clang-format off */
static const struct pin {
    const char *type, *member;
    size_t value; /* of a type its size, of a member its offset */
} pins[] = {
    TYPE(dp_signal_t),
    MEMBER(dp_signal_t, value),
    MEMBER(dp_signal_t, waiters),
    TYPE(dp_host_t),
    MEMBER(dp_host_t, struct_size),
    MEMBER(dp_host_t, abi_major),
    MEMBER(dp_host_t, abi_minor),
    MEMBER(dp_host_t, impl),
    MEMBER(dp_host_t, log),
    MEMBER(dp_host_t, fail),
    MEMBER(dp_host_t, allocate),
    MEMBER(dp_host_t, release),
    MEMBER(dp_host_t, now_ns),
    MEMBER(dp_host_t, wait),
    MEMBER(dp_host_t, poll),
    MEMBER(dp_host_t, post),
    MEMBER(dp_host_t, aborted),
    MEMBER(dp_host_t, get_service),
    MEMBER(dp_host_t, last_error),
    MEMBER(dp_host_t, abort_job),
    TYPE(dp_host_boot_t),
    MEMBER(dp_host_boot_t, struct_size),
    MEMBER(dp_host_boot_t, put),
    MEMBER(dp_host_boot_t, get),
    TYPE(dp_host_sm_t),
    MEMBER(dp_host_sm_t, struct_size),
    MEMBER(dp_host_sm_t, compute_sms),
    MEMBER(dp_host_sm_t, comm_sms),
    TYPE(dp_host_limits_t),
    MEMBER(dp_host_limits_t, struct_size),
    MEMBER(dp_host_limits_t, hang_ns),
    TYPE(dp_host_places_t),
    MEMBER(dp_host_places_t, struct_size),
    MEMBER(dp_host_places_t, ranks),
    MEMBER(dp_host_places_t, hosts),
    MEMBER(dp_host_places_t, host_of),
    TYPE(dp_plugin_t),
    MEMBER(dp_plugin_t, struct_size),
    MEMBER(dp_plugin_t, abi_major),
    MEMBER(dp_plugin_t, abi_minor),
    MEMBER(dp_plugin_t, name),
    MEMBER(dp_plugin_t, version),
    MEMBER(dp_plugin_t, summary),
    MEMBER(dp_plugin_t, init),
    MEMBER(dp_plugin_t, get_interface),
    MEMBER(dp_plugin_t, preference),
    TYPE(dp_device_config_t),
    MEMBER(dp_device_config_t, struct_size),
    MEMBER(dp_device_config_t, device),
    MEMBER(dp_device_config_t, comm_sms),
    MEMBER(dp_device_config_t, queue_length),
    MEMBER(dp_device_config_t, cores),
    MEMBER(dp_device_config_t, shares),
    MEMBER(dp_device_config_t, share),
    MEMBER(dp_device_config_t, local_rank),
    TYPE(dp_device_vt_t),
    MEMBER(dp_device_vt_t, struct_size),
    MEMBER(dp_device_vt_t, caps),
    MEMBER(dp_device_vt_t, kind),
    MEMBER(dp_device_vt_t, open),
    MEMBER(dp_device_vt_t, close),
    MEMBER(dp_device_vt_t, allocate),
    MEMBER(dp_device_vt_t, release),
    MEMBER(dp_device_vt_t, copy),
    MEMBER(dp_device_vt_t, zero),
    MEMBER(dp_device_vt_t, add),
    MEMBER(dp_device_vt_t, stream_open),
    MEMBER(dp_device_vt_t, stream_close),
    MEMBER(dp_device_vt_t, stream_native),
    MEMBER(dp_device_vt_t, event_open),
    MEMBER(dp_device_vt_t, event_close),
    MEMBER(dp_device_vt_t, event_record),
    MEMBER(dp_device_vt_t, stream_wait),
    MEMBER(dp_device_vt_t, launch),
    MEMBER(dp_device_vt_t, stamp),
    MEMBER(dp_device_vt_t, synchronize),
    MEMBER(dp_device_vt_t, query_error),
    MEMBER(dp_device_vt_t, partition),
    MEMBER(dp_device_vt_t, capture_begin),
    MEMBER(dp_device_vt_t, capture_end),
    MEMBER(dp_device_vt_t, graph_launch),
    MEMBER(dp_device_vt_t, graph_close),
    MEMBER(dp_device_vt_t, watch),
    MEMBER(dp_device_vt_t, unwatch),
    MEMBER(dp_device_vt_t, host_allocate),
    MEMBER(dp_device_vt_t, host_release),
    TYPE(dp_comm_config_t),
    MEMBER(dp_comm_config_t, struct_size),
    MEMBER(dp_comm_config_t, name),
    MEMBER(dp_comm_config_t, rank),
    MEMBER(dp_comm_config_t, nranks),
    MEMBER(dp_comm_config_t, world_ranks),
    MEMBER(dp_comm_config_t, device_vt),
    MEMBER(dp_comm_config_t, device),
    MEMBER(dp_comm_config_t, reduce_bytes),
    MEMBER(dp_comm_config_t, vt),
    TYPE(dp_channel_config_t),
    MEMBER(dp_channel_config_t, struct_size),
    MEMBER(dp_channel_config_t, id),
    MEMBER(dp_channel_config_t, peer),
    MEMBER(dp_channel_config_t, sender),
    MEMBER(dp_channel_config_t, slots),
    MEMBER(dp_channel_config_t, slot_bytes),
    MEMBER(dp_channel_config_t, label),
    TYPE(dp_message_tag_t),
    MEMBER(dp_message_tag_t, number),
    MEMBER(dp_message_tag_t, step),
    MEMBER(dp_message_tag_t, microbatch),
    MEMBER(dp_message_tag_t, bytes),
    MEMBER(dp_message_tag_t, reserved),
    TYPE(dp_exchange_config_t),
    MEMBER(dp_exchange_config_t, struct_size),
    MEMBER(dp_exchange_config_t, id),
    MEMBER(dp_exchange_config_t, row_bytes),
    MEMBER(dp_exchange_config_t, capacity_rows),
    MEMBER(dp_exchange_config_t, slots),
    MEMBER(dp_exchange_config_t, label),
    TYPE(dp_comm_vt_t),
    MEMBER(dp_comm_vt_t, struct_size),
    MEMBER(dp_comm_vt_t, caps),
    MEMBER(dp_comm_vt_t, open),
    MEMBER(dp_comm_vt_t, close),
    MEMBER(dp_comm_vt_t, channel_open),
    MEMBER(dp_comm_vt_t, exchange_open),
    MEMBER(dp_comm_vt_t, start),
    MEMBER(dp_comm_vt_t, send),
    MEMBER(dp_comm_vt_t, recv),
    MEMBER(dp_comm_vt_t, release),
    MEMBER(dp_comm_vt_t, bundle_begin),
    MEMBER(dp_comm_vt_t, bundle_end),
    MEMBER(dp_comm_vt_t, exchange),
    MEMBER(dp_comm_vt_t, exchange_release),
    MEMBER(dp_comm_vt_t, all_reduce),
    MEMBER(dp_comm_vt_t, memory_bytes),
    MEMBER(dp_comm_vt_t, reduce_scatter),
    MEMBER(dp_comm_vt_t, all_gather),
    MEMBER(dp_comm_vt_t, instance_caps),
    MEMBER(dp_comm_vt_t, serves),
    MEMBER(dp_comm_vt_t, exchange_post),
    MEMBER(dp_comm_vt_t, exchange_wait),
    TYPE(dp_param_t),
    MEMBER(dp_param_t, name),
    MEMBER(dp_param_t, kind),
    MEMBER(dp_param_t, offset),
    MEMBER(dp_param_t, count),
    MEMBER(dp_param_t, fan_in),
    MEMBER(dp_param_t, start),
    MEMBER(dp_param_t, sharded),
    MEMBER(dp_param_t, expert),
    MEMBER(dp_param_t, shared),
    MEMBER(dp_param_t, reserved),
    TYPE(dp_block_sizes_t),
    MEMBER(dp_block_sizes_t, struct_size),
    MEMBER(dp_block_sizes_t, saved_bytes),
    MEMBER(dp_block_sizes_t, work_bytes),
    MEMBER(dp_block_sizes_t, scratch_bytes),
    MEMBER(dp_block_sizes_t, param_count),
    MEMBER(dp_block_sizes_t, nparams),
    MEMBER(dp_block_sizes_t, backward_buffer_bytes),
    MEMBER(dp_block_sizes_t, recomputes),
    MEMBER(dp_block_sizes_t, apart),
    MEMBER(dp_block_sizes_t, cache_bytes),
    MEMBER(dp_block_sizes_t, posted),
    TYPE(dp_block_shape_t),
    MEMBER(dp_block_shape_t, struct_size),
    MEMBER(dp_block_shape_t, dtype),
    MEMBER(dp_block_shape_t, batch),
    MEMBER(dp_block_shape_t, sequence),
    MEMBER(dp_block_shape_t, hidden),
    MEMBER(dp_block_shape_t, norm_eps),
    TYPE(dp_io_t),
    MEMBER(dp_io_t, struct_size),
    MEMBER(dp_io_t, step),
    MEMBER(dp_io_t, microbatch),
    MEMBER(dp_io_t, params),
    MEMBER(dp_io_t, grads),
    MEMBER(dp_io_t, saved),
    MEMBER(dp_io_t, work),
    MEMBER(dp_io_t, scratch),
    MEMBER(dp_io_t, x),
    MEMBER(dp_io_t, y),
    MEMBER(dp_io_t, dy),
    MEMBER(dp_io_t, dx),
    MEMBER(dp_io_t, backward_buffer),
    MEMBER(dp_io_t, tokens),
    MEMBER(dp_io_t, documents),
    MEMBER(dp_io_t, document_ends),
    MEMBER(dp_io_t, cache),
    MEMBER(dp_io_t, slots),
    MEMBER(dp_io_t, past),
    TYPE(dp_attention_config_t),
    MEMBER(dp_attention_config_t, struct_size),
    MEMBER(dp_attention_config_t, shape),
    MEMBER(dp_attention_config_t, heads),
    MEMBER(dp_attention_config_t, kv_heads),
    MEMBER(dp_attention_config_t, head_dim),
    MEMBER(dp_attention_config_t, value_dim),
    MEMBER(dp_attention_config_t, rope_theta),
    MEMBER(dp_attention_config_t, deterministic),
    MEMBER(dp_attention_config_t, device_vt),
    MEMBER(dp_attention_config_t, device),
    MEMBER(dp_attention_config_t, q_rank),
    MEMBER(dp_attention_config_t, kv_rank),
    MEMBER(dp_attention_config_t, rope_dim),
    MEMBER(dp_attention_config_t, recompute),
    MEMBER(dp_attention_config_t, variable_tokens),
    MEMBER(dp_attention_config_t, documents),
    MEMBER(dp_attention_config_t, apart),
    MEMBER(dp_attention_config_t, cache_slots),
    MEMBER(dp_attention_config_t, cache_tokens),
    MEMBER(dp_attention_config_t, settings),
    TYPE(dp_attention_vt_t),
    MEMBER(dp_attention_vt_t, struct_size),
    MEMBER(dp_attention_vt_t, caps),
    MEMBER(dp_attention_vt_t, open),
    MEMBER(dp_attention_vt_t, close),
    MEMBER(dp_attention_vt_t, sizes),
    MEMBER(dp_attention_vt_t, params),
    MEMBER(dp_attention_vt_t, forward),
    MEMBER(dp_attention_vt_t, backward_input),
    MEMBER(dp_attention_vt_t, backward_weight),
    MEMBER(dp_attention_vt_t, recompute),
    MEMBER(dp_attention_vt_t, project),
    MEMBER(dp_attention_vt_t, attend),
    MEMBER(dp_attention_vt_t, attend_backward_input),
    MEMBER(dp_attention_vt_t, project_backward_input),
    MEMBER(dp_attention_vt_t, attend_backward_weight),
    MEMBER(dp_attention_vt_t, project_backward_weight),
    TYPE(dp_moe_config_t),
    MEMBER(dp_moe_config_t, struct_size),
    MEMBER(dp_moe_config_t, shape),
    MEMBER(dp_moe_config_t, experts),
    MEMBER(dp_moe_config_t, top_k),
    MEMBER(dp_moe_config_t, expert_hidden),
    MEMBER(dp_moe_config_t, shared_experts),
    MEMBER(dp_moe_config_t, gate),
    MEMBER(dp_moe_config_t, normalize),
    MEMBER(dp_moe_config_t, scale),
    MEMBER(dp_moe_config_t, aux_alpha),
    MEMBER(dp_moe_config_t, device_vt),
    MEMBER(dp_moe_config_t, device),
    MEMBER(dp_moe_config_t, comm_vt),
    MEMBER(dp_moe_config_t, comm),
    MEMBER(dp_moe_config_t, comm_rank),
    MEMBER(dp_moe_config_t, comm_size),
    MEMBER(dp_moe_config_t, exchange_id),
    MEMBER(dp_moe_config_t, replicas),
    MEMBER(dp_moe_config_t, capacity),
    MEMBER(dp_moe_config_t, variable_tokens),
    MEMBER(dp_moe_config_t, recompute),
    MEMBER(dp_moe_config_t, route_groups),
    MEMBER(dp_moe_config_t, route_limit),
    MEMBER(dp_moe_config_t, ep_vt),
    MEMBER(dp_moe_config_t, apart),
    MEMBER(dp_moe_config_t, posted),
    TYPE(dp_moe_io_t),
    MEMBER(dp_moe_io_t, struct_size),
    MEMBER(dp_moe_io_t, io),
    MEMBER(dp_moe_io_t, aux_scale),
    MEMBER(dp_moe_io_t, aux_loss),
    MEMBER(dp_moe_io_t, placement),
    MEMBER(dp_moe_io_t, loads),
    TYPE(dp_moe_vt_t),
    MEMBER(dp_moe_vt_t, struct_size),
    MEMBER(dp_moe_vt_t, caps),
    MEMBER(dp_moe_vt_t, open),
    MEMBER(dp_moe_vt_t, close),
    MEMBER(dp_moe_vt_t, sizes),
    MEMBER(dp_moe_vt_t, params),
    MEMBER(dp_moe_vt_t, route),
    MEMBER(dp_moe_vt_t, dispatch),
    MEMBER(dp_moe_vt_t, experts),
    MEMBER(dp_moe_vt_t, combine),
    MEMBER(dp_moe_vt_t, combine_backward),
    MEMBER(dp_moe_vt_t, experts_backward_input),
    MEMBER(dp_moe_vt_t, experts_backward_weight),
    MEMBER(dp_moe_vt_t, dispatch_backward),
    MEMBER(dp_moe_vt_t, route_backward_input),
    MEMBER(dp_moe_vt_t, route_backward_weight),
    MEMBER(dp_moe_vt_t, experts_recompute),
    MEMBER(dp_moe_vt_t, about),
    MEMBER(dp_moe_vt_t, shared),
    MEMBER(dp_moe_vt_t, sum),
    MEMBER(dp_moe_vt_t, sum_backward),
    MEMBER(dp_moe_vt_t, shared_backward_input),
    MEMBER(dp_moe_vt_t, shared_backward_weight),
    MEMBER(dp_moe_vt_t, shared_recompute),
    TYPE(dp_activity_t),
    MEMBER(dp_activity_t, start_ns),
    MEMBER(dp_activity_t, end_ns),
    MEMBER(dp_activity_t, operation),
    MEMBER(dp_activity_t, bytes),
    MEMBER(dp_activity_t, kind),
    MEMBER(dp_activity_t, stream),
    MEMBER(dp_activity_t, name),
    MEMBER(dp_activity_t, reserved),
    TYPE(dp_profiler_config_t),
    MEMBER(dp_profiler_config_t, struct_size),
    MEMBER(dp_profiler_config_t, activities),
    TYPE(dp_profiler_vt_t),
    MEMBER(dp_profiler_vt_t, struct_size),
    MEMBER(dp_profiler_vt_t, open),
    MEMBER(dp_profiler_vt_t, close),
    MEMBER(dp_profiler_vt_t, begin),
    MEMBER(dp_profiler_vt_t, end),
    MEMBER(dp_profiler_vt_t, collect),
    /* of the library alone: headers that no frozen version has yet */
    TYPE(dp_checkpoint_tensor_t),
    MEMBER(dp_checkpoint_tensor_t, struct_size),
    MEMBER(dp_checkpoint_tensor_t, dtype),
    MEMBER(dp_checkpoint_tensor_t, name),
    MEMBER(dp_checkpoint_tensor_t, file),
    MEMBER(dp_checkpoint_tensor_t, count),
    MEMBER(dp_checkpoint_tensor_t, parameter),
    TYPE(dp_memory_bytes_t),
    MEMBER(dp_memory_bytes_t, struct_size),
    MEMBER(dp_memory_bytes_t, slots),
    MEMBER(dp_memory_bytes_t, message),
    MEMBER(dp_memory_bytes_t, activation),
    MEMBER(dp_memory_bytes_t, deferred),
    MEMBER(dp_memory_bytes_t, weights),
    MEMBER(dp_memory_bytes_t, parts),
    TYPE(dp_memory_peaks_t),
    MEMBER(dp_memory_peaks_t, activations),
    MEMBER(dp_memory_peaks_t, deferred),
    MEMBER(dp_memory_peaks_t, bytes),
    TYPE(dp_overlap_request_t),
    MEMBER(dp_overlap_request_t, struct_size),
    MEMBER(dp_overlap_request_t, schedule),
    MEMBER(dp_overlap_request_t, costs),
    MEMBER(dp_overlap_request_t, memory_cap),
    MEMBER(dp_overlap_request_t, slots),
    MEMBER(dp_overlap_request_t, tries),
    MEMBER(dp_overlap_request_t, seconds),
    MEMBER(dp_overlap_request_t, seed),
    MEMBER(dp_overlap_request_t, rank_caps),
    TYPE(dp_overlap_result_t),
    MEMBER(dp_overlap_result_t, struct_size),
    MEMBER(dp_overlap_result_t, schedule),
    MEMBER(dp_overlap_result_t, step),
    MEMBER(dp_overlap_result_t, bound),
    MEMBER(dp_overlap_result_t, peak),
    MEMBER(dp_overlap_result_t, tried),
    TYPE(dp_model_t),
    MEMBER(dp_model_t, struct_size),
    MEMBER(dp_model_t, tied),
    MEMBER(dp_model_t, gated),
    MEMBER(dp_model_t, qkv_bias),
    MEMBER(dp_model_t, o_bias),
    MEMBER(dp_model_t, mlp_bias),
    MEMBER(dp_model_t, norm_bias),
    MEMBER(dp_model_t, router_bias),
    MEMBER(dp_model_t, expert_bias),
    MEMBER(dp_model_t, qk_norm),
    MEMBER(dp_model_t, sinks),
    MEMBER(dp_model_t, shared_gate),
    MEMBER(dp_model_t, type),
    MEMBER(dp_model_t, hidden),
    MEMBER(dp_model_t, layers),
    MEMBER(dp_model_t, vocab),
    MEMBER(dp_model_t, positions),
    MEMBER(dp_model_t, heads),
    MEMBER(dp_model_t, kv_heads),
    MEMBER(dp_model_t, head_dim),
    MEMBER(dp_model_t, q_rank),
    MEMBER(dp_model_t, kv_rank),
    MEMBER(dp_model_t, rope_dim),
    MEMBER(dp_model_t, value_dim),
    MEMBER(dp_model_t, ffn),
    MEMBER(dp_model_t, experts),
    MEMBER(dp_model_t, top_k),
    MEMBER(dp_model_t, expert_ffn),
    MEMBER(dp_model_t, shared_ffn),
    MEMBER(dp_model_t, dense_first),
    MEMBER(dp_model_t, moe_every),
    MEMBER(dp_model_t, node_limit),
    MEMBER(dp_model_t, sequence),
    TYPE(dp_gpu_t),
    MEMBER(dp_gpu_t, struct_size),
    MEMBER(dp_gpu_t, host),
    MEMBER(dp_gpu_t, tflops),
    MEMBER(dp_gpu_t, memory),
    MEMBER(dp_gpu_t, near),
    MEMBER(dp_gpu_t, far),
    MEMBER(dp_gpu_t, products),
    MEMBER(dp_gpu_t, core),
    MEMBER(dp_gpu_t, links),
    MEMBER(dp_gpu_t, latency),
    MEMBER(dp_gpu_t, reserve),
    TYPE(dp_layout_request_t),
    MEMBER(dp_layout_request_t, struct_size),
    MEMBER(dp_layout_request_t, gpus),
    MEMBER(dp_layout_request_t, model),
    MEMBER(dp_layout_request_t, gpu),
    MEMBER(dp_layout_request_t, batch),
    MEMBER(dp_layout_request_t, sequence),
    MEMBER(dp_layout_request_t, micro_batch),
    MEMBER(dp_layout_request_t, pp),
    MEMBER(dp_layout_request_t, ep),
    MEMBER(dp_layout_request_t, dp),
    MEMBER(dp_layout_request_t, tp),
    MEMBER(dp_layout_request_t, recompute),
    MEMBER(dp_layout_request_t, method),
    MEMBER(dp_layout_request_t, whole_optimizer),
    MEMBER(dp_layout_request_t, measured),
    MEMBER(dp_layout_request_t, hop),
    MEMBER(dp_layout_request_t, bandwidth),
    TYPE(dp_layout_t),
    MEMBER(dp_layout_t, struct_size),
    MEMBER(dp_layout_t, tp),
    MEMBER(dp_layout_t, pp),
    MEMBER(dp_layout_t, ep),
    MEMBER(dp_layout_t, dp),
    MEMBER(dp_layout_t, microbatches),
    MEMBER(dp_layout_t, method),
    MEMBER(dp_layout_t, chunks),
    MEMBER(dp_layout_t, recompute),
    MEMBER(dp_layout_t, fits),
    MEMBER(dp_layout_t, timed),
    MEMBER(dp_layout_t, copies),
    MEMBER(dp_layout_t, weights),
    MEMBER(dp_layout_t, gradients),
    MEMBER(dp_layout_t, optimizer),
    MEMBER(dp_layout_t, activations),
    MEMBER(dp_layout_t, logits),
    MEMBER(dp_layout_t, transfers),
    MEMBER(dp_layout_t, expert_weights),
    MEMBER(dp_layout_t, total),
    MEMBER(dp_layout_t, step_time),
    MEMBER(dp_layout_t, reduce_time),
    MEMBER(dp_layout_t, useful),
    MEMBER(dp_layout_t, gain),
    MEMBER(dp_layout_t, tokens_per_second),
    MEMBER(dp_layout_t, mfu),
    MEMBER(dp_layout_t, reason),
    TYPE(dp_layouts_about_t),
    MEMBER(dp_layouts_about_t, struct_size),
    MEMBER(dp_layouts_about_t, count),
    MEMBER(dp_layouts_about_t, timed),
    MEMBER(dp_layouts_about_t, tried),
    MEMBER(dp_layouts_about_t, uneven),
    MEMBER(dp_layouts_about_t, advice),
    TYPE(dp_search_state_t),
    MEMBER(dp_search_state_t, struct_size),
    MEMBER(dp_search_state_t, elapsed),
    MEMBER(dp_search_state_t, tried),
    MEMBER(dp_search_state_t, built_in_step),
    MEMBER(dp_search_state_t, step),
    MEMBER(dp_search_state_t, from),
    TYPE(dp_search_request_t),
    MEMBER(dp_search_request_t, struct_size),
    MEMBER(dp_search_request_t, ranks),
    MEMBER(dp_search_request_t, microbatches),
    MEMBER(dp_search_request_t, costs),
    MEMBER(dp_search_request_t, transport),
    MEMBER(dp_search_request_t, slots),
    MEMBER(dp_search_request_t, memory_cap),
    MEMBER(dp_search_request_t, seconds),
    MEMBER(dp_search_request_t, seed),
    MEMBER(dp_search_request_t, progress),
    MEMBER(dp_search_request_t, user),
    MEMBER(dp_search_request_t, placements),
    MEMBER(dp_search_request_t, weights),
    MEMBER(dp_search_request_t, stages),
    MEMBER(dp_search_request_t, activation_bytes),
    MEMBER(dp_search_request_t, weight_bytes),
    MEMBER(dp_search_request_t, layers),
    MEMBER(dp_search_request_t, nchunks),
    MEMBER(dp_search_request_t, layer_costs),
    MEMBER(dp_search_request_t, chunks),
    MEMBER(dp_search_request_t, rank_caps),
    TYPE(dp_search_candidate_t),
    MEMBER(dp_search_candidate_t, from),
    MEMBER(dp_search_candidate_t, step),
    MEMBER(dp_search_candidate_t, memory),
    TYPE(dp_search_result_t),
    MEMBER(dp_search_result_t, struct_size),
    MEMBER(dp_search_result_t, schedule),
    MEMBER(dp_search_result_t, built_in),
    MEMBER(dp_search_result_t, from),
    MEMBER(dp_search_result_t, built_in_step),
    MEMBER(dp_search_result_t, step),
    MEMBER(dp_search_result_t, peak),
    MEMBER(dp_search_result_t, tried),
    MEMBER(dp_search_result_t, memory),
    MEMBER(dp_search_result_t, first),
    MEMBER(dp_search_result_t, ncandidates),
    MEMBER(dp_search_result_t, candidates),
    TYPE(dp_state_t),
    MEMBER(dp_state_t, struct_size),
    MEMBER(dp_state_t, name),
    MEMBER(dp_state_t, scope),
    MEMBER(dp_state_t, chunk),
    MEMBER(dp_state_t, sharded),
    MEMBER(dp_state_t, host),
    MEMBER(dp_state_t, memory),
    MEMBER(dp_state_t, dtype),
    MEMBER(dp_state_t, count),
    MEMBER(dp_state_t, optional),
    TYPE(dp_save_options_t),
    MEMBER(dp_save_options_t, struct_size),
    MEMBER(dp_save_options_t, folder),
    MEMBER(dp_save_options_t, keep),
    TYPE(dp_trace_options_t),
    MEMBER(dp_trace_options_t, struct_size),
    MEMBER(dp_trace_options_t, annotations),
    MEMBER(dp_trace_options_t, communication),
    MEMBER(dp_trace_options_t, most_bytes),
    MEMBER(dp_trace_options_t, devices),
    TYPE(dp_trace_about_t),
    MEMBER(dp_trace_about_t, struct_size),
    MEMBER(dp_trace_about_t, devices),
    MEMBER(dp_trace_about_t, events),
    MEMBER(dp_trace_about_t, records),
    MEMBER(dp_trace_about_t, sms),
    MEMBER(dp_trace_about_t, cut_off),
    MEMBER(dp_trace_about_t, broken),
    MEMBER(dp_trace_about_t, broken_records),
    TYPE(dp_trace_overlap_t),
    MEMBER(dp_trace_overlap_t, struct_size),
    MEMBER(dp_trace_overlap_t, name),
    MEMBER(dp_trace_overlap_t, span),
    MEMBER(dp_trace_overlap_t, computation),
    MEMBER(dp_trace_overlap_t, communication),
    MEMBER(dp_trace_overlap_t, hidden),
    MEMBER(dp_trace_overlap_t, idle),
    MEMBER(dp_trace_overlap_t, gaps),
    MEMBER(dp_trace_overlap_t, computation_sms),
    MEMBER(dp_trace_overlap_t, communication_sms),
    MEMBER(dp_trace_overlap_t, likely),
    MEMBER(dp_trace_overlap_t, likely_time),
    MEMBER(dp_trace_overlap_t, likely_name),
    MEMBER(dp_trace_overlap_t, strays),
    MEMBER(dp_trace_overlap_t, stray_name),
    TYPE(dp_trace_costs_t),
    MEMBER(dp_trace_costs_t, struct_size),
    MEMBER(dp_trace_costs_t, layers),
    MEMBER(dp_trace_costs_t, title),
    MEMBER(dp_trace_costs_t, annotations),
    MEMBER(dp_trace_costs_t, annotation_count),
};
/* clang-format on */
#define N_PINS (sizeof(pins) / sizeof(pins[0]))

static void format_pin(const struct pin *pin, char *line, size_t bytes)
{
    snprintf(line, bytes, "%s%s\t%zu\n", pin->type, pin->member, pin->value);
}

static FILE *open_list(int minor)
{
    const char *data = getenv("DP_TEST_DATA");
    char path[4096];
    FILE *list;

    ck_assert_msg(data != NULL, "run by make check, or set DP_TEST_DATA to tests/data");
    snprintf(path, sizeof(path), "%s/abi/layout-%d.%d.tsv", data, DP_ABI_MAJOR, minor);
    list = fopen(path, "r");
    ck_assert_msg(list != NULL, "%s cannot be read", path);
    return list;
}

START_TEST(layout_is_that_of_the_released_list)
{
    FILE *list = open_list(DP_ABI_MINOR);
    char expected[256], line[256];

    for (size_t i = 0; i < N_PINS; i++) {
        format_pin(&pins[i], line, sizeof(line));
        ck_assert_msg(fgets(expected, sizeof(expected), list) != NULL, "the list ends before %s", line);
        ck_assert_msg(strcmp(line, expected) == 0, "%s instead of %s: see the head of test_layout.c", line, expected);
    }
    ck_assert_msg(fgets(expected, sizeof(expected), list) == NULL, "the list goes on with %s", expected);
    fclose(list);
}
END_TEST

/* The number of a line of the list, -1: there is none. */
static long listed(FILE *list, const char *type, const char *member)
{
    char name[256], line[256];
    const int length = snprintf(name, sizeof(name), "%s%s\t", type, member);

    rewind(list);
    while (fgets(line, sizeof(line), list) != NULL)
        if (strncmp(line, name, (size_t)length) == 0)
            return strtol(line + length, NULL, 10);
    return -1;
}

/* What older code calls the end of a struct takes its padding in, of which it may leave or write
 * anything. */
START_TEST(new_members_are_behind_the_padding_of_older_ones)
{
    for (int minor = 0; minor < DP_ABI_MINOR; minor++) {
        FILE *list = open_list(minor);

        for (size_t i = 0; i < N_PINS; i++) {
            const long size = listed(list, pins[i].type, ""), offset = listed(list, pins[i].type, pins[i].member);

            if (size < 0 || pins[i].member[0] == '\0' || strcmp(pins[i].member, ".reserved") == 0)
                continue;
            if (offset >= 0)
                ck_assert_msg(pins[i].value == (size_t)offset, "%s%s has moved", pins[i].type, pins[i].member);
            else
                ck_assert_msg(pins[i].value >= (size_t)size, "%s%s begins at %zu, within the %ld bytes of %d.%d",
                              pins[i].type, pins[i].member, pins[i].value, size, DP_ABI_MAJOR, minor);
        }
        fclose(list);
    }
}
END_TEST

/* A refusal names a plugin of any major: these four never move. */
START_TEST(the_head_of_a_descriptor_is_forever)
{
    ck_assert_uint_eq(offsetof(dp_plugin_t, struct_size), 0);
    ck_assert_uint_eq(offsetof(dp_plugin_t, abi_major), 4);
    ck_assert_uint_eq(offsetof(dp_plugin_t, abi_minor), 6);
    ck_assert_uint_eq(offsetof(dp_plugin_t, name), 8);
}
END_TEST

START_TEST(numbers_that_plugins_are_compiled_with)
{
    ck_assert_int_eq(DP_LANE_COMPUTE, 0);
    ck_assert_int_eq(DP_LANE_ALL_TO_ALL, 1);
    ck_assert_int_eq(DP_LANE_P2P, 2);
    ck_assert_int_eq(DP_LANE_REDUCE, 3);
    ck_assert_int_eq(DP_F32, 0);
    ck_assert_int_eq(DP_F64, 1);
    ck_assert_int_eq(DP_BF16, 2);
    ck_assert_int_eq(DP_I64, 3);
    ck_assert_int_eq(DP_U8, 4);
    ck_assert_int_eq(DP_LAUNCH_ARG_MAX, 288);
    ck_assert_str_eq(DP_IFACE_DEVICE, "dp.device/1");
    ck_assert_str_eq(DP_IFACE_COMM, "dp.comm/1");
    ck_assert_str_eq(DP_IFACE_ATTENTION, "dp.attention/1");
    ck_assert_str_eq(DP_IFACE_MOE, "dp.moe/1");
    ck_assert_str_eq(DP_IFACE_PROFILER, "dp.profiler/1");
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite;

    if (argc == 2 && strcmp(argv[1], "--print") == 0) {
        for (size_t i = 0; i < N_PINS; i++)
            printf("%s%s\t%zu\n", pins[i].type, pins[i].member, pins[i].value);
        return 0;
    }
    suite = suite_create("abi/layout");
    if (sizeof(void *) == 8) { /* the lists are those of 64-bit machines */
        SUITE_ADD(suite, layout_is_that_of_the_released_list);
        SUITE_ADD(suite, new_members_are_behind_the_padding_of_older_ones);
    }
    SUITE_ADD(suite, the_head_of_a_descriptor_is_forever);
    SUITE_ADD(suite, numbers_that_plugins_are_compiled_with);
    return suite_run(suite);
}
