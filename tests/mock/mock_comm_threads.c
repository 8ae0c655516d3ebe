/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_comm_threads.c: a second comm backend for tests, for ranks as threads of one process, in
 * plain memory. It keeps the whole contract of dp.comm/1, as a one-sided backend or, with MATCHED
 * defined (mock_comm_matched), as one that completes transfers in matched bundles.
 *
 * DP_TEST_FAULT=name seeds it with one fault, at the places that say IF("name"): a contract suite
 * has to catch each. */
#include <dualpipe/comm.h>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef MATCHED
#define MATCHED 0
#endif
/* FAR: says that it reaches other hosts. What these are is up to DUALPIPE_DEBUG=hosts. */
#ifndef FAR
#define FAR 0
#endif
/* LINK: stands in for comm_shm, and DP_TEST_LINK=0:1:2.5 keeps every message between ranks 0 and 1
 * on its stream for 2.5 ms. */
#ifndef LINK
#define LINK 0
#endif
#define NAME                                                                                                           \
    (LINK  ? "comm_shm"                                                                                                \
     : FAR ? (MATCHED ? "mock_comm_far_matched" : "mock_comm_far")                                                     \
           : (MATCHED ? "mock_comm_matched" : "mock_comm_threads"))
#define RANKS   16
#define MEMBERS 16 /* of one bundle */
#define LATE    16 /* posts that a fault holds back */
#define LARGE   65536

/* One direction of a channel. `credit`: the slots that the sender may have filled, plus `slots`. */
typedef struct wire {
    struct wire *next;
    uint32_t id;
    int src, dst;
    dp_channel_config_t config[2]; /* of the receiver, of the sender */
    int open[2];
    dp_signal_t published, credit, released, asked; /* asked: of a fault */
    dp_message_tag_t *tags;
    const void **lent;
    char *data;
} wire_t;

/* One exchange of a group: rows[dst][slot][src][capacity]. */
typedef struct field {
    struct field *next;
    uint32_t id;
    dp_exchange_config_t config[RANKS];
    int open[RANKS];
    char *rows;
    int32_t *counts;                                           /* [dst][slot][src] */
    dp_signal_t published[RANKS][RANKS], credit[RANKS][RANKS]; /* [dst][src] */
} field_t;

typedef struct head {
    size_t count;
    uint32_t number;
    dp_dtype_t dtype;
    size_t parts; /* made of all bounds */
} head_t;

/* What the ranks of one group share; found by name, freed with the last of them. */
typedef struct shared {
    struct shared *next;
    char name[96];
    int nranks, open;
    size_t block; /* bytes of staging */
    dp_signal_t met[RANKS], staged[RANKS], summed[RANKS];
    head_t heads[RANKS];
    char *staging[RANKS];
    wire_t *wires;
    field_t *fields;
} shared_t;

struct dp_comm {
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    shared_t *shared;
    int rank, nranks;
    int32_t world[RANKS];
    struct dp_channel_end *ends;
    struct dp_exchange *exchanges;
    uint32_t gatherings, sums, blocks;
    size_t memory_bytes;
    pthread_mutex_t lock;
    int in_bundle, nmembers;
    dp_stream_t *stream;
    struct member {
        dp_channel_end_t *end;
        const void *from;
        dp_message_tag_t tag;
    } members[MEMBERS];
    struct late {
        dp_signal_t *signal;
        uint32_t value;
    } late[LATE];
    int nlate;
};

struct dp_channel_end {
    struct dp_channel_end *next;
    dp_comm_t *comm;
    wire_t *wire;
    int sends, connected;
    uint32_t count, released;
};

typedef struct rows {
    dp_exchange_t *x;
    uint32_t number;
    const char *send;
    const int32_t *offsets, *counts;
    int32_t early_counts[RANKS], early_offsets[RANKS];
} rows_t;

struct dp_exchange {
    struct dp_exchange *next;
    dp_comm_t *comm;
    field_t *field;
    dp_exchange_config_t config;
    char label[32];
    int connected;
    uint32_t count, awaited, released;
    rows_t held; /* of a fault */
};

static struct {
    pthread_mutex_t mutex;
    shared_t *first;
} registry = {PTHREAD_MUTEX_INITIALIZER, NULL};

/* ---- faults ---- */

static int is_fault(const char *name)
{
    const char *wanted = getenv("DP_TEST_FAULT");

    return wanted != NULL && strcmp(wanted, name) == 0;
}
#define IF(name) (is_fault(name))

static void nap_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

/* ---- waiting ---- */

static dp_status_t stubborn_wait(dp_signal_t *signal, uint32_t target)
{
    while ((int32_t)(__atomic_load_n(&signal->value, __ATOMIC_ACQUIRE) - target) < 0)
        nap_ms(1);
    return DP_OK;
}

static void post(dp_comm_t *comm, dp_signal_t *signal, uint32_t value)
{
    comm->host->post(comm->host, signal, value);
}

/* With that fault news leaves with the next wait of this rank: nobody else makes progress. */
static void post_with(dp_comm_t *comm, const char *fault, dp_signal_t *signal, uint32_t value)
{
    if (!IF(fault)) {
        post(comm, signal, value);
        return;
    }
    pthread_mutex_lock(&comm->lock);
    if (comm->nlate < LATE)
        comm->late[comm->nlate++] = (struct late){signal, value};
    pthread_mutex_unlock(&comm->lock);
}

