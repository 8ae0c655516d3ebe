/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * hub.c: rank 0: who may come in, the key-value store, control collectives, and word of the end. */
#include "base/memory.h"
#include "group/process.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPTS_AT_ONCE 16

static size_t stranger_limit(const dp__process_t *p)
{
    return 2 * (size_t)p->group.size + 16;
}

/* ---- strangers ---- */

#define NO_RANK "it does not speak as a rank does"

/* Whoever is at the port can make us write this: rarely. */
static void log_stranger(dp__process_t *p, const dp__connection_t *c, const char *why)
{
    int64_t now = dp__now_ns();

    p->hub.strangers++;
    if (now < p->hub.next_log_ns)
        return;
    p->hub.next_log_ns = now + 10000000000;
    dp_log(DP_LOG_WARN, "group", "rank 0 dropped a connection from %s: %s (%u so far)", c->from, why, p->hub.strangers);
}

static void drop_stranger(dp__process_t *p, dp__connection_t *c, const char *why)
{
    log_stranger(p, c, why);
    c->phase = DP__PHASE_GONE;
}

static bool is_stranger(const dp__connection_t *c)
{
    return c->phase < DP__PHASE_WELCOME;
}

/* A crowd cannot keep others out: who has stood in the door longest goes first. */
static void limit_strangers(dp__process_t *p)
{
    dp__connection_t *oldest = NULL;
    size_t strangers = 0;

    for (size_t i = 0; i < p->connections.count; i++)
        if (is_stranger(p->connections.all[i])) {
            strangers++;
            if (oldest == NULL) /* they lie in the order they came in */
                oldest = p->connections.all[i];
        }
    if (strangers > stranger_limit(p))
        drop_stranger(p, oldest, "too many connections that do not say who they are");
}

static void take_in(dp__process_t *p, int fd, const struct sockaddr *from, socklen_t bytes)
{
    dp__connection_t *c = dp__connection_new(p, fd);

    if (c == NULL) {
        close(fd);
        return;
    }
    dp__watch_host(fd);
    dp__enter_phase(c, DP__PHASE_HELLO);
    dp__address_text(from, bytes, c->from, sizeof(c->from));
    limit_strangers(p);
}

void dp__hub_accept(dp__process_t *p)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE && p->hub.listener >= 0; i++) {
        struct sockaddr_storage from;
        socklen_t bytes = sizeof(from);
        int fd = accept4(p->hub.listener, (struct sockaddr *)&from, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            take_in(p, fd, (struct sockaddr *)&from, bytes);
            continue;
        }
        if (errno == EINVAL && p->group.respawn) {
            dp__hub_door_shut(p);
            return;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            /* it would be readable all the time */
            p->hub.accept_again_ns = dp__now_ns() + 100000000;
            dp_log(DP_LOG_WARN, "group", "rank 0 cannot take in a connection: %s", strerror(errno));
        }
        return;
    }
}

/* ---- handshake ---- */

static void refuse_connection(dp__connection_t *c, dp_status_t status, const char *text)
{
    dp__frame_t frame = {.type = DP__FRAME_REFUSED,
                         .value = status,
                         .bytes = (uint32_t)strlen(text),
                         .payload = (const unsigned char *)text};

    c->closing = true;
    if (!dp__wire_send(&c->wire, &frame))
        c->phase = DP__PHASE_GONE;
}

/* For the list of who is missing. */
static void note_trouble(dp__process_t *p, const char *text)
{
    if (strstr(p->join.trouble, text) == NULL && strlen(p->join.trouble) + strlen(text) + 3 < sizeof(p->join.trouble))
        dp__append(p->join.trouble, sizeof(p->join.trouble), "; %s", text);
}

