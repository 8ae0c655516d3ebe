/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * save.c: checkpoints written by a thread beside the steps. Each rank's thread writes its file;
 * that of rank 0 waits for the files of all and publishes them. The ranks tell each other how it
 * went when they meet at the next save. */
#include "base/do.h"
#include "base/memory.h"
#include "base/sized.h"
#include "checkpoint/lock.h"
#include "engine/saving.h"
#include "group/group.h"
#include "system/wait.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define GATHER_NS 10000000  /* between two looks for the others' files */
#define SETTLE_NS 100000000 /* between two questions how far the others are */
/* for the lock of ranks on a lost host: a server of NFSv4 keeps it for 90 s */
#define LOCK_SECONDS 120

/* What a rank says of its latest save. */
typedef struct statement {
    uint32_t phase;
    int32_t status;
    char why[480];
} statement_t;

static uint32_t phase_of(const dp__saving_t *s)
{
    return __atomic_load_n(&s->phase, __ATOMIC_ACQUIRE);
}

static void set_phase(dp__saving_t *s, dp__saving_phase_t phase)
{
    __atomic_store_n(&s->phase, (uint32_t)phase, __ATOMIC_RELEASE);
}

/* ---- the folder's lock ---- */

static void let_go(int *lock)
{
    if (*lock >= 0)
        close(*lock);
    *lock = -1;
}

/* Of rank 0. held: other ranks of the job have it. */
static dp_status_t take_lock(dp__saving_t *s, bool held)
{
    if (dp__lock_is_there(s->folder, *s->folder_lock))
        return DP_OK;
    let_go(s->folder_lock);
    return dp__lock_take(s->folder, s->who, held, s->folder_lock);
}

static void unlock_folder(dp__saving_t *s)
{
    dp__lock_release(s->folder, *s->folder_lock);
    *s->folder_lock = -1;
}

/* Rank 0's is enough, as long as it lives. */
static void share_lock(dp__saving_t *s)
{
    if (dp__lock_is_there(s->folder, *s->folder_lock))
        return;
    let_go(s->folder_lock);
    if (dp__lock_share(s->folder, s->folder_lock) != DP_OK)
        dp_log(DP_LOG_DEBUG, "checkpoint", "rank %d does not share the lock of %s", s->rank, s->folder);
}

/* ---- the thread ---- */

static dp_status_t publish(dp__saving_t *s)
{
    dp_status_t status;

    while (!dp__checkpoint_written(s->folder, s->step, s->ranks)) {
        if (__atomic_load_n(&s->give_up, __ATOMIC_ACQUIRE) != 0 || __atomic_load_n(&s->stop, __ATOMIC_ACQUIRE) != 0)
            return dp_fail(DP_ERR_ABORTED, "the files of other ranks have not come");
        dp__nap(GATHER_NS);
    }
    DO(take_lock(s, false)); /* somebody may have removed the folder, and another job made it */
    status = dp__checkpoint_publish(s->folder, s->step, s->origin, s->ranks);
    if (status >= 0 && dp__checkpoint_keep(s->folder, s->step, s->origin.run, s->keep) < 0)
        dp_log(DP_LOG_WARN, "checkpoint", "old checkpoints cannot be removed: %s", dp_last_error());
    return status;
}

static dp_status_t write_snapshot(dp__saving_t *s)
{
    const dp__write_t write = {
        .folder = s->folder,
        .step = s->step,
        .origin = s->origin,
        .rank = s->rank,
        .ranks = s->ranks,
        .tensors = s->snapshot.tensors,
        .n = s->snapshot.n,
        .parameters = s->snapshot.parameters,
        .data = s->snapshot.memory,
        .stop = &s->stop,
    };
    dp_status_t status = dp__checkpoint_write(&write);

    if (status < 0 || s->rank != 0)
        return status;
    set_phase(s, DP__GATHERING);
    return publish(s);
}

static void *write_all(void *user)
{
    dp__saving_t *s = user;

    for (uint32_t order = 1;; order++) {
        (void)dp__signal_wait(&s->orders, order, INT64_MAX, NULL);
        if (__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE) != 0)
            return NULL;
        s->status = write_snapshot(s);
        snprintf(s->why, sizeof(s->why), "%s", s->status < 0 ? dp_last_error() : "");
        set_phase(s, s->status < 0 ? DP__UNSAVED : DP__SAVED);
        dp__signal_post(&s->answers, order);
    }
}

