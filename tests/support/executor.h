/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * executor.h: runs a program as ranks would, with random timing, and looks at the data that move.
 * It shares no code with the library: a second opinion on what verify accepts.
 *
 * Data are labels: an activation or gradient is (op, path, stage, micro-batch). Every operation
 * checks the labels it reads. */
#ifndef TESTS_EXECUTOR_H
#define TESTS_EXECUTOR_H

#include <dualpipe/program.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    EX_CREDITS, /* K slots per channel, sends in line with computing */
    EX_BUNDLES, /* untagged rendezvous in bundles, one after the other, beside computing */
    /* untagged rendezvous, one instruction after the other: a transfer needs both ranks at it, a
     * sum of mirrors too */
    EX_STRICT
} ex_mode_t;

typedef struct {
    bool full;
    int number, microbatch; /* tag */
    int label;              /* data */
} ex_slot_t;

typedef struct {
    ex_slot_t *slot; /* [slots] */
    int slots, sent, received, released;
} ex_channel_t;

typedef struct {
    int pc;      /* next instruction */
    int *bound;  /* [instrs] RECV: number of the message it stands for, -1: not reached */
    int *label;  /* [chunks * mbs * 2] what F and B made here: label, -1 nothing */
    char *done;  /* [chunks * mbs] bit 0 F, 1 input gradient, 2 weight gradient */
    char *begun; /* [chunks * mbs] the same for passes of braids that have begun and not ended */
    int *owner;  /* [chunks * most slots] */
    int reduced[DP_MAX_CHUNKS], nreduced;
    /* bundles */
    int bundle, nbundles; /* posted or to be posted */
    bool posted;
} ex_rank_t;

typedef struct {
    const dp_program_t *p;
    const dp_schedule_t *s;
    ex_mode_t mode;
    int mbs, most_slots;
    ex_channel_t *channel;
    ex_rank_t *rank;
    /* bundles: [ranks * ranks * limit] instruction numbers posted, in order */
    int *pair_sends, *pair_recvs;
    int *nsends, *nrecvs; /* [ranks * ranks] */
    int limit;
    bool wrong; /* data or order went wrong: the program is bad whatever comes */
} ex_t;

static inline const dp_instr_t *ex_instr(const ex_t *x, int r, int i)
{
    return &x->p->instrs[x->p->first[r] + i];
}
static inline int ex_count(const ex_t *x, int r)
{
    return (int)(x->p->first[r + 1] - x->p->first[r]);
}

/* What stage (rank, chunk) makes for mb: forward or backward. */
static inline int ex_label(const ex_t *x, bool forward, int r, int c, int microbatch)
{
    dp_place_t place;

    dp_schedule_place(x->s, r, c, &place);
    return ((place.path * 100000 + place.stage) * 1000 + microbatch) * 2 + forward;
}

/* The label that the forward or backward of (rank, chunk, mb) has to read; -1: nothing. */
static inline int ex_wanted(const ex_t *x, bool forward, int r, int c, int microbatch, int *from_rank, int *from_chunk)
{
    dp_place_t place;

    dp_schedule_place(x->s, r, c, &place);
    *from_rank = forward ? place.prev_rank : place.next_rank;
    *from_chunk = forward ? place.prev_chunk : place.next_chunk;
    return *from_rank < 0 ? -1 : ex_label(x, forward, *from_rank, *from_chunk, microbatch);
}

static inline int *ex_made(const ex_t *x, int r, int c, int microbatch, bool forward)
{
    return &x->rank[r].label[(c * x->mbs + microbatch) * 2 + forward];
}

/* ---- one operation ---- */

