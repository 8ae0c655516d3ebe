/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * segment.c: memory that ranks of one host share: made, announced, found, checked and let go,
 * without a name anywhere.
 *
 * The exporter maps [a private page][the segment]; ranks of the same process use that mapping, and
 * the private page counts them: the last one to let go unmaps, whatever the order in which ranks
 * end. */
#include "comm_shm.h"
#include "plugins/common/do.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define GONE_NS 2000000000
#define SEALS   (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

typedef struct head {
    uint64_t nonce[2];
    uint32_t areas;
} head_t;

/* Between a look at a mapping of this process and counting ourselves among its users nobody may
 * unmap it: a rank whose open fails lets go while others are on their way to it. */
static pthread_mutex_t mappings = PTHREAD_MUTEX_INITIALIZER;

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static uint32_t *users_of(const segment_t *segment)
{
    return (uint32_t *)(void *)(segment->base - page_bytes());
}

static size_t directory_end(uint32_t count)
{
    return comm_round_line(sizeof(head_t) + (size_t)count * sizeof(area_t));
}

size_t shm_segment_layout(area_t *areas, uint32_t count)
{
    size_t at = directory_end(count);

    return comm_areas_place(areas, count, &at) ? (at + page_bytes() - 1) / page_bytes() * page_bytes() : 0;
}

