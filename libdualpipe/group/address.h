/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * address.h: where rank 0 listens. */
#ifndef DP_GROUP_ADDRESS_H
#define DP_GROUP_ADDRESS_H

#include <dualpipe/group.h>
#include <stdbool.h>
#include <sys/socket.h>

typedef struct dp__address {
    struct sockaddr_storage storage;
    socklen_t bytes;
    bool loopback;
    char text[64];  /* "127.0.0.1:29500" */
    char name[128]; /* as it was given: "node1" */
} dp__address_t;

/* From the options, MASTER_ADDR and MASTER_PORT, or what the launcher calls the job. [blocks] on
 * name service */
dp_status_t dp__address_find(const dp_group_options_t *options, dp__address_t *address_out);
/* A non-blocking listening socket there: the one handed down by DUALPIPE_LAUNCH when it is at that
 * address, else one that we choose. */
dp_status_t dp__address_listen(const dp__address_t *address, int32_t size, int *fd_out);
/* For a job that did not come together: "; ..." when the address can be reached from this host
 * alone, else "". */
void dp__address_hint(const dp__address_t *address, const char *host, char *text, size_t bytes);
/* "127.0.0.1:29500" of any socket address. */
void dp__address_text(const struct sockaddr *address, socklen_t bytes, char *text, size_t text_bytes);

#endif