static void post_late(dp_comm_t *comm)
{
    pthread_mutex_lock(&comm->lock);
    for (int i = 0; i < comm->nlate; i++)
        post(comm, comm->late[i].signal, comm->late[i].value);
    comm->nlate = 0;
    pthread_mutex_unlock(&comm->lock);
}

static dp_status_t wait_for(dp_comm_t *comm, dp_signal_t *signal, uint32_t target, const char *doing, int peer)
{
    char what[160];
    dp_status_t status;

    if (!IF("one_lock_over_all"))
        post_late(comm);
    if (IF("aborts_ignored"))
        return stubborn_wait(signal, target);
    if (IF("waits_are_slow")) { /* as much slower as the suite is more patient */
        const char *scale = getenv("DUALPIPE_TIMEOUT_SCALE");

        nap_ms((int)(400 * (scale != NULL ? atof(scale) : 1)));
    }
    snprintf(what, sizeof(what), "%s: rank %d waits for rank %d, %s", comm->shared->name, comm->world[comm->rank],
             comm->world[peer], doing);
    do
        status = comm->host->wait(comm->host, signal, target, IF("own_deadline") ? 1000000000 : -1, what);
    while (status == DP_ERR_TIMEOUT && IF("no_deadline"));
    return status;
}

static dp_status_t meet(dp_comm_t *comm)
{
    dp_status_t status = DP_OK;

    post(comm, &comm->shared->met[comm->rank], ++comm->gatherings);
    for (int r = 0; r < comm->nranks && status >= 0; r++)
        status = wait_for(comm, &comm->shared->met[r], comm->gatherings, "a gathering", r);
    return status;
}

/* ---- instances ---- */

static shared_t *find_shared(const dp_comm_config_t *config)
{
    shared_t *s;

    for (s = registry.first; s != NULL; s = s->next)
        if (strcmp(s->name, config->name) == 0)
            return s;
    s = calloc(1, sizeof(*s));
    snprintf(s->name, sizeof(s->name), "%s", config->name);
    s->nranks = config->nranks;
    s->block = config->reduce_bytes / (size_t)config->nranks / 8 * 8;
    s->block = config->reduce_bytes == 0 ? 65536 : s->block < 64 ? 64 : s->block;
    for (int r = 0; r < config->nranks; r++)
        s->staging[r] = calloc(1, s->block);
    s->next = registry.first;
    registry.first = s;
    return s;
}

