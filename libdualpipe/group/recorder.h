/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * recorder.h: what a rank is doing, in memory that others can read and that outlives it. */
#ifndef DP_GROUP_RECORDER_H
#define DP_GROUP_RECORDER_H

#include "group/group.h"
#include "group/spans.h"

#define DP__RECORDER_MAX_RECORDS (1u << 20)
#define DP__RECORDER_NAME_BYTES  32
/* Of the flow of a span what both ends of a message share; then the step. */
#define DP__FLOW_MESSAGE ((UINT64_C(1) << 48) - 1)

struct dp__recorder {
    dp__recorder_t *next;
    int32_t rank, pid; /* whose it is; pid: where ranks are processes */
    void *memory;
    size_t bytes;
    uint32_t capacity;
    dp_span_t *records; /* in memory */
};

/* Bytes of the memory of a recorder. DP_ERR_INVALID for a capacity of 0 or above
 * DP__RECORDER_MAX_RECORDS. */
dp_status_t dp__recorder_bytes(uint32_t capacity, size_t *bytes_out);
/* Writes the header into zeroed memory of that size and fills *recorder_out. mark: random, tells
 * one recorder from another. */
void dp__recorder_format(void *memory, size_t bytes, uint32_t capacity, const uint8_t mark[16],
                         dp__recorder_t *recorder_out);
/* The same for memory that another rank has formatted: false when it is not that recorder. */
bool dp__recorder_adopt(void *memory, size_t bytes, const uint8_t mark[16], dp__recorder_t *recorder_out);
/* The text for spans whose name is `name`. */
void dp__recorder_set_name(dp__recorder_t *recorder, uint16_t name, const char *text);

/* For those who have mapped it: its owner does not write any more. */
void dp__recorder_close(dp__recorder_t *recorder);
bool dp__recorder_is_closed(const dp__recorder_t *recorder);
/* Takes the recorder with these records out of the list, or (records NULL) the first closed one;
 * NULL when there is none. */
dp__recorder_t *dp__recorder_take(dp__recorder_t **recorders, const dp_span_t *records);

/* A record, and the text of a name in this recorder, "" without one. Both may be torn: others write
 * them meanwhile. */
dp_span_t dp__recorder_span(const dp__recorder_t *recorder, uint32_t i);
void dp__recorder_name(const dp__recorder_t *recorder, uint16_t name, char text[DP__RECORDER_NAME_BYTES]);

/* Of rank `rank`: "step 3: mlp(B) of stage 2" into text, "" when nothing was recorded. true: in
 * progress, false: the last one that ended. Reads memory that others may be writing. */
bool dp__recorder_describe(const dp__recorder_t *recorders, int32_t rank, char *text, size_t bytes);
/* What a rank is doing, and for whom it waits. */
typedef struct dp__doing {
    bool open;     /* it is in it; else it was the last */
    bool computes; /* and waits for nobody */
    int32_t peer;  /* whose message, or whose room for one, it waits for; -1: not known */
    int64_t since_ns;
    char text[160];
} dp__doing_t;
/* From the recorders of both sides. false: nothing was recorded. */
bool dp__recorder_look(const dp__recorder_t *recorders, int32_t rank, dp__doing_t *doing_out);
/* The latest start or end that the rank (-1: any) has recorded in these recorders, 0 when there is
 * none. */
int64_t dp__recorder_latest(const dp__recorder_t *recorders, int32_t rank);

#endif
