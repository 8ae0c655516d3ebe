/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_relay.c: copies what the ranks print to our own output, whole lines at a time, each with its
 * rank in front. Its own thread, because output may block for as long as nobody reads it. */
#include "run_job.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define READ_BYTES   65536
#define LONGEST_LINE (1u << 20) /* longer ones are cut */
/* a block, with its tag and rank, is whole again elsewhere */
#define TAG_ROOM (READ_BYTES + 64)
#define TAG_OUT  '\1'
#define TAG_ERR  '\2'

typedef struct stream {
    int fd, to, rank;
    char *line; /* what came since the last newline */
    size_t used, room;
    bool after_return; /* the last character was one: a newline that follows belongs to it */
    bool lost;         /* ends with what is there: who writes it may never close it */
} stream_t;

struct run_relay {
    run_relay_kind_t kind;
    bool prefix;
    pthread_mutex_t mutex; /* of these */
    int count, open;
    bool more;  /* streams may still come */
    bool lacks; /* output was dropped */
    int room, wake_fd;
    int done_fd; /* closed at the end */
    stream_t *streams;
    struct pollfd *polls; /* [room + 1] */
    char *out;
    size_t out_used, out_room;
};

run_relay_t *run_relay_new(int streams, run_relay_kind_t kind)
{
    run_relay_t *relay = calloc(1, sizeof(*relay));

    if (relay == NULL)
        return NULL;
    relay->kind = kind;
    relay->prefix = true;
    relay->room = streams;
    relay->streams = calloc((size_t)relay->room, sizeof(relay->streams[0]));
    relay->polls = calloc((size_t)relay->room + 1, sizeof(relay->polls[0]));
    relay->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&relay->mutex, NULL);
    if (relay->streams != NULL && relay->polls != NULL && relay->wake_fd >= 0)
        return relay;
    run_relay_free(relay);
    return NULL;
}

void run_relay_free(run_relay_t *relay)
{
    if (relay == NULL)
        return;
    /* behind all that its thread did, if there was one: that ends with this mutex */
    pthread_mutex_lock(&relay->mutex);
    pthread_mutex_unlock(&relay->mutex);
    if (relay->wake_fd >= 0)
        close(relay->wake_fd);
    for (int i = 0; relay->streams != NULL && i < relay->room; i++)
        free(relay->streams[i].line);
    pthread_mutex_destroy(&relay->mutex);
    free(relay->streams);
    free(relay->polls);
    free(relay->out);
    free(relay);
}

void run_relay_prefix(run_relay_t *relay, bool prefix)
{
    relay->prefix = prefix;
}

static void wake_writer(run_relay_t *relay)
{
    uint64_t one = 1;
    ssize_t n = write(relay->wake_fd, &one, sizeof(one)); /* full means that it is awake anyway */

    (void)n;
}

void run_relay_expect(run_relay_t *relay, bool more)
{
    pthread_mutex_lock(&relay->mutex);
    relay->more = more;
    pthread_mutex_unlock(&relay->mutex);
    wake_writer(relay);
}

void run_relay_add(run_relay_t *relay, int rank, int fd, int to)
{
    pthread_mutex_lock(&relay->mutex);
    relay->streams[relay->count++] = (stream_t){.fd = fd, .to = to, .rank = rank};
    relay->open++;
    pthread_mutex_unlock(&relay->mutex);
    wake_writer(relay);
}

void run_relay_lose(run_relay_t *relay, int rank)
{
    pthread_mutex_lock(&relay->mutex);
    for (int i = 0; i < relay->count; i++)
        relay->streams[i].lost |= relay->streams[i].rank == rank;
    pthread_mutex_unlock(&relay->mutex);
    wake_writer(relay);
}

bool run_relay_lacks(run_relay_t *relay)
{
    bool lacks;

    pthread_mutex_lock(&relay->mutex);
    lacks = relay->lacks;
    pthread_mutex_unlock(&relay->mutex);
    return lacks;
}

