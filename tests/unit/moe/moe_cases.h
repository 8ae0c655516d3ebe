/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_cases.h: what moe_cpu and moe_cuda both do beyond the contract: the bits of all gradients,
 * what they find wrong in rows and placements that arrive, numbers that are none, and many sizes;
 * written on the suite's instances and micro-batches. */
#ifndef DP_TESTS_MOE_CASES_H
#define DP_TESTS_MOE_CASES_H

#include "conform/exchanges.h"
#include "conform/kernel.h"

enum { ROUTE, DISPATCH, EXPERTS, COMBINE, COMBINE_B, EXPERTS_I, DISPATCH_B, ROUTE_I, EXPERTS_W, ROUTE_W };
enum { NORM, ROUTER, BIAS }; /* parameters */

layer_t moe_layer(dp_dtype_t dtype, uint32_t tokens, uint32_t hidden, uint32_t experts, uint32_t top_k, uint32_t width,
                  uint32_t shared);
/* Parameters of b->values, of which some were changed, to the device. */
bool moe_write_params(block_t *b);
/* Two micro-batches, everything compared with the formula; each gradient or along random
 * directions. */
bool moe_layer_is_right(block_t *b, bool each);
/* A layer of a type that the plugin may not have: true when it has not. */
bool moe_try(lab_t *lab, block_t *b, const layer_t *layer);
/* That `step` of a new micro-batch fails on its stream with this status and a message with this
 * word; ends the lab. */
bool moe_fails(block_t *b, int step, dp_status_t status, const char *word);

void every_gate_and_size(conform_t *t);
void replicas_of_many_layers(conform_t *t);
void group_has_the_bits_of_one_rank(conform_t *t);
void exchanges_hold_the_worst_case(conform_t *t);
void a_row_is_sent_once_to_each_rank(conform_t *t);
void rows_of_another_call_are_refused(conform_t *t);
void placements_that_cannot_be_are_refused(conform_t *t);
void a_comm_that_refuses_is_passed_on(conform_t *t);
void refusals_name_the_setting(conform_t *t);
void numbers_that_are_none_do_no_harm(conform_t *t);
void scores_that_vanish_give_no_weight(conform_t *t);
void one_score_by_itself_is_no_weight(conform_t *t);

#define MOE_CASES                                                                                                      \
    {CONFORM_CASE(replicas_of_many_layers, 4, "Replicas on one rank or several, as many as one likes."),               \
     .flags = CONFORM_ALL_SIZES | CONFORM_ONLY_THREADS},                                                               \
        {CONFORM_CASE(exchanges_hold_the_worst_case, 0, "A token chooses an expert once: exchanges hold no more.")},   \
        {CONFORM_CASE(a_row_is_sent_once_to_each_rank, 4, "However many experts of a rank a token chooses."),          \
         .flags = CONFORM_ALL_SIZES | CONFORM_ONLY_THREADS},                                                           \
        {CONFORM_CASE(rows_of_another_call_are_refused, 0, "A peer that is out of step is found out.")},               \
        {CONFORM_CASE(placements_that_cannot_be_are_refused, 0,                                                        \
                      "Every expert has a replica, no replica another expert.")},                                      \
        {CONFORM_CASE(a_comm_that_refuses_is_passed_on, 0,                                                             \
                      "A refused exchange is the call's failure and does not count.")},                                \
        {CONFORM_CASE(refusals_name_the_setting, 0, "Messages name the plugin, the setting and its value.")},          \
        {CONFORM_CASE(numbers_that_are_none_do_no_harm, 0,                                                             \
                      "Whatever the numbers are, k different experts are chosen.")},                                   \
        {CONFORM_CASE(scores_that_vanish_give_no_weight, 0, "Sigmoids that are all 0 weigh nothing.")},                \
    {                                                                                                                  \
        CONFORM_CASE(one_score_by_itself_is_no_weight, 0, "Normalized, it trains no router: a warning.")               \
    }
/* Minutes on an emulated device. */
#define MOE_LONG_CASES                                                                                                 \
    {CONFORM_CASE(every_gate_and_size, 0, "Nothing has to be a multiple of anything.")},                               \
    {                                                                                                                  \
        CONFORM_CASE(group_has_the_bits_of_one_rank, 4,                                                                \
                     "All gradients have the bits of one rank, in any order of calls."),                               \
            .flags = CONFORM_ALL_SIZES | CONFORM_ONLY_THREADS                                                          \
    }

#endif