static void free_shared(shared_t *s)
{
    for (shared_t **at = &registry.first; *at != NULL; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    while (s->wires != NULL) {
        wire_t *w = s->wires;

        s->wires = w->next;
        free(w->tags);
        free(w->lent);
        free(w->data);
        free(w);
    }
    while (s->fields != NULL) {
        field_t *f = s->fields;

        s->fields = f->next;
        free(f->rows);
        free(f->counts);
        free(f);
    }
    for (int r = 0; r < s->nranks; r++)
        free(s->staging[r]);
    free(s);
}

static void *sleeper(void *arg)
{
    for (;;)
        nap_ms(1000);
    return arg;
}

static void leave_things_behind(dp_comm_t *comm)
{
    pthread_t thread;
    void *memory;
    char name[160];

    if (IF("leaves_host_memory"))
        (void)comm->host->allocate(comm->host, 64, 64);
    if (IF("leaves_device_memory"))
        (void)comm->device_vt->allocate(comm->device, 64, &memory);
    if (IF("leaves_a_thread"))
        (void)pthread_create(&thread, NULL, sleeper, NULL);
    if (IF("leaves_a_descriptor"))
        (void)dup(0);
    snprintf(name, sizeof(name), "/dev/shm/mock_comm_%d_%s", (int)getpid(), comm->shared->name);
    if (IF("leaves_a_name"))
        close(open(name, O_CREAT | O_RDWR, 0600));
}

static dp_status_t threads_open(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    dp_comm_t *comm;

    if (!IF("drops_what_is_new") && DP_TAKE(host, NAME, dp_comm_config_t, 0, NULL, config) == DP_ERR_UNSUPPORTED)
        return DP_ERR_UNSUPPORTED;
    if (config->struct_size < DP_COMM_CONFIG_MIN || config->name == NULL || config->nranks < 1 ||
        config->nranks > RANKS || config->rank < 0 || config->rank >= config->nranks || config->world_ranks == NULL ||
        config->device_vt == NULL || config->device == NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: the config makes no sense", NAME);
    comm = host->allocate(host, sizeof(*comm), 64);
    if (comm == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory");
    memset(comm, 0, sizeof(*comm));
    comm->host = host;
    comm->device_vt = config->device_vt;
    comm->device = config->device;
    comm->rank = config->rank;
    comm->nranks = config->nranks;
    memcpy(comm->world, config->world_ranks, (size_t)config->nranks * sizeof(*comm->world));
    pthread_mutex_init(&comm->lock, NULL);
    pthread_mutex_lock(&registry.mutex);
    comm->shared = find_shared(config);
    comm->shared->open++;
    pthread_mutex_unlock(&registry.mutex);
    comm->memory_bytes = sizeof(*comm) + comm->shared->block;
    leave_things_behind(comm);
    *comm_out = comm;
    return DP_OK;
}

/* A healthy group meets first: nobody's rows are freed while others still read. */
static void threads_close(dp_comm_t *comm)
{
    if (comm == NULL && !IF("close_of_null_crashes"))
        return;
    if (comm->host->aborted(comm->host) == DP_OK && comm->gatherings > 0)
        (void)meet(comm);
    pthread_mutex_lock(&registry.mutex);
    if (--comm->shared->open == 0)
        free_shared(comm->shared);
    pthread_mutex_unlock(&registry.mutex);
    while (comm->ends != NULL) {
        dp_channel_end_t *end = comm->ends;

        comm->ends = end->next;
        comm->host->release(comm->host, end);
    }
    while (comm->exchanges != NULL) {
        dp_exchange_t *x = comm->exchanges;

        comm->exchanges = x->next;
        comm->host->release(comm->host, x);
    }
    pthread_mutex_destroy(&comm->lock);
    comm->host->release(comm->host, comm);
}

static size_t threads_memory_bytes(dp_comm_t *comm)
{
    return IF("memory_bytes_is_0") ? 0 : comm->memory_bytes;
}

/* ---- connecting ---- */

static wire_t *find_wire(dp_comm_t *comm, const dp_channel_config_t *config)
{
    int src = config->sender ? comm->rank : config->peer, dst = config->sender ? config->peer : comm->rank;
    wire_t *w;

    for (w = comm->shared->wires; w != NULL; w = w->next)
        if (w->id == config->id && w->src == src && w->dst == dst)
            return w;
    w = calloc(1, sizeof(*w));
    w->id = config->id;
    w->src = src;
    w->dst = dst;
    w->next = comm->shared->wires;
    comm->shared->wires = w;
    return w;
}

static dp_status_t threads_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    const dp_host_t *h = comm->host;
    int sends = config->sender != 0;
    dp_channel_end_t *end;
    wire_t *w;

    if (!IF("drops_what_is_new") && DP_TAKE(h, NAME, dp_channel_config_t, 0, NULL, config) == DP_ERR_UNSUPPORTED)
        return DP_ERR_UNSUPPORTED;
    if (config->struct_size < DP_CHANNEL_CONFIG_MIN || config->peer < 0 || config->peer >= comm->nranks ||
        config->peer == comm->rank || config->slots < 1 || config->slot_bytes > (SIZE_MAX >> 20) / config->slots)
        return DP_FAIL(h, DP_ERR_INVALID, "%s: channel %u makes no sense", NAME, config->id);
    pthread_mutex_lock(&registry.mutex);
    w = find_wire(comm, config);
    if (!w->open[sends]) {
        (void)dp_sized_take(&w->config[sends], sizeof(w->config[sends]), config);
        w->config[sends].label = NULL;
        if (!sends) {
            w->tags = calloc(config->slots, sizeof(*w->tags));
            w->lent = calloc(config->slots, sizeof(*w->lent));
            w->data = calloc(config->slots + 1, (config->slot_bytes + 15) / 16 * 16);
            comm->memory_bytes += config->slots * config->slot_bytes;
        }
        w->open[sends] = 1;
    } else {
        w = NULL;
    }
    pthread_mutex_unlock(&registry.mutex);
    if (w == NULL)
        return DP_FAIL(h, DP_ERR_INVALID, "channel %u is open already", config->id);
    end = h->allocate(h, sizeof(*end), 64);
    memset(end, 0, sizeof(*end));
    end->comm = comm;
    end->wire = w;
    end->sends = sends;
    end->next = comm->ends;
    comm->ends = end;
    comm->memory_bytes += sizeof(*end);
    *end_out = end;
    return DP_OK;
}

static dp_status_t threads_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config,
                                         dp_exchange_t **exchange_out)
{
    const dp_host_t *h = comm->host;
    uint32_t slots = config->slots > 0 ? config->slots : 2;
    dp_exchange_t *x;
    field_t *f;

    if (!IF("drops_what_is_new") && DP_TAKE(h, NAME, dp_exchange_config_t, 0, NULL, config) == DP_ERR_UNSUPPORTED)
        return DP_ERR_UNSUPPORTED;
    if (config->struct_size < DP_EXCHANGE_CONFIG_MIN || config->row_bytes == 0 || config->row_bytes % 16 != 0 ||
        config->capacity_rows == 0)
        return DP_FAIL(h, DP_ERR_INVALID, "%s: exchange %u makes no sense", NAME, config->id);
    for (x = comm->exchanges; x != NULL; x = x->next)
        if (x->config.id == config->id)
            return DP_FAIL(h, DP_ERR_INVALID, "exchange %u is open already", config->id);
    x = h->allocate(h, sizeof(*x), 64);
    memset(x, 0, sizeof(*x));
    (void)dp_sized_take(&x->config, sizeof(x->config), config);
    x->config.slots = slots;
    snprintf(x->label, sizeof(x->label), "%s", config->label != NULL ? config->label : "");
    x->config.label = x->label;
    x->comm = comm;
    pthread_mutex_lock(&registry.mutex);
    for (f = comm->shared->fields; f != NULL && f->id != config->id; f = f->next)
        continue;
    if (f == NULL) {
        size_t cells = (size_t)comm->nranks * slots * (size_t)comm->nranks;

        f = calloc(1, sizeof(*f));
        f->id = config->id;
        f->rows = calloc(cells + 1, config->capacity_rows * config->row_bytes);
        f->counts = calloc(cells, sizeof(*f->counts));
        f->next = comm->shared->fields;
        comm->shared->fields = f;
    }
    f->config[comm->rank] = x->config;
    f->open[comm->rank] = 1;
    pthread_mutex_unlock(&registry.mutex);
    x->field = f;
    x->next = comm->exchanges;
    comm->exchanges = x;
    comm->memory_bytes += sizeof(*x) + slots * (size_t)comm->nranks * config->capacity_rows * config->row_bytes;
    *exchange_out = x;
    return DP_OK;
}

static dp_status_t threads_start(dp_comm_t *comm)
{
    dp_status_t status = meet(comm);

    for (dp_channel_end_t *end = comm->ends; end != NULL && status >= 0; end = end->next) {
        const wire_t *w = end->wire;
        const dp_channel_config_t *here = &w->config[end->sends], *there = &w->config[!end->sends];

        if (!end->connected &&
            (!w->open[!end->sends] || here->slots != there->slots || here->slot_bytes != there->slot_bytes))
            return DP_FAIL(comm->host, DP_ERR_MISMATCH, "channel \"F chunk 1\" differs at rank %d",
                           comm->world[here->peer]);
        end->connected = 1;
    }
    for (dp_exchange_t *x = comm->exchanges; x != NULL && status >= 0; x = x->next) {
        for (int r = 0; r < comm->nranks; r++)
            if (!x->field->open[r] || x->field->config[r].row_bytes != x->config.row_bytes ||
                x->field->config[r].capacity_rows != x->config.capacity_rows)
                return DP_FAIL(comm->host, DP_ERR_MISMATCH, "exchange \"%s\" differs at rank %d", x->label,
                               comm->world[r]);
        x->connected = 1;
    }
    return status >= 0 ? meet(comm) : status;
}

/* ---- channels ---- */

typedef struct transfer {
    dp_channel_end_t *end;
    const void *from;
    dp_message_tag_t tag;
} transfer_t;

static char *slot_of(const wire_t *w, uint32_t number)
{
    const dp_channel_config_t *config = &w->config[0];

    /* tightly packed where that keeps slots aligned: a byte too many lands in the next one */
    return w->data + (number % config->slots) * ((config->slot_bytes + 15) / 16 * 16);
}

/* How far the receiver has come for message `number` to have a slot: in matched bundles it is in
 * its receive, else the slot was released. */
static uint32_t credit_for(const transfer_t *t)
{
    uint32_t slots = t->end->wire->config[0].slots;

    if (MATCHED)
        return t->tag.number + 1;
    if (IF("credit_more"))
        slots++;
    if (IF("credit_less"))
        slots--;
    return t->tag.number + 1 - slots;
}

static void lock_one(dp_comm_t *comm)
{
    if (IF("one_lock_over_all"))
        pthread_mutex_lock(&comm->lock);
}

static void unlock_one(dp_comm_t *comm)
{
    if (IF("one_lock_over_all"))
        pthread_mutex_unlock(&comm->lock);
}

static void misbehave_in_a_step(dp_comm_t *comm)
{
    static void *kept;
    void *memory;

    if (IF("allocates_host_memory")) {
        memory = comm->host->allocate(comm->host, 64, 64);
        comm->host->release(comm->host, memory);
    }
    if (IF("allocates_device_memory") && comm->device_vt->allocate(comm->device, 64, &memory) == DP_OK)
        comm->device_vt->release(comm->device, memory);
    if (IF("allocates_by_malloc")) {
        memory = malloc(64);
        __atomic_store_n(&kept, memory, __ATOMIC_RELAXED); /* so that no compiler leaves it out */
        free(memory);
    }
    if (IF("prints"))
        puts("a message has gone");
}

static void pass_link(const wire_t *w)
{
    const char *link = getenv("DP_TEST_LINK");
    struct sched_param lowest = {.sched_priority = sched_get_priority_min(SCHED_RR)};
    struct timespec until;
    int a, b;
    double ms;

    if (!LINK || link == NULL || sscanf(link, "%d:%d:%lf", &a, &b, &ms) != 3 ||
        !((a == w->src && b == w->dst) || (a == w->dst && b == w->src)))
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(ms * 1e6);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_setschedparam(pthread_self(), SCHED_RR, &lowest); /* wakes up on time */
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        continue;
}

static dp_status_t run_send(void *arg)
{
    transfer_t *t = arg;
    dp_comm_t *comm = t->end->comm;
    wire_t *w = t->end->wire;
    char *slot = slot_of(w, t->tag.number);
    dp_status_t status = DP_OK;

    lock_one(comm);
    if (!IF("no_credit"))
        status = wait_for(comm, &w->credit, credit_for(t), "which has no slot for a send", w->dst);
    unlock_one(comm);
    if (status >= 0 && t->tag.bytes > LARGE && IF("large_sends_need_the_receiver"))
        status = wait_for(comm, &w->asked, t->tag.number + 1, "which has not asked for a message", w->dst);
    if (status < 0)
        return status;
    pass_link(w);
    misbehave_in_a_step(comm);
    if (IF("wrong_tag_sent"))
        t->tag.step++;
    w->tags[t->tag.number % w->config[0].slots] = t->tag;
    if (IF("from_given_back_early"))
        w->lent[t->tag.number % w->config[0].slots] = t->from;
    else if (IF("published_early")) {
        post(comm, &w->published, t->tag.number + 1);
        nap_ms(2);
    }
    if (IF("byte_behind_the_slot"))
        slot[w->config[0].slot_bytes] ^= 0x55;
    if (!IF("from_given_back_early"))
        memcpy(slot, t->from, IF("slot_bytes_sent") ? w->config[0].slot_bytes : t->tag.bytes);
    post_with(comm, "messages_leave_in_waits", &w->published, t->tag.number + 1);
    return DP_OK;
}

/* Matched: "I am here", once the slot is free. */
static dp_status_t run_announce(void *arg)
{
    transfer_t *t = arg;
    wire_t *w = t->end->wire;
    dp_status_t status = DP_OK;

    if (!IF("slot_overwritten"))
        status = wait_for(t->end->comm, &w->released, t->tag.number + 1 - w->config[0].slots, "a separate slot",
                          t->end->comm->rank);
    if (status >= 0 && !(IF("credit_lost") && t->tag.number >= 4))
        post(t->end->comm, &w->credit, t->tag.number + 1);
    return status;
}

static int as_expected(const dp_message_tag_t *found, const dp_message_tag_t *wanted)
{
    return IF("tag_ignored") || ((found->number == wanted->number || IF("number_ignored")) &&
                                 (found->step == wanted->step || IF("step_ignored")) &&
                                 (found->microbatch == wanted->microbatch || IF("microbatch_ignored")) &&
                                 (found->bytes == wanted->bytes || IF("bytes_ignored")));
}

static dp_status_t run_recv(void *arg)
{
    transfer_t *t = arg;
    dp_comm_t *comm = t->end->comm;
    wire_t *w = t->end->wire;
    uint32_t slot = t->tag.number % w->config[0].slots;
    dp_status_t status = DP_OK;

    if (IF("large_sends_need_the_receiver"))
        post(comm, &w->asked, t->tag.number + 1);
    lock_one(comm);
    if (!IF("returns_before_landed"))
        status = wait_for(comm, &w->published, t->tag.number + 1, "a message", w->src);
    unlock_one(comm);
    if (status < 0 || IF("returns_before_landed"))
        return status;
    if (IF("from_given_back_early")) {
        nap_ms(2);
        memcpy(slot_of(w, t->tag.number), w->lent[slot], t->tag.bytes);
    }
    if (!as_expected(&w->tags[slot], &t->tag))
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                       "message %u of rank %d on channel \"F chunk 1\" is not the expected one", t->tag.number,
                       comm->world[w->src]);
    return DP_OK;
}

