/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fabric.h: provider, endpoint and registered memory, and what peers have to know of them. */
#ifndef COMM_OFI_FABRIC_H
#define COMM_OFI_FABRIC_H

#include "comm_ofi.h"

/* What ranks tell each other through the boot service, in each round. */
typedef struct record {
    char provider[64];
    char host[128];    /* whose loopback addresses are the same */
    char unlisted[48]; /* wire_t */
    unsigned char name[ADDRESS_BYTES];
    uint64_t address, key, bytes;
    uint32_t name_bytes;
    uint32_t library, areas, bells, scatter, direct, loopback;
} record_t;

/* fabric.c */
/* Chooses provider and interface, and opens everything up to the endpoint. */
dp_status_t ofi_fabric_open(dp_comm_t *comm);
void ofi_fabric_close(dp_comm_t *comm);
/* Says what this rank is reached by. */
dp_status_t ofi_fabric_describe(dp_comm_t *comm, record_t *record);
/* Checks that a peer speaks what we do and can be reached, and makes it known to the endpoint. */
dp_status_t ofi_fabric_add(dp_comm_t *comm, int32_t rank, const record_t *record);
/* Lets peers write the region. */
dp_status_t ofi_fabric_register(dp_comm_t *comm, region_t *region);
/* Memory of the device, where wire.direct is set. Under the lock of the wire. */
dp_status_t ofi_fabric_register_device(dp_comm_t *comm, void *base, size_t bytes, uint64_t access,
                                       struct fid_mr **mr_out);

#endif
