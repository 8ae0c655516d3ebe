/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * runtime.h: MPI itself, of which a process has one: started once, asked by one thread at a time,
 * ended once. */
#ifndef COMM_MPI_RUNTIME_H
#define COMM_MPI_RUNTIME_H

#include <dualpipe/plugin.h>

#include <mpi.h>
#include <signal.h>
#include <stdbool.h>

typedef struct runtime {
    MPI_Comm comm; /* all processes of the MPI job, and no traffic but ours; errors return */
    int rank, size;
    uint64_t nonce[2]; /* equal on all processes of the MPI job */
    int tag_most;
} runtime_t;

/* MPI for one more instance: starts it, unless the trainer has, and waits for all processes of the
 * MPI job. */
dp_status_t mpi_runtime_join(const dp_host_t *host, const char *group, const runtime_t **runtime_out);
/* healthy: nothing of the instance is in MPI's hands any more. */
void mpi_runtime_leave(bool healthy);
/* The first of `count` tags in a row that no receive of this process has been posted with. */
dp_status_t mpi_runtime_tags(const dp_host_t *host, int count, int *first_out);

/* Around every call of MPI: one thread at a time, and no SIGPIPE of a dead peer's connection ends
 * the process. */
typedef struct entry {
    sigset_t before;
} entry_t;
void mpi_runtime_enter(entry_t *entry);
void mpi_runtime_exit(const entry_t *entry);

#endif
