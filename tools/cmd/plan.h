/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.h: from a command line to a schedule, its program and its simulation. */
#ifndef DP_TOOLS_PLAN_H
#define DP_TOOLS_PLAN_H

#include "args.h"

typedef struct plan {
    const args_t *args;
    dp_schedule_t *schedule;
    bool from_csv;
    int64_t transfers; /* that the CSV file lists */
    dp_program_t *program;
    int32_t slots;             /* a channel between ranks; with the program */
    dp_verify_report_t report; /* of plan_prove, */
    dp_memory_peaks_t *held;   /* [ranks] and this */
    int32_t *host_of;          /* [ranks] where there is a topology; else NULL */
    dp_topology_t topology;
    dp_costs_t costs;           /* struct_size 0: not known yet */
    double *stage_scale;        /* of plan_layers */
    double published;           /* step in the order of --inference where one is planned; else 0 */
    dp_simulation_t simulation; /* struct_size 0: not simulated */
} plan_t;

/* Each step includes those before it. They say what is wrong on stderr and return an exit code;
 * CMD_OK: go on. Free with plan_clear in any case. */
int plan_schedule(const args_t *args, plan_t *plan);
int plan_program(const args_t *args, plan_t *plan);
int plan_simulation(const args_t *args, plan_t *plan, bool with_timeline);
void plan_clear(plan_t *plan);

/* The costs of a command line for a schedule. Stage scales of a costs file that do not fit are left
 * out, and stderr says so; DP_ERR_INVALID: those of the command line do not fit. */
dp_status_t plan_costs(const args_t *args, const dp_schedule_t *schedule, dp_costs_t *costs_out);
/* Does what --overlap says to plan->schedule. costs: for a plan. DP_ERR_INVALID, DP_ERR_REJECTED:
 * it cannot be done. */
dp_status_t plan_overlap(plan_t *plan, const dp_costs_t *costs);
/* Puts the topology of a command line, if any, into the costs of plan->schedule; plan holds what it
 * points to. */
dp_status_t plan_place(plan_t *plan, topology_placing_t placing, dp_costs_t *costs);
/* Cuts the --layers of a command line onto the stages of plan->schedule, for a short step; plan
 * holds the scales that the costs then have. DP_ERR_INVALID: more stages than layers. */
dp_status_t plan_layers(plan_t *plan, dp_costs_t *costs);
/* [stages] what each stage takes beside the mean one when stage s holds --layers first[s] to
 * first[s + 1] - 1. */
void plan_layer_scales(const plan_t *plan, const int32_t *first, double *scale_out);
/* Says on stderr that the stage scales of a costs file, if any, are left out. */
void plan_leave_scales(const args_t *args);
/* The file has the format of torch.distributed.pipelining: its name ends in ".csv". */
bool plan_is_csv(const char *path);
enum { PLAN_SLOTS = 2 }; /* a channel of a pipeline that asks for none, where these are enough */
/* Lowers plan->schedule anew, with the slots that the command line asks for or else with those that
 * the schedule needs, and proves the program. DP_ERR_REJECTED: it does not complete. */
dp_status_t plan_prove(plan_t *plan);
/* What the reader of costs F to FB has to know of a run by segments. A line. */
extern const char plan_by_segments[];
/* "costs":{"F":1,...} */
void plan_json_costs(FILE *to, const dp_costs_t *costs);
/* "credits:2" or "group" */
void plan_transport_text(const plan_t *plan, char *text, size_t bytes);

#endif
