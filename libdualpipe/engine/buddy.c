/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * buddy.c: a copy of a rank's state that outlives its process, where no other rank has one.
 *
 * The launcher of the host makes a file in memory for each rank and hands it down (`memory` of
 * DUALPIPE_LAUNCH). It is the buddy: whichever ranks die, the file stays, and the next process of
 * the rank finds it. So no message is needed, and ranks that are alone on their host have a buddy
 * too. A host that is lost takes its ranks with it: nothing is started in their place.
 *
 * There is room for two copies. The state that n counts ("holds" n) goes to copy n % 2, beside the
 * step that follows it: a step changes neither parameters nor registered state. A rank comes to the
 * commit of that step when its copy is complete. So whoever knows that the commit is over knows
 * that all copies of n are complete, and n - 1 is overwritten only then.
 *
 * Who dies in a step, with its copy complete, is back with the state of the others. Who dies in an
 * update, or before its copy is complete, leaves n - 1. The others hold n by then. All go back to
 * n - 1, from their own files, and take that step again, with the same bits. With sharded
 * optimizers (zero) a rank's parameters are not those of n before all have given theirs: there too
 * all go back. What counts is the newest state that each rank has, by itself or in its file.
 *
 * A copy ends with its stamp, eight bytes that say which state it is: 0 while it is written. Where
 * a checkpoint is read, or the pipeline is closed, both stamps are cleared: nobody goes back to
 * what was before. */
#include "base/do.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "group/environment.h"
#include "group/reform.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD_BYTES   4096
#define MEMORY_ALIGN 64

/* At the begin of the file. */
typedef struct dp__buddy_head {
    uint64_t layout;            /* what the copies are of */
    uint64_t stamp[DP__COPIES]; /* holds << 32 | run.step; 0: not complete */
} dp__buddy_head_t;

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static char *copy_at(const dp__buddy_t *b, uint32_t holds)
{
    return (char *)b->head + HEAD_BYTES + (holds % DP__COPIES) * b->bytes;
}

static uint64_t stamp_of(const dp__buddy_t *b, int copy)
{
    return __atomic_load_n(&b->head->stamp[copy], __ATOMIC_ACQUIRE);
}

static void clear_stamp(dp__buddy_t *b, int copy)
{
    __atomic_store_n(&b->head->stamp[copy], 0, __ATOMIC_RELEASE);
}

/* ---- the memory ---- */

static bool each_has_a_mirror(const dp_pipeline_t *p)
{
    for (int32_t i = 0; i < p->grid.pp; i++) {
        dp_place_t place;

        dp_schedule_place(p->schedule, i, 0, &place);
        if (place.mirror_rank < 0 || place.mirror_rank == i)
            return false;
    }
    return true;
}

bool dp__buddy_is_on(const dp_pipeline_t *p)
{
    return p->options.buddy && p->host_memory && !p->schedule->forward_only && dp__group_respawns(p->group) &&
           (dp__zero_is_on(p) || (p->grid.dp == 1 && !each_has_a_mirror(p)));
}

typedef struct layout {
    uint64_t digest;
    size_t bytes;
} layout_t;

static dp_status_t add_bytes(void *user, int32_t chunk, void *memory, size_t bytes)
{
    layout_t *l = user;
    const int64_t fields[] = {chunk, (int64_t)bytes};

    (void)memory;
    l->digest = dp__hash_fields(l->digest, fields, 2);
    l->bytes += round_up(bytes, MEMORY_ALIGN);
    return DP_OK;
}

static dp_status_t measure(const dp_pipeline_t *p, layout_t *l)
{
    const int64_t grid[] = {p->grid.pp, p->grid.ep, p->grid.dp, p->grid.p, p->grid.e, p->grid.d, p->options.dtype};

    *l = (layout_t){.digest = dp__hash_fields(DP__HASH_BEGIN, grid, 7)};
    for (int32_t c = 0; c < p->nchunks; c++)
        l->digest = dp__hash_field(l->digest, (uint64_t)p->chunks[c].place.stage);
    for (int32_t i = 0; i < p->states.n; i++)
        l->digest = dp__hash_text(l->digest, p->states.at[i].name);
    DO(dp__walk_state(p, DP__MOVE_CHUNKS | DP__MOVE_SHARED, add_bytes, l));
    l->bytes = round_up(l->bytes, HEAD_BYTES);
    return DP_OK;
}

/* Every page is taken now: later there would be nobody to tell that there is no room. */
static dp_status_t map_file(int fd, size_t bytes, bool fits, dp__buddy_head_t **head_out)
{
    void *memory;
    int error = !fits && ftruncate(fd, 0) != 0 ? errno : 0;

    if (error == 0 && !fits)
        error = posix_fallocate(fd, 0, (off_t)bytes);
    if (error != 0)
        return dp_fail(DP_ERR_NOMEM, "no memory for the %zu bytes of two copies of this rank's state (buddy): %s",
                       bytes, strerror(error));
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (memory == MAP_FAILED)
        return dp_fail(DP_ERR_NOMEM, "two copies of this rank's state (buddy): mmap: %s", strerror(errno));
    *head_out = memory;
    return DP_OK;
}

/* What an earlier process of this rank has left there is kept. */
static dp_status_t map_memory(dp__buddy_t *b, const layout_t *l)
{
    const size_t bytes = HEAD_BYTES + DP__COPIES * l->bytes;
    dp__buddy_head_t *head = NULL;
    struct stat st;
    int32_t fd;

    if (!dp__launch_has("memory"))
        return DP_OK; /* a launcher that has none */
    DO(dp__launch_number("memory", 3, 1 << 20, &fd));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || fcntl(fd, F_GET_SEALS) < 0)
        return dp_fail(DP_ERR_INVALID,
                       "DUALPIPE_LAUNCH: memory=%d is not the launcher's: only a program that it has started "
                       "itself has a buddy",
                       fd);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* those that we start have no use for it */
    DO(map_file(fd, bytes, (size_t)st.st_size == bytes, &head));
    *b = (dp__buddy_t){.head = head, .bytes = l->bytes};
    if (head->layout != l->digest)
        memset(head, 0, sizeof(*head));
    head->layout = l->digest;
    return DP_OK;
}