static dp_status_t run_release(void *arg)
{
    transfer_t *t = arg;
    wire_t *w = t->end->wire;

    if (IF("credit_lost") && t->tag.number >= 3)
        return DP_OK;
    post_with(t->end->comm, "credits_leave_in_waits", MATCHED ? &w->released : &w->credit, t->tag.number + 1);
    return DP_OK;
}

static dp_status_t put(const struct member *m, dp_launch_fn fn, dp_stream_t *s)
{
    transfer_t t = {m->end, m->from, m->tag};

    return m->end->comm->device_vt->launch(s, fn, &t, sizeof(t));
}

static dp_status_t finish_bundle(dp_comm_t *comm, dp_stream_t *s)
{
    dp_status_t status = DP_OK;
    int n = comm->nmembers;

    comm->nmembers = 0;
    for (int i = 0; i < n && status >= 0 && MATCHED; i++)
        if (!comm->members[i].end->sends)
            status = put(&comm->members[i], run_announce, s);
    for (int i = 0; i < n && status >= 0; i++)
        if (comm->members[i].end->sends)
            status = put(&comm->members[i], run_send, s);
    for (int i = 0; i < n && status >= 0 && !IF("bundle_end_waits_for_nothing"); i++)
        if (!comm->members[i].end->sends)
            status = put(&comm->members[i], run_recv, s);
    return status;
}

