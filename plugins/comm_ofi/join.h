/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * join.h: how ranks find each other's areas. */
#ifndef COMM_OFI_JOIN_H
#define COMM_OFI_JOIN_H

#include "fabric.h"

/* A region of a peer that is being connected. */
typedef struct view {
    record_t record;
    area_t *areas; /* a private copy of the directory */
    bool loaded;
} view_t;

/* join.c */
dp_status_t ofi_join_group(dp_comm_t *comm);
dp_status_t ofi_join_start(dp_comm_t *comm);
/* Where `rank` has the area that `expected` describes, in this round; DP_ERR_MISMATCH says what
 * differs. */
dp_status_t ofi_join_find(dp_comm_t *comm, view_t *views, int32_t rank, const area_t *expected, const char *what,
                          place_t *place_out);
void ofi_join_free_region(dp_comm_t *comm, region_t *region);

#endif
