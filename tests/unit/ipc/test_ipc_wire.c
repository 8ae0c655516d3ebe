/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_ipc_wire.c: ranks meet over local sockets and hand each other descriptors, as threads and as
 * processes. */
#include "comm_cuda_ipc/wire.h"

#include "tests/support/forked.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <sys/un.h>

#define RANKS  16 /* more than a queue of datagrams holds */
#define ROUNDS 40

static const dp_host_boot_t *boot_of(const dp_host_t *host)
{
    return host->get_service(host, DP_HOST_BOOT);
}

static dp_status_t introduce(const dp_host_t *host, int32_t rank, int32_t n, wire_t **wire)
{
    wire_address_t address;
    char key[32];
    dp_status_t status = ipc_wire_open(host, rank, n, "a rank", wire);

    if (status < 0)
        return status;
    snprintf(key, sizeof(key), "wire/%d", rank);
    status = boot_of(host)->put(host, key, ipc_wire_own(*wire), sizeof(address));
    for (int32_t p = 0; p < n && status == DP_OK; p++) {
        snprintf(key, sizeof(key), "wire/%d", p);
        status = p == rank ? DP_OK : boot_of(host)->get(host, key, &address, sizeof(address));
        if (status == DP_OK && p != rank)
            status = ipc_wire_introduce(*wire, p, &address);
    }
    return status;
}

/* ---- threads ---- */

typedef struct rank_thread {
    dp_group_t *group;
    int32_t rank, n;
    uint32_t *come; /* [ROUNDS] */
    uint32_t early;
    bool same;
    dp_status_t status;
} rank_thread_t;

static void *meet_often(void *arg)
{
    rank_thread_t *r = arg;
    const dp_host_t *host = dp_group_host(r->group);
    wire_t *wire = NULL;

    r->status = introduce(host, r->rank, r->n, &wire);
    r->same = true;
    for (int32_t p = 0; p < r->n && r->status == DP_OK; p++)
        r->same = r->same && ipc_wire_same_process(wire, p);
    for (int k = 0; k < ROUNDS && r->status == DP_OK; k++) {
        if ((k * 7 + r->rank) % 11 == 0)
            usleep(300);
        __atomic_fetch_add(&r->come[k], 1, __ATOMIC_RELAXED);
        r->status = ipc_wire_meet(wire, -1, NULL);
        r->early += __atomic_load_n(&r->come[k], __ATOMIC_RELAXED) != (uint32_t)r->n;
    }
    ipc_wire_close(wire);
    dp_group_leave(r->group);
    return NULL;
}

START_TEST(threads_meet)
{
    dp_group_options_t options = {.struct_size = sizeof(options)};
    dp_group_t *groups[RANKS];
    rank_thread_t ranks[RANKS];
    pthread_t threads[RANKS];
    uint32_t come[ROUNDS] = {0};

    ck_assert_int_eq(dp_group_local(RANKS, &options, groups), DP_OK);
    for (int32_t i = 0; i < RANKS; i++) {
        ranks[i] = (rank_thread_t){groups[i], i, RANKS, come, 0, false, DP_OK};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, meet_often, &ranks[i]), 0);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(ranks[i].status, DP_OK);
        ck_assert_uint_eq(ranks[i].early, 0);
        ck_assert(ranks[i].same);
    }
}
END_TEST

/* ---- processes ---- */

/* Each sends a file with its rank in it, and finds those of the others. */
static dp_status_t swap_files(forked_t *self)
{
    dp_group_options_t options = forked_options(self);
    int fds[FORKED_MAX], own = memfd_create("test", MFD_CLOEXEC);
    dp_group_t *group = NULL;
    wire_t *wire = NULL;
    dp_status_t status = dp_group_join(&options, &group);

    if (status == DP_OK)
        status = introduce(dp_group_host(group), self->rank, self->size, &wire);
    for (int k = 0; k < 5 && status == DP_OK; k++) {
        char text[32] = "", found[32];

        snprintf(text, sizeof(text), "rank %d, file %d", self->rank, k);
        if (pwrite(own, text, sizeof(text), 0) != sizeof(text))
            status = dp_fail(DP_ERR_IO, "no file");
        if (status == DP_OK)
            status = ipc_wire_meet(wire, own, fds);
        for (int32_t p = 0; p < self->size && status == DP_OK; p++) {
            if (ipc_wire_same_process(wire, p) != (p == self->rank) || (fds[p] >= 0) != (p != self->rank)) {
                status = dp_fail(DP_ERR_PROTOCOL, "rank %d: descriptor %d", p, fds[p]);
                continue;
            }
            if (p == self->rank)
                continue;
            snprintf(text, sizeof(text), "rank %d, file %d", p, k);
            if (pread(fds[p], found, sizeof(found), 0) != sizeof(found) || strcmp(found, text) != 0)
                status = dp_fail(DP_ERR_PROTOCOL, "\"%s\" instead of \"%s\"", found, text);
            close(fds[p]);
        }
        if (status == DP_OK)
            status = ipc_wire_meet(wire, -1, NULL);
    }
    ipc_wire_close(wire);
    close(own);
    dp_group_leave(group);
    return status;
}

