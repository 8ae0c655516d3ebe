/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * partition.h: dp_partition() where not every cut may be, and time is short. */
#ifndef DP_SIMULATE_PARTITION_H
#define DP_SIMULATE_PARTITION_H

#include <dualpipe/simulate.h>
#include <stdbool.h>

typedef struct dp__cut_rules {
    /* 0: the cut may be; else how far it is from that. A cut that is less far beats any step */
    double (*excess)(void *user, const int32_t *first);
    bool (*has_time)(void *user); /* false: no other cut is tried */
    const int32_t *begin;         /* [stages + 1] the only beginning; NULL: several */
    const int32_t *most;          /* [stages] and one of no more layers a stage; NULL: none */
    void *user;
} dp__cut_rules_t;

/* rules may be NULL. The cut that is found may be none that may be. */
dp_status_t dp__partition(const dp_partition_request_t *request, const dp__cut_rules_t *rules, int32_t *first_out,
                          double *step_out);

#endif
