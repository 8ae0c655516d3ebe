/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.h: the protocol as lists of steps: waits and writes of 32-bit words, and copies. No CUDA
 * here.
 *
 * Every word that somebody waits for counts upwards for ever, wrapping at 2^32: a wait is over once
 * (int32_t)(word - value) >= 0. Values are relative to the number of operations made before, which
 * is known on the host when the steps are put on a stream one by one, and is read from device
 * memory (`counter`) when they are part of a graph that is replayed. */
#ifndef COMM_CUDA_IPC_PLAN_H
#define COMM_CUDA_IPC_PLAN_H

#include "layout.h"

#include <dualpipe/comm.h>

typedef enum plan_kind {
    PLAN_WAIT,  /* until the word has reached the value */
    PLAN_WRITE, /* after everything before it can be seen by all */
    PLAN_COPY,
    PLAN_EXPECT /* only where a graph replays: the word has the value, or the slots are mixed up */
} plan_kind_t;

typedef struct plan_step {
    plan_kind_t kind;
    bool relative; /* value counts from the plan's base */
    uint32_t value;
    uint32_t *word; /* device address */
    void *to;
    const void *from;
    size_t bytes;
} plan_step_t;

typedef struct plan {
    plan_step_t *steps;
    uint32_t count, room;
    uint32_t base;           /* operations before this one, as the host counts */
    const uint32_t *counter; /* the same number in device memory */
} plan_t;

static inline uint32_t plan_value(const plan_t *plan, const plan_step_t *step)
{
    return step->relative ? plan->base + step->value : step->value;
}
static inline bool plan_reached(uint32_t word, uint32_t value)
{
    return (int32_t)(word - value) >= 0;
}

/* A channel, by addresses as the owner of this end sees them. */
typedef struct plan_channel {
    uint32_t slots;
    size_t stride;
    unsigned char *data;       /* of the receiver: slot k at data + k * stride */
    uint32_t *published;       /* of the receiver */
    uint32_t *heads;           /* of the receiver: head k at heads + k * LINE_WORDS */
    uint32_t *credit;          /* of the sender */
    uint32_t *counter;         /* ours: messages sent or received */
    uint32_t *cursor;          /* ours: the slot that is next */
    uint32_t *release_counter; /* ours, at the receiver */
} plan_channel_t;
#define LINE_WORDS (LINE_BYTES / 4)

/* Steps needed by the below, for n ranks. */
uint32_t ipc_plan_room(int32_t nranks);

/* All of send, or all of release; recv before and after its look at the tag. `number`: of the
 * message in its channel. */
void ipc_plan_send(plan_t *plan, const plan_channel_t *c, uint64_t number, const dp_message_tag_t *tag,
                   const void *from);
void ipc_plan_recv(plan_t *plan, const plan_channel_t *c, uint64_t number);
void ipc_plan_received(plan_t *plan, const plan_channel_t *c, uint64_t number);
void ipc_plan_release(plan_t *plan, const plan_channel_t *c, uint64_t number);

/* The lines and payloads of one kind of area, by rank. */
typedef struct plan_group {
    int32_t rank, nranks;
    unsigned char **lines;   /* [nranks] */
    unsigned char **payload; /* [nranks] */
} plan_group_t;
uint32_t *ipc_plan_line(const plan_group_t *g, int32_t at, size_t line);

/* Stretches that the rows for each rank are cut into: as few as give each of the blocks, which take
 * all of them in turn, the same number. */
uint32_t ipc_plan_stretches(uint32_t blocks, uint32_t nranks);
/* Exchange: before rows are put; before counts are taken; at the end. And its release. */
void ipc_plan_exchange(plan_t *plan, const plan_group_t *g, uint32_t slots, uint64_t number);
void ipc_plan_arrive(plan_t *plan, const plan_group_t *g, uint32_t slots, uint64_t number);
void ipc_plan_exchanged(plan_t *plan, const plan_group_t *g, uint32_t slots, uint64_t number);
void ipc_plan_exchange_release(plan_t *plan, const plan_group_t *g, uint32_t slots, uint64_t number);

/* A sum of `count` elements in parts; base counts parts. See reduce.c. */
typedef struct plan_sum {
    const plan_group_t *group;
    size_t part_bytes, element_bytes, count;
    uint32_t dtype;
    unsigned char *data;
} plan_sum_t;
uint32_t ipc_plan_sum_parts(const plan_sum_t *sum);
/* Elements of part i, and where the slice that `rank` sums begins in it; of nranks: its end. */
size_t ipc_plan_sum_elements(const plan_sum_t *sum, uint32_t part);
size_t ipc_plan_sum_slice(const plan_sum_t *sum, uint32_t part, int32_t rank);
void ipc_plan_sum_stage(plan_t *plan, const plan_sum_t *sum, uint32_t part);
/* then our slice is summed */
void ipc_plan_sum_hear(plan_t *plan, const plan_sum_t *sum, uint32_t part);
void ipc_plan_sum_tell(plan_t *plan, const plan_sum_t *sum, uint32_t part);
void ipc_plan_sum_gather(plan_t *plan, const plan_sum_t *sum, uint32_t part);
void ipc_plan_sum_end(plan_t *plan, const plan_sum_t *sum);

#endif