dp_status_t dp__buddy_open(dp_pipeline_t *p)
{
    dp__buddy_t *b = &p->buddy;
    layout_t l;

    if (!dp__buddy_is_on(p))
        return DP_OK;
    DO(measure(p, &l));
    if (b->head == NULL)
        DO(map_memory(b, &l));
    if (b->head == NULL)
        return DP_OK;
    p->memory.total += HEAD_BYTES + DP__COPIES * l.bytes - p->memory.buddy;
    p->memory.buddy = HEAD_BYTES + DP__COPIES * l.bytes;
    return DP_OK;
}

void dp__buddy_close(dp_pipeline_t *p)
{
    dp__buddy_t *b = &p->buddy;

    if (b->head == NULL)
        return;
    dp__buddy_forget(p);
    (void)munmap(b->head, HEAD_BYTES + DP__COPIES * b->bytes);
    b->head = NULL;
}

/* ---- copying ---- */

typedef struct walk {
    dp_pipeline_t *p;
    char *at; /* in the copy */
} walk_t;

/* Gathered parameters may still be on their way. */
static dp_status_t copy_out(void *user, int32_t chunk, void *memory, size_t bytes)
{
    walk_t *w = user;
    dp_pipeline_t *p = w->p;

    if (p->gathering && chunk >= 0)
        DO(p->device_vt->stream_wait(p->buddy.stream, p->chunks[chunk].gathered));
    DO(p->device_vt->copy(p->buddy.stream, w->at, memory, bytes));
    w->at += round_up(bytes, MEMORY_ALIGN);
    return DP_OK;
}

static dp_status_t copy_back(void *user, int32_t chunk, void *memory, size_t bytes)
{
    walk_t *w = user;

    (void)chunk;
    memcpy(memory, w->at, bytes);
    w->at += round_up(bytes, MEMORY_ALIGN);
    return DP_OK;
}

dp_status_t dp__buddy_begin(dp_pipeline_t *p)
{
    dp__buddy_t *b = &p->buddy;
    walk_t w = {p, NULL};

    if (b->head == NULL || b->holds == p->recovery.holds)
        return DP_OK;
    if (b->stream == NULL)
        DO(p->device_vt->stream_open(p->device, DP_LANE_REDUCE, &b->stream));
    b->holds = p->recovery.holds;
    b->stamp = (uint64_t)b->holds << 32 | p->recovery.step;
    clear_stamp(b, (int)(b->holds % DP__COPIES));
    w.at = copy_at(b, b->holds);
    DO(p->device_vt->stamp(b->stream, &b->begin_ns));
    DO(dp__walk_state(p, DP__MOVE_CHUNKS | DP__MOVE_SHARED, copy_out, &w));
    DO(p->device_vt->stamp(b->stream, &b->end_ns));
    return p->device_vt->copy(b->stream, &b->head->stamp[b->holds % DP__COPIES], &b->stamp, sizeof(b->stamp));
}

dp_status_t dp__buddy_finish(dp_pipeline_t *p)
{
    if (p->buddy.head == NULL)
        return DP_OK;
    DO(dp__buddy_begin(p));
    if (p->buddy.stream == NULL)
        return DP_OK;
    DO(p->device_vt->synchronize(p->buddy.stream, -1));
    dp_log(DP_LOG_DEBUG, "engine", "buddy: the state of step %u copied in %.3f ms", (uint32_t)p->buddy.stamp,
           1e-6 * (double)(p->buddy.end_ns - p->buddy.begin_ns));
    return DP_OK;
}

void dp__buddy_rest(dp_pipeline_t *p)
{
    if (p->buddy.stream != NULL)
        p->device_vt->stream_close(p->buddy.stream);
    p->buddy.stream = NULL;
    p->buddy.holds = 0;
}

/* ---- after a death ---- */

void dp__buddy_list(const dp_pipeline_t *p, uint32_t holds_out[DP__COPIES], uint32_t step_out[DP__COPIES])
{
    for (int i = 0; i < DP__COPIES; i++) {
        const uint64_t stamp = p->buddy.head != NULL ? stamp_of(&p->buddy, i) : 0;

        holds_out[i] = (uint32_t)(stamp >> 32);
        step_out[i] = (uint32_t)stamp;
    }
}

dp_status_t dp__buddy_settle(dp_pipeline_t *p, uint32_t holds, bool restores)
{
    dp__buddy_t *b = &p->buddy;
    walk_t w = {p, NULL};

    if (b->head == NULL)
        return DP_OK;
    for (int i = 0; i < DP__COPIES; i++)
        if (stamp_of(b, i) >> 32 > holds)
            clear_stamp(b, i); /* that step is taken again */
    if (stamp_of(b, (int)(holds % DP__COPIES)) >> 32 == holds)
        b->holds = holds;
    w.at = copy_at(b, holds);
    return restores ? dp__walk_state(p, DP__MOVE_CHUNKS | DP__MOVE_SHARED, copy_back, &w) : DP_OK;
}

void dp__buddy_forget(dp_pipeline_t *p)
{
    for (int i = 0; i < DP__COPIES && p->buddy.head != NULL; i++)
        clear_stamp(&p->buddy, i);
    p->buddy.holds = 0;
}
