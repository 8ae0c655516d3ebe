/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * wire.c: barriers of ranks on the host, which hand on descriptors of memory. Each is a round.
 *
 * A rank can be at most one round ahead of another: it leaves round k only with everybody's
 * message k, so two places for each sender hold whatever may come. */
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAGIC     UINT32_C(0x31697064)
#define WHAT_ROOM 120

typedef struct message {
    uint32_t magic, from;
    uint64_t nonce[2]; /* the receiver's */
    uint32_t round, has_fd;
} message_t;

typedef struct arrival {
    uint32_t round; /* 0: none */
    int fd;
} arrival_t;

typedef struct peer {
    wire_address_t address;
    struct sockaddr_un at;
    socklen_t at_bytes;
    arrival_t arrivals[2]; /* by round % 2 */
    bool sent;
} peer_t;

struct wire {
    const dp_host_t *host;
    int32_t rank, nranks;
    int socket;
    uint32_t round;
    wire_address_t own;
    char what[WHAT_ROOM];
    peer_t peers[];
};

/* ---- who we are ---- */

static uint64_t process_nonce[2];
static bool process_known;

static void draw_process(void)
{
    process_known = getrandom(process_nonce, sizeof(process_nonce), 0) == (ssize_t)sizeof(process_nonce);
}

static void read_machine(char text[40])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, 39) : 0;

    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

