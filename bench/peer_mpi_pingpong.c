/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * peer_mpi_pingpong.c: what MPI needs for 8 bytes one way and for messages of 4 MiB between two
 * ranks of one host; started by comm_p2p through mpirun. Arguments: batches, round trips per
 * batch. */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 4 << 20, LARGE_COUNT = 64 };

static double trips(int rank, int count)
{
    char word[8] = {0};
    double start = MPI_Wtime();

    for (int i = 0; i < count; i++) {
        if (rank == 0)
            MPI_Send(word, 8, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(word, 8, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(word, 8, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - start) / count / 2;
}

/* One direction, a word back at the end. */
static double rate(int rank, char *data)
{
    double start = MPI_Wtime();

    for (int i = 0; i < LARGE_COUNT; i++) {
        if (rank == 0)
            MPI_Send(data, LARGE, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        else
            MPI_Recv(data, LARGE, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    if (rank == 0)
        MPI_Recv(data, 8, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(data, 8, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
    return (double)LARGE * LARGE_COUNT / (MPI_Wtime() - start);
}

int main(int argc, char **argv)
{
    int batches = argc > 1 ? atoi(argv[1]) : 10, count = argc > 2 ? atoi(argv[2]) : 1000, rank, length;
    char version[MPI_MAX_LIBRARY_VERSION_STRING], *data = malloc(LARGE);

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Get_library_version(version, &length);
    memset(data, 1, LARGE);
    if (rank == 0)
        printf("version %s\n", version);
    for (int i = 0; i < batches + 2; i++) {
        double seconds = trips(rank, count);

        if (rank == 0 && i >= 2)
            printf("latency %.12f\n", seconds);
    }
    for (int i = 0; i < 3; i++) {
        double bytes = rate(rank, data);

        if (rank == 0 && i == 2)
            printf("rate %.0f\n", bytes);
    }
    MPI_Finalize();
    free(data);
    return 0;
}