/* 0: its input is not there yet; 1: it is, or the program is wrong. */
static inline int ex_input_ready(ex_t *x, int r, int in)
{
    const dp_instr_t *recv;
    ex_channel_t *c;

    if (in < 0)
        return 1;
    if (in >= ex_count(x, r) || (recv = ex_instr(x, r, in))->kind != DP_INSTR_RECV || x->rank[r].bound[in] < 0) {
        x->wrong = true; /* uses a receive that was not posted before it */
        return 1;
    }
    c = &x->channel[recv->channel];
    return x->mode == EX_BUNDLES ? recv->bundle < x->rank[r].bundle : x->rank[r].bound[in] < c->sent;
}

static inline void ex_read_input(ex_t *x, int r, bool forward, int chunk, int microbatch, int in)
{
    int from_rank, from_chunk, wanted = ex_wanted(x, forward, r, chunk, microbatch, &from_rank, &from_chunk);
    const dp_instr_t *recv;
    ex_channel_t *c;
    ex_slot_t *slot;

    if (wanted < 0 || from_rank == r) {
        x->wrong |= in >= 0;
        if (wanted >= 0 && *ex_made(x, r, from_chunk, microbatch, forward) != wanted)
            x->wrong = true;
        return;
    }
    if (in < 0) {
        x->wrong = true;
        return;
    }
    recv = ex_instr(x, r, in);
    c = &x->channel[recv->channel];
    slot = &c->slot[x->rank[r].bound[in] % c->slots];
    if (!slot->full || slot->label != wanted || slot->number != x->rank[r].bound[in] ||
        slot->microbatch != recv->microbatch)
        x->wrong = true;
}

/* Slots go back in order. */
static inline void ex_release(ex_t *x, int r, int in)
{
    const dp_instr_t *recv;
    ex_channel_t *c;

    if (in < 0 || x->wrong)
        return;
    recv = ex_instr(x, r, in);
    c = &x->channel[recv->channel];
    if (x->rank[r].bound[in] != c->released)
        x->wrong = true;
    c->slot[c->released % c->slots].full = false;
    c->released++;
}

static inline void ex_slot_of(ex_t *x, int r, int chunk, int microbatch, int slot, bool take, bool give)
{
    int *owner;

    if (slot < 0 || slot >= x->p->activation_slots[r * x->p->chunks + chunk]) {
        x->wrong = true;
        return;
    }
    owner = &x->rank[r].owner[chunk * x->most_slots + slot];
    if (*owner != (take ? -1 : microbatch))
        x->wrong = true;
    *owner = give ? -1 : microbatch;
}

static inline void ex_mark(ex_t *x, int r, int chunk, int microbatch, int bit, int needed)
{
    char *done = &x->rank[r].done[chunk * x->mbs + microbatch];

    if ((*done & bit) || (*done & needed) != needed)
        x->wrong = true;
    *done |= (char)bit;
}

static inline void ex_forward(ex_t *x, int r, int chunk, int microbatch, int in, int slot, bool braided)
{
    ex_read_input(x, r, true, chunk, microbatch, in);
    ex_mark(x, r, chunk, microbatch, 1, 0);
    ex_slot_of(x, r, chunk, microbatch, slot, !braided, x->s->forward_only);
    *ex_made(x, r, chunk, microbatch, true) = ex_label(x, true, r, chunk, microbatch);
}

static inline void ex_backward(ex_t *x, int r, int chunk, int microbatch, int in, int slot, bool full)
{
    ex_read_input(x, r, false, chunk, microbatch, in);
    ex_mark(x, r, chunk, microbatch, full ? 6 : 2, 1);
    ex_slot_of(x, r, chunk, microbatch, slot, false, full);
    *ex_made(x, r, chunk, microbatch, false) = ex_label(x, false, r, chunk, microbatch);
}

/* A pass of a braid begins, or ends. */
static inline void ex_flip(ex_t *x, int r, const dp_instr_t *i, bool begun)
{
    char *bits = &x->rank[r].begun[i->chunk * x->mbs + i->microbatch];
    char bit = i->op == DP_OP_F ? 1 : i->op == DP_OP_W ? 4 : 2;

    if (i->op > DP_OP_W || ((*bits & bit) != 0) != begun)
        x->wrong = true;
    *bits ^= bit;
}