static dp_status_t take_part(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, int sends,
                             dp_stream_t *s)
{
    dp_comm_t *comm = end->comm;

    if (!end->connected || end->sends != sends || (tag->number != end->count && !IF("any_number_taken")) ||
        tag->bytes > end->wire->config[end->sends].slot_bytes || comm->nmembers == MEMBERS ||
        (comm->in_bundle && s != comm->stream))
        return DP_FAIL(comm->host, DP_ERR_INVALID, "message %u: number %u is next, or the wrong end, size or stream",
                       tag->number, end->count);
    end->count++;
    comm->members[comm->nmembers++] = (struct member){end, from, *tag};
    return comm->in_bundle ? DP_OK : finish_bundle(comm, s);
}

static dp_status_t threads_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    return take_part(end, from, tag, 1, s);
}

static dp_status_t threads_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out,
                                dp_stream_t *s)
{
    dp_status_t status = take_part(end, NULL, expected, 0, s);

    if (status < 0)
        return status;
    if (IF("calls_block"))
        status = wait_for(end->comm, &end->wire->published, expected->number + 1, "a message", end->wire->src);
    *data_out = slot_of(end->wire, expected->number);
    return status;
}

static dp_status_t threads_release(dp_channel_end_t *end, uint32_t number, dp_stream_t *s)
{
    struct member m = {end, NULL, {.number = number}};
    transfer_t t = {end, NULL, m.tag};

    if (end->sends || ((number != end->released || number >= end->count) && !IF("any_release_taken")))
        return DP_FAIL(end->comm->host, DP_ERR_INVALID, "message %u is not the next to be released", number);
    end->released = number + 1;
    return IF("release_at_the_call") ? run_release(&t) : put(&m, run_release, s);
}

