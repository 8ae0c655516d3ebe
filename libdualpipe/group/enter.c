/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * enter.c: a rank that is a separate process enters its job, and enters it again after a death:
 * nothing of the epoch before goes along but who we are. */
#include "base/do.h"
#include "base/memory.h"
#include "group/environment.h"
#include "group/process.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void drop_talk(dp__process_t *p)
{
    while (p->connections.count > 0)
        dp__connection_drop(p, p->connections.all[p->connections.count - 1]);
    for (int32_t r = 0; p->contacts != NULL && r < (dp__is_hub(p) ? p->group.size : 1); r++) {
        dp__free(p->contacts[r].news);
        p->contacts[r].news = NULL;
    }
}

void dp__process_free(dp__process_t *p)
{
    drop_talk(p);
    dp__hub_drop_guards(p);
    dp__hub_forget_gets(p);
    if (p->hub.listener >= 0)
        close(p->hub.listener);
    dp__status_close(p);
    if (p->wake_fd >= 0)
        close(p->wake_fd);
    dp__process_forget_recorders(p, -1);
    dp__kv_fini(&p->hub.kv);
    pthread_mutex_destroy(&p->mutex);
    dp__free(p->hub.gather.data);
    dp__free(p->connections.all);
    dp__free(p->peers.rows);
    dp__free(p->clock.samples);
    dp__hang_report_end(p);
    dp__last_spans_drop(&p->last);
    dp__free(p->machines.all);
    dp__free(p->join.settings);
    dp__group_free_places(&p->group);
    explicit_bzero(p, sizeof(*p));
    dp__free(p);
}

static dp_status_t check_safety(const dp__process_t *p, const dp_group_options_t *options)
{
    if (p->join.address.loopback || p->join.secret.bytes > 0 || options->insecure)
        return DP_OK;
    return dp_fail(DP_ERR_SECURITY,
                   "rank %d: %s is not an address of this host alone, and the job has no secret: let "
                   "DUALPIPE_SECRET_FILE name a file of mode 0600 with the same secret for all ranks, or set the "
                   "option insecure",
                   p->group.rank, p->join.address.text);
}

/* What must be equal: the caller's settings, and what we know to matter ourselves. */
static dp_status_t take_settings(dp__process_t *p, const char *given)
{
    char job[DP__JOB_BYTES];
    size_t bytes;
    dp__sha256_t sha;

    dp__environment_job(job);
    bytes = (given != NULL ? strlen(given) : 0) + strlen(job) + 64;
    if (bytes > DP__SETTINGS_BYTES)
        return dp_fail(DP_ERR_INVALID, "rank %d: settings of %zu bytes; at most %u are possible", p->group.rank, bytes,
                       DP__SETTINGS_BYTES);
    p->join.settings = dp__allocate(bytes, 16);
    if (p->join.settings == NULL)
        return dp_fail(DP_ERR_NOMEM, "rank %d: no memory for the settings", p->group.rank);
    snprintf(p->join.settings, bytes, "libdualpipe=%s\njob=%s\n%s", dp_version(), job, given != NULL ? given : "");
    dp__sha256_init(&sha);
    dp__sha256_update(&sha, p->join.settings, strlen(p->join.settings));
    dp__sha256_final(&sha, p->join.digest);
    return DP_OK;
}

static dp_status_t make_tables(dp__process_t *p)
{
    const size_t size = (size_t)p->group.size, talks = dp__is_hub(p) ? size : 1;

    p->group.respawn = dp__launch_has("respawn");
    /* ranks, strangers, a batch of new ones */
    p->connections.room = dp__is_hub(p) ? size + (2 * size + 16) + 16 + 1 : 2;
    if (!dp__arrays(DP__ARRAY(p->connections.all, p->connections.room),
                    DP__ARRAY(p->connections.polls, 2 * p->connections.room + 3), DP__ARRAY(p->contacts, talks),
                    DP__ARRAY(p->hub.gather.here, talks), DP__ARRAY(p->hub.said, talks), DP__ARRAY(p->hub.paces, talks),
                    DP__ARRAY(p->hub.before, talks), DP__ARRAY(p->hub.guards, talks)))
        return dp_fail(DP_ERR_NOMEM, "rank %d: no memory to join a job of %zu ranks", p->group.rank, size);
    p->beat.next_ns = p->beat.looked_ns = 0;
    p->hub.gather.number = 1;
    p->hub.introduced = 1;
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake_fd < 0)
        return dp_fail(DP_ERR_NOMEM, "rank %d: eventfd: %s", p->group.rank, strerror(errno));
    return dp__peers_open(p);
}

static void start_clock(dp__process_t *p)
{
    p->join.deadline_ns = dp__now_ns() + p->join.limit_ns;
}

/* And not one that the program has thought of. */
static bool is_launchers_job(const dp__process_t *p)
{
    dp_group_environment_t told = {.struct_size = sizeof(told)};

    return dp_group_environment(&told) == DP_OK && told.rank == p->group.rank && told.size == p->group.size;
}