START_TEST(processes_hand_over_descriptors)
{
    forked_job_t job;

    forked_run(&job, 4, swap_files, 0);
    forked_finish(&job, 10);
    forked_expect_all(&job, DP_OK, "");
    forked_end(&job);
}
END_TEST

/* ---- what goes wrong ---- */

typedef struct lonely {
    dp_group_t *group;
    wire_t *wire;
    wire_address_t address; /* of a rank that never comes */
} lonely_t;

/* Rank 0 of 2; rank 1 is a socket of ours. */
static int lonely_open(lonely_t *l)
{
    dp_group_options_t options = {.struct_size = sizeof(options), .hang_seconds = 0.1};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int other = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    memset(l, 0, sizeof(*l));
    ck_assert_int_eq(dp_group_local(1, &options, &l->group), DP_OK);
    ck_assert_int_eq(ipc_wire_open(dp_group_host(l->group), 0, 2, "a rank", &l->wire), DP_OK);
    l->address = *ipc_wire_own(l->wire);
    snprintf(l->address.socket, sizeof(l->address.socket), "dualpipe-test-%d", (int)getpid());
    l->address.pid += 1;
    memcpy(at.sun_path + 1, l->address.socket, strlen(l->address.socket));
    ck_assert_int_eq(bind(other, (struct sockaddr *)&at,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(l->address.socket))),
                     0);
    ck_assert_int_eq(ipc_wire_introduce(l->wire, 1, &l->address), DP_OK);
    return other;
}

static void lonely_close(lonely_t *l, int other)
{
    ipc_wire_close(l->wire);
    dp_group_leave(l->group);
    close(other);
}

START_TEST(who_does_not_come_is_named)
{
    lonely_t l;
    int other = lonely_open(&l);

    ck_assert_int_eq(ipc_wire_meet(l.wire, -1, NULL), DP_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "member 1"));
    lonely_close(&l, other);
}
END_TEST

START_TEST(an_abort_ends_a_round)
{
    lonely_t l;
    int other = lonely_open(&l);

    dp_group_abort(l.group, DP_ERR_INTERRUPTED, "somebody had enough");
    ck_assert_int_eq(ipc_wire_meet(l.wire, -1, NULL), DP_ERR_INTERRUPTED);
    lonely_close(&l, other);
}
END_TEST

START_TEST(strangers_are_not_heard)
{
    struct {
        uint32_t magic, from;
        uint64_t nonce[2];
        uint32_t round, has_fd;
    } message = {UINT32_C(0x31697064), 1, {0, 0}, 1, 0}, wrong;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    lonely_t l;
    int other = lonely_open(&l);
    const wire_address_t *own = ipc_wire_own(l.wire);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(own->socket));

    memcpy(at.sun_path + 1, own->socket, strlen(own->socket));
    memcpy(message.nonce, own->nonce, sizeof(message.nonce));
    for (int lie = 0; lie < 7; lie++) {
        size_t length = sizeof(wrong);

        wrong = message;
        switch (lie) {
        case 0:
            wrong.magic++;
            break;
        case 1:
            wrong.from = 2;
            break;
        case 2:
            wrong.from = 0;
            break;
        case 3:
            wrong.nonce[1]++;
            break;
        case 4:
            wrong.round = 7;
            break;
        case 5:
            wrong.has_fd = 1;
            break;
        default:
            length--;
            break;
        }
        ck_assert_int_eq(sendto(other, &wrong, length, 0, (struct sockaddr *)&at, bytes), (ssize_t)length);
        ck_assert_int_eq(ipc_wire_meet(l.wire, -1, NULL), DP_ERR_TIMEOUT);
        message.round++; /* of the next try */
    }
    ck_assert_int_eq(sendto(other, &message, sizeof(message), 0, (struct sockaddr *)&at, bytes), sizeof(message));
    ck_assert_int_eq(ipc_wire_meet(l.wire, -1, NULL), DP_OK);
    lonely_close(&l, other);
}
END_TEST

START_TEST(other_machines_are_refused)
{
    lonely_t l;
    int other = lonely_open(&l);

    l.address.machine[0] ^= 1;
    ck_assert_int_eq(ipc_wire_introduce(l.wire, 1, &l.address), DP_ERR_UNSUPPORTED);
    lonely_close(&l, other);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm_cuda_ipc: rounds");

    SUITE_ADD(suite, threads_meet);
    SUITE_ADD(suite, processes_hand_over_descriptors);
    SUITE_ADD(suite, who_does_not_come_is_named);
    SUITE_ADD(suite, an_abort_ends_a_round);
    SUITE_ADD(suite, strangers_are_not_heard);
    SUITE_ADD(suite, other_machines_are_refused);
    return suite_run(suite);
}