/* Whether a start names no receive, or that of something else, for what comes from another rank. */
static inline bool ex_names_another(const ex_t *x, int r, const dp_instr_t *i)
{
    int from_rank, from_chunk, wanted = -1;
    const dp_instr_t *recv;

    if (i->op != DP_OP_W)
        wanted = ex_wanted(x, i->op == DP_OP_F, r, i->chunk, i->microbatch, &from_rank, &from_chunk);
    if (wanted < 0 || from_rank == r)
        return i->in >= 0;
    if (i->in < 0)
        return true;
    recv = ex_instr(x, r, i->in);
    return recv->microbatch != i->microbatch || recv->chunk != i->chunk || recv->peer != from_rank ||
           (recv->op == DP_OP_F) != (i->op == DP_OP_F) || x->p->channels[recv->channel].src_chunk != from_chunk;
}

/* 0: has to wait. What it will read is there, what it needs from this rank was made, its slot is
 * its own. */
static inline int ex_start(ex_t *x, int r, const dp_instr_t *i)
{
    int from_rank, from_chunk, wanted;
    char done;

    if (i->chunk < 0 || i->chunk >= x->p->chunks || i->microbatch < 0 || i->microbatch >= x->mbs || i->op > DP_OP_W) {
        x->wrong = true;
        return 1;
    }
    if (!ex_input_ready(x, r, i->in))
        return 0;
    if (x->wrong)
        return 1;
    ex_flip(x, r, i, false);
    done = x->rank[r].done[i->chunk * x->mbs + i->microbatch];
    if (i->op == DP_OP_F ? (done & 1) != 0 : i->op == DP_OP_W ? (done & 3) != 3 : (done & 3) != 1)
        x->wrong = true;
    if (i->op != DP_OP_W) {
        wanted = ex_wanted(x, i->op == DP_OP_F, r, i->chunk, i->microbatch, &from_rank, &from_chunk);
        if (wanted >= 0 && from_rank == r && *ex_made(x, r, from_chunk, i->microbatch, i->op == DP_OP_F) != wanted)
            x->wrong = true;
    }
    x->wrong |= ex_names_another(x, r, i);
    ex_slot_of(x, r, i->chunk, i->microbatch, i->slot, i->op == DP_OP_F, false);
    return 1;
}

/* 0: has to wait */
static inline int ex_compute(ex_t *x, int r, const dp_instr_t *i)
{
    if (i->chunk < 0 || i->chunk >= x->p->chunks || i->microbatch < 0 || i->microbatch >= x->mbs || i->op > DP_OP_FB ||
        (i->op == DP_OP_FB &&
         (i->chunk2 < 0 || i->chunk2 >= x->p->chunks || i->microbatch2 < 0 || i->microbatch2 >= x->mbs))) {
        x->wrong = true;
        return 1;
    }
    if (!ex_input_ready(x, r, i->in) || !ex_input_ready(x, r, i->in2))
        return 0;
    if (i->number >= 0)
        ex_flip(x, r, i, true);
    if (x->wrong)
        return 1;
    if (i->op == DP_OP_F || i->op == DP_OP_FB)
        ex_forward(x, r, i->chunk, i->microbatch, i->in, i->slot, i->number >= 0);
    if (i->op == DP_OP_FB)
        ex_backward(x, r, i->chunk2, i->microbatch2, i->in2, i->slot2, true);
    if (i->op == DP_OP_B || i->op == DP_OP_I)
        ex_backward(x, r, i->chunk, i->microbatch, i->in, i->slot, i->op == DP_OP_B);
    if (i->op == DP_OP_W) {
        ex_mark(x, r, i->chunk, i->microbatch, 4, 3);
        ex_slot_of(x, r, i->chunk, i->microbatch, i->slot, false, true);
    }
    ex_release(x, r, i->in);
    ex_release(x, r, i->in2);
    return 1;
}

