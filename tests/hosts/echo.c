/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * echo.c: asks another host over its cable, for tests of hosts.sh:
 *   echo serve PORT                 returns UDP packets, takes in and counts TCP bytes; prints
 *                                   "serving"
 *   echo udp ADDRESS PORT COUNT     COUNT packets, 1 ms apart: "sent N back N late N least N.N ms
 *                                   most N.N ms"; late: they were overtaken. Waits 1 s for the last
 *   echo tcp ADDRESS PORT BYTES     "bytes N seconds S": until all has arrived there; "error TEXT"
 *                                   when that fails */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int open_socket(const char *address, const char *port, int type, int serve)
{
    struct addrinfo hints = {.ai_family = serve ? AF_INET6 : AF_UNSPEC,
                             .ai_socktype = type,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | (serve ? AI_PASSIVE : 0)};
    struct addrinfo *found;
    int fd, on = 1;

    if (getaddrinfo(address, port, &hints, &found) != 0)
        return -1;
    fd = socket(found->ai_family, type, 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (fd >= 0 &&
        (serve ? bind(fd, found->ai_addr, found->ai_addrlen) : connect(fd, found->ai_addr, found->ai_addrlen)) != 0) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

/* Eight bytes tell how many will come; one byte goes back when they have. */
static void swallow(int fd)
{
    static char data[1 << 20];
    uint64_t left = 0;
    ssize_t n = recv(fd, &left, sizeof(left), MSG_WAITALL);

    if (n != (ssize_t)sizeof(left))
        return;
    while (left > 0 && (n = recv(fd, data, left < sizeof(data) ? left : sizeof(data), 0)) > 0)
        left -= (uint64_t)n;
    if (left == 0)
        (void)!write(fd, "", 1);
}

static int serve(const char *port)
{
    int udp = open_socket(NULL, port, SOCK_DGRAM, 1), tcp = open_socket(NULL, port, SOCK_STREAM, 1);
    struct pollfd polls[2] = {{.fd = udp, .events = POLLIN}, {.fd = tcp, .events = POLLIN}};

    if (udp < 0 || tcp < 0 || listen(tcp, 8) != 0)
        return 1;
    printf("serving\n");
    fflush(stdout);
    while (poll(polls, 2, -1) > 0) {
        if (polls[0].revents != 0) {
            char data[2048];
            struct sockaddr_storage from;
            socklen_t bytes = sizeof(from);
            ssize_t n = recvfrom(udp, data, sizeof(data), 0, (struct sockaddr *)&from, &bytes);

            if (n > 0)
                (void)!sendto(udp, data, (size_t)n, 0, (struct sockaddr *)&from, bytes);
        }
        if (polls[1].revents != 0) {
            int fd = accept(tcp, NULL, NULL);

            if (fd >= 0) {
                swallow(fd);
                close(fd);
            }
        }
    }
    return 1;
}

typedef struct packet {
    int64_t number, sent_ns;
} packet_t;

static int ask_udp(const char *address, const char *port, int count)
{
    int fd = open_socket(address, port, SOCK_DGRAM, 0), back = 0, late = 0, sent = 0;
    int64_t next_ns = now_ns(), end_ns = INT64_MAX, last = -1, least = INT64_MAX, most = 0;

    if (fd < 0)
        return 1;
    while (back < count && now_ns() < end_ns) {
        struct pollfd in = {.fd = fd, .events = POLLIN};
        packet_t packet = {.number = sent, .sent_ns = now_ns()};

        if (sent < count && packet.sent_ns >= next_ns) {
            (void)!send(fd, &packet, sizeof(packet), 0);
            next_ns += 1000000;
            if (++sent == count)
                end_ns = now_ns() + 1000000000;
        }
        if (poll(&in, 1, sent < count ? 1 : 100) > 0 &&
            recv(fd, &packet, sizeof(packet), MSG_DONTWAIT) == sizeof(packet)) {
            int64_t took = now_ns() - packet.sent_ns;

            back++;
            late += packet.number < last;
            last = packet.number > last ? packet.number : last;
            least = took < least ? took : least;
            most = took > most ? took : most;
        }
    }
    printf("sent %d back %d late %d least %.1f ms most %.1f ms\n", sent, back, late,
           back > 0 ? (double)least * 1e-6 : 0, (double)most * 1e-6);
    return 0;
}

static int ask_tcp(const char *address, const char *port, uint64_t bytes)
{
    static char data[1 << 18];
    int64_t start = now_ns();
    int fd = open_socket(address, port, SOCK_STREAM, 0);
    uint64_t left = bytes;
    ssize_t n = fd >= 0 ? send(fd, &bytes, sizeof(bytes), MSG_NOSIGNAL) : -1;

    while (n > 0 && left > 0) {
        n = send(fd, data, left < sizeof(data) ? left : sizeof(data), MSG_NOSIGNAL);
        left -= n > 0 ? (uint64_t)n : 0;
    }
    if (n > 0)
        n = recv(fd, data, 1, 0);
    if (n <= 0) {
        printf("error %s\n", strerror(errno));
        return 1;
    }
    printf("bytes %llu seconds %.3f\n", (unsigned long long)bytes, (double)(now_ns() - start) * 1e-9);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return serve(argv[2]);
    if (argc == 5 && strcmp(argv[1], "udp") == 0)
        return ask_udp(argv[2], argv[3], atoi(argv[4]));
    if (argc == 5 && strcmp(argv[1], "tcp") == 0)
        return ask_tcp(argv[2], argv[3], strtoull(argv[4], NULL, 10));
    fprintf(stderr, "usage: echo serve PORT | udp ADDRESS PORT COUNT | tcp ADDRESS PORT BYTES\n");
    return 2;
}