static void hear_hello(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame)
{
    dp__transcript_t *t = &c->transcript;
    const unsigned char *at = frame->payload;

    if (frame->type != DP__FRAME_HELLO || frame->bytes != 12 + DP__NONCE_BYTES + DP__SHA256_BYTES) {
        drop_stranger(p, c, NO_RANK);
        return;
    }
    *t = (dp__transcript_t){
        .version = dp__get_u32(at), .rank = (int32_t)dp__get_u32(at + 4), .size = (int32_t)dp__get_u32(at + 8)};
    memcpy(t->rank_nonce, at + 12, DP__NONCE_BYTES);
    memcpy(t->digest, at + 12 + DP__NONCE_BYTES, DP__SHA256_BYTES);
    if (t->version != DP__PROTOCOL_VERSION) {
        note_trouble(p, "one with another version of libdualpipe was refused");
        refuse_connection(c, DP_ERR_MISMATCH, "rank 0 was built with another version of libdualpipe");
        return;
    }
    if (!dp__frame_is_bare(frame) || t->rank < 1 || t->rank >= DP_MAX_RANKS || t->size < 2 || t->size > DP_MAX_RANKS ||
        t->rank >= t->size || getrandom(t->hub_nonce, DP__NONCE_BYTES, 0) != DP__NONCE_BYTES) {
        c->phase = DP__PHASE_GONE;
        return;
    }
    dp__enter_phase(c, DP__PHASE_PROOF);
    if (!dp__wire_send(&c->wire,
                       &(dp__frame_t){.type = DP__FRAME_CHALLENGE, .bytes = DP__NONCE_BYTES, .payload = t->hub_nonce}))
        c->phase = DP__PHASE_GONE;
}

static void hear_proof(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame)
{
    uint8_t wanted[DP__SHA256_BYTES], proof[DP__SHA256_BYTES], ours[DP__SHA256_BYTES], theirs[DP__SHA256_BYTES];
    char text[128];

    if (!dp__frame_is_bare(frame)) {
        drop_stranger(p, c, NO_RANK);
        return;
    }
    dp__secret_prove(&p->join.secret, DP__LABEL_RANK_PROOF, &c->transcript, wanted);
    if (frame->type != DP__FRAME_PROOF || frame->bytes != DP__SHA256_BYTES ||
        !dp__digest_equal(wanted, frame->payload)) {
        snprintf(text, sizeof(text), "one that called itself rank %d did not hold the secret", c->transcript.rank);
        log_stranger(p, c, text);
        note_trouble(p, text);
        refuse_connection(c, DP_ERR_SECURITY, "it holds another secret");
        return;
    }
    dp__secret_prove(&p->join.secret, DP__LABEL_HUB_PROOF, &c->transcript, proof);
    dp__secret_prove(&p->join.secret, DP__LABEL_HUB_KEY, &c->transcript, ours);
    dp__secret_prove(&p->join.secret, DP__LABEL_RANK_KEY, &c->transcript, theirs);
    dp__enter_phase(c, DP__PHASE_WELCOME);
    if (!dp__wire_send(&c->wire, &(dp__frame_t){.type = DP__FRAME_WELCOME, .bytes = sizeof(proof), .payload = proof}))
        c->phase = DP__PHASE_GONE;
    dp__wire_seal(&c->wire, ours, theirs);
}

/* ---- introductions ---- */

static void send_ready(dp__process_t *p)
{
    unsigned char *table;
    const size_t bytes = dp__peers_write(p, &table);

    if (table == NULL) {
        dp__cause_set(&p->cause, DP_ERR_NOMEM, "rank 0: no memory for the table of ranks");
        return;
    }
    for (int32_t r = 1; r < p->group.size; r++)
        dp__send(
            p, &(dp__frame_t){
                   .type = DP__FRAME_READY, .to = r, .id = p->group.epoch, .bytes = (uint32_t)bytes, .payload = table});
    dp__free(table);
}

static void all_are_here(dp__process_t *p)
{
    if (!p->group.respawn) {
        close(p->hub.listener);
        p->hub.listener = -1;
    }
    for (size_t i = 0; i < p->connections.count; i++)
        if (is_stranger(p->connections.all[i]))
            p->connections.all[i]->phase = DP__PHASE_GONE;
    explicit_bzero(&p->join.secret, sizeof(p->join.secret));
    dp__hub_drop_guards(p);
    p->peers.self.held = p->group.holds;
    p->group.epoch++;
    send_ready(p);
    dp__signal_post(&p->join.done, 1);
}

