/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cable.c: a cable between two network interfaces that delays, loses and reorders frames:
 *   cable HOST_SIDE NET_SIDE FILE ALIVE
 * reads words from FILE at the start and on SIGHUP, and then takes the file away. A word is
 * NAME=NUMBER, for both directions, or in.NAME, out.NAME for frames to and from the host:
 *   delay, jitter   ms; a frame takes delay +- jitter, and may overtake
 *   loss, reorder   share of frames, 0 to 1, that are lost, that take no delay
 *   rate            Mbit/s, 0: as fast as it goes
 *   limit           frames on their way, 0: 1000; what comes on top is lost
 *   seed            of the dice, 1 if there is none
 * Ends when nobody holds the pipe ALIVE open for writing any more. Frames come and go with their
 * offload headers, so one may be a TCP segment of 64 KiB that has not been cut into packets yet. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FRAME_BYTES  (sizeof(struct virtio_net_hdr) + 65536 + 64)
#define BUFFER_BYTES (64 << 20)
#define BATCH        64

typedef struct frame {
    int64_t due_ns;
    uint64_t number; /* of equal ones the first goes first */
    size_t bytes;
    unsigned char data[];
} frame_t;

typedef struct dice {
    uint64_t state;
} dice_t;

/* One direction: what comes in at `from` goes out at `to`. */
typedef struct way {
    int from, to;
    double delay, jitter, loss, reorder, rate, limit, seed;
    dice_t dice;
    int64_t busy_until_ns; /* the end of the last frame, when there is a rate */
    frame_t **heap;        /* the earliest first */
    size_t count, room;
    uint64_t number, lost;
} way_t;

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "cable: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* SplitMix64: 0 <= x < 1 */
static double roll(dice_t *dice)
{
    uint64_t z = dice->state += 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* ---- interfaces ---- */

static int open_side(const char *name)
{
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, room = BUFFER_BYTES;
    struct sockaddr_ll at = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex(name)};
    struct packet_mreq all = {.mr_ifindex = at.sll_ifindex, .mr_type = PACKET_MR_PROMISC};

    if (fd < 0 || at.sll_ifindex == 0 || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)) != 0 ||
        bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof(all)) != 0)
        fail(name);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
    return fd;
}

/* ---- frames on their way ---- */

static int before(const frame_t *a, const frame_t *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void put(way_t *way, frame_t *frame)
{
    size_t at = way->count++;

    if (way->count > way->room) {
        way->room = 2 * way->count + 64;
        way->heap = realloc(way->heap, way->room * sizeof(frame_t *));
        if (way->heap == NULL)
            fail("frames");
    }
    for (; at > 0 && before(frame, way->heap[(at - 1) / 2]); at = (at - 1) / 2)
        way->heap[at] = way->heap[(at - 1) / 2];
    way->heap[at] = frame;
}

static frame_t *take(way_t *way)
{
    frame_t *first = way->heap[0], *last = way->heap[--way->count];
    size_t at = 0;

    for (;;) {
        size_t child = 2 * at + 1;

        if (child + 1 < way->count && before(way->heap[child + 1], way->heap[child]))
            child++;
        if (child >= way->count || !before(way->heap[child], last))
            break;
        way->heap[at] = way->heap[child];
        at = child;
    }
    way->heap[at] = last;
    return first;
}

static int64_t due(way_t *way, size_t bytes, int64_t now)
{
    double delay_ns = way->delay * 1e6;

    if (way->rate > 0) {
        if (way->busy_until_ns < now)
            way->busy_until_ns = now;
        way->busy_until_ns += (int64_t)((double)bytes * 8000 / way->rate);
        now = way->busy_until_ns;
    }
    if (way->jitter > 0)
        delay_ns += (2 * roll(&way->dice) - 1) * way->jitter * 1e6;
    if (way->reorder > 0 && roll(&way->dice) < way->reorder)
        delay_ns = 0;
    return now + (delay_ns > 0 ? (int64_t)delay_ns : 0);
}

static void accept_frame(way_t *way, const unsigned char *data, size_t bytes)
{
    frame_t *frame;

    way->number++;
    if ((way->loss > 0 && roll(&way->dice) < way->loss) || (double)way->count >= way->limit) {
        way->lost++;
        return;
    }
    frame = malloc(sizeof(*frame) + bytes);
    if (frame == NULL)
        fail("a frame");
    frame->due_ns = due(way, bytes, now_ns());
    frame->number = way->number;
    frame->bytes = bytes;
    memcpy(frame->data, data, bytes);
    put(way, frame);
}

static void let_in(way_t *way)
{
    static unsigned char data[FRAME_BYTES];

    for (int i = 0; i < BATCH; i++) {
        ssize_t n = recv(way->from, data, sizeof(data), 0);

        if (n <= 0)
            return; /* an interface that is down says so once, and goes on when it is up again */
        accept_frame(way, data, (size_t)n);
    }
}

static void let_out(way_t *way)
{
    while (way->count > 0 && way->heap[0]->due_ns <= now_ns()) {
        frame_t *frame = take(way);

        /* nothing is plugged in there: lost */
        way->lost += send(way->to, frame->data, frame->bytes, 0) < 0;
        free(frame);
    }
}

/* ---- words ---- */

static void set(way_t *way, const char *word)
{
    const struct {
        const char *name;
        double *at;
    } names[] = {{"delay=", &way->delay}, {"jitter=", &way->jitter}, {"loss=", &way->loss}, {"reorder=", &way->reorder},
                 {"rate=", &way->rate},   {"limit=", &way->limit},   {"seed=", &way->seed}};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strncmp(word, names[i].name, strlen(names[i].name)) == 0) {
            char *end;

            *names[i].at = strtod(word + strlen(names[i].name), &end);
            if (*end == '\0' && *names[i].at >= 0)
                return;
        }
    errno = EINVAL;
    fail(word);
}