static inline void ex_reduce(ex_t *x, int r, const dp_instr_t *i)
{
    dp_place_t place;

    if (i->chunk < 0 || i->chunk >= x->p->chunks || x->s->forward_only || x->rank[r].nreduced == DP_MAX_CHUNKS) {
        x->wrong = true;
        return;
    }
    dp_schedule_place(x->s, r, i->chunk, &place);
    for (int k = 0; k < x->rank[r].nreduced; k++)
        x->wrong |= x->rank[r].reduced[k] == place.stage;
    x->wrong |= i->peer != place.mirror_rank;
    for (int microbatch = 0; microbatch < x->mbs; microbatch++)
        x->wrong |= !(x->rank[r].done[i->chunk * x->mbs + microbatch] & 4);
    x->rank[r].reduced[x->rank[r].nreduced++] = place.stage;
}

/* ---- transfers ---- */

static inline bool ex_ends_fit(ex_t *x, int r, const dp_instr_t *i)
{
    const dp_channel_t *c;

    if (i->channel < 0 || i->channel >= x->p->nchannels || i->microbatch < 0 || i->microbatch >= x->mbs) {
        x->wrong = true;
        return false;
    }
    c = &x->p->channels[i->channel];
    if (i->kind == DP_INSTR_SEND ? c->src != r || c->dst != i->peer : c->dst != r || c->src != i->peer)
        x->wrong = true;
    return !x->wrong;
}

static inline int ex_data_of_send(ex_t *x, int r, const dp_instr_t *i)
{
    int label = *ex_made(x, r, i->chunk, i->microbatch, i->op == DP_OP_F);

    if (label < 0)
        x->wrong = true; /* sends what does not exist yet */
    return label;
}

static inline void ex_fill(ex_t *x, ex_channel_t *c, const dp_instr_t *i, int label)
{
    if (i->number != c->sent)
        x->wrong = true;
    c->slot[c->sent % c->slots] = (ex_slot_t){true, i->number, i->microbatch, label};
    c->sent++;
}

static inline int ex_send(ex_t *x, int r, const dp_instr_t *i)
{
    ex_channel_t *c;

    if (!ex_ends_fit(x, r, i))
        return 1;
    c = &x->channel[i->channel];
    if (c->sent - c->released == c->slots)
        return 0;
    ex_fill(x, c, i, ex_data_of_send(x, r, i));
    return 1;
}

static inline void ex_recv(ex_t *x, int r, int at, const dp_instr_t *i)
{
    if (!ex_ends_fit(x, r, i))
        return;
    x->rank[r].bound[at] = x->channel[i->channel].received++;
    if (x->rank[r].bound[at] != i->number)
        x->wrong = true;
}

/* One step of the compute lane; false: it has to wait, or is at its end. */
static inline bool ex_step(ex_t *x, int r)
{
    ex_rank_t *k = &x->rank[r];
    const dp_instr_t *i;
    int gone = 1;

    if (k->pc == ex_count(x, r))
        return false;
    i = ex_instr(x, r, k->pc);
    if (i->kind == DP_INSTR_COMPUTE)
        gone = ex_compute(x, r, i);
    else if (i->kind == DP_INSTR_START)
        gone = ex_start(x, r, i);
    else if (i->kind == DP_INSTR_REDUCE)
        ex_reduce(x, r, i);
    else if (x->mode != EX_BUNDLES && i->kind == DP_INSTR_SEND)
        gone = ex_send(x, r, i);
    else if (x->mode != EX_BUNDLES)
        ex_recv(x, r, k->pc, i);
    k->pc += gone;
    return gone != 0;
}

/* ---- one thing at a time ---- */