/* What keeps this rank from joining; true when nothing does. */
static bool may_join(dp__process_t *p, dp__connection_t *c, const char *host, const char *settings)
{
    int32_t rank = c->transcript.rank;
    char text[DP__CAUSE_BYTES], differences[DP__CAUSE_BYTES - 128], name[128];

    if (c->transcript.size != p->group.size) {
        dp__cause_set(&p->cause, DP_ERR_MISMATCH, "rank %d (on %s) was started as one of %d ranks, rank 0 as one of %d",
                      rank, host, c->transcript.size, p->group.size);
        return false;
    }
    if (p->contacts[rank].connection != NULL || dp__peer(p, rank).pid != 0) {
        dp__peer_name(p, rank, name, sizeof(name));
        snprintf(text, sizeof(text), "there is a rank %d already: %s", rank, name);
        refuse_connection(c, DP_ERR_RENDEZVOUS, text);
        snprintf(text, sizeof(text), "a second rank %d was refused", rank);
        note_trouble(p, text);
        return false;
    }
    if (!dp__digest_equal(c->transcript.digest, p->join.digest) &&
        !dp__settings_equal(p->join.settings, 0, settings, rank, differences, sizeof(differences))) {
        dp__cause_set(&p->cause, DP_ERR_MISMATCH, "the ranks were started with different settings: %s", differences);
        return false;
    }
    return true;
}

static void hear_introduction(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame)
{
    /* where there is a NUL */
    const char *host = (const char *)frame->payload, *end = host + frame->bytes;
    const char *machine = host + strlen(host) + 1, *settings = machine <= end ? machine + strlen(machine) + 1 : machine;
    const int32_t rank = c->transcript.rank;
    int32_t where;

    if (frame->type != DP__FRAME_INTRODUCE || frame->value < 1 || settings > end || machine - host > DP__HOST_BYTES ||
        settings - machine > DP__MACHINE_BYTES) {
        c->phase = DP__PHASE_GONE;
        return;
    }
    if (dp__cause_is_set(&p->cause) || !may_join(p, c, host, settings))
        return; /* it hears the cause */
    where = dp__machine_add(p, host, machine);
    if (where < 0) {
        dp__cause_set(&p->cause, DP_ERR_NOMEM, "rank 0: no memory for the table of ranks");
        return;
    }
    p->peers.rows[rank] = (dp__peer_t){rank, frame->value, where, frame->extra};
    if (frame->id > p->group.epoch) /* we have come in the place of a rank 0 that died */
        p->group.epoch = frame->id;
    p->contacts[rank].connection = c;
    dp__watch_process(p, c, rank);
    c->rank = rank;
    c->phase = DP__PHASE_JOINED;
    c->deadline_ns = INT64_MAX;
    if (++p->hub.introduced == p->group.size)
        all_are_here(p);
}

/* Until all are here, whoever goes may be replaced. */
static void forget_member(dp__process_t *p, dp__connection_t *c)
{
    p->peers.rows[c->rank] = (dp__peer_t){c->rank, 0, -1, 0};
    p->contacts[c->rank].connection = NULL;
    p->hub.introduced--;
}

/* ---- the key-value store ---- */

void dp__hub_forget_gets(dp__process_t *p)
{
    while (p->hub.waiting_gets != NULL) {
        dp__waiting_get_t *get = p->hub.waiting_gets;

        p->hub.waiting_gets = get->next;
        dp__free(get);
    }
}

static void reply(dp__process_t *p, int32_t to, uint32_t id, dp_status_t status, const void *data, size_t bytes)
{
    dp__send(
        p,
        &(dp__frame_t){
            .type = DP__FRAME_REPLY, .to = to, .id = id, .value = status, .bytes = (uint32_t)bytes, .payload = data});
}

static void reply_error(dp__process_t *p, int32_t to, uint32_t id, dp_status_t status)
{
    reply(p, to, id, status, dp_last_error(), strlen(dp_last_error()));
}

