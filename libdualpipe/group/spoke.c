/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * spoke.c: the ranks other than 0: finding rank 0, proving oneself, and hearing what it says. */
#include "group/process.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- connecting ---- */

#define NO_ANSWER "no answer (is that host up, and does a firewall let the port through?)"

static void try_again(dp__process_t *p, const char *why)
{
    int64_t pause_ms = 10 + 10 * (int64_t)(p->spoke.retries < 19 ? p->spoke.retries : 19);

    snprintf(p->join.trouble, sizeof(p->join.trouble), "%s", why);
    p->spoke.retries++;
    p->spoke.retry_ns = dp__now_ns() + pause_ms * 1000000;
}

/* What the system says, and what is most likely the matter. */
static void try_again_after(dp__process_t *p, int error)
{
    char why[DP__CAUSE_BYTES];

    if (error == ECONNREFUSED && p->join.lost[0] != '\0') {
        dp__door_text(p, why, sizeof(why));
        dp__cause_set(&p->cause, DP_ERR_PEER, "%.480s; nobody came in its place: %.400s", p->join.lost, why);
        return;
    }
    if (error == ETIMEDOUT) { /* dp__watch_host's limit came before the handshake's */
        try_again(p, NO_ANSWER);
        return;
    }
    snprintf(why, sizeof(why), "%s%s", strerror(error),
             error == ECONNREFUSED
                 ? " (nobody listens there: rank 0 has not started, or listens at another address or port)"
             : error == EHOSTUNREACH || error == ENETUNREACH || error == EACCES
                 ? " (there is no way to that address from here, or a firewall turns us away)"
                 : "");
    try_again(p, why);
}