static dp_status_t threads_bundle_begin(dp_comm_t *comm, dp_stream_t *s)
{
    if (comm->in_bundle || IF("bundle_begin_fails"))
        return DP_FAIL(comm->host, DP_ERR_INVALID, "bundle_begin inside of a bundle");
    comm->in_bundle = 1;
    comm->stream = s;
    return DP_OK;
}

static dp_status_t threads_bundle_end(dp_comm_t *comm, dp_stream_t *s)
{
    if (!comm->in_bundle || s != comm->stream)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "bundle_end outside of a bundle, or on another stream");
    comm->in_bundle = 0;
    return finish_bundle(comm, s);
}

/* ---- exchanges ---- */

static size_t cell_of(const dp_exchange_t *x, int dst, uint32_t number, int src)
{
    size_t n = (size_t)x->comm->nranks;

    return ((size_t)dst * x->config.slots + number % x->config.slots) * n + (size_t)src;
}

static dp_status_t copy_rows(const rows_t *t)
{
    dp_comm_t *comm = t->x->comm;
    field_t *f = t->x->field;
    size_t row = t->x->config.row_bytes, capacity = t->x->config.capacity_rows;
    const int32_t *counts = IF("counts_read_at_the_call") ? t->early_counts : t->counts;
    const int32_t *offsets = IF("counts_read_at_the_call") ? t->early_offsets : t->offsets;
    dp_status_t status = DP_OK;

    for (int p = 0; p < comm->nranks && status >= 0; p++) {
        size_t cell = cell_of(t->x, p, t->number, comm->rank), n = (size_t)counts[p];
        uint32_t target = t->number + 1 - t->x->config.slots;

        if (IF("exchange_credit_more"))
            target--;
        if (!IF("exchange_overwrites"))
            status = wait_for(comm, &f->credit[p][comm->rank], target, "which has no slot for an exchange", p);
        if (status < 0)
            return status;
        if (n > capacity && IF("overflow_is_cut"))
            n = capacity;
        f->counts[cell] = (int32_t)n;
        if (IF("exchange_published_early")) {
            post(comm, &f->published[p][comm->rank], t->number + 1);
            nap_ms(3);
        }
        memcpy(f->rows + cell * capacity * row, t->send + (size_t)offsets[p] * row,
               (IF("capacity_sent") ? capacity : n) * row);
        post(comm, &f->published[p][comm->rank], t->number + 1);
    }
    return status;
}

static dp_status_t check_capacity(const rows_t *t)
{
    size_t capacity = t->x->config.capacity_rows;

    if (IF("capacity_more"))
        capacity++;
    if (IF("capacity_less"))
        capacity--;
    for (int p = 0; p < t->x->comm->nranks && !IF("overflow_is_cut"); p++)
        if (t->counts[p] < 0 || (size_t)t->counts[p] > capacity)
            return DP_FAIL(t->x->comm->host, DP_ERR_OVERFLOW,
                           "exchange \"%s\": %d rows for rank %d, there is room for %zu", t->x->label, t->counts[p],
                           t->x->comm->world[p], capacity);
    return DP_OK;
}

static dp_status_t run_post(void *arg)
{
    const rows_t *t = arg;
    dp_status_t status = check_capacity(t);

    return status >= 0 && !IF("rows_read_at_the_call") ? copy_rows(t) : status;
}

static dp_status_t run_wait(void *arg)
{
    const rows_t *t = arg;
    dp_comm_t *comm = t->x->comm;
    dp_status_t status = DP_OK;

    for (int p = 0; p < comm->nranks && status >= 0; p++)
        status = wait_for(comm, &t->x->field->published[comm->rank][p], t->number + 1, "rows", p);
    return status;
}

static dp_status_t run_exchange(void *arg)
{
    dp_status_t status = run_post(arg);

    return status < 0 ? status : run_wait(arg);
}

static dp_status_t check_and_hold(void *arg)
{
    return check_capacity(arg);
}

static dp_status_t launch_rows(dp_launch_fn run, rows_t *t, const void **rows_out, const int32_t **counts_out,
                               dp_stream_t *s)
{
    dp_exchange_t *x = t->x;
    size_t cell = cell_of(x, x->comm->rank, t->number, 0);

    if (!x->connected || t->number != x->count)
        return DP_FAIL(x->comm->host, DP_ERR_INVALID, "exchange \"%s\": number %u is next", x->label, x->count);
    x->count++;
    for (int p = 0; p < x->comm->nranks && IF("counts_read_at_the_call"); p++) {
        t->early_counts[p] = t->counts[p];
        t->early_offsets[p] = t->offsets[p];
    }
    if (IF("rows_read_at_the_call"))
        (void)copy_rows(t);
    *rows_out = x->field->rows + cell * x->config.capacity_rows * x->config.row_bytes;
    *counts_out = x->field->counts + cell;
    return x->comm->device_vt->launch(s, run, t, sizeof(*t));
}

static dp_status_t threads_exchange(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                                    const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                                    dp_stream_t *s)
{
    rows_t t = {x, number, send, send_offsets, send_counts, {0}, {0}};
    dp_status_t status;

    if (x->awaited != x->count)
        return DP_FAIL(x->comm->host, DP_ERR_INVALID, "exchange \"%s\": a post is not awaited", x->label);
    status = launch_rows(run_exchange, &t, rows_out, counts_out, s);
    x->awaited = x->count;
    return status;
}