void dp__hub_answer_gets(dp__process_t *p)
{
    for (dp__waiting_get_t **at = &p->hub.waiting_gets; *at != NULL;) {
        dp__waiting_get_t *get = *at;
        const dp__kv_entry_t *entry = dp__kv_find(&p->hub.kv, get->key);

        if (entry == NULL) {
            at = &get->next;
            continue;
        }
        reply(p, get->rank, get->id, DP_OK, entry->data, entry->bytes);
        *at = get->next;
        dp__free(get);
    }
}

static bool read_key(const void *from, size_t bytes, char key[DP__KV_KEY_BYTES])
{
    if (bytes == 0 || bytes >= DP__KV_KEY_BYTES || memchr(from, 0, bytes) != NULL)
        return false;
    memcpy(key, from, bytes);
    key[bytes] = '\0';
    return true;
}

static bool hear_put(dp__process_t *p, int32_t rank, const dp__frame_t *frame)
{
    char key[DP__KV_KEY_BYTES];
    size_t bytes;
    dp_status_t status;

    if (frame->extra > frame->bytes || !read_key(frame->payload, frame->extra, key))
        return false;
    bytes = frame->bytes - frame->extra;
    status = dp__kv_check(key, bytes);
    if (status == DP_OK)
        status = dp__kv_put(&p->hub.kv, key, frame->payload + frame->extra, bytes, frame->value != 0);
    if (status != DP_OK) {
        reply_error(p, rank, frame->id, status);
        return true;
    }
    reply(p, rank, frame->id, DP_OK, NULL, 0);
    dp__hub_answer_gets(p);
    return true;
}

static bool hear_get(dp__process_t *p, int32_t rank, const dp__frame_t *frame)
{
    dp__waiting_get_t *get;
    char key[DP__KV_KEY_BYTES];

    if (!read_key(frame->payload, frame->bytes, key))
        return false;
    get = dp__calloc(1, sizeof(*get));
    if (get == NULL) {
        reply_error(p, rank, frame->id, dp_fail(DP_ERR_NOMEM, "rank 0: no memory to look up \"%s\"", key));
        return true;
    }
    get->rank = rank;
    get->id = frame->id;
    memcpy(get->key, key, sizeof(key));
    get->next = p->hub.waiting_gets;
    p->hub.waiting_gets = get;
    dp__hub_answer_gets(p);
    return true;
}

/* ---- control collectives ---- */

static bool begin_gather(dp__process_t *p, const dp__control_t *control)
{
    size_t total = control->bytes * (size_t)p->group.size; /* at most 4096 * 64 KiB */

    if (total > p->hub.gather.room) {
        dp__free(p->hub.gather.data);
        p->hub.gather.room = 0;
        p->hub.gather.data = dp__allocate(total, 16);
        if (p->hub.gather.data == NULL) {
            dp__cause_set(&p->cause, DP_ERR_NOMEM, "rank 0: no memory to gather everybody's bytes");
            return false;
        }
        p->hub.gather.room = total;
    }
    p->hub.gather.control = *control;
    return true;
}

static void end_gather(dp__process_t *p)
{
    size_t total = p->hub.gather.control.bytes * (size_t)p->group.size, offset = 0;

    do { /* at least one frame, also when there is nothing to carry */
        size_t bytes = total - offset < DP__CHUNK_BYTES ? total - offset : DP__CHUNK_BYTES;

        for (int32_t r = 1; r < p->group.size; r++)
            dp__send(p, &(dp__frame_t){.type = DP__FRAME_ALL,
                                       .to = r,
                                       .id = p->hub.gather.number,
                                       .extra = (uint32_t)offset,
                                       .bytes = (uint32_t)bytes,
                                       .payload = p->hub.gather.data + offset});
        offset += bytes;
    } while (offset < total);
    if (p->hub.gather.control.kind == DP__CONTROL_LEAVE)
        p->over = true;
    if (p->hub.gather.control.kind == DP__CONTROL_SETTLE)
        dp__kv_settle(&p->hub.kv);
    if (total > 0 && p->control.all_out != NULL && p->control.bytes == total)
        memcpy(p->control.all_out, p->hub.gather.data, total);
    dp__signal_post(&p->control.over, p->hub.gather.number);
    p->hub.gather.number++;
    p->hub.gather.arrived = 0;
    memset(p->hub.gather.here, 0, (size_t)p->group.size * sizeof(bool));
}