static void start_connection(dp__process_t *p)
{
    int fd = socket(p->join.address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    dp__connection_t *c;

    p->spoke.retry_ns = 0;
    if (fd < 0) {
        try_again(p, strerror(errno));
        return;
    }
    if (connect(fd, (const struct sockaddr *)&p->join.address.storage, p->join.address.bytes) != 0 &&
        errno != EINPROGRESS) {
        try_again_after(p, errno);
        close(fd);
        return;
    }
    c = dp__connection_new(p, fd);
    if (c == NULL) {
        close(fd);
        dp__cause_set(&p->cause, DP_ERR_NOMEM, "rank %d: no memory for its connection to rank 0", p->group.rank);
        return;
    }
    dp__watch_host(fd);
    dp__enter_phase(c, DP__PHASE_CONNECTING);
}

/* A port without a listener may be given to the connecting socket itself, which then talks to
 * itself. */
static bool is_own_echo(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
    char a[64], b[64];

    memset(&here, 0, sizeof(here));
    memset(&there, 0, sizeof(there));
    if (getsockname(fd, (struct sockaddr *)&here, &here_bytes) != 0 ||
        getpeername(fd, (struct sockaddr *)&there, &there_bytes) != 0)
        return true;
    dp__address_text((struct sockaddr *)&here, here_bytes, a, sizeof(a));
    dp__address_text((struct sockaddr *)&there, there_bytes, b, sizeof(b));
    return strcmp(a, b) == 0;
}

static void say_hello(dp__process_t *p, dp__connection_t *c)
{
    dp__transcript_t *t = &c->transcript;
    unsigned char hello[12 + DP__NONCE_BYTES + DP__SHA256_BYTES];

    *t = (dp__transcript_t){.version = DP__PROTOCOL_VERSION, .rank = p->group.rank, .size = p->group.size};
    memcpy(t->digest, p->join.digest, DP__SHA256_BYTES);
    if (getrandom(t->rank_nonce, DP__NONCE_BYTES, 0) != DP__NONCE_BYTES) {
        dp__cause_set(&p->cause, DP_ERR_IO, "rank %d: the system has no random numbers: %s", p->group.rank,
                      strerror(errno));
        return;
    }
    dp__put_u32(hello, t->version);
    dp__put_u32(hello + 4, (uint32_t)t->rank);
    dp__put_u32(hello + 8, (uint32_t)t->size);
    memcpy(hello + 12, t->rank_nonce, DP__NONCE_BYTES);
    memcpy(hello + 12 + DP__NONCE_BYTES, t->digest, DP__SHA256_BYTES);
    dp__enter_phase(c, DP__PHASE_HELLO);
    dp__send(p, &(dp__frame_t){.type = DP__FRAME_HELLO, .bytes = sizeof(hello), .payload = hello});
}

void dp__spoke_connected(dp__process_t *p, dp__connection_t *c)
{
    int error = 0;
    socklen_t bytes = sizeof(error);

    if (getsockopt(c->wire.fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    if (error == 0 && is_own_echo(c->wire.fd))
        error = ECONNREFUSED;
    if (error == 0 || error == ECONNREFUSED)
        p->spoke.answered_ns = dp__now_ns();
    if (error != 0) {
        try_again_after(p, error);
        c->phase = DP__PHASE_GONE;
        return;
    }
    say_hello(p, c);
}

/* ---- handshake ---- */

static void hear_challenge(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame)
{
    uint8_t proof[DP__SHA256_BYTES];

    memcpy(c->transcript.hub_nonce, frame->payload, DP__NONCE_BYTES);
    dp__secret_prove(&p->join.secret, DP__LABEL_RANK_PROOF, &c->transcript, proof);
    dp__enter_phase(c, DP__PHASE_PROOF);
    dp__send(p, &(dp__frame_t){.type = DP__FRAME_PROOF, .bytes = sizeof(proof), .payload = proof});
}

static void hear_welcome(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame)
{
    const dp__peer_t *self = &p->peers.self;
    const dp__machine_t *here = &p->machines.all[self->machine];
    char text[DP__HOST_BYTES + DP__MACHINE_BYTES];
    size_t names;
    uint8_t wanted[DP__SHA256_BYTES], ours[DP__SHA256_BYTES], theirs[DP__SHA256_BYTES];

    dp__secret_prove(&p->join.secret, DP__LABEL_HUB_PROOF, &c->transcript, wanted);
    if (!dp__digest_equal(wanted, frame->payload)) {
        dp__cause_set(&p->cause, DP_ERR_SECURITY,
                      "rank %d: the program that listens at %s does not hold the job's secret", p->group.rank,
                      p->join.address.text);
        return;
    }
    dp__secret_prove(&p->join.secret, DP__LABEL_RANK_KEY, &c->transcript, ours);
    dp__secret_prove(&p->join.secret, DP__LABEL_HUB_KEY, &c->transcript, theirs);
    dp__wire_seal(&c->wire, ours, theirs);
    c->phase = DP__PHASE_WELCOME;
    c->deadline_ns = INT64_MAX;
    names = (size_t)snprintf(text, sizeof(text), "%s%c%s", here->host, 0, here->name) + 1;
    dp__send2(
        p,
        &(dp__frame_t){.type = DP__FRAME_INTRODUCE, .id = p->group.epoch, .value = self->pid, .extra = p->group.holds},
        text, names, p->join.settings, strlen(p->join.settings));
}

static void hear_refusal(dp__process_t *p, const dp__connection_t *c, const dp__frame_t *frame)
{
    dp__cause_set(&p->cause,
                  frame->value == DP_ERR_MISMATCH || frame->value == DP_ERR_RENDEZVOUS ? frame->value : DP_ERR_SECURITY,
                  "rank %d was refused by rank 0 at %s: %.300s%s", p->group.rank, p->join.address.text,
                  (const char *)frame->payload,
                  c->wire.sealed || frame->value != DP_ERR_SECURITY
                      ? ""
                      : " (DUALPIPE_SECRET_FILE must name the same secret for all ranks)");
}

static void hear_ready(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame)
{
    dp_status_t status = dp__peers_read(p, frame->payload, frame->payload + frame->bytes);

    if (status != DP_OK) {
        dp__cause_set(&p->cause, status, "rank %d: %s", p->group.rank,
                      status == DP_ERR_NOMEM ? "no memory for the table of ranks"
                                             : "the table of ranks that came from rank 0 is cut off");
        return;
    }
    explicit_bzero(&p->join.secret, sizeof(p->join.secret));
    p->group.epoch = frame->id;
    dp__watch_process(p, c, 0);
    c->phase = DP__PHASE_JOINED;
    dp__signal_post(&p->join.done, 1);
}

/* ---- what rank 0 says later ---- */

static void hear_reply(dp__process_t *p, const dp__frame_t *frame)
{
    for (dp__request_t **at = &p->requests.open; *at != NULL; at = &(*at)->next) {
        dp__request_t *request = *at;

        if (request->id != frame->id)
            continue;
        *at = request->next;
        request->status = frame->value;
        if (frame->value != DP_OK)
            snprintf(request->message, sizeof(request->message), "%s", (const char *)frame->payload);
        else if (frame->bytes != request->bytes)
            request->bytes = frame->bytes; /* the caller sees that it differs */
        else if (frame->bytes > 0)
            memcpy(request->data, frame->payload, frame->bytes);
        dp__signal_post(&request->done, 1);
        return;
    }
}

static void hear_all(dp__process_t *p, const dp__frame_t *frame)
{
    if (frame->id != p->control.number || frame->id != dp__signal_value(&p->control.over) + 1)
        return;
    if (frame->bytes > 0 && p->control.all_out != NULL && frame->extra == p->control.received &&
        frame->bytes <= p->control.bytes - p->control.received) {
        memcpy((char *)p->control.all_out + p->control.received, frame->payload, frame->bytes);
        p->control.received += frame->bytes;
    }
    if (p->control.received == p->control.bytes)
        dp__signal_post(&p->control.over, frame->id);
}

static void hear_cause(dp__process_t *p, const dp__frame_t *frame)
{
    if (frame->extra != 0)
        dp__cause_set_final(&p->cause, frame->value, "%s", (const char *)frame->payload);
    else
        dp__cause_set(&p->cause, frame->value, "%s", (const char *)frame->payload);
    dp__send(p, &(dp__frame_t){.type = DP__FRAME_SEEN});
}

/* false: rank 0 would not say that now. */
static bool hear_frame(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame)
{
    switch (frame->type) {
    case DP__FRAME_CHALLENGE:
        if (c->phase != DP__PHASE_HELLO || frame->bytes != DP__NONCE_BYTES || !dp__frame_is_bare(frame))
            return false;
        hear_challenge(p, c, frame);
        return true;
    case DP__FRAME_WELCOME:
        if (c->phase != DP__PHASE_PROOF || frame->bytes != DP__SHA256_BYTES || !dp__frame_is_bare(frame))
            return false;
        hear_welcome(p, c, frame);
        return true;
    case DP__FRAME_REFUSED:
        if (c->phase > DP__PHASE_WELCOME || !dp__frame_is_bare(frame))
            return false;
        hear_refusal(p, c, frame);
        return true;
    case DP__FRAME_CAUSE:
        if (!c->wire.sealed)
            return false;
        hear_cause(p, frame);
        return true;
    case DP__FRAME_BEAT:
        return c->wire.sealed && dp__news_hear(p, 0, frame);
    default:
        break;
    }
    if (c->phase == DP__PHASE_WELCOME && frame->type == DP__FRAME_READY) {
        hear_ready(p, c, frame);
        return true;
    }
    if (c->phase != DP__PHASE_JOINED)
        return false;
    switch (frame->type) {
    case DP__FRAME_REPLY:
        hear_reply(p, frame);
        return true;
    case DP__FRAME_ALL:
        hear_all(p, frame);
        return true;
    case DP__FRAME_WANT:
        dp__answer_want(p, frame);
        return true;
    case DP__FRAME_DATA:
        dp__take_data(p, frame);
        return true;
    case DP__FRAME_CLOCK:
        return dp__clock_hear(p, frame);
    case DP__FRAME_ASK:
        dp__hang_report_tell(p, frame->value != 0);
        return true;
    default:
        return false;
    }
}

void dp__spoke_frame(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame)
{
    if (!hear_frame(p, c, frame)) {
        dp__spoke_lost(p, c, DP_ERR_PROTOCOL);
        c->phase = DP__PHASE_GONE;
    }
}

/* ---- losing it ---- */

void dp__spoke_lost(dp__process_t *p, dp__connection_t *c, dp_status_t status)
{
    if (p->over || dp__cause_is_set(&p->cause))
        return;
    if (!c->wire.sealed || (p->group.respawn && dp__signal_value(&p->join.done) == 0)) {
        try_again(p, status == DP_ERR_PROTOCOL ? "what listens there is not rank 0 of a job" : "it hung up");
    } else if (status == DP_ERR_PEER) {
        dp__peer_died(p, 0, c->wire.error);
    } else {
        dp__cause_set(&p->cause, status, "rank %d: %s", p->group.rank,
                      status == DP_ERR_NOMEM ? "no memory for what rank 0 sends"
                                             : "what arrives on the connection to rank 0 is not from the job");
    }
}

/* Not even the system of rank 0's host answers. For the first time it may not be up yet. */
static bool is_cut_off(const dp__process_t *p, const dp__connection_t *c, int64_t now_ns)
{
    return p->join.lost[0] != '\0' && (c == NULL || c->phase == DP__PHASE_CONNECTING) &&
           now_ns - p->spoke.answered_ns >= dp__scaled_ns(DP__SILENCE_SECONDS);
}

static void join_is_late(dp__process_t *p, const dp__connection_t *c, int64_t now_ns)
{
    char text[160], hint[384];

    if (c != NULL && c->phase == DP__PHASE_WELCOME) {
        snprintf(text, sizeof(text), "rank %d waited %.3g s for the others", p->group.rank,
                 (double)p->join.limit_ns * 1e-9);
        dp__propose(p, DP_ERR_RENDEZVOUS, text, 0); /* rank 0 knows who is missing */
        return;
    }
    if (p->join.lost[0] != '\0') {
        dp__cause_set(&p->cause, DP_ERR_PEER, "%.640s; rank %d waited %.3g s for rank 0 at %s: %s", p->join.lost,
                      p->group.rank, (double)(now_ns - p->join.deadline_ns + p->join.limit_ns) * 1e-9,
                      p->join.address.text, p->join.trouble[0] != '\0' ? p->join.trouble : NO_ANSWER);
        return;
    }
    dp__address_hint(&p->join.address, dp__host_of(p, p->group.rank), hint, sizeof(hint));
    dp__cause_set(&p->cause, DP_ERR_RENDEZVOUS, "rank %d waited %.3g s for rank 0 at %s%s%s%s", p->group.rank,
                  (double)p->join.limit_ns * 1e-9, p->join.address.text, p->join.trouble[0] != '\0' ? ": " : "",
                  p->join.trouble, hint);
}

void dp__spoke_tick(dp__process_t *p, int64_t now_ns)
{
    dp__connection_t *c = dp__hub_connection(p);

    if (dp__signal_value(&p->join.done) != 0 || dp__cause_is_set(&p->cause) || p->stop)
        return;
    if (c != NULL && now_ns >= c->deadline_ns && c->phase != DP__PHASE_GONE) {
        try_again(p, c->phase == DP__PHASE_CONNECTING ? NO_ANSWER : "it does not go on with the handshake");
        c->phase = DP__PHASE_GONE;
    }
    if (is_cut_off(p, c, now_ns) || now_ns >= p->join.deadline_ns)
        join_is_late(p, c, now_ns);
    else if (c == NULL && now_ns >= p->spoke.retry_ns)
        start_connection(p);
}