static socklen_t socket_address(const wire_address_t *address, struct sockaddr_un *at)
{
    size_t length = strnlen(address->socket, sizeof(address->socket) - 1);

    memset(at, 0, sizeof(*at));
    at->sun_family = AF_UNIX;
    memcpy(at->sun_path + 1, address->socket, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static dp_status_t describe_self(wire_t *wire)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint64_t name[2];

    pthread_once(&once, draw_process);
    if (!process_known || getrandom(wire->own.nonce, sizeof(wire->own.nonce), 0) != sizeof(wire->own.nonce) ||
        getrandom(name, sizeof(name), 0) != sizeof(name))
        return DP_FAIL(wire->host, DP_ERR_IO, "%s: the system gives no random bytes", wire->what);
    snprintf(wire->own.socket, sizeof(wire->own.socket), "dualpipe-%016llx%016llx", (unsigned long long)name[0],
             (unsigned long long)name[1]);
    memcpy(wire->own.process, process_nonce, sizeof(process_nonce));
    wire->own.pid = (int32_t)getpid();
    wire->own.uid = (uint32_t)geteuid();
    read_machine(wire->own.machine);
    return DP_OK;
}

static dp_status_t open_socket(wire_t *wire)
{
    struct sockaddr_un at;
    socklen_t bytes = socket_address(&wire->own, &at);
    int on = 1;

    wire->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (wire->socket < 0 || bind(wire->socket, (struct sockaddr *)&at, bytes) != 0 ||
        setsockopt(wire->socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0)
        return DP_FAIL(wire->host, errno == EMFILE || errno == ENFILE ? DP_ERR_NOMEM : DP_ERR_IO,
                       "%s: no local socket: %s", wire->what, strerror(errno));
    return DP_OK;
}

dp_status_t ipc_wire_open(const dp_host_t *host, int32_t rank, int32_t nranks, const char *what, wire_t **wire_out)
{
    size_t bytes = sizeof(wire_t) + (size_t)nranks * sizeof(peer_t);
    wire_t *wire = host->allocate(host, bytes, 16);
    dp_status_t status;

    if (wire == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "%s: no memory to meet %d ranks", what, nranks);
    memset(wire, 0, bytes);
    wire->host = host;
    wire->rank = rank;
    wire->nranks = nranks;
    wire->socket = -1;
    snprintf(wire->what, sizeof(wire->what), "%s", what);
    status = describe_self(wire);
    if (status == DP_OK)
        status = open_socket(wire);
    if (status < 0) {
        ipc_wire_close(wire);
        return status;
    }
    *wire_out = wire;
    return DP_OK;
}

void ipc_wire_close(wire_t *wire)
{
    if (wire == NULL)
        return;
    for (int32_t p = 0; p < wire->nranks; p++)
        for (int i = 0; i < 2; i++)
            if (wire->peers[p].arrivals[i].round != 0 && wire->peers[p].arrivals[i].fd >= 0)
                close(wire->peers[p].arrivals[i].fd);
    if (wire->socket >= 0)
        close(wire->socket);
    wire->host->release(wire->host, wire);
}

const wire_address_t *ipc_wire_own(const wire_t *wire)
{
    return &wire->own;
}

dp_status_t ipc_wire_introduce(wire_t *wire, int32_t rank, const wire_address_t *address)
{
    peer_t *peer = &wire->peers[rank];

    if (memcmp(address->machine, wire->own.machine, sizeof(address->machine)) != 0)
        return DP_FAIL(wire->host, DP_ERR_UNSUPPORTED,
                       "%s: member %d runs on another machine, and memory of GPUs is shared within one", wire->what,
                       rank);
    peer->address = *address;
    peer->at_bytes = socket_address(address, &peer->at);
    return DP_OK;
}

bool ipc_wire_same_process(const wire_t *wire, int32_t rank)
{
    const wire_address_t *a = &wire->peers[rank].address;

    return rank == wire->rank ||
           (a->pid == wire->own.pid && memcmp(a->process, wire->own.process, sizeof(a->process)) == 0);
}

/* ---- messages ---- */

typedef union control {
    struct cmsghdr header; /* for its alignment */
    char room[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(8 * sizeof(int))];
} control_t;

/* True when it is on its way; false when the receiver's queue is full, or nobody is there (any
 * more). */
static bool send_message(wire_t *wire, int32_t to, int fd)
{
    peer_t *peer = &wire->peers[to];
    bool with_fd = fd >= 0 && !ipc_wire_same_process(wire, to);
    message_t message = {MAGIC, (uint32_t)wire->rank, {0, 0}, wire->round, with_fd};
    struct iovec part = {&message, sizeof(message)};
    control_t control;
    struct msghdr all = {.msg_name = &peer->at, .msg_namelen = peer->at_bytes, .msg_iov = &part, .msg_iovlen = 1};

    memcpy(message.nonce, peer->address.nonce, sizeof(message.nonce));
    if (with_fd) {
        struct cmsghdr *c;

        memset(&control, 0, sizeof(control));
        all.msg_control = &control;
        all.msg_controllen = CMSG_SPACE(sizeof(int));
        c = CMSG_FIRSTHDR(&all);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    }
    return sendmsg(wire->socket, &all, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof(message);
}

/* The first descriptor that came along, or -1; closes any others. *trusted_out: the sender runs as
 * we do. */
static int take_control(struct msghdr *all, uint32_t uid, bool *trusted_out)
{
    int first = -1;

    *trusted_out = false;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(all); c != NULL; c = CMSG_NXTHDR(all, c)) {
        if (c->cmsg_level != SOL_SOCKET)
            continue;
        if (c->cmsg_type == SCM_CREDENTIALS) {
            struct ucred who;

            memcpy(&who, CMSG_DATA(c), sizeof(who));
            *trusted_out = who.uid == uid || who.uid == 0;
        } else if (c->cmsg_type == SCM_RIGHTS) {
            for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
                int fd;

                memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
                if (first < 0)
                    first = fd;
                else
                    close(fd);
            }
        }
    }
    return first;
}

/* Puts a message where it belongs; what is not for us, from a member, at its time is dropped. */
static void accept_message(wire_t *wire, const message_t *message, ssize_t bytes, int fd, bool trusted)
{
    arrival_t *arrival;
    bool good = trusted && bytes == (ssize_t)sizeof(*message) && message->magic == MAGIC &&
                message->from < (uint32_t)wire->nranks && message->from != (uint32_t)wire->rank &&
                memcmp(message->nonce, wire->own.nonce, sizeof(message->nonce)) == 0 &&
                message->round - wire->round <= 1 && message->has_fd == (uint32_t)(fd >= 0);

    if (good) {
        arrival = &wire->peers[message->from].arrivals[message->round % 2];
        good = arrival->round == 0;
    }
    if (!good) {
        if (fd >= 0)
            close(fd);
        return;
    }
    arrival->round = message->round;
    arrival->fd = fd;
}

static bool receive_message(wire_t *wire)
{
    message_t message;
    struct iovec part = {&message, sizeof(message)};
    control_t control;
    struct msghdr all = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t bytes = recvmsg(wire->socket, &all, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    bool trusted;
    int fd;

    if (bytes < 0)
        return errno == EINTR;
    fd = take_control(&all, wire->own.uid, &trusted);
    accept_message(wire, &message, bytes, fd, trusted);
    return true;
}

/* ---- rounds ---- */

static bool has_come(const wire_t *wire, int32_t rank)
{
    return rank == wire->rank || wire->peers[rank].arrivals[wire->round % 2].round == wire->round;
}

/* Sends what can be sent, takes what has come; a rank that is not done yet, or -1. */
static int32_t move_messages(wire_t *wire, int fd)
{
    int32_t missing = -1;

    for (int32_t p = 0; p < wire->nranks; p++)
        if (p != wire->rank && !wire->peers[p].sent)
            wire->peers[p].sent = send_message(wire, p, fd);
    while (receive_message(wire))
        continue;
    for (int32_t p = wire->nranks - 1; p >= 0; p--)
        if (!has_come(wire, p) || (p != wire->rank && !wire->peers[p].sent))
            missing = p;
    return missing;
}

typedef struct round {
    wire_t *wire;
    int fd;
    int32_t missing; /* a rank that has not come */
} round_t;

static dp_status_t ask_round(void *arg)
{
    round_t *m = arg;

    m->missing = move_messages(m->wire, m->fd);
    return m->missing < 0 ? DP_OK : DP_PENDING;
}

dp_status_t ipc_wire_meet(wire_t *wire, int fd, int *fds_in)
{
    const dp_host_t *host = wire->host;
    round_t m = {wire, fd, -1};
    dp_status_t status;

    wire->round++;
    for (int32_t p = 0; p < wire->nranks; p++)
        wire->peers[p].sent = false;
    status = host->poll(host, ask_round, &m, -1, "ranks meet");
    if (status == DP_ERR_TIMEOUT && host->aborted(host) == DP_OK)
        return DP_FAIL(host, DP_ERR_TIMEOUT,
                       "%s: member %d (process %d) has not come; ranks must see each other's processes and network "
                       "namespace",
                       wire->what, m.missing, wire->peers[m.missing].address.pid);
    if (status < 0)
        return status;
    for (int32_t p = 0; p < wire->nranks; p++) {
        arrival_t *arrival = &wire->peers[p].arrivals[wire->round % 2];
        int came = p != wire->rank && arrival->round == wire->round ? arrival->fd : -1;

        arrival->round = 0;
        if (fds_in != NULL)
            fds_in[p] = came;
        else if (came >= 0)
            close(came);
    }
    return DP_OK;
}