void dp__hub_contribute(dp__process_t *p, int32_t rank, uint32_t control, uint32_t kind, uint32_t root,
                        const void *data, size_t bytes)
{
    const dp__control_t own = {kind, root, bytes, rank};

    if (dp__cause_is_set(&p->cause))
        return;
    if (p->hub.gather.arrived == 0 && !begin_gather(p, &own))
        return;
    if (!dp__control_match(&p->cause, &p->hub.gather.control, &own))
        return;
    if (control != p->hub.gather.number || p->hub.gather.here[rank]) {
        dp__cause_set(&p->cause, DP_ERR_PROTOCOL, "rank %d is in control collective %u, rank 0 gathers number %u", rank,
                      control, p->hub.gather.number);
        return;
    }
    p->hub.gather.here[rank] = true;
    if (bytes > 0)
        memcpy(p->hub.gather.data + (size_t)rank * bytes, data, bytes);
    if (++p->hub.gather.arrived == p->group.size)
        end_gather(p);
}

bool dp__hub_hear_step(dp__process_t *p, int32_t rank, const dp__step_call_t *call)
{
    const uint64_t size = (uint64_t)p->group.size, own = (uint64_t)rank;
    char text[DP__CAUSE_BYTES];

    if (call->first > own || call->count > size || call->first + call->count > size || call->count == 0 ||
        own - call->first >= call->count)
        return false;
    if (!dp__steps_hear(p->hub.said, p->group.size, rank, call, text, sizeof(text)))
        dp__cause_set(&p->cause, DP_ERR_MISMATCH, "%s", text);
    dp__pace_hear(p->hub.paces, p->group.size, rank, call);
    return true;
}

static bool hear_step(dp__process_t *p, int32_t rank, const dp__frame_t *frame)
{
    uint64_t words[DP__STEP_WORDS];
    dp__step_call_t call;

    if (frame->bytes != sizeof(words))
        return false;
    memcpy(words, frame->payload, sizeof(words));
    for (int i = 0; i < DP__STEP_WORDS; i++)
        words[i] = le64toh(words[i]);
    memcpy(&call, words, sizeof(call));
    return dp__hub_hear_step(p, rank, &call);
}

/* ---- the end ---- */

/* "rank 2 died in ...; nobody came in place of rank 2; rank 3 lives and has not come again (rank 3,
 * pid 17: process state T, stopped): rank 0 waited 60 s". waited: for as long as a living rank may
 * take; without it only those are late that are stopped. */
static void reform_failed(dp__process_t *p, bool waited, const char *why)
{
    dp__rank_list_t dead = {0}, late = {0};
    char text[DP__CAUSE_BYTES] = "";
    int32_t stopped = -1;

    for (int32_t r = 1; r < p->group.size; r++) {
        const dp__peer_t *before = &p->hub.before[r];
        const bool stops = dp__same_place(p, before) && dp__process_state(before->pid) == 'T';

        if (dp__peer(p, r).pid != 0)
            continue;
        if (before->pid == 0)
            dp__rank_list_add(&dead, r);
        else if (waited || stops)
            dp__rank_list_add(&late, r);
        stopped = stops ? r : stopped;
    }
    if (dead.count > 0)
        dp__append(text, sizeof(text), "; nobody came in place of rank %s", dp__rank_list_text(&dead));
    if (late.count > 0)
        dp__append(text, sizeof(text),
                   late.count > 1 ? "; ranks %s live and have not come again"
                                  : "; rank %s lives and has not come again",
                   dp__rank_list_text(&late));
    if (stopped >= 0)
        dp__append(text, sizeof(text), " (rank %d, pid %d: process state T, stopped)", stopped,
                   p->hub.before[stopped].pid);
    dp__cause_set(&p->cause, DP_ERR_PEER, "%.480s%.240s: %.220s", p->join.lost, text, why);
}

