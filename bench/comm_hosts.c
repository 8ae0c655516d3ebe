/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_hosts.c: one side of what bench/comm_hosts.sh measures between two hosts.
 *
 *     bench/comm_hosts rank PLUGIN             a rank of two, told by the environment as those of
 *                                              any trainer
 *     bench/comm_hosts socket PORT [ADDRESS]   a bare TCP socket: without an address it listens
 *
 * Rank 0, or who listens, prints "latency SECONDS" (8 bytes, one way) and "rate BYTES/S" (4 MiB) by
 * batch. */
#include "bench/messages.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 6, WARM = 2, BATCHES = 7, TRIPS = 2000 };
#define LARGE_BYTES (MESSAGES_SMALLEST << LARGE)
#define VOLUME      ((size_t)256 << 20)

static void run_rank(const char *plugin)
{
    unsigned char *from = calloc(1, LARGE_BYTES);
    dp_group_t *group;
    messages_t m;

    messages_check(dp_group_join(NULL, &group));
    messages_open(&m, group, plugin);
    for (int i = 0; i < WARM + BATCHES; i++) {
        double seconds = messages_trip(&m, TRIPS), rate = messages_transfer(&m, LARGE, VOLUME, from);

        if (m.rank == 0 && i >= WARM)
            printf("latency %.9f\nrate %.0f\n", seconds, rate);
    }
    messages_close(&m);
    dp_group_leave(group);
    free(from);
}

/* ---- the peer ---- */

static void demand(int good, const char *what)
{
    if (good)
        return;
    perror(what);
    exit(1);
}

static int connect_to(const char *address, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1, tries = 200, fd = -1;

    inet_pton(AF_INET, address, &to.sin_addr);
    do {
        if (fd >= 0)
            close(fd);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        demand(fd >= 0, "socket");
        usleep(50000);
    } while (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0 && --tries > 0);
    demand(tries > 0, "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
}

static int accept_one(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;

    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    demand(bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(listener, 1) == 0, "listen");
    fd = accept(listener, NULL, NULL);
    demand(fd >= 0, "accept");
    close(listener);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
}

static void give(int fd, const unsigned char *data, size_t bytes)
{
    for (ssize_t n; bytes > 0; data += n, bytes -= (size_t)n) {
        n = send(fd, data, bytes, 0);
        demand(n > 0, "send");
    }
}

static void get(int fd, unsigned char *data, size_t bytes)
{
    for (ssize_t n; bytes > 0; data += n, bytes -= (size_t)n) {
        n = recv(fd, data, bytes, 0);
        demand(n > 0, "recv");
    }
}

static double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double socket_trip(int fd, int first)
{
    unsigned char word[8] = {0};
    double start = seconds_now();

    for (int i = 0; i < TRIPS; i++) {
        if (first)
            give(fd, word, sizeof(word));
        get(fd, word, sizeof(word));
        if (!first)
            give(fd, word, sizeof(word));
    }
    return (seconds_now() - start) / TRIPS / 2;
}

/* Into as many places as a channel has slots. */
static double socket_transfer(int fd, int first, unsigned char *data)
{
    size_t count = VOLUME / LARGE_BYTES;
    double start = seconds_now();

    for (size_t i = 0; i < count; i++) {
        if (first)
            give(fd, data, LARGE_BYTES);
        else
            get(fd, data + i % MESSAGES_SLOTS * LARGE_BYTES, LARGE_BYTES);
    }
    if (first)
        get(fd, data, 8);
    else
        give(fd, data, 8);
    return VOLUME / (seconds_now() - start);
}

static void run_socket(int port, const char *address)
{
    unsigned char *data = calloc(MESSAGES_SLOTS, LARGE_BYTES);
    int first = address == NULL, fd = first ? accept_one(port) : connect_to(address, port);

    for (int i = 0; i < WARM + BATCHES; i++) {
        double seconds = socket_trip(fd, first), rate = socket_transfer(fd, first, data);

        if (first && i >= WARM)
            printf("latency %.9f\nrate %.0f\n", seconds, rate);
    }
    close(fd);
    free(data);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "rank") == 0) {
        run_rank(argv[2]);
    } else if (argc >= 3 && argc <= 4 && strcmp(argv[1], "socket") == 0) {
        run_socket(atoi(argv[2]), argc == 4 ? argv[3] : NULL);
    } else {
        fprintf(stderr, "usage: comm_hosts rank PLUGIN | socket PORT [ADDRESS]\n");
        return 2;
    }
    return 0;
}