static dp_status_t threads_exchange_post(dp_exchange_t *x, uint32_t number, const void *send,
                                         const int32_t *send_offsets, const int32_t *send_counts, const void **rows_out,
                                         const int32_t **counts_out, dp_stream_t *s)
{
    rows_t t = {x, number, send, send_offsets, send_counts, {0}, {0}};

    if (x->count - x->released >= x->config.slots && !IF("posts_more_than_slots"))
        return DP_FAIL(x->comm->host, DP_ERR_INVALID, "exchange \"%s\": no slot was released", x->label);
    if (IF("rows_leave_at_the_wait"))
        x->held = t;
    return launch_rows(IF("post_waits_for_peers")     ? run_exchange
                       : IF("rows_leave_at_the_wait") ? check_and_hold
                                                      : run_post,
                       &t, rows_out, counts_out, s);
}

static dp_status_t threads_exchange_wait(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    rows_t t = {x, number, NULL, NULL, NULL, {0}, {0}};

    if ((number != x->awaited || number == x->count) && !IF("any_wait_taken"))
        return DP_FAIL(x->comm->host, DP_ERR_INVALID, "exchange %u is not the next to be awaited", number);
    x->awaited++;
    if (IF("rows_leave_at_the_wait"))
        return x->comm->device_vt->launch(s, run_exchange, &x->held, sizeof(x->held));
    return IF("wait_waits_for_nothing") ? DP_OK : x->comm->device_vt->launch(s, run_wait, &t, sizeof(t));
}

static dp_status_t run_exchange_release(void *arg)
{
    const rows_t *t = arg;

    for (int p = 0; p < t->x->comm->nranks; p++)
        post(t->x->comm, &t->x->field->credit[t->x->comm->rank][p], t->number + 1);
    return DP_OK;
}

static dp_status_t threads_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    rows_t t = {x, number, NULL, NULL, NULL, {0}, {0}};

    if (number != x->released || number >= (IF("released_before_the_wait") ? x->count : x->awaited))
        return DP_FAIL(x->comm->host, DP_ERR_INVALID, "exchange %u is not the next to be released", number);
    x->released++;
    return IF("exchange_release_at_the_call") ? run_exchange_release(&t)
                                              : x->comm->device_vt->launch(s, run_exchange_release, &t, sizeof(t));
}

/* ---- sums ---- */

typedef struct sum {
    dp_comm_t *comm;
    char *data;
    size_t count;
    uint32_t number;
    dp_dtype_t dtype;
    size_t parts;
} sum_t;

static void add(void *to, const void *from, size_t count, dp_dtype_t dtype)
{
    for (size_t i = 0; i < count; i++)
        if (dtype == DP_F32)
            ((float *)to)[i] += ((const float *)from)[i];
        else if (dtype == DP_F64)
            ((double *)to)[i] += ((const double *)from)[i];
        else
            ((int64_t *)to)[i] = IF("integers_are_doubles")
                                     ? (int64_t)((double)((int64_t *)to)[i] + (double)((const int64_t *)from)[i])
                                     : ((int64_t *)to)[i] + ((const int64_t *)from)[i];
}

/* The rank whose element is added as the i-th. */
static int turn_of(const dp_comm_t *comm, int i)
{
    if (IF("sum_reversed"))
        return comm->nranks - 1 - i;
    return IF("sum_own_first") ? (comm->rank + i) % comm->nranks : i;
}

static char *staging_of(const dp_comm_t *comm, int rank)
{
    static char one_for_all[RANKS][65536];

    return IF("staging_is_shared") ? one_for_all[rank] : comm->shared->staging[rank];
}

static dp_status_t sum_block(const sum_t *t, size_t at, size_t count)
{
    dp_comm_t *comm = t->comm;
    shared_t *s = comm->shared;
    size_t bytes = dp_dtype_bytes(t->dtype);
    uint32_t q = comm->blocks++;
    char *data = t->data + at * bytes;
    dp_status_t status = DP_OK;

    memcpy(staging_of(comm, comm->rank), data, count * bytes);
    s->heads[comm->rank] = (head_t){t->count, t->number, t->dtype, IF("parts_not_compared") ? 0 : t->parts};
    post(comm, &s->staged[comm->rank], q + 1);
    for (int r = 0; r < comm->nranks && status >= 0 && !IF("gathered_early"); r++) {
        status = wait_for(comm, &s->staged[r], q + 1, "a sum", r);
        if (status >= 0 && (s->heads[r].count != t->count || s->heads[r].dtype != t->dtype ||
                            s->heads[r].parts != s->heads[comm->rank].parts))
            status = DP_FAIL(comm->host, DP_ERR_PROTOCOL, "rank %d sums %zu elements, rank %d %zu",
                             comm->world[comm->rank], t->count, comm->world[r], s->heads[r].count);
    }
    if (status < 0)
        return status;
    if (IF("sum_from_zero")) {
        memset(data, 0, count * bytes);
        add(data, staging_of(comm, 0), count, t->dtype);
    } else {
        memcpy(data, staging_of(comm, turn_of(comm, 0)), count * bytes);
    }
    for (int i = 1; i < comm->nranks; i++)
        add(data, staging_of(comm, turn_of(comm, i)), count, t->dtype);
    if (IF("other_bits_on_one_rank") && comm->rank == 1)
        data[0] ^= 1;
    post(comm, &s->summed[comm->rank], q + 1);
    for (int r = 0; r < comm->nranks && status >= 0; r++)
        status = wait_for(comm, &s->summed[r], q + 1, "a sum", r);
    return status;
}