/* "...: of 4 ranks these did not reach it: 2, 3; a second rank 1 was refused" */
static void join_failed(dp__process_t *p, const char *why)
{
    dp__rank_list_t missing = {0};
    char hint[384];

    if (p->join.lost[0] != '\0') {
        reform_failed(p, true, why);
        return;
    }
    dp__address_hint(&p->join.address, dp__host_of(p, 0), hint, sizeof(hint));
    for (int32_t r = 1; r < p->group.size; r++)
        if (dp__peer(p, r).pid == 0)
            dp__rank_list_add(&missing, r);
    dp__cause_set(&p->cause, DP_ERR_RENDEZVOUS, "%.300s: of %d ranks these did not reach %s: %s%s%s", why,
                  p->group.size, p->join.address.text, dp__rank_list_text(&missing), p->join.trouble, hint);
}

void dp__hub_door_shut(dp__process_t *p)
{
    char why[DP__CAUSE_BYTES];

    close(p->hub.listener);
    p->hub.listener = -1;
    dp__door_text(p, why, sizeof(why));
    /* who came in place of a dead rank, when others were done already, has lost nobody either */
    if (p->join.lost[0] == '\0')
        dp__cause_set(&p->cause, DP_ERR_PEER, "%.480s before all ranks had joined", why);
    else
        reform_failed(p, false, why); /* the living are on their way */
}

static void name_missing(const dp__process_t *p, const char *text, char *longer, size_t bytes)
{
    dp__rank_list_t missing = {0};

    for (int32_t r = 0; r < p->group.size; r++)
        if (!p->hub.gather.here[r])
            dp__rank_list_add(&missing, r);
    snprintf(longer, bytes, "%.700s for ranks %s", text, dp__rank_list_text(&missing));
}

void dp__hub_abort(dp__process_t *p, int32_t rank, dp_status_t status, const char *text, uint32_t control)
{
    char longer[DP__CAUSE_BYTES];

    if (status == DP_ERR_RENDEZVOUS && dp__signal_value(&p->join.done) == 0) {
        join_failed(p, text);
        return;
    }
    if (control != 0 && control == p->hub.gather.number && p->hub.gather.arrived > 0) {
        name_missing(p, text, longer, sizeof(longer));
        text = longer;
    }
    if (status != DP_ERR_TIMEOUT || !dp__hang_report_open(p, rank, status, text))
        dp__cause_set(&p->cause, status, "%s", text);
}

void dp__hub_spread(dp__process_t *p)
{
    dp__frame_t frame = {.type = DP__FRAME_CAUSE, .payload = (const unsigned char *)p->cause.message};

    if (dp__cause_check(&p->cause) == DP_OK)
        return;
    frame.value = p->cause.status;
    frame.extra = p->cause.final;
    frame.bytes = (uint32_t)strlen(p->cause.message);
    for (size_t i = 0; i < p->connections.count; i++) {
        dp__connection_t *c = p->connections.all[i];

        if (!c->wire.sealed || c->cause_sent || c->closing || c->phase == DP__PHASE_GONE)
            continue;
        c->cause_sent = true;
        if (!dp__wire_send(&c->wire, &frame))
            c->phase = DP__PHASE_GONE; /* it will take that for our end, which it is */
    }
}

bool dp__hub_done(const dp__process_t *p)
{
    /* ranks that are still on their way to a join that has failed hear why, if they come soon */
    if (dp__signal_value(&p->join.done) == 0 && p->hub.told < p->group.size - 1)
        return false;
    for (size_t i = 0; i < p->connections.count; i++) {
        const dp__connection_t *c = p->connections.all[i];

        if (is_stranger(c) || c->phase == DP__PHASE_GONE)
            continue;
        if (dp__wire_pending(&c->wire) || (!p->over && !c->closing && !c->cause_seen))
            return false;
    }
    return true;
}