static void read_words(const char *path, way_t *out, way_t *in)
{
    FILE *file = fopen(path, "r");
    char word[64];

    if (file == NULL)
        fail(path);
    for (way_t *way = out; way != NULL; way = way == out ? in : NULL)
        way->delay = way->jitter = way->loss = way->reorder = way->rate = way->limit = way->seed = 0;
    while (fscanf(file, "%63s", word) == 1) {
        if (strncmp(word, "in.", 3) != 0)
            set(out, strncmp(word, "out.", 4) == 0 ? word + 4 : word);
        if (strncmp(word, "out.", 4) != 0)
            set(in, strncmp(word, "in.", 3) == 0 ? word + 3 : word);
    }
    fclose(file);
    for (way_t *way = out; way != NULL; way = way == out ? in : NULL) {
        way->limit = way->limit > 0 ? way->limit : 1000;
        way->dice.state = (uint64_t)(way->seed > 0 ? way->seed : 1) * 2 + (way == in);
        way->busy_until_ns = 0;
    }
    if (unlink(path) != 0)
        fail(path);
}

/* ---- the loop ---- */

static int wait_for(struct pollfd *polls, nfds_t n, const way_t *out, const way_t *in)
{
    int64_t until = INT64_MAX, left;
    struct timespec nap;

    if (out->count > 0)
        until = out->heap[0]->due_ns;
    if (in->count > 0 && in->heap[0]->due_ns < until)
        until = in->heap[0]->due_ns;
    left = until == INT64_MAX ? 0 : until - now_ns();
    left = left > 0 ? left : 0;
    nap = (struct timespec){left / 1000000000, left % 1000000000};
    return ppoll(polls, n, until == INT64_MAX ? NULL : &nap, NULL);
}

int main(int argc, char **argv)
{
    way_t out = {0}, in = {0};
    struct pollfd polls[4];
    sigset_t hup;

    if (argc != 5) {
        fprintf(stderr, "usage: cable HOST_SIDE NET_SIDE FILE ALIVE\n");
        return 2;
    }
    (void)prctl(PR_SET_TIMERSLACK, 1000);
    sigemptyset(&hup);
    sigaddset(&hup, SIGHUP);
    sigprocmask(SIG_BLOCK, &hup, NULL);
    out.from = in.to = open_side(argv[1]);
    out.to = in.from = open_side(argv[2]);
    polls[0] = (struct pollfd){.fd = out.from, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = in.from, .events = POLLIN};
    polls[2] = (struct pollfd){.fd = signalfd(-1, &hup, SFD_CLOEXEC | SFD_NONBLOCK), .events = POLLIN};
    polls[3] = (struct pollfd){.fd = open(argv[4], O_RDONLY | O_CLOEXEC)};
    if (polls[2].fd < 0 || polls[3].fd < 0)
        fail(argv[4]);
    read_words(argv[3], &out, &in);
    for (;;) {
        struct signalfd_siginfo info;

        if (wait_for(polls, 4, &out, &in) < 0 && errno != EINTR)
            fail("ppoll");
        if (polls[3].revents != 0)
            return 0;
        if (polls[2].revents != 0 && read(polls[2].fd, &info, sizeof(info)) > 0)
            read_words(argv[3], &out, &in);
        if (polls[0].revents != 0)
            let_in(&out);
        if (polls[1].revents != 0)
            let_in(&in);
        let_out(&out);
        let_out(&in);
    }
}