static void close_stream(run_relay_t *relay, stream_t *stream)
{
    if (stream->fd < 0)
        return;
    close(stream->fd); /* whoever still writes there is told so */
    stream->fd = -1;
    pthread_mutex_lock(&relay->mutex);
    relay->open--;
    pthread_mutex_unlock(&relay->mutex);
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

/* Nobody reads our output any more: then those who write it hear of it, as they would without us in
 * between. */
static void lose_output(run_relay_t *relay, int to)
{
    for (int i = 0; i < relay->count; i++)
        if (relay->streams[i].to == to || relay->kind == RUN_RELAY_TAG)
            close_stream(relay, &relay->streams[i]);
}

/* A full disk, say: the ranks go on, and what they print meanwhile is missing. */
static void drop_output(run_relay_t *relay, int fd, int error)
{
    if (!run_relay_lacks(relay))
        run_say("%s: %s: the ranks go on, and lines of their output are missing",
                fd == STDOUT_FILENO ? "standard output" : "standard error", strerror(error));
    pthread_mutex_lock(&relay->mutex);
    relay->lacks = true;
    pthread_mutex_unlock(&relay->mutex);
}

static void flush_out(run_relay_t *relay, int to)
{
    size_t done = 0;
    int fd = relay->kind == RUN_RELAY_TAG ? STDOUT_FILENO : to;

    while (done < relay->out_used) {
        ssize_t n = write(fd, relay->out + done, relay->out_used - done);

        if (n < 0 && errno == EAGAIN) /* somebody has made our output non-blocking */
            (void)poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 1000);
        else if (n < 0 && errno != EINTR) {
            if (errno == EPIPE)
                lose_output(relay, to);
            else
                drop_output(relay, fd, errno);
            break;
        } else if (n > 0)
            done += (size_t)n;
    }
    relay->out_used = 0;
}

/* Nothing where no memory is left. */
static void queue_bytes(run_relay_t *relay, const char *bytes, size_t count)
{
    if (count == 0 || !grow(&relay->out, &relay->out_room, relay->out_used + count))
        return;
    memcpy(relay->out + relay->out_used, bytes, count);
    relay->out_used += count;
}

static void queue_clean(run_relay_t *relay, const char *bytes, size_t count)
{
    const size_t begin = relay->out_used;

    queue_bytes(relay, bytes, count);
    if (relay->out_used > begin)
        run_clean(relay->out + begin, count);
}

static void turn_to(run_relay_t *relay, stream_t *stream, int to)
{
    if (to != stream->to)
        flush_out(relay, stream->to);
    stream->to = to;
}

/* A line of another host goes where its tag says. What came before it, say from a start-up file of
 * a shell there, is no rank's: it goes to standard error. false: there is no tag in this part. */
static bool take_tag(run_relay_t *relay, stream_t *stream, bool *foreign, const char **at, size_t *bytes)
{
    size_t n = 0;

    while (n < *bytes && (*at)[n] != TAG_OUT && (*at)[n] != TAG_ERR)
        n++;
    if (n > 0) {
        turn_to(relay, stream, STDERR_FILENO);
        queue_clean(relay, *at, n);
        *foreign = true;
    }
    *at += n;
    *bytes -= n;
    if (*bytes == 0)
        return false;
    if (*foreign)
        queue_bytes(relay, "\n", 1);
    turn_to(relay, stream, **at == TAG_OUT ? STDOUT_FILENO : STDERR_FILENO);
    ++*at;
    --*bytes;
    return true;
}