static dp_status_t run_sum(void *arg)
{
    const sum_t *t = arg;
    size_t most = t->comm->shared->block / dp_dtype_bytes(t->dtype);
    dp_status_t status = DP_OK;

    for (size_t at = 0; at < t->count && status >= 0; at += most) {
        status = sum_block(t, at, t->count - at < most ? t->count - at : most);
        if (IF("only_the_first_piece_summed"))
            break;
    }
    return status;
}

static dp_status_t threads_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    sum_t t = {comm, data, count, comm->sums, dtype, 0};

    if (dtype != DP_F32 && dtype != DP_F64 && dtype != DP_I64)
        return DP_FAIL(comm->host, DP_ERR_UNSUPPORTED, "dtype %d is not summed", (int)dtype);
    comm->sums++;
    return count == 0 ? DP_OK : comm->device_vt->launch(s, run_sum, &t, sizeof(t));
}

/* What the other parts hold afterwards nobody may rely on. */
typedef struct part_sum {
    sum_t sum;
    size_t begin, end; /* bytes of our part */
} part_sum_t;

static dp_status_t run_scatter(void *arg)
{
    const part_sum_t *t = arg;
    char *data = t->sum.data;
    dp_status_t status = run_sum((void *)(uintptr_t)&t->sum);

    memset(data, 0xff, t->begin);
    memset(data + t->end, 0xff, t->sum.count * dp_dtype_bytes(t->sum.dtype) - t->end);
    return status;
}

static dp_status_t run_gather(void *arg)
{
    const part_sum_t *t = arg;
    char *data = t->sum.data;

    memset(data, 0, t->begin);
    memset(data + t->end, 0, t->sum.count * sizeof(uint64_t) - t->end);
    return IF("nothing_is_gathered") ? DP_OK : run_sum((void *)(uintptr_t)&t->sum);
}

/* bounds in elements of `unit` bytes */
static dp_status_t put_parts(dp_comm_t *comm, void *data, const size_t *bounds, size_t unit, dp_dtype_t dtype,
                             dp_launch_fn run, dp_stream_t *s)
{
    const int32_t own = IF("part_of_another") ? (comm->rank + 1) % comm->nranks : comm->rank;
    part_sum_t t = {{comm, data, bounds[comm->nranks] * unit / dp_dtype_bytes(dtype), comm->sums, dtype, 0},
                    bounds[own] * unit,
                    bounds[own + 1] * unit};

    for (int r = 0; r < comm->nranks; r++) {
        if (bounds[r] > bounds[r + 1])
            return DP_FAIL(comm->host, DP_ERR_INVALID, "bounds must rise");
        t.sum.parts = t.sum.parts * 31 + bounds[r + 1];
    }
    comm->sums++;
    return t.sum.count == 0 ? DP_OK : comm->device_vt->launch(s, run, &t, sizeof(t));
}

static dp_status_t threads_reduce_scatter(dp_comm_t *comm, void *data, const size_t *bounds, dp_dtype_t dtype,
                                          dp_stream_t *s)
{
    return put_parts(comm, data, bounds, dp_dtype_bytes(dtype), dtype, run_scatter, s);
}

static dp_status_t threads_all_gather(dp_comm_t *comm, void *data, const size_t *bounds, dp_stream_t *s)
{
    return put_parts(comm, data, bounds, 1, DP_I64, run_gather, s);
}

static const void *get_interface(const char *id)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool filled;
    static dp_comm_vt_t table = {
        .struct_size = sizeof(table),
        .caps = (MATCHED ? 0 : DP_COMM_CAP_ONE_SIDED | (LINK ? 0 : DP_COMM_CAP_HOST_INLINE)) |
                (FAR ? DP_COMM_CAP_HOSTS : 0),
        .open = threads_open,
        .close = threads_close,
        .channel_open = threads_channel_open,
        .exchange_open = threads_exchange_open,
        .start = threads_start,
        .send = threads_send,
        .recv = threads_recv,
        .release = threads_release,
        .exchange = threads_exchange,
        .exchange_release = threads_exchange_release,
        .all_reduce = threads_all_reduce,
        .memory_bytes = threads_memory_bytes,
        .exchange_post = threads_exchange_post,
        .exchange_wait = threads_exchange_wait,
    };

    if (strcmp(id, DP_IFACE_COMM) != 0)
        return NULL;
    pthread_mutex_lock(&lock); /* ranks ask side by side: the first fills it */
    if (!filled) {
        if (MATCHED) {
            table.bundle_begin = IF("bundle_begin_is_missing") ? NULL : threads_bundle_begin;
            table.bundle_end = threads_bundle_end;
            /* of the other kind the engine has them made */
            table.reduce_scatter = threads_reduce_scatter;
            table.all_gather = threads_all_gather;
        }
        if (IF("a_function_is_missing"))
            table.release = NULL;
        if (IF("posts_without_waits"))
            table.exchange_wait = NULL;
        filled = true;
    }
    pthread_mutex_unlock(&lock);
    return &table;
}

DP_PLUGIN_DEFINE(mock_comm_threads) = {
    DP_PLUGIN_HEAD, .name = NAME, .version = "0.1", .summary = "threads of one process", .get_interface = get_interface,
};