static dp_status_t prepare_join(dp__process_t *p, const dp_group_options_t *options)
{
    DO(make_tables(p));
    DO(take_settings(p, options->settings));
    DO(dp__address_find(options, &p->join.address));
    DO(dp__secret_load(&p->join.secret));
    DO(check_safety(p, options));
    if (dp__is_hub(p)) {
        DO(dp__address_listen(&p->join.address, p->group.size, &p->hub.listener));
        dp__status_open(p);
    }
    if (is_launchers_job(p))
        dp__ends_open(&p->join.ends);
    p->join.limit_ns = dp__scaled_ns(options->join_seconds);
    start_clock(p);
    return DP_OK;
}

static dp_status_t await_others(dp__process_t *p)
{
    /* the control thread ends a join that is late; twice as long would mean that it does not run */
    return dp__cause_wait(&p->cause, &p->join.done, 1, 2 * p->join.limit_ns + dp__scaled_ns(5), "joining");
}

static void tell_joined(const dp__process_t *p)
{
    dp__ends_tell(&p->join.ends, "joined", p->group.rank, p->peers.self.pid, "");
}

dp_status_t dp__process_enter(const dp_group_options_t *options, const dp__group_link_t *link, dp_group_t **group_out)
{
    dp__process_t *p = dp__calloc(1, sizeof(*p));
    dp_status_t status;

    if (p == NULL)
        return dp_fail(DP_ERR_NOMEM, "rank %d: no memory to join the job", options->rank);
    p->wake_fd = p->hub.listener = p->hub.status.listener = p->join.ends.fd = p->join.ends.tell = -1;
    pthread_mutex_init(&p->mutex, NULL);
    dp__kv_init(&p->hub.kv);
    dp__group_init(&p->group, options->rank, options->size, dp__scaled_ns(options->hang_seconds), &p->cause, link);
    status = prepare_join(p, options);
    if (status == DP_OK)
        status = dp__control_start(p);
    if (status != DP_OK) {
        dp__process_free(p);
        return status;
    }
    status = await_others(p);
    if (status != DP_OK) {
        dp__control_stop(p);
        dp__process_free(p);
        return status;
    }
    tell_joined(p);
    *group_out = &p->group;
    return DP_OK;
}

/* ---- entering again ---- */

static void forget_others(dp__process_t *p)
{
    if (dp__is_hub(p))
        dp__hub_remember(p);
    drop_talk(p);
    dp__peers_forget(p);
    dp__process_forget_recorders(p, p->group.rank);
}

static void forget_talk(dp__process_t *p)
{
    p->proposal = (dp__proposal_t){0};
    p->control = (dp__collective_t){0};
    p->collect = (dp__collecting_t){0};
    p->stop = p->over = false;
    p->spoke.retry_ns = p->spoke.retries = 0;
    p->spoke.answered_ns = dp__now_ns();
    p->beat.next_ns = p->beat.looked_ns = p->beat.job_sign_ns = 0;
    dp__hub_forget_gets(p);
    dp__kv_fini(&p->hub.kv);
    dp__kv_init(&p->hub.kv);
    p->hub.introduced = 1;
    p->hub.told = 0;
    dp__hang_report_end(p);
    dp__last_spans_drop(&p->last);
    p->clock.count = 0; /* rank 0 may live on another host now */
    p->hub.gather.number = 1;
    p->hub.gather.arrived = 0;
    memset(p->hub.said, 0, (dp__is_hub(p) ? (size_t)p->group.size : 1) * sizeof(*p->hub.said));
    memset(p->hub.paces, 0, (dp__is_hub(p) ? (size_t)p->group.size : 1) * sizeof(*p->hub.paces));
    p->hub.straggler = 0;
    memset(p->hub.gather.here, 0, (dp__is_hub(p) ? (size_t)p->group.size : 1) * sizeof(bool));
}

dp_status_t dp__process_reform(dp_group_t *group)
{
    dp__process_t *p = dp__process_of(group);
    dp_status_t status;

    if (dp__cause_check(&p->cause) == DP_OK)
        return dp_fail(DP_ERR_INVALID, "rank %d: nothing has ended the job", group->rank);
    dp__control_stop(p);
    snprintf(p->join.lost, sizeof(p->join.lost), "%s", p->cause.message);
    forget_others(p);
    forget_talk(p);
    p->join.trouble[0] = '\0';
    dp__signal_post(&p->join.done, 0);
    dp__cause_reset(&p->cause);
    start_clock(p);
    status = dp__secret_load(&p->join.secret);
    if (status == DP_OK)
        status = dp__control_start(p);
    if (status == DP_OK)
        status = await_others(p);
    if (status == DP_OK) {
        dp__group_move_places(group);
        return DP_OK;
    }
    pthread_mutex_lock(&p->mutex);
    group->respawn = false; /* that was the last time */
    pthread_mutex_unlock(&p->mutex);
    dp__cause_set(&p->cause, status, "%s", dp_last_error());
    return status;
}