/* ---- what all ranks know ---- */

/* Of rank 0, when some file will never come: its thread ends its waiting, and what has come
 * goes. */
static void give_up(dp__saving_t *s)
{
    __atomic_store_n(&s->give_up, 1, __ATOMIC_RELEASE);
    (void)dp__signal_wait(&s->answers, s->ordered, INT64_MAX, NULL);
    __atomic_store_n(&s->give_up, 0, __ATOMIC_RELEASE);
    if (dp__checkpoint_discard(s->folder, s->step) < 0)
        dp_log(DP_LOG_WARN, "checkpoint", "%s", dp_last_error());
}

/* The first rank that failed for a local reason. -1: none. */
static int32_t find_failed(const statement_t *all, int32_t n)
{
    int32_t failed = -1;

    for (int32_t r = 0; r < n; r++)
        if (all[r].phase == DP__UNSAVED && (failed < 0 || all[failed].status == DP_ERR_ABORTED))
            failed = r;
    return failed;
}

/* Collective. *busy_out: some rank is still at it. Otherwise s->status and why are the same on all
 * ranks. */
static dp_status_t settle(dp_pipeline_t *p, bool *busy_out)
{
    dp__saving_t *s = p->saving;
    statement_t mine = {.status = DP_OK}, *all;
    int32_t failed;
    dp_status_t status;

    *busy_out = false;
    if (s->settled)
        return DP_OK;
    mine.phase = phase_of(s);
    if (mine.phase == DP__UNSAVED) {
        mine.status = s->status;
        snprintf(mine.why, sizeof(mine.why), "%.470s", s->why);
    }
    all = dp__ask_ranks(p, &mine, sizeof(mine), &status);
    if (all == NULL)
        return status;
    failed = find_failed(all, s->ranks);
    for (int32_t r = 0; r < s->ranks; r++)
        *busy_out |= all[r].phase == DP__WRITING || (all[r].phase == DP__GATHERING && failed < 0);
    if (!*busy_out) {
        if (failed >= 0 && s->rank == 0)
            give_up(s);
        (void)dp__signal_wait(&s->answers, s->ordered, INT64_MAX, NULL);
        s->settled = true;
        s->status = failed >= 0 ? all[failed].status : DP_OK;
        snprintf(s->why, sizeof(s->why), "rank %d: %s", failed, failed >= 0 ? all[failed].why : "");
        if (failed >= 0)
            /* nobody begins again before rank 0 has tidied up */
            status = dp_group_barrier(p->group);
        if (failed >= 0 && s->rank == 0)
            dp_log(DP_LOG_WARN, "checkpoint", "step %" PRIu64 " was not saved: %s", s->step, s->why);
    }
    dp__free(all);
    return status;
}

/* ---- open and close ---- */

