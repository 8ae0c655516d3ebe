/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * process_recorders.c: flight recorders of ranks that are processes: a memfd that the other
 * ranks of the host map through /proc. */
#include "base/memory.h"
#include "group/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a rank tells the others of its recorder. */
typedef struct offer {
    dp_status_t status;
    int32_t pid, fd, pad;
    uint64_t bytes;
    /* also in the recorder: another process may have that pid and fd where we look */
    uint8_t mark[16];
    char message[160]; /* when status is an error */
} offer_t;

/* A memfd that can neither shrink under those who map it nor grow. */
static dp_status_t make_memory(size_t bytes, int *fd_out, void **memory_out)
{
    int fd = memfd_create("dualpipe-recorder", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *memory;

    if (fd < 0)
        return dp_fail(DP_ERR_NOMEM, "a flight recorder: memfd_create: %s", strerror(errno));
    if (posix_fallocate(fd, 0, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        close(fd);
        return dp_fail(DP_ERR_NOMEM, "a flight recorder: no room for its %zu bytes", bytes);
    }
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        close(fd);
        return dp_fail(DP_ERR_NOMEM, "a flight recorder: mmap: %s", strerror(errno));
    }
    *fd_out = fd;
    *memory_out = memory;
    return DP_OK;
}

static void publish(dp__process_t *p, int32_t rank, int32_t pid, dp__recorder_t *recorder)
{
    pthread_mutex_lock(&p->mutex);
    recorder->rank = rank;
    recorder->pid = pid;
    recorder->next = p->recorders;
    p->recorders = recorder;
    pthread_mutex_unlock(&p->mutex);
}

static void unmap(dp__recorder_t *recorder)
{
    munmap(recorder->memory, recorder->bytes);
    dp__free(recorder);
}

/* ---- our own ---- */

static dp_status_t make_recorder(dp__process_t *p, uint32_t capacity, offer_t *offer, dp__recorder_t **recorder_out)
{
    dp__recorder_t *recorder;
    void *memory = NULL;
    size_t bytes;
    dp_status_t status = dp__recorder_bytes(capacity, &bytes);

    offer->fd = -1;
    if (status != DP_OK)
        return status;
    if (getrandom(offer->mark, sizeof(offer->mark), 0) != sizeof(offer->mark))
        return dp_fail(DP_ERR_IO, "a flight recorder: the system has no random numbers: %s", strerror(errno));
    recorder = dp__calloc(1, sizeof(*recorder));
    if (recorder == NULL)
        return dp_fail(DP_ERR_NOMEM, "a flight recorder: no memory");
    status = make_memory(bytes, &offer->fd, &memory);
    if (status != DP_OK) {
        dp__free(recorder);
        return status;
    }
    dp__recorder_format(memory, bytes, capacity, offer->mark, recorder);
    offer->pid = p->peers.self.pid;
    publish(p, p->group.rank, offer->pid, recorder);
    offer->bytes = bytes;
    *recorder_out = recorder;
    return DP_OK;
}

/* ---- those of others ---- */

static void *map_foreign(int fd, const offer_t *offer)
{
    struct stat st;
    int seals;
    void *memory;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != offer->bytes)
        return NULL;
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return NULL; /* it could become shorter than what we map */
    memory = mmap(NULL, offer->bytes, PROT_READ, MAP_SHARED, fd, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

/* A recorder that cannot be mapped costs a few words in a message and no more. */
static void adopt_recorder(dp__process_t *p, int32_t rank, const offer_t *offer)
{
    dp__recorder_t *recorder = dp__calloc(1, sizeof(*recorder));
    void *memory = NULL;
    char path[64];
    int fd;

    if (recorder == NULL)
        return;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", offer->pid, offer->fd);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        memory = map_foreign(fd, offer);
        close(fd);
    }
    if (memory != NULL && dp__recorder_adopt(memory, offer->bytes, offer->mark, recorder)) {
        publish(p, rank, offer->pid, recorder);
        return;
    }
    if (memory != NULL)
        munmap(memory, offer->bytes);
    dp__free(recorder);
    dp_log(DP_LOG_INFO, "group", "rank %d cannot read the flight recorder of rank %d", p->group.rank, rank);
}

/* Those of others that are no longer written: whoever wrote them could not tell us. */
static void sweep(dp__process_t *p)
{
    dp__recorder_t *recorder;

    pthread_mutex_lock(&p->mutex);
    while ((recorder = dp__recorder_take(&p->recorders, NULL)) != NULL)
        unmap(recorder);
    pthread_mutex_unlock(&p->mutex);
}

static dp_status_t adopt_recorders(dp__process_t *p, const offer_t *offers)
{
    for (int32_t r = 0; r < p->group.size; r++)
        if (offers[r].status != DP_OK)
            return dp_fail(offers[r].status, "rank %d: %.*s", r, (int)sizeof(offers[r].message) - 1, offers[r].message);
    for (int32_t r = 0; r < p->group.size; r++)
        if (r != p->group.rank && dp__is_near(p, r))
            adopt_recorder(p, r, &offers[r]);
    return DP_OK;
}

dp_status_t dp__process_recorder(dp_group_t *group, uint32_t capacity, dp_span_t **records_out)
{
    dp__process_t *p = dp__process_of(group);
    offer_t mine = {0}, *all = dp__calloc((size_t)group->size, sizeof(*all));
    dp__recorder_t *recorder = NULL;
    dp_status_t status;

    mine.fd = -1;
    sweep(p);
    mine.status = all != NULL ? make_recorder(p, capacity, &mine, &recorder)
                              : dp_fail(DP_ERR_NOMEM, "a flight recorder: no memory");
    if (mine.status != DP_OK)
        snprintf(mine.message, sizeof(mine.message), "%s", dp_last_error());
    status = group->link->gather(group, DP__CONTROL_RECORDER, &mine, sizeof(mine), all);
    if (status == DP_OK)
        status = all != NULL ? adopt_recorders(p, all) : mine.status;
    if (status == DP_OK) /* the descriptor stays until everybody has looked */
        status = group->link->gather(group, DP__CONTROL_RECORDER, NULL, 0, NULL);
    if (mine.fd >= 0)
        close(mine.fd);
    dp__free(all);
    if (status == DP_OK)
        *records_out = recorder->records;
    return status;
}

void dp__process_close_recorder(dp_group_t *group, const dp_span_t *records)
{
    dp__process_t *p = dp__process_of(group);
    dp__recorder_t *recorder;

    pthread_mutex_lock(&p->mutex);
    recorder = dp__recorder_take(&p->recorders, records);
    pthread_mutex_unlock(&p->mutex);
    if (recorder == NULL)
        return;
    dp__recorder_close(recorder);
    unmap(recorder);
}

void dp__process_name_spans(dp_group_t *group, uint16_t name, const char *text)
{
    dp__process_t *p = dp__process_of(group);

    pthread_mutex_lock(&p->mutex);
    for (dp__recorder_t *recorder = p->recorders; recorder != NULL; recorder = recorder->next)
        if (recorder->rank == group->rank)
            dp__recorder_set_name(recorder, name, text);
    pthread_mutex_unlock(&p->mutex);
}

void dp__process_forget_recorders(dp__process_t *p, int32_t but)
{
    pthread_mutex_lock(&p->mutex);
    for (dp__recorder_t **at = &p->recorders; *at != NULL;) {
        dp__recorder_t *recorder = *at;

        if (recorder->rank == but) {
            at = &recorder->next;
            continue;
        }
        *at = recorder->next;
        unmap(recorder);
    }
    pthread_mutex_unlock(&p->mutex);
}