void dp__hub_lost(dp__process_t *p, dp__connection_t *c, dp_status_t status)
{
    char name[128];

    if (is_stranger(c)) {
        if (status == DP_ERR_PROTOCOL)
            drop_stranger(p, c, NO_RANK);
        return;
    }
    if (c->closing || c->phase != DP__PHASE_JOINED || p->over)
        return;
    if (p->hub.gather.arrived > 0 && p->hub.gather.control.kind == DP__CONTROL_LEAVE && p->hub.gather.here[c->rank])
        return; /* it had nothing left to do */
    if (p->group.respawn && dp__signal_value(&p->join.done) == 0) {
        forget_member(p, c);
        return;
    }
    if (status == DP_ERR_PEER) {
        if (!c->gave_up || !dp__hang_report_left(p))
            dp__peer_died(p, c->rank, c->wire.error);
        return;
    }
    dp__peer_name(p, c->rank, name, sizeof(name));
    dp__cause_set(&p->cause, status, "%s: %s", name,
                  status == DP_ERR_NOMEM ? "rank 0 has no memory for what it sends"
                                         : "what arrives on its connection is not from the job");
}

/* ---- hosts of ranks that are on their way to join again ---- */

/* A host that is cut off would be waited for as long as for a process that takes its time. The
 * connections of before stay open, one for each host, until all have come: the kernel finds out
 * whether that host still answers. Who has not heard yet that the epoch is over hears it by the end
 * of the connection. */
static void watch_guard(dp__process_t *p, const dp__connection_t *c)
{
    const int one = 1, probes = 5, limit_ms = (int)(dp__scaled_ns(DP__SILENCE_SECONDS) / 1000000);
    const int fd = fcntl(c->wire.fd, F_DUPFD_CLOEXEC, 0);

    if (fd < 0)
        return;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof(limit_ms));
    if (!c->cause_seen)
        (void)shutdown(fd, SHUT_WR);
    p->hub.guards[c->rank] = fd + 1;
}

/* Whoever has no connection has died, or has let go of it before us. */
static bool is_alive(const dp__process_t *p, int32_t r)
{
    const dp__peer_t peer = dp__peer(p, r);
    const char state = peer.pid != 0 && dp__same_place(p, &peer) ? dp__process_state(peer.pid) : '\0';

    return state != '\0' && state != 'Z' && state != 'X';
}

void dp__hub_remember(dp__process_t *p)
{
    dp__hub_drop_guards(p);
    for (int32_t r = 1; r < p->group.size; r++) {
        const dp__connection_t *c = p->contacts[r].connection;
        const bool joined = c != NULL && c->phase == DP__PHASE_JOINED;
        bool guarded = dp__is_near(p, r);

        p->hub.before[r] = joined || is_alive(p, r) ? dp__peer(p, r) : (dp__peer_t){r, 0, -1, 0};
        if (!joined)
            continue;
        for (int32_t other = 1; other < r && !guarded; other++)
            guarded = p->hub.guards[other] != 0 && dp__same_machine(p, r, other);
        if (!guarded)
            watch_guard(p, c);
    }
}

void dp__hub_drop_guards(dp__process_t *p)
{
    for (int32_t r = 0; dp__is_hub(p) && p->hub.guards != NULL && r < p->group.size; r++) {
        if (p->hub.guards[r] != 0)
            close(p->hub.guards[r] - 1);
        p->hub.guards[r] = 0;
    }
}

/* A rank that was stopped when the others joined again does not come by itself. */
static void replace_stopped(dp__process_t *p, int64_t now_ns)
{
    if (p->join.lost[0] == '\0' || now_ns < p->join.deadline_ns - p->join.limit_ns + p->group.hang_ns)
        return;
    for (int32_t r = 1; r < p->group.size; r++) {
        const int32_t pid = p->hub.before[r].pid;

        if (pid == 0 || dp__peer(p, r).pid != 0 || !dp__same_place(p, &p->hub.before[r]) ||
            dp__process_state(pid) != 'T' || dp__process_traced(pid))
            continue;
        dp__ends_tell(&p->join.ends, "hung", r, pid, "is stopped and does not join again");
        p->hub.before[r].pid = 0;
    }
}