/* Both ranks stand at the two ends of one message: it moves, and both go on. */
static inline bool ex_strict_step(ex_t *x, int r)
{
    ex_rank_t *k = &x->rank[r];
    const dp_instr_t *i, *j;

    if (k->pc == ex_count(x, r))
        return false;
    i = ex_instr(x, r, k->pc);
    if (i->kind == DP_INSTR_COMPUTE || i->kind == DP_INSTR_START || i->peer < 0 || i->peer >= x->p->ranks)
        return ex_step(x, r);
    if (x->rank[i->peer].pc == ex_count(x, i->peer))
        return false;
    j = ex_instr(x, i->peer, x->rank[i->peer].pc);
    if (i->kind == DP_INSTR_REDUCE) {
        if (j->kind != DP_INSTR_REDUCE)
            return false;
        ex_reduce(x, r, i);
        ex_reduce(x, i->peer, j);
        k->pc++;
        x->rank[i->peer].pc++;
        return true;
    }
    if (i->kind != DP_INSTR_SEND || j->kind != DP_INSTR_RECV || j->peer != r)
        return false; /* receivers are served by their senders */
    if (!ex_ends_fit(x, r, i) || !ex_ends_fit(x, i->peer, j) || i->channel != j->channel ||
        i->microbatch != j->microbatch) {
        x->wrong = true;
        return true;
    }
    ex_recv(x, i->peer, x->rank[i->peer].pc, j);
    if (x->channel[i->channel].sent - x->channel[i->channel].released == x->channel[i->channel].slots)
        x->wrong = true; /* no slot */
    ex_fill(x, &x->channel[i->channel], i, ex_data_of_send(x, r, i));
    k->pc++;
    x->rank[i->peer].pc++;
    return true;
}

/* ---- bundles ---- */

/* The host enqueues everything in the order of the list: a send must stand behind what makes its
 * data. */
static inline void ex_enqueue(ex_t *x, int r)
{
    char *made = calloc((size_t)(x->p->chunks * x->mbs), 1);

    for (int i = 0; i < ex_count(x, r) && !x->wrong; i++) {
        const dp_instr_t *t = ex_instr(x, r, i);

        if ((t->kind == DP_INSTR_COMPUTE || t->kind == DP_INSTR_START) && (t->in >= i || t->in2 >= i))
            x->wrong = true; /* uses a receive that stands below it */
        if (t->kind == DP_INSTR_COMPUTE && t->chunk >= 0 && t->chunk < x->p->chunks && t->microbatch >= 0 &&
            t->microbatch < x->mbs) {
            made[t->chunk * x->mbs + t->microbatch] |= t->op == DP_OP_F || t->op == DP_OP_FB ? 1
                                                       : t->op != DP_OP_W                    ? 2
                                                                                             : 0;
            if (t->op == DP_OP_FB && t->chunk2 >= 0 && t->chunk2 < x->p->chunks && t->microbatch2 >= 0 &&
                t->microbatch2 < x->mbs)
                made[t->chunk2 * x->mbs + t->microbatch2] |= 2;
        }
        if (t->kind != DP_INSTR_SEND && t->kind != DP_INSTR_RECV)
            continue;
        if (!ex_ends_fit(x, r, t))
            break;
        if (t->kind == DP_INSTR_RECV)
            ex_recv(x, r, i, t);
        else if (!(made[t->chunk * x->mbs + t->microbatch] & (t->op == DP_OP_F ? 1 : 2)))
            x->wrong = true;
        if (t->bundle + 1 > x->rank[r].nbundles)
            x->rank[r].nbundles = t->bundle + 1;
    }
    free(made);
}

static inline bool ex_can_post(ex_t *x, int r)
{
    for (int i = 0; i < ex_count(x, r); i++) {
        const dp_instr_t *t = ex_instr(x, r, i);
        const ex_channel_t *c;

        if ((t->kind != DP_INSTR_SEND && t->kind != DP_INSTR_RECV) || t->bundle != x->rank[r].bundle)
            continue;
        c = &x->channel[t->channel];
        if (t->kind == DP_INSTR_SEND ? *ex_made(x, r, t->chunk, t->microbatch, t->op == DP_OP_F) < 0
                                     : x->rank[r].bound[i] - c->released >= c->slots)
            return false;
    }
    return true;
}