static dp_status_t take_options(const dp_pipeline_t *p, const dp_save_options_t *given, dp_save_options_t *options)
{
    DO(dp__take("dp_pipeline_save_open: options", dp_save_options_t, DP_SAVE_OPTIONS_MIN, options, given));
    DO(dp__pipeline_check(p, "dp_pipeline_save_open"));
    if (p->saving != NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_save_open: this pipeline was opened for saving already");
    if (options->folder == NULL || *options->folder == '\0' || options->keep < 0)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_save_open: folder is NULL or empty, or keep is negative");
    return DP_OK;
}

static dp_status_t prepare_saving(dp_pipeline_t *p, dp__saving_t *s, const dp_save_options_t *options)
{
    s->folder_lock = &p->folder_lock;
    s->keep = options->keep;
    s->rank = dp_group_rank(p->group);
    s->ranks = dp_group_size(p->group);
    s->settled = true;
    DO(dp__path(s->folder, options->folder, NULL));
    return dp__folder_begin(s->folder);
}

/* What a rank says before it saves. */
typedef struct claim {
    uint64_t held;      /* it has the folder's lock since before a recovery */
    uint64_t run;       /* whose state it has, 0: it does not know */
    dp__origin_t fresh; /* what they are where nobody knows */
    uint64_t again;     /* it was started in place of another one */
} claim_t;

static dp_status_t make_claim(const dp_pipeline_t *p, const char *folder, claim_t *claim_out)
{
    dp_group_environment_t environment = {.struct_size = sizeof(environment)};

    *claim_out = (claim_t){.held = dp__lock_is_there(folder, p->folder_lock), .run = p->run_id};
    DO(dp_group_environment(&environment));
    if (getrandom(&claim_out->fresh, sizeof(claim_out->fresh), 0) != sizeof(claim_out->fresh))
        return dp_fail(DP_ERR_IO, "no random numbers: %s", strerror(errno));
    if (environment.job != 0)
        claim_out->fresh.run = environment.job;
    claim_out->again = environment.again != 0;
    return DP_OK;
}

/* Collective. Whose the checkpoints are, and whether ranks of this job have the folder's lock. */
static dp_status_t settle_origin(dp_pipeline_t *p, dp__saving_t *s, const claim_t *mine, bool *held_out)
{
    dp_status_t status;
    claim_t *all = dp__ask_ranks(p, mine, sizeof(*mine), &status);

    if (all == NULL)
        return status;
    p->run_id = 0;
    for (int32_t r = 0; r < s->ranks; r++) {
        *held_out |= all[r].held != 0;
        p->run_id = p->run_id != 0 ? p->run_id : all[r].run;
    }
    p->run_id = p->run_id != 0 ? p->run_id : all[0].fresh.run;
    s->origin = (dp__origin_t){p->run_id, all[0].fresh.writer};
    dp__free(all);
    return DP_OK;
}

static void name_writer(dp__saving_t *s)
{
    char host[DP__HOST_BYTES];

    dp__host_name(host);
    snprintf(s->who, sizeof(s->who), "process %d on %s, run %016" PRIx64 "\n", (int)getpid(), host, s->origin.run);
}

/* Collective. Rank 0's lock. Who was started again may find that of this job's ranks on a host that
 * is lost: waits for it. */
static dp_status_t await_lock(dp_pipeline_t *p, dp__saving_t *s, bool held, bool again)
{
    const int64_t until = dp__now_ns() + dp__scaled_ns(LOCK_SECONDS);

    for (bool said = false;; said = true) {
        const dp_status_t taken = s->rank == 0 ? take_lock(s, held) : DP_OK;
        const uint8_t waits = taken == DP_ERR_INVALID && again && dp__now_ns() < until;
        dp_status_t status;
        uint8_t *all;

        if (waits && !said)
            dp_log(DP_LOG_WARN, "checkpoint",
                   "%s: it may be what is left of this job on a lost host, which has up to %d s to end",
                   dp_last_error(), LOCK_SECONDS);
        all = dp__ask_ranks(p, &waits, sizeof(waits), &status);
        if (all == NULL)
            return status;
        again = all[0] != 0;
        dp__free(all);
        if (!again)
            return taken;
        dp__nap(SETTLE_NS);
    }
}

static dp_status_t start_saving(dp_pipeline_t *p, dp__saving_t *s)
{
    if (s->rank == 0)
        DO(dp__checkpoint_clean(s->folder));
    return dp__snapshot_open(p, &s->snapshot);
}

dp_status_t dp_pipeline_save_open(dp_pipeline_t *p, const dp_save_options_t *options)
{
    dp_save_options_t own;
    dp__saving_t *s;
    claim_t claim;
    dp_status_t status;
    bool held = false;

    DO(take_options(p, options, &own));
    s = dp__calloc(1, sizeof(*s));
    status = s != NULL ? prepare_saving(p, s, &own) : dp_fail(DP_ERR_NOMEM, "dp_pipeline_save_open: no memory");
    if (status >= 0)
        status = make_claim(p, s->folder, &claim);
    status = dp__agree(p, status, "cannot save");
    if (status >= 0)
        status = settle_origin(p, s, &claim, &held);
    if (status >= 0) {
        name_writer(s);
        status = dp__agree(p, await_lock(p, s, held, claim.again != 0), "cannot save");
    }
    if (status >= 0)
        status = dp__agree(p, start_saving(p, s), "cannot save");
    if (status >= 0 && pthread_create(&s->thread, NULL, write_all, s) != 0)
        status = dp__engine_fail(p, dp_fail(DP_ERR_NOMEM, "a thread cannot be started"), "dp_pipeline_save_open");
    if (status < 0 && s != NULL) {
        /* else it is opened again when the dead are replaced */
        if (dp_group_health(p->group) == DP_OK)
            unlock_folder(s);
        dp__snapshot_close(p, &s->snapshot);
        dp__free(s);
    }
    if (status < 0)
        return status;
    share_lock(s);
    p->saving = s;
    return DP_OK;
}

void dp__save_close(dp_pipeline_t *p, bool unlock)
{
    dp__saving_t *s = p->saving;

    if (s == NULL) {
        if (unlock)
            let_go(&p->folder_lock);
        return;
    }
    if (!p->run.failed && dp_group_health(p->group) == DP_OK && dp_pipeline_save_wait(p) < 0)
        dp_log(DP_LOG_DEBUG, "engine", "closed without its last save"); /* a warning has told why */
    __atomic_store_n(&s->stop, 1, __ATOMIC_RELEASE);
    dp__signal_post(&s->orders, s->ordered + 1);
    pthread_join(s->thread, NULL);
    if (unlock)
        unlock_folder(s);
    dp__snapshot_close(p, &s->snapshot);
    dp__free(s);
    p->saving = NULL;
}

/* ---- saving ---- */

dp_status_t dp__save_copied(dp_pipeline_t *p)
{
    dp__saving_t *s = p->saving;
    dp_status_t status;

    if (s == NULL || !s->snapshot.copying)
        return DP_OK;
    status = dp__snapshot_finish(p, &s->snapshot);
    if (status >= 0)
        dp__signal_post(&s->orders, ++s->ordered);
    return status;
}

static dp_status_t check_saving(const dp_pipeline_t *p, const char *call)
{
    DO(dp__pipeline_check(p, call));
    return p->saving != NULL ? DP_OK : dp_fail(DP_ERR_INVALID, "%s: call dp_pipeline_save_open first", call);
}

dp_status_t dp_pipeline_save(dp_pipeline_t *p, uint64_t step)
{
    dp__saving_t *s;
    bool busy;
    dp_status_t status;

    DO(check_saving(p, "dp_pipeline_save"));
    if (p->ungathered)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_save: with dp_pipeline_options_t.zero call dp_pipeline_gather "
                                       "behind the update first: no rank has yet what the others have made of their "
                                       "shards");
    s = p->saving;
    status = dp__save_copied(p); /* two saves and no step between them */
    if (status >= 0)
        status = settle(p, &busy);
    if (status >= 0 && busy) {
        if (s->rank == 0)
            dp_log(DP_LOG_WARN, "checkpoint", "step %" PRIu64 " is not saved: step %" PRIu64 " is still being written",
                   step, s->step);
        return DP_PENDING;
    }
    s->step = step;
    if (status >= 0)
        status = dp__gather_finish(p);
    if (status >= 0)
        status = dp__bits_check_save(p, step);
    if (status >= 0)
        status = dp__snapshot_begin(p, &s->snapshot);
    if (status < 0)
        return dp__engine_fail(p, status, "saving");
    s->settled = false;
    set_phase(s, DP__WRITING);
    return DP_OK;
}

dp_status_t dp_pipeline_save_wait(dp_pipeline_t *p)
{
    dp__saving_t *s;
    bool busy = true;
    dp_status_t status;

    DO(check_saving(p, "dp_pipeline_save_wait"));
    s = p->saving;
    status = dp__save_copied(p);
    while (status >= 0 && busy) {
        (void)dp__signal_wait(&s->answers, s->ordered, dp__now_ns() + SETTLE_NS, NULL);
        status = settle(p, &busy);
    }
    if (status < 0)
        return dp__engine_fail(p, status, "saving");
    return s->status < 0 ? dp_fail(s->status, "step %" PRIu64 " was not saved: %s", s->step, s->why) : DP_OK;
}
