/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_ipc_plan.c: the protocol of comm_cuda_ipc on fake device memory: streams are lists of steps
 * that run in any order which waits and lists allow, drawn at random; numbers begin shortly before
 * they wrap. */
#include "comm_cuda_ipc/plan.h"

#include <string.h>

#include "tests/support/suite.h"

#define RANKS 4
#define PART  1024

static uint64_t state;

static uint64_t draw(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* ---- a device: streams of steps ---- */

typedef struct action {
    plan_step_t step;
    uint32_t base;
    /* not NULL: base is read when the first step of its plan runs, as in a graph */
    const uint32_t *counter;
    bool first;
    void (*call)(void *arg); /* not NULL: instead of a step */
    void *arg;
} action_t;

typedef struct stream {
    action_t *actions;
    uint32_t count, room, next, base;
} stream_t;

static plan_step_t steps[256];
static plan_t plan = {.steps = steps, .room = 256};
static bool from_device; /* values come from counters in memory */

static action_t *append(stream_t *s)
{
    if (s->count == s->room) {
        s->room = s->room == 0 ? 1024 : 2 * s->room;
        s->actions = realloc(s->actions, s->room * sizeof(*s->actions));
    }
    memset(&s->actions[s->count], 0, sizeof(*s->actions));
    return &s->actions[s->count++];
}

static void enqueue(stream_t *s)
{
    ck_assert_uint_le(plan.count, plan.room);
    for (uint32_t i = 0; i < plan.count; i++) {
        action_t *a = append(s);

        a->step = plan.steps[i];
        a->base = plan.base;
        a->counter = from_device ? plan.counter : NULL;
        a->first = i == 0;
    }
}

static void enqueue_call(stream_t *s, void (*call)(void *arg), void *arg)
{
    action_t *a = append(s);

    a->call = call;
    a->arg = arg;
}

/* False when it has to wait. */
static bool run_one(stream_t *s)
{
    action_t *a = &s->actions[s->next];
    uint32_t value;

    if (a->call != NULL) {
        a->call(a->arg);
        s->next++;
        return true;
    }
    if (a->first)
        s->base = a->counter != NULL ? *a->counter : a->base;
    value = a->step.relative ? s->base + a->step.value : a->step.value;
    if (a->step.kind == PLAN_WAIT && !plan_reached(*a->step.word, value)) {
        a->first = false;
        return false;
    }
    if (a->step.kind == PLAN_WRITE)
        *a->step.word = value;
    else if (a->step.kind == PLAN_EXPECT && *a->step.word != value)
        ck_abort_msg("slot %u is used, slot %u is next", value, *a->step.word);
    else if (a->step.kind == PLAN_COPY)
        memcpy(a->step.to, a->step.from, a->step.bytes);
    s->next++;
    return true;
}

/* Until all are done; some stream must be able to go on at any time. */
static void run_all(stream_t *streams, int count)
{
    for (;;) {
        int left = 0, first = (int)(draw() % (uint64_t)count);
        bool moved = false;

        for (int k = 0; k < count; k++) {
            stream_t *s = &streams[(first + k) % count];

            if (s->next == s->count)
                continue;
            left++;
            for (uint64_t turns = 1 + draw() % 6; turns > 0 && s->next < s->count && run_one(s); turns--)
                moved = true;
        }
        if (left == 0)
            return;
        if (!moved)
            ck_abort_msg("%d streams wait for each other", left);
    }
}

static void streams_free(stream_t *streams, int count)
{
    for (int i = 0; i < count; i++)
        free(streams[i].actions);
}

/* ---- channels ---- */

typedef struct pipe {
    _Alignas(LINE_BYTES) uint32_t lines[16][LINE_WORDS];
    unsigned char data[4][256];
    plan_channel_t sender, receiver;
} pipe_t;

/* Both ends, with `start` messages behind them. */
static void pipe_init(pipe_t *p, uint32_t slots, uint64_t start)
{
    memset(p, 0, sizeof(*p));
    p->sender = (plan_channel_t){.slots = slots,
                                 .stride = 256,
                                 .data = p->data[0],
                                 .published = p->lines[0],
                                 .heads = p->lines[1],
                                 .credit = p->lines[5],
                                 .counter = p->lines[6],
                                 .cursor = p->lines[7]};
    p->receiver = p->sender;
    p->receiver.counter = p->lines[8];
    p->receiver.cursor = p->lines[9];
    p->receiver.release_counter = p->lines[10];
    *p->sender.published = *p->sender.credit = *p->sender.counter = *p->receiver.counter =
        *p->receiver.release_counter = (uint32_t)start;
    *p->sender.cursor = *p->receiver.cursor = (uint32_t)(start % slots);
}

typedef struct look {
    const unsigned char *data;
    const uint32_t *head;
    uint64_t number;
    uint32_t bytes;
} look_t;

static void look_at_message(void *arg)
{
    const look_t *l = arg;
    bool good = l->head[0] == (uint32_t)l->number && l->head[1] == (uint32_t)l->number / 3 &&
                (int32_t)l->head[2] == -(int32_t)(l->number % 5) && l->head[3] == l->bytes;

    for (uint32_t k = 0; k < l->bytes; k++)
        good = good && l->data[k] == (unsigned char)(l->number * 31 + k);
    if (!good) /* an assertion for every message would be most of the time */
        ck_abort_msg("message %llu is not whole", (unsigned long long)l->number);
}

static void run_channel(uint32_t slots, uint64_t start, uint64_t messages)
{
    static unsigned char payload[200][256];
    static look_t looks[200];
    pipe_t p;
    stream_t streams[3] = {{0}};

    pipe_init(&p, slots, start);
    for (uint64_t i = 0; i < messages; i++) {
        uint64_t number = start + i;
        uint32_t bytes = (uint32_t)(draw() % 257), slot = (uint32_t)(number % slots);
        dp_message_tag_t tag = {.number = (uint32_t)number,
                                .step = (uint32_t)number / 3,
                                .microbatch = -(int32_t)(number % 5),
                                .bytes = bytes};

        for (uint32_t k = 0; k < bytes; k++)
            payload[i][k] = (unsigned char)(number * 31 + k);
        ipc_plan_send(&plan, &p.sender, number, &tag, payload[i]);
        enqueue(&streams[0]);
        ipc_plan_recv(&plan, &p.receiver, number);
        enqueue(&streams[1]);
        looks[i] = (look_t){p.data[slot], p.lines[1 + slot], number, bytes};
        enqueue_call(&streams[1], look_at_message, &looks[i]);
        ipc_plan_received(&plan, &p.receiver, number);
        enqueue(&streams[1]);
        ipc_plan_release(&plan, &p.receiver, number);
        enqueue(&streams[1]);
    }
    run_all(streams, 2);
    ck_assert_uint_eq(*p.sender.published, (uint32_t)(start + messages));
    ck_assert_uint_eq(*p.sender.credit, (uint32_t)(start + messages));
    ck_assert_uint_eq(*p.sender.counter, (uint32_t)(start + messages));
    ck_assert_uint_eq(*p.receiver.counter, (uint32_t)(start + messages));
    streams_free(streams, 2);
}

START_TEST(channels_carry_messages_across_the_wrap)
{
    for (int device = 0; device < 2; device++) {
        from_device = device;
        for (uint32_t slots = 1; slots <= 4; slots++)
            for (int turn = 0; turn < 20; turn++) {
                run_channel(slots, 0, 60);
                run_channel(slots, (UINT64_C(1) << 32) - 25, 60);
                run_channel(slots, (UINT64_C(1) << 31) - 25, 60);
            }
    }
}
END_TEST

/* A sender gets as far as there are slots. */
START_TEST(credits_are_the_slots)
{
    static unsigned char payload[8];
    dp_message_tag_t tag = {.bytes = 8};
    pipe_t p;
    stream_t s = {0};

    for (uint32_t slots = 1; slots <= 4; slots++) {
        uint64_t start = (UINT64_C(1) << 32) - 2;
        uint32_t sent;

        pipe_init(&p, slots, start);
        memset(&s, 0, sizeof(s));
        for (uint64_t i = 0; i <= slots; i++) {
            ipc_plan_send(&plan, &p.sender, start + i, &tag, payload);
            enqueue(&s);
        }
        while (s.next < s.count && run_one(&s))
            continue;
        sent = *p.sender.published - (uint32_t)start;
        ck_assert_uint_eq(sent, slots);
        *p.sender.credit += 1;
        while (s.next < s.count && run_one(&s))
            continue;
        ck_assert_uint_eq(s.next, s.count);
        free(s.actions);
    }
}
END_TEST

/* ---- groups ---- */

typedef struct memory {
    unsigned char *lines[RANKS], *payload[RANKS];
    plan_group_t groups[RANKS];
} memory_t;

static void memory_init(memory_t *m, int32_t n, const area_t *area)
{
    for (int32_t p = 0; p < n; p++) {
        m->lines[p] = calloc(area->lines, LINE_BYTES);
        m->payload[p] = calloc(1, area->payload_bytes);
        m->groups[p] = (plan_group_t){p, n, m->lines, m->payload};
    }
}

static void memory_free(memory_t *m, int32_t n)
{
    for (int32_t p = 0; p < n; p++) {
        free(m->lines[p]);
        free(m->payload[p]);
    }
}

typedef struct round {
    const memory_t *m;
    int32_t rank;
    uint32_t slots, slot;
    uint64_t number;
    unsigned char *rows; /* of the receiver's slot */
    size_t at;
} round_t;

enum { CAPACITY = 3, ROW = 16 };

static unsigned char row_byte(int32_t from, int32_t to, uint64_t number)
{
    return (unsigned char)(number * 37 + (uint64_t)from * 11 + (uint64_t)to * 3);
}

/* What the kernel does: rows, head, arrival. */
static void put_rows(void *arg)
{
    const round_t *r = arg;
    const plan_group_t *g = &r->m->groups[r->rank];
    size_t n = (size_t)g->nranks, me = (size_t)r->rank;

    for (int32_t to = 0; to < g->nranks; to++) {
        size_t rows = (r->number + me + (size_t)to) % (CAPACITY + 1);
        uint32_t *head = ipc_plan_line(g, to, rows_line_head(n, r->slot, me));

        memset(r->m->payload[to] + ipc_rows_data_at(n, r->slots) + r->slot * ipc_rows_slot_bytes(n, CAPACITY, ROW) +
                   me * CAPACITY * ROW,
               row_byte(r->rank, to, r->number), rows * ROW);
        head[0] = (uint32_t)r->number;
        head[1] = (uint32_t)rows;
        *ipc_plan_line(g, to, rows_line_arrived(n, me)) = (uint32_t)r->number + 1;
    }
}

static void look_at_rows(void *arg)
{
    const round_t *r = arg;
    const plan_group_t *g = &r->m->groups[r->rank];
    size_t n = (size_t)g->nranks;

    for (int32_t from = 0; from < g->nranks; from++) {
        size_t rows = (r->number + (size_t)from + (size_t)r->rank) % (CAPACITY + 1);
        const uint32_t *head = ipc_plan_line(g, r->rank, rows_line_head(n, r->slot, (size_t)from));
        const unsigned char *data = r->m->payload[r->rank] + ipc_rows_data_at(n, r->slots) +
                                    r->slot * ipc_rows_slot_bytes(n, CAPACITY, ROW) + (size_t)from * CAPACITY * ROW;

        bool good = head[0] == (uint32_t)r->number && head[1] == rows;

        for (size_t k = 0; k < rows * ROW; k++)
            good = good && data[k] == row_byte(from, r->rank, r->number);
        if (!good)
            ck_abort_msg("exchange %llu: rows of rank %d", (unsigned long long)r->number, from);
    }
}

static void run_exchange(int32_t n, uint32_t slots, uint64_t start)
{
    enum { TIMES = 30 };
    static round_t rounds[RANKS][TIMES];
    stream_t streams[RANKS] = {{0}};
    memory_t m;
    area_t area;

    ck_assert(ipc_rows_layout(0, (size_t)n, slots, CAPACITY, ROW, &area));
    memory_init(&m, n, &area);
    for (int32_t p = 0; p < n; p++) {
        plan_group_t *g = &m.groups[p];

        for (size_t w = 0; w < (size_t)n; w++) {
            *ipc_plan_line(g, p, rows_line_credit((size_t)n, w)) = (uint32_t)start;
            *ipc_plan_line(g, p, rows_line_arrived((size_t)n, w)) = (uint32_t)start;
        }
        *ipc_plan_line(g, p, rows_line_private((size_t)n, slots, ROWS_EXCHANGED)) = (uint32_t)start;
        *ipc_plan_line(g, p, rows_line_private((size_t)n, slots, ROWS_RELEASED)) = (uint32_t)start;
        *ipc_plan_line(g, p, rows_line_private((size_t)n, slots, ROWS_CURSOR)) = (uint32_t)(start % slots);
        for (int i = 0; i < TIMES; i++) {
            uint64_t number = start + (uint64_t)i;

            rounds[p][i] = (round_t){&m, p, slots, (uint32_t)(number % slots), number, NULL, 0};
            ipc_plan_exchange(&plan, g, slots, number);
            enqueue(&streams[p]);
            enqueue_call(&streams[p], put_rows, &rounds[p][i]);
            ipc_plan_arrive(&plan, g, slots, number);
            enqueue(&streams[p]);
            enqueue_call(&streams[p], look_at_rows, &rounds[p][i]);
            ipc_plan_exchanged(&plan, g, slots, number);
            enqueue(&streams[p]);
            ipc_plan_exchange_release(&plan, g, slots, number);
            enqueue(&streams[p]);
        }
    }
    run_all(streams, n);
    streams_free(streams, n);
    memory_free(&m, n);
}

START_TEST(exchanges_bring_rows_across_the_wrap)
{
    for (int device = 0; device < 2; device++) {
        from_device = device;
        for (int32_t n = 1; n <= RANKS; n++)
            for (uint32_t slots = 1; slots <= 3; slots++)
                for (int turn = 0; turn < 10; turn++) {
                    run_exchange(n, slots, 0);
                    run_exchange(n, slots, (UINT64_C(1) << 32) - 9);
                }
    }
}
END_TEST

/* ---- sums ---- */

typedef struct slice {
    const plan_sum_t *sum;
    uint32_t part, number;
} slice_t;

/* What the kernel does: our slice in rank order, to all. */
static void add_slice(void *arg)
{
    const slice_t *s = arg;
    const plan_group_t *g = s->sum->group;
    size_t n = (size_t)g->nranks, first = ipc_plan_sum_slice(s->sum, s->part, g->rank),
           end = ipc_plan_sum_slice(s->sum, s->part, g->rank + 1), buffer = s->part % 2;

    for (size_t p = 0; p < n; p++) {
        const uint32_t *head = ipc_plan_line(g, g->rank, base_line_head(n, buffer, p));

        ck_assert_uint_eq(head[0], s->number);
        ck_assert_uint_eq(head[1], s->sum->count);
        ck_assert_uint_eq(head[3], DP_F64);
    }
    for (size_t i = 0; i < end - first; i++) {
        double total = 0, x;

        for (size_t p = 0; p < n; p++) {
            memcpy(&x, g->payload[g->rank] + ipc_base_in_at(n, s->sum->part_bytes, buffer, p) + i * sizeof(x),
                   sizeof(x));
            total = p == 0 ? x : total + x;
        }
        for (size_t p = 0; p < n; p++)
            memcpy(g->payload[p] + ipc_base_out_at(n, s->sum->part_bytes, buffer) + (first + i) * sizeof(x), &total,
                   sizeof(total));
    }
}

static void enqueue_sum(stream_t *stream, const plan_sum_t *sum, uint64_t parts_before, slice_t *slices)
{
    uint32_t parts = ipc_plan_sum_parts(sum);

    plan.base = (uint32_t)parts_before;
    ipc_plan_sum_stage(&plan, sum, 0);
    enqueue(stream);
    for (uint32_t i = 0; i < parts; i++) {
        if (i + 1 < parts) {
            ipc_plan_sum_stage(&plan, sum, i + 1);
            enqueue(stream);
        }
        ipc_plan_sum_hear(&plan, sum, i);
        enqueue(stream);
        slices[i] = (slice_t){sum, i, (uint32_t)(parts_before + i)};
        enqueue_call(stream, add_slice, &slices[i]);
        ipc_plan_sum_tell(&plan, sum, i);
        enqueue(stream);
        ipc_plan_sum_gather(&plan, sum, i);
        enqueue(stream);
    }
    ipc_plan_sum_end(&plan, sum);
    enqueue(stream);
}

static void run_sums(int32_t n, uint64_t start)
{
    enum { SUMS = 6, MOST = 700 };
    static double data[SUMS][RANKS][MOST], expected[SUMS][MOST];
    static slice_t slices[SUMS][RANKS][16];
    static plan_sum_t sums[SUMS][RANKS];
    stream_t streams[RANKS] = {{0}};
    area_t area = ipc_base_area((size_t)n, PART);
    uint64_t parts = start;
    memory_t m;

    memory_init(&m, n, &area);
    for (int32_t p = 0; p < n; p++) {
        for (size_t w = 0; w < (size_t)n; w++) {
            *ipc_plan_line(&m.groups[p], p, base_line_staged((size_t)n, w)) = (uint32_t)start;
            *ipc_plan_line(&m.groups[p], p, base_line_summed((size_t)n, w)) = (uint32_t)start;
        }
        *ipc_plan_line(&m.groups[p], p, base_line_private((size_t)n, BASE_PARTS)) = (uint32_t)start;
    }
    for (int k = 0; k < SUMS; k++) {
        size_t count = 1 + draw() % MOST;

        for (size_t i = 0; i < count; i++)
            for (int32_t p = 0; p < n; p++) {
                double x = (double)(int64_t)draw() * (double)(1 + (draw() % 1000000));

                data[k][p][i] = x;
                expected[k][i] = p == 0 ? x : expected[k][i] + x;
            }
        for (int32_t p = 0; p < n; p++) {
            sums[k][p] = (plan_sum_t){&m.groups[p], PART, 8, count, DP_F64, (unsigned char *)data[k][p]};
            enqueue_sum(&streams[p], &sums[k][p], parts, slices[k][p]);
        }
        parts += ipc_plan_sum_parts(&sums[k][0]);
    }
    run_all(streams, n);
    for (int k = 0; k < SUMS; k++)
        for (int32_t p = 0; p < n; p++)
            ck_assert_mem_eq(data[k][p], expected[k], sums[k][p].count * 8);
    streams_free(streams, n);
    memory_free(&m, n);
}

START_TEST(sums_have_the_bits_of_a_serial_sum)
{
    for (int device = 0; device < 2; device++) {
        from_device = device;
        for (int32_t n = 2; n <= RANKS; n++)
            for (int turn = 0; turn < 10; turn++) {
                run_sums(n, 0);
                run_sums(n, (UINT64_C(1) << 32) - 7);
            }
    }
}
END_TEST

/* However many blocks and ranks there are, no block has more stretches than another. */
START_TEST(blocks_share_the_rows_evenly)
{
    for (uint32_t blocks = 1; blocks <= 132; blocks++)
        for (uint32_t ranks = 1; ranks <= 72; ranks++) {
            const uint32_t stretches = ipc_plan_stretches(blocks, ranks);

            ck_assert_uint_eq(stretches * ranks % blocks, 0);
            for (uint32_t fewer = 1; fewer < stretches; fewer++)
                ck_assert_uint_ne(fewer * ranks % blocks, 0);
        }
}
END_TEST

START_TEST(steps_fit_into_the_room)
{
    memory_t m;
    area_t area = ipc_base_area(RANKS, PART);
    plan_sum_t sum = {NULL, PART, 4, 1000, DP_F32, NULL};

    memory_init(&m, RANKS, &area);
    sum.group = &m.groups[1];
    sum.data = m.payload[1];
    ipc_plan_sum_stage(&plan, &sum, 0);
    ck_assert_uint_le(plan.count, ipc_plan_room(RANKS));
    memory_free(&m, RANKS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm_cuda_ipc: protocol");

    state = 12345;
    SUITE_ADD(suite, channels_carry_messages_across_the_wrap);
    SUITE_ADD(suite, credits_are_the_slots);
    SUITE_ADD(suite, exchanges_bring_rows_across_the_wrap);
    SUITE_ADD(suite, sums_have_the_bits_of_a_serial_sum);
    SUITE_ADD(suite, blocks_share_the_rows_evenly);
    SUITE_ADD(suite, steps_fit_into_the_room);
    return suite_run(suite);
}