static inline void ex_post(ex_t *x, int r)
{
    for (int i = 0; i < ex_count(x, r); i++) {
        const dp_instr_t *t = ex_instr(x, r, i);
        int pair = t->kind == DP_INSTR_SEND ? r * x->p->ranks + t->peer : t->peer * x->p->ranks + r;

        if (t->bundle != x->rank[r].bundle)
            continue;
        if (t->kind == DP_INSTR_SEND)
            x->pair_sends[pair * x->limit + x->nsends[pair]++] = i;
        else if (t->kind == DP_INSTR_RECV)
            x->pair_recvs[pair * x->limit + x->nrecvs[pair]++] = i;
    }
    x->rank[r].posted = true;
}

/* The n-th send of a pair meets the n-th receive; its data move when both are posted. */
static inline bool ex_met(ex_t *x, int r)
{
    for (int i = 0; i < ex_count(x, r); i++) {
        const dp_instr_t *t = ex_instr(x, r, i);
        bool sends = t->kind == DP_INSTR_SEND;
        int pair = sends ? r * x->p->ranks + t->peer : t->peer * x->p->ranks + r;
        int *mine, *theirs, n, at = -1;

        if ((!sends && t->kind != DP_INSTR_RECV) || t->bundle != x->rank[r].bundle)
            continue;
        mine = (sends ? x->pair_sends : x->pair_recvs) + pair * x->limit;
        theirs = (sends ? x->pair_recvs : x->pair_sends) + pair * x->limit;
        n = (sends ? x->nsends : x->nrecvs)[pair];
        for (int k = 0; k < n; k++)
            if (mine[k] == i)
                at = k;
        if (at >= (sends ? x->nrecvs : x->nsends)[pair])
            return false;
        if (!sends) { /* the receiver copies */
            const dp_instr_t *send = ex_instr(x, t->peer, theirs[at]);

            if (send->channel != t->channel || send->microbatch != t->microbatch)
                x->wrong = true;
        }
    }
    return true;
}

static inline bool ex_bundle_step(ex_t *x, int r)
{
    ex_rank_t *k = &x->rank[r];

    if (k->bundle >= k->nbundles)
        return false;
    if (!k->posted) {
        if (!ex_can_post(x, r))
            return false;
        ex_post(x, r);
        return true;
    }
    if (!ex_met(x, r))
        return false;
    for (int i = 0; i < ex_count(x, r) && !x->wrong; i++) {
        const dp_instr_t *t = ex_instr(x, r, i);

        if (t->kind == DP_INSTR_RECV && t->bundle == k->bundle) {
            int label = *ex_made(x, t->peer, x->p->channels[t->channel].src_chunk, t->microbatch, t->op == DP_OP_F);

            ex_fill(x, &x->channel[t->channel], t, label);
        }
    }
    k->bundle++;
    k->posted = false;
    return true;
}

/* ---- whole ---- */

static inline bool ex_all_done(const ex_t *x)
{
    for (int r = 0; r < x->p->ranks; r++) {
        dp_place_t place;

        if (x->rank[r].pc < ex_count(x, r) || (x->mode == EX_BUNDLES && x->rank[r].bundle < x->rank[r].nbundles))
            return false;
        for (int i = 0; i < x->p->chunks * x->mbs; i++)
            if (x->rank[r].done[i] != (x->s->forward_only ? 1 : 7))
                return false;
        if (x->rank[r].nreduced != (x->s->forward_only ? 0 : x->p->chunks))
            return false;
        dp_schedule_place(x->s, r, 0, &place);
        for (int k = 0; place.mirror_rank >= 0 && k < x->rank[r].nreduced; k++)
            if (x->rank[r].reduced[k] != x->rank[place.mirror_rank].reduced[k])
                return false;
    }
    for (int c = 0; c < x->p->nchannels; c++)
        if (x->p->channels[c].src != x->p->channels[c].dst &&
            (x->channel[c].received != x->mbs || x->channel[c].released != x->mbs))
            return false;
    return true;
}

