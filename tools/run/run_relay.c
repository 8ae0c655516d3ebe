/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_relay.c: copies what the ranks print to our own output, whole lines at a time, each with its rank in front.
 * A thread of its own, because output may block for as long as nobody reads it. */
#include "run_job.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES   65536
#define LONGEST_LINE (1u << 20) /* longer ones are cut in pieces */

typedef struct stream {
    int fd, to, rank;
    char *line; /* what came since the last newline */
    size_t used, room;
    bool after_return; /* the last character was one: a newline that follows belongs to it */
} stream_t;

struct run_relay {
    int count, room, open;
    int done_fd; /* closed at the end */
    stream_t *streams;
    struct pollfd *polls;
    char *out;
    size_t out_used, out_room;
};

run_relay_t *run_relay_new(int ranks)
{
    run_relay_t *relay = calloc(1, sizeof(*relay));

    if (relay == NULL)
        return NULL;
    relay->room = 2 * ranks;
    relay->streams = calloc((size_t)relay->room, sizeof(relay->streams[0]));
    relay->polls = calloc((size_t)relay->room, sizeof(relay->polls[0]));
    if (relay->streams != NULL && relay->polls != NULL)
        return relay;
    free(relay->streams);
    free(relay->polls);
    free(relay);
    return NULL;
}

void run_relay_add(run_relay_t *relay, int rank, int fd, int to)
{
    relay->streams[relay->count++] = (stream_t){.fd = fd, .to = to, .rank = rank};
    relay->open++;
}

static void close_stream(run_relay_t *relay, stream_t *stream)
{
    if (stream->fd < 0)
        return;
    close(stream->fd); /* whoever still writes there is told so */
    stream->fd = -1;
    relay->open--;
}

static bool grow(char **data, size_t *room, size_t wanted)
{
    size_t larger = 2 * *room > wanted ? 2 * *room : wanted;
    char *moved;

    if (wanted <= *room)
        return true;
    moved = realloc(*data, larger);
    if (moved == NULL)
        return false;
    *data = moved;
    *room = larger;
    return true;
}

/* Nobody reads our output any more: then those who write it hear of it, as they would without us in between. */
static void lose_output(run_relay_t *relay, int to)
{
    for (int i = 0; i < relay->count; i++)
        if (relay->streams[i].to == to)
            close_stream(relay, &relay->streams[i]);
}

static void flush_out(run_relay_t *relay, int to)
{
    size_t done = 0;

    while (done < relay->out_used) {
        ssize_t n = write(to, relay->out + done, relay->out_used - done);

        if (n < 0 && errno == EAGAIN) /* somebody has made our output non-blocking */
            (void)poll(&(struct pollfd){.fd = to, .events = POLLOUT}, 1, 1000);
        else if (n < 0 && errno != EINTR) {
            lose_output(relay, to);
            break;
        } else if (n > 0)
            done += (size_t)n;
    }
    relay->out_used = 0;
}

static void put_line(run_relay_t *relay, const stream_t *stream, const char *first, size_t first_bytes,
                     const char *second, size_t second_bytes)
{
    char prefix[24];
    size_t n = (size_t)snprintf(prefix, sizeof(prefix), "[%d] ", stream->rank);

    if (!grow(&relay->out, &relay->out_room, relay->out_used + n + first_bytes + second_bytes + 1))
        return;
    memcpy(relay->out + relay->out_used, prefix, n);
    relay->out_used += n;
    if (first_bytes > 0)
        memcpy(relay->out + relay->out_used, first, first_bytes);
    relay->out_used += first_bytes;
    if (second_bytes > 0)
        memcpy(relay->out + relay->out_used, second, second_bytes);
    relay->out_used += second_bytes;
    relay->out[relay->out_used++] = '\n';
}

/* A lone carriage return ends a line too: progress meters would never be seen otherwise. */
static const char *find_end(const char *at, const char *end)
{
    while (at < end && *at != '\n' && *at != '\r')
        at++;
    return at;
}

static void keep_rest(run_relay_t *relay, stream_t *stream, const char *at, size_t bytes)
{
    if (stream->used + bytes > LONGEST_LINE || !grow(&stream->line, &stream->room, stream->used + bytes)) {
        put_line(relay, stream, stream->line, stream->used, at, bytes);
        stream->used = 0;
        return;
    }
    if (bytes > 0)
        memcpy(stream->line + stream->used, at, bytes);
    stream->used += bytes;
}

static void take(run_relay_t *relay, stream_t *stream, const char *at, size_t bytes)
{
    const char *end = at + bytes;

    while (at < end) {
        const char *stop = find_end(at, end);
        bool empty = stop == at && stream->used == 0;

        if (stop == end)
            break;
        if (!empty || (*stop == '\n' && !stream->after_return))
            put_line(relay, stream, stream->line, stream->used, at, (size_t)(stop - at));
        stream->used = 0;
        stream->after_return = *stop == '\r';
        at = stop + 1;
    }
    if (at < end)
        stream->after_return = false;
    keep_rest(relay, stream, at, (size_t)(end - at));
}

static void serve(run_relay_t *relay, stream_t *stream)
{
    static char buffer[READ_BYTES];
    ssize_t n = read(stream->fd, buffer, sizeof(buffer));

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n > 0) {
        take(relay, stream, buffer, (size_t)n);
    } else {
        if (stream->used > 0)
            put_line(relay, stream, stream->line, stream->used, NULL, 0);
        close_stream(relay, stream);
    }
    flush_out(relay, stream->to);
}

static void *relay_main(void *argument)
{
    run_relay_t *relay = argument;

    while (relay->open > 0) {
        for (int i = 0; i < relay->count; i++)
            relay->polls[i] = (struct pollfd){.fd = relay->streams[i].fd, .events = POLLIN};
        if (poll(relay->polls, (nfds_t)relay->count, -1) < 0)
            continue;
        for (int i = 0; i < relay->count; i++)
            if (relay->polls[i].revents != 0 && relay->streams[i].fd >= 0)
                serve(relay, &relay->streams[i]);
    }
    close(relay->done_fd);
    return NULL;
}

bool run_relay_start(run_relay_t *relay, int *done_fd_out)
{
    pthread_t thread;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    relay->done_fd = ends[1];
    if (pthread_create(&thread, NULL, relay_main, relay) != 0) {
        close(ends[0]);
        close(ends[1]);
        return false;
    }
    pthread_detach(thread);
    *done_fd_out = ends[0];
    return true;
}