static dp_status_t make_memory(dp_comm_t *comm, size_t bytes, int *fd_out)
{
    const dp_host_t *host = comm->host;
    int fd = memfd_create("dualpipe", MFD_CLOEXEC | MFD_ALLOW_SEALING), error;

    if (fd < 0)
        return DP_FAIL(host, DP_ERR_NOMEM, "rank %d, group %s: no shared memory: %s", comm->world[comm->rank],
                       comm->name, strerror(errno));
    do
        error = posix_fallocate(fd, 0, (off_t)bytes);
    while (error == EINTR);
    if (error == 0 && fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        error = errno;
    if (error != 0) {
        close(fd);
        return DP_FAIL(host, DP_ERR_NOMEM, "rank %d, group %s: no %zu bytes of shared memory: %s",
                       comm->world[comm->rank], comm->name, bytes, strerror(error));
    }
    *fd_out = fd;
    return DP_OK;
}

/* Maps fd behind a private page. */
static unsigned char *map_own(int fd, size_t bytes)
{
    size_t page = page_bytes();
    unsigned char *all = mmap(NULL, page + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (all == MAP_FAILED)
        return NULL;
    if (mmap(all + page, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) == MAP_FAILED) {
        munmap(all, page + bytes);
        return NULL;
    }
    return all + page;
}

dp_status_t shm_segment_create(dp_comm_t *comm, const area_t *areas, uint32_t count, size_t bytes,
                               segment_t *segment_out)
{
    const dp_host_t *host = comm->host;
    segment_t segment = {NULL, bytes, true, -1};
    head_t *head;
    dp_status_t status;

    DO(make_memory(comm, bytes, &segment.fd));
    segment.base = map_own(segment.fd, bytes);
    if (segment.base == NULL) {
        status = DP_FAIL(host, DP_ERR_NOMEM, "rank %d, group %s: cannot map %zu bytes: %s", comm->world[comm->rank],
                         comm->name, bytes, strerror(errno));
        shm_segment_close_fd(&segment);
        return status;
    }
    *users_of(&segment) = 1;
    head = (head_t *)(void *)segment.base;
    if (getrandom(head->nonce, sizeof(head->nonce), 0) != (ssize_t)sizeof(head->nonce)) {
        shm_segment_drop(&segment);
        return DP_FAIL(host, DP_ERR_IO, "rank %d: the system gives no random bytes", comm->world[comm->rank]);
    }
    head->areas = count;
    memcpy(head + 1, areas, count * sizeof(*areas));
    *segment_out = segment;
    return DP_OK;
}

void shm_segment_close_fd(segment_t *segment)
{
    if (segment->fd >= 0)
        close(segment->fd);
    segment->fd = -1;
}

void shm_segment_drop(segment_t *segment)
{
    if (segment->base == NULL)
        return;
    shm_segment_close_fd(segment);
    pthread_mutex_lock(&mappings);
    if (!segment->shared)
        munmap(segment->base, segment->bytes);
    else if (--*users_of(segment) == 0)
        munmap(segment->base - page_bytes(), page_bytes() + segment->bytes);
    pthread_mutex_unlock(&mappings);
    segment->base = NULL;
}

/* Reads a small file whole; false when it is not there. */
static bool read_text(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t got = 0;

    if (fd < 0)
        return false;
    while (length < room - 1 && (got = read(fd, text + length, room - 1 - length)) > 0)
        length += (size_t)got;
    close(fd);
    text[length] = '\0';
    return got >= 0 && length > 0;
}

/* When a process started: field 22 of its stat; the second one, its name, may hold anything. */
static bool started_at(pid_t pid, uint64_t *ticks_out)
{
    char path[64], text[1024], *at;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (!read_text(path, text, sizeof(text)) || (at = strrchr(text, ')')) == NULL)
        return false;
    for (int field = 2; field < 22; field++)
        if ((at = strchr(at + 1, ' ')) == NULL)
            return false;
    *ticks_out = strtoull(at + 1, NULL, 10);
    return true;
}

/* Whose processes find each other in /proc: those of one boot and one PID namespace. */
static void machine(char text[HOST_BYTES])
{
    size_t at = 0;

    memset(text, 0, HOST_BYTES);
    if (read_text("/proc/sys/kernel/random/boot_id", text, 40))
        at = strcspn(text, "\n");
    memset(text + at, 0, 40 - at);
    if (readlink("/proc/self/ns/pid", text + at, HOST_BYTES - 1 - at) < 0)
        text[at] = '\0';
}

static void key_of(const dp_comm_t *comm, int32_t rank, char key[128])
{
    snprintf(key, 128, "shm/%s/%u/%d", comm->name, comm->round, rank);
}

dp_status_t shm_segment_publish(dp_comm_t *comm, const segment_t *segment)
{
    segment_record_t record = {.pid = (int32_t)getpid(), .fd = segment->fd};
    char key[128];

    if (segment->base != NULL) {
        memcpy(record.nonce, segment->base, sizeof(record.nonce));
        record.bytes = segment->bytes;
        record.address = (uintptr_t)segment->base;
    }
    machine(record.host);
    if (!started_at(getpid(), &record.started))
        return DP_FAIL(comm->host, DP_ERR_UNSUPPORTED,
                       "rank %d: /proc is not there, and shared memory is found through it", comm->world[comm->rank]);
    key_of(comm, comm->rank, key);
    return comm->boot->put(comm->host, key, &record, sizeof(record));
}

/* A rank of this process: its own mapping, when there is one at that address. With the mutex. */
static bool find_mapping(const segment_record_t *record, segment_t *segment_out)
{
    segment_t segment = {(unsigned char *)(uintptr_t)record->address, record->bytes, true, -1};
    unsigned char resident;

    if (record->address % page_bytes() != 0 || record->address < 2 * page_bytes() ||
        mincore(segment.base - page_bytes(), page_bytes(), &resident) != 0 ||
        mincore(segment.base, page_bytes(), &resident) != 0 ||
        memcmp(segment.base, record->nonce, sizeof(record->nonce)) != 0)
        return false;
    ++*users_of(&segment);
    *segment_out = segment;
    return true;
}

static dp_status_t join_mapping(dp_comm_t *comm, int32_t rank, const segment_record_t *record, segment_t *segment_out)
{
    const dp_host_t *host = comm->host;
    dp_signal_t never = {0, 0};
    dp_status_t status;
    bool found;

    pthread_mutex_lock(&mappings);
    found = find_mapping(record, segment_out);
    pthread_mutex_unlock(&mappings);
    if (found)
        return DP_OK;
    /* it was there: its rank has failed, and is about to tell why */
    status = host->wait(host, &never, 1, GONE_NS, "a rank that took its memory back");
    if (status != DP_ERR_TIMEOUT)
        return status;
    return DP_FAIL(host, DP_ERR_PROTOCOL, "rank %d announces memory that is not there", comm->world[rank]);
}

/* Opens the memory of another process, of the size it claims and sealed, so that it cannot shrink
 * under us. */
static dp_status_t map_foreign(dp_comm_t *comm, int32_t rank, const segment_record_t *record, segment_t *segment_out)
{
    const dp_host_t *host = comm->host;
    uint64_t started;
    struct stat found;
    char path[64];
    void *base;
    int fd, seals;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", record->pid, record->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return DP_FAIL(host, errno == EMFILE || errno == ENFILE ? DP_ERR_NOMEM : DP_ERR_PEER,
                       "rank %d: cannot open the memory of rank %d (process %d): %s", comm->world[comm->rank],
                       comm->world[rank], record->pid, strerror(errno));
    seals = fcntl(fd, F_GET_SEALS);
    if (!started_at(record->pid, &started) || started != record->started || fstat(fd, &found) != 0 ||
        (uint64_t)found.st_size != record->bytes || seals < 0 || (seals & SEALS) != SEALS) {
        close(fd);
        return DP_FAIL(host, DP_ERR_PROTOCOL, "rank %d: process %d does not hold the memory that rank %d announced",
                       comm->world[comm->rank], record->pid, comm->world[rank]);
    }
    base = mmap(NULL, record->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    if (base == MAP_FAILED)
        return DP_FAIL(host, DP_ERR_NOMEM, "rank %d: cannot map %llu bytes of rank %d: %s", comm->world[comm->rank],
                       (unsigned long long)record->bytes, comm->world[rank], strerror(errno));
    segment_out->base = base;
    segment_out->bytes = record->bytes;
    segment_out->shared = false;
    segment_out->fd = -1;
    return DP_OK;
}

/* Copies the directory once, then looks only at the copy. */
static dp_status_t read_directory(dp_comm_t *comm, int32_t rank, const segment_record_t *record, view_t *view)
{
    const dp_host_t *host = comm->host;
    const unsigned char *base = view->segment.base;
    head_t head;

    memcpy(&head, base, sizeof(head));
    if (memcmp(head.nonce, record->nonce, sizeof(head.nonce)) != 0 || head.areas == 0 || head.areas > AREAS_MAX ||
        directory_end(head.areas) > record->bytes)
        return DP_FAIL(host, DP_ERR_PROTOCOL, "rank %d: the memory of rank %d has no valid directory",
                       comm->world[comm->rank], comm->world[rank]);
    view->areas = host->allocate(host, head.areas * sizeof(area_t), 16);
    if (view->areas == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for a directory of %u areas", head.areas);
    memcpy(view->areas, base + sizeof(head), head.areas * sizeof(area_t));
    view->count = head.areas;
    for (uint32_t i = 0; i < view->count; i++) {
        const area_t *a = &view->areas[i];

        if (a->offset % CACHE_LINE != 0 || a->offset < directory_end(head.areas) || a->offset > record->bytes ||
            a->bytes > record->bytes - a->offset)
            return DP_FAIL(host, DP_ERR_PROTOCOL, "rank %d: area %u of rank %d lies outside its memory",
                           comm->world[comm->rank], i, comm->world[rank]);
    }
    return DP_OK;
}

dp_status_t shm_segment_import(dp_comm_t *comm, int32_t rank, view_t *view)
{
    const dp_host_t *host = comm->host;
    segment_record_t record;
    char key[128], here[HOST_BYTES];
    uint64_t started;
    dp_status_t status;

    key_of(comm, rank, key);
    DO(comm->boot->get(host, key, &record, sizeof(record)));
    view->loaded = true;
    if (record.bytes == 0)
        return DP_OK;
    machine(here);
    if (memcmp(here, record.host, sizeof(here)) != 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "rank %d runs on another host than rank %d: shared memory ends there",
                       comm->world[rank], comm->world[comm->rank]);
    if (record.bytes % page_bytes() != 0 || record.bytes > SIZE_MAX / 4)
        return DP_FAIL(host, DP_ERR_PROTOCOL, "rank %d announces %llu bytes of memory", comm->world[rank],
                       (unsigned long long)record.bytes);
    if (record.pid == (int32_t)getpid() && started_at(getpid(), &started) && started == record.started) {
        status = join_mapping(comm, rank, &record, &view->segment);
    } else {
        status = map_foreign(comm, rank, &record, &view->segment);
    }
    if (status < 0)
        return status;
    return read_directory(comm, rank, &record, view);
}