static void put_line(run_relay_t *relay, stream_t *stream, const char *first, size_t first_bytes, const char *second,
                     size_t second_bytes)
{
    const char tag = stream->to == STDOUT_FILENO ? TAG_OUT : TAG_ERR;
    char prefix[24] = "";
    bool foreign = false;

    if (relay->kind == RUN_RELAY_TAG)
        queue_bytes(relay, &tag, 1);
    if (relay->kind != RUN_RELAY_UNTAG && relay->prefix)
        snprintf(prefix, sizeof(prefix), "[%d] ", stream->rank);
    queue_bytes(relay, prefix, strlen(prefix));
    if (relay->kind == RUN_RELAY_UNTAG && !take_tag(relay, stream, &foreign, &first, &first_bytes) &&
        !take_tag(relay, stream, &foreign, &second, &second_bytes))
        turn_to(relay, stream, STDERR_FILENO);
    queue_bytes(relay, first, first_bytes);
    queue_bytes(relay, second, second_bytes);
    queue_bytes(relay, "\n", 1);
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
    size_t most = LONGEST_LINE + (relay->kind == RUN_RELAY_UNTAG ? TAG_ROOM : 0);

    if (stream->used + bytes > most || !grow(&stream->line, &stream->room, stream->used + bytes)) {
        put_line(relay, stream, stream->line, stream->used, at, bytes);
        stream->used = 0;
        return;
    }
    if (bytes > 0)
        memcpy(stream->line + stream->used, at, bytes);
    stream->used += bytes;
}

static void take_block(run_relay_t *relay, stream_t *stream, const char *at, size_t bytes)
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

static void serve(run_relay_t *relay, stream_t *stream, bool lost)
{
    static char buffer[READ_BYTES];
    ssize_t n;

    if (lost)
        (void)fcntl(stream->fd, F_SETFL, O_NONBLOCK);
    n = read(stream->fd, buffer, sizeof(buffer));
    if (n < 0 && (errno == EINTR || (errno == EAGAIN && !lost)))
        return;
    if (n > 0) {
        take_block(relay, stream, buffer, (size_t)n);
    } else {
        if (stream->used > 0)
            put_line(relay, stream, stream->line, stream->used, NULL, 0);
        close_stream(relay, stream);
    }
    flush_out(relay, stream->to);
}

/* What to wait for. -1: all have ended, and no other one comes. */
static int list_streams(run_relay_t *relay, int *timeout_ms)
{
    int count;

    pthread_mutex_lock(&relay->mutex);
    count = relay->open > 0 || relay->more ? relay->count : -1;
    *timeout_ms = -1;
    for (int i = 0; i < count; i++) {
        const stream_t *stream = &relay->streams[i];

        relay->polls[i] = (struct pollfd){.fd = stream->fd, .events = POLLIN};
        if (stream->lost && stream->fd >= 0)
            *timeout_ms = 0;
    }
    pthread_mutex_unlock(&relay->mutex);
    return count;
}

static bool is_lost(run_relay_t *relay, const stream_t *stream)
{
    bool lost;

    pthread_mutex_lock(&relay->mutex);
    lost = stream->lost;
    pthread_mutex_unlock(&relay->mutex);
    return lost;
}

static void *relay_main(void *argument)
{
    run_relay_t *relay = argument;
    int done_fd;

    for (int count, timeout_ms; (count = list_streams(relay, &timeout_ms)) >= 0;) {
        uint64_t wakes;

        relay->polls[count] = (struct pollfd){.fd = relay->wake_fd, .events = POLLIN};
        if (!run_poll(relay->polls, count + 1, timeout_ms))
            break;
        if (relay->polls[count].revents != 0 && read(relay->wake_fd, &wakes, sizeof(wakes)) < 0)
            wakes = 0; /* it was counted before */
        for (int i = 0; i < count; i++) {
            stream_t *stream = &relay->streams[i];
            const bool lost = is_lost(relay, stream);

            if ((relay->polls[i].revents != 0 || lost) && stream->fd >= 0)
                serve(relay, stream, lost);
        }
    }
    for (int i = 0; i < relay->count; i++)
        close_stream(relay, &relay->streams[i]);
    pthread_mutex_lock(&relay->mutex);
    done_fd = relay->done_fd;
    pthread_mutex_unlock(&relay->mutex);
    close(done_fd); /* from here on the relay may be gone */
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