static void heed_guards(dp__process_t *p)
{
    char rest[4096];

    for (int32_t r = 1; r < p->group.size && dp__signal_value(&p->join.done) == 0; r++) {
        const int fd = p->hub.guards[r] - 1;
        ssize_t n = 1;

        if (fd < 0 || dp__cause_is_set(&p->cause))
            continue;
        while (n > 0)
            n = recv(fd, rest, sizeof(rest), MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n < 0 && errno != ECONNRESET && errno != EPIPE)
            dp__cause_set_final(&p->cause, DP_ERR_PEER, "%.640s; the host of rank %d (%s) is out of reach: %s",
                                p->join.lost, r, p->machines.all[p->hub.before[r].machine].host, strerror(errno));
        close(fd); /* it is on its way to us, or has died */
        p->hub.guards[r] = 0;
    }
}

void dp__hub_tick(dp__process_t *p, int64_t now_ns)
{
    char text[64];

    if (p->hub.accept_again_ns != 0 && now_ns >= p->hub.accept_again_ns)
        p->hub.accept_again_ns = 0;
    for (size_t i = 0; i < p->connections.count; i++) {
        dp__connection_t *c = p->connections.all[i];

        if (now_ns >= c->deadline_ns && c->phase != DP__PHASE_GONE)
            drop_stranger(p, c, "it took too long to say who it is");
    }
    heed_guards(p);
    if (dp__signal_value(&p->join.done) == 0)
        replace_stopped(p, now_ns);
    if (dp__signal_value(&p->join.done) == 0 && now_ns >= p->join.deadline_ns) {
        snprintf(text, sizeof(text), "rank 0 waited %.3g s", (double)p->join.limit_ns * 1e-9);
        join_failed(p, text);
    }
}

/* ---- frames ---- */

static void relay(dp__process_t *p, const dp__frame_t *frame)
{
    if (frame->to != 0)
        dp__send(p, frame);
    else if (frame->type == DP__FRAME_WANT)
        dp__answer_want(p, frame);
    else
        dp__take_data(p, frame);
}

static void hear_seen(dp__process_t *p, dp__connection_t *c)
{
    p->hub.told += !c->cause_seen;
    c->cause_seen = true;
}

/* false: no rank of this job would say that. */
static bool hear_member(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame)
{
    switch (frame->type) {
    case DP__FRAME_PUT:
        return hear_put(p, c->rank, frame);
    case DP__FRAME_GET:
        return hear_get(p, c->rank, frame);
    case DP__FRAME_GATHER:
        if (frame->bytes > DP__GATHER_BYTES)
            return false;
        dp__hub_contribute(p, c->rank, frame->id, (uint32_t)frame->value, frame->extra, frame->payload, frame->bytes);
        return true;
    case DP__FRAME_WANT:
    case DP__FRAME_DATA:
        if (frame->from != c->rank || frame->to < 0 || frame->to >= p->group.size)
            return false;
        relay(p, frame);
        return true;
    case DP__FRAME_ABORT:
        c->gave_up = true;
        if (frame->extra != 0)
            dp__cause_set(&p->cause, frame->value, "%s", (const char *)frame->payload);
        else
            dp__hub_abort(p, c->rank, frame->value, (const char *)frame->payload, frame->id);
        return true;
    case DP__FRAME_SEEN:
        hear_seen(p, c);
        return true;
    case DP__FRAME_BEAT:
        return dp__news_hear(p, c->rank, frame);
    case DP__FRAME_CLOCK:
        return dp__clock_answer(p, c->rank, frame);
    case DP__FRAME_TELL:
        return dp__hang_report_hear(p, c->rank, frame);
    case DP__FRAME_STEP:
        return hear_step(p, c->rank, frame);
    default:
        return false;
    }
}

void dp__hub_frame(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame)
{
    switch (c->phase) {
    case DP__PHASE_HELLO:
        hear_hello(p, c, frame);
        return;
    case DP__PHASE_PROOF:
        hear_proof(p, c, frame);
        return;
    case DP__PHASE_WELCOME:
        if (frame->type == DP__FRAME_SEEN)
            hear_seen(p, c);
        else
            hear_introduction(p, c, frame);
        return;
    default:
        break;
    }
    if (!hear_member(p, c, frame)) {
        dp__hub_lost(p, c, DP_ERR_PROTOCOL);
        c->phase = DP__PHASE_GONE;
    }
}