/* Runs the program; timing follows from seed. true: it completes with the right data. */
static inline bool ex_run(const dp_program_t *p, ex_mode_t mode, unsigned seed)
{
    ex_t x = {.p = p, .s = p->schedule, .mode = mode};
    size_t ranks = (size_t)p->ranks;
    int lanes = p->ranks * (mode == EX_BUNDLES ? 2 : 1), idle = 0;
    bool ok;

    x.mbs = dp_schedule_path_microbatches(p->schedule, 0);
    for (int i = 0; i < p->ranks * p->chunks; i++)
        x.most_slots = p->activation_slots[i] > x.most_slots ? p->activation_slots[i] : x.most_slots;
    x.limit = 4 * x.mbs * p->chunks + 4;
    x.channel = calloc((size_t)p->nchannels + 1, sizeof(*x.channel));
    x.rank = calloc(ranks, sizeof(*x.rank));
    x.nsends = calloc(ranks * ranks, sizeof(int));
    x.nrecvs = calloc(ranks * ranks, sizeof(int));
    x.pair_sends = calloc(ranks * ranks * (size_t)x.limit, sizeof(int));
    x.pair_recvs = calloc(ranks * ranks * (size_t)x.limit, sizeof(int));
    for (int c = 0; c < p->nchannels; c++) {
        x.channel[c].slots = p->channels[c].slots;
        x.channel[c].slot = calloc((size_t)x.channel[c].slots, sizeof(ex_slot_t));
    }
    for (int r = 0; r < p->ranks; r++) {
        ex_rank_t *k = &x.rank[r];

        k->bound = malloc(sizeof(int) * (size_t)(ex_count(&x, r) + 1));
        memset(k->bound, 0xff, sizeof(int) * (size_t)(ex_count(&x, r) + 1));
        k->label = malloc(sizeof(int) * (size_t)(p->chunks * x.mbs * 2));
        memset(k->label, 0xff, sizeof(int) * (size_t)(p->chunks * x.mbs * 2));
        k->done = calloc((size_t)(p->chunks * x.mbs), 1);
        k->begun = calloc((size_t)(p->chunks * x.mbs), 1);
        k->owner = malloc(sizeof(int) * (size_t)(p->chunks * x.most_slots + 1));
        memset(k->owner, 0xff, sizeof(int) * (size_t)(p->chunks * x.most_slots + 1));
    }
    for (int r = 0; r < p->ranks && mode == EX_BUNDLES; r++)
        ex_enqueue(&x, r);
    /* random lanes, then all in turn: stuck when a whole round does nothing */
    for (int turn = 0; !x.wrong && idle <= lanes;) {
        int lane;

        if (idle == 0) {
            seed = seed * 1103515245u + 12345u;
            lane = (int)((seed >> 16) % (unsigned)lanes);
        } else {
            lane = turn++ % lanes;
        }
        if (mode == EX_STRICT ? ex_strict_step(&x, lane)
            : lane < p->ranks ? ex_step(&x, lane)
                              : ex_bundle_step(&x, lane - p->ranks))
            idle = 0;
        else
            idle++;
    }
    ok = !x.wrong && ex_all_done(&x);
    for (int c = 0; c < p->nchannels; c++)
        free(x.channel[c].slot);
    for (int r = 0; r < p->ranks; r++) {
        free(x.rank[r].bound);
        free(x.rank[r].label);
        free(x.rank[r].done);
        free(x.rank[r].begun);
        free(x.rank[r].owner);
    }
    free(x.channel);
    free(x.rank);
    free(x.nsends);
    free(x.nrecvs);
    free(x.pair_sends);
    free(x.pair_recvs);
    return ok;
}

#endif
