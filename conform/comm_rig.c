/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_rig.c: see comm_rig.h. */
#include "comm_rig.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)40 << 20)
#define LOOKS       4096

typedef struct pattern {
    unsigned char *data;
    size_t bytes;
    uint32_t seed;
    uint64_t *wrong; /* of the stream that looks */
} pattern_t;

struct later {
    bool is_rows;
    pattern_t pattern;
    rows_t rows;
    size_t at; /* in the arena */
};

static dp_status_t look_now(rig_t *rig);

/* ---- the device and the instance ---- */

/* The device's own functions, and the blocks that plugins hold of each open device. */
static struct {
    pthread_mutex_t mutex;
    const dp_device_vt_t *vt;
    int64_t given;
    struct {
        const dp_device_t *device;
        int64_t blocks;
    } held[CONFORM_RANKS_MAX];
} under = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static const dp_device_vt_t *count_block(const dp_device_t *device, int64_t by)
{
    const dp_device_vt_t *vt;

    pthread_mutex_lock(&under.mutex);
    vt = under.vt;
    under.given += by > 0;
    for (int i = 0; i < CONFORM_RANKS_MAX; i++)
        if (under.held[i].device == device)
            under.held[i].blocks += by;
    pthread_mutex_unlock(&under.mutex);
    return vt;
}

static dp_status_t counted_allocate(dp_device_t *device, size_t bytes, void **memory_out)
{
    return count_block(device, 1)->allocate(device, bytes, memory_out);
}

static void counted_release(dp_device_t *device, void *memory)
{
    count_block(device, memory != NULL ? -1 : 0)->release(device, memory);
}

static dp_status_t counted_host_allocate(dp_device_t *device, size_t bytes, void **memory_out)
{
    return count_block(device, 1)->host_allocate(device, bytes, memory_out);
}

static void counted_host_release(dp_device_t *device, void *memory)
{
    count_block(device, memory != NULL ? -1 : 0)->host_release(device, memory);
}

int64_t conform_rig_blocks_given(void)
{
    int64_t given;

    pthread_mutex_lock(&under.mutex);
    given = under.given;
    pthread_mutex_unlock(&under.mutex);
    return given;
}

int64_t conform_rig_blocks(const rig_t *rig)
{
    int64_t blocks = 0;

    pthread_mutex_lock(&under.mutex);
    for (int i = 0; i < CONFORM_RANKS_MAX; i++)
        if (under.held[i].device == rig->device)
            blocks = under.held[i].blocks;
    pthread_mutex_unlock(&under.mutex);
    return blocks;
}

static void count_allocations(rig_t *rig)
{
    const dp_device_vt_t *vt = rig->device_vt;

    memcpy(&rig->counted, vt, vt->struct_size < sizeof(rig->counted) ? vt->struct_size : sizeof(rig->counted));
    rig->counted.allocate = counted_allocate;
    rig->counted.release = counted_release;
    if (DP_HAS(vt, dp_device_vt_t, host_allocate)) {
        rig->counted.host_allocate = counted_host_allocate;
        rig->counted.host_release = counted_host_release;
    }
    pthread_mutex_lock(&under.mutex);
    under.vt = vt; /* the same for all ranks */
    under.held[rig->t->rank].device = rig->device;
    under.held[rig->t->rank].blocks = 0;
    pthread_mutex_unlock(&under.mutex);
}

static dp_status_t arena_open(rig_t *rig)
{
    const dp_device_vt_t *device = rig->device_vt;
    dp_status_t status = device->stream_open(rig->device, DP_LANE_COMPUTE, &rig->side);

    rig->laters = malloc(LOOKS * sizeof(*rig->laters));
    return status == DP_OK ? device->allocate(rig->device, ARENA_BYTES, (void **)&rig->arena) : status;
}

bool conform_rig_device(rig_t *rig, conform_t *t)
{
    dp_device_config_t config = {.struct_size = sizeof(config), .queue_length = 256};
    dp_status_t status;

    memset(rig, 0, sizeof(*rig));
    rig->t = t;
    rig->device_vt = t->device;
    rig->vt = t->comm;
    rig->launches = conform_work_launches(t->device);
    rig->random = (uint64_t)t->rank;
    status = t->device->open(t->host, &config, &rig->device);
    count_allocations(rig);
    for (int lane = 0; lane < DP_LANE_COUNT && status == DP_OK; lane++)
        status = t->device->stream_open(rig->device, (dp_lane_t)lane, &rig->streams[lane]);
    if (status == DP_OK && !rig->launches)
        status = arena_open(rig);
    if (status != DP_OK)
        conform_fail(t, __FILE__, __LINE__, "opening the device that streams run on failed: %s", conform_last_error());
    return status == DP_OK;
}

dp_comm_config_t conform_rig_config(rig_t *rig, const char *name)
{
    static const int32_t world[CONFORM_RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};

    return (dp_comm_config_t){.struct_size = sizeof(dp_comm_config_t),
                              .name = name,
                              .rank = rig->t->rank,
                              .nranks = rig->t->size,
                              .world_ranks = world,
                              .device_vt = &rig->counted,
                              .device = rig->device,
                              .vt = rig->vt};
}

dp_status_t conform_rig_join(rig_t *rig, const dp_comm_config_t *config)
{
    dp_status_t status = rig->vt->open(rig->t->host, config, &rig->comm);

    if (status == DP_OK)
        rig->matched = (dp_comm_caps(rig->vt, rig->comm) & DP_COMM_CAP_ONE_SIDED) == 0;
    return status;
}

dp_status_t conform_rig_open_comm(rig_t *rig, const char *name, int32_t rank, int32_t nranks, const int32_t *world,
                                  size_t reduce_bytes)
{
    dp_comm_config_t config = conform_rig_config(rig, name);

    config.rank = rank;
    config.nranks = nranks;
    config.reduce_bytes = reduce_bytes;
    if (world != NULL)
        config.world_ranks = world;
    return conform_rig_join(rig, &config);
}

bool conform_rig_open(rig_t *rig, conform_t *t, const char *name, size_t reduce_bytes)
{
    if (!conform_rig_device(rig, t))
        return false;
    conform_forget_error();
    if (conform_rig_open_comm(rig, name, t->rank, t->size, NULL, reduce_bytes) == DP_OK)
        return true;
    conform_fail(t, __FILE__, __LINE__, "open of an instance of all ranks failed: %s", conform_last_error());
    return false;
}

void conform_rig_close_device(rig_t *rig)
{
    const dp_device_vt_t *vt = rig->device_vt;

    for (int lane = 0; lane < DP_LANE_COUNT; lane++)
        vt->stream_close(rig->streams[lane]);
    for (int i = 0; i < 2 * CONFORM_RANKS_MAX; i++)
        if (rig->ways[i / 2][i % 2] != NULL)
            vt->stream_close(rig->ways[i / 2][i % 2]);
    for (int i = 0; i < rig->event_count; i++)
        vt->event_close(rig->events[i]);
    for (int i = 0; i < rig->room_count; i++)
        vt->release(rig->device, rig->rooms[i]);
    if (!rig->launches) {
        vt->stream_close(rig->side);
        vt->release(rig->device, rig->arena);
        free(rig->laters);
    }
    vt->close(rig->device);
}

void conform_rig_close(rig_t *rig)
{
    /* a host waits for what it has enqueued, in a job that has ended as well */
    if (dp_group_health(rig->t->group) < 0)
        (void)conform_synchronize_all(rig);
    rig->vt->close(rig->comm);
    conform_rig_close_device(rig);
}

void *conform_room(rig_t *rig, size_t bytes)
{
    void *memory = NULL;

    if (rig->room_count == RIG_ROOMS || rig->device_vt->allocate(rig->device, bytes, &memory) != DP_OK) {
        conform_fail(rig->t, __FILE__, __LINE__, "the case has no device memory: %s", conform_last_error());
        return NULL;
    }
    rig->rooms[rig->room_count++] = memory;
    return memory;
}

dp_event_t *conform_event(rig_t *rig)
{
    dp_event_t *one = NULL;

    if (rig->event_count == RIG_EVENTS || rig->device_vt->event_open(rig->device, &one) != DP_OK) {
        conform_fail(rig->t, __FILE__, __LINE__, "the case has no event: %s", conform_last_error());
        return NULL;
    }
    rig->events[rig->event_count++] = one;
    return one;
}

dp_status_t conform_move(rig_t *rig, void *to, const void *from, size_t bytes)
{
    dp_status_t status;

    if (rig->launches) {
        memcpy(to, from, bytes);
        return DP_OK;
    }
    status = rig->device_vt->copy(rig->side, to, from, bytes);
    return status == DP_OK ? rig->device_vt->synchronize(rig->side, -1) : status;
}

dp_status_t conform_synchronize_all(rig_t *rig)
{
    dp_status_t status = DP_OK, one;

    for (int lane = 0; lane < DP_LANE_COUNT; lane++) {
        one = rig->device_vt->synchronize(rig->streams[lane], -1);
        status = status == DP_OK ? one : status;
    }
    for (int i = 0; i < 2 * CONFORM_RANKS_MAX; i++)
        if (rig->ways[i / 2][i % 2] != NULL) {
            one = rig->device_vt->synchronize(rig->ways[i / 2][i % 2], -1);
            status = status == DP_OK ? one : status;
        }
    return status == DP_OK && !rig->launches ? look_now(rig) : status;
}

static dp_status_t nap(void *arg)
{
    conform_nap_ms(*(int *)arg);
    return DP_OK;
}

dp_status_t conform_nap_now_and_then(rig_t *rig, dp_stream_t *s)
{
    int ms = 1;

    if (conform_random(&rig->random) % 16 != 0)
        return DP_OK;
    if (rig->launches)
        return rig->device_vt->launch(s, nap, &ms, sizeof(ms));
    conform_nap_ms(ms);
    return DP_OK;
}

/* ---- data that say where they come from ---- */

static unsigned char pattern_byte(uint32_t seed, size_t k)
{
    /* neighbouring seeds differ in the byte that is left */
    uint32_t mixed = (seed + 1) * UINT32_C(2654435761);

    return (unsigned char)((mixed >> 24) + k * 7 + (k >> 8) + (k >> 16) * 3);
}

static dp_status_t fill_pattern(void *arg)
{
    const pattern_t *p = arg;

    for (size_t k = 0; k < p->bytes; k++)
        p->data[k] = pattern_byte(p->seed, k);
    return DP_OK;
}

static dp_status_t look_at_pattern(void *arg)
{
    const pattern_t *p = arg;
    uint64_t wrong = 0;

    for (size_t k = 0; k < p->bytes; k++)
        wrong += p->data[k] != pattern_byte(p->seed, k);
    __atomic_fetch_add(p->wrong, wrong, __ATOMIC_RELAXED);
    return DP_OK;
}

/* A place in the arena. When it is full everything there is looked at first, which waits for the
 * streams. */
static dp_status_t arena_take(rig_t *rig, size_t bytes, size_t *at_out)
{
    dp_status_t status = DP_OK;

    bytes = (bytes + 255) / 256 * 256;
    if (rig->used + bytes > ARENA_BYTES || rig->later_count == LOOKS)
        status = conform_synchronize_all(rig);
    *at_out = rig->used;
    rig->used += bytes;
    return status;
}

/* Brings `bytes` from the host to the arena now, and has the stream copy them to `to`. */
static dp_status_t bring(rig_t *rig, dp_stream_t *s, void *to, const void *from, size_t bytes)
{
    size_t at;
    dp_status_t status = arena_take(rig, bytes, &at);

    if (status == DP_OK && bytes > 0)
        status = conform_move(rig, rig->arena + at, from, bytes);
    return status == DP_OK && bytes > 0 ? rig->device_vt->copy(s, to, rig->arena + at, bytes) : status;
}

static dp_status_t fill_on(rig_t *rig, dp_stream_t *s, const pattern_t *p)
{
    pattern_t here = *p;
    dp_status_t status;

    if (rig->launches)
        return rig->device_vt->launch(s, fill_pattern, p, sizeof(*p));
    here.data = malloc(p->bytes + 1);
    fill_pattern(&here);
    status = bring(rig, s, p->data, here.data, p->bytes);
    free(here.data);
    return status;
}

static dp_status_t look_on(rig_t *rig, dp_stream_t *s, const pattern_t *p)
{
    dp_status_t status;
    size_t at;

    if (rig->launches)
        return rig->device_vt->launch(s, look_at_pattern, p, sizeof(*p));
    status = arena_take(rig, p->bytes, &at);
    if (status == DP_OK && p->bytes > 0)
        status = rig->device_vt->copy(s, rig->arena + at, p->data, p->bytes);
    rig->laters[rig->later_count++] = (later_t){.pattern = *p, .at = at};
    return status;
}

static uint32_t seed_of(int32_t from, int32_t to, uint32_t number)
{
    return number * 64 + (uint32_t)from * 8 + (uint32_t)to;
}

/* ---- channels ---- */

dp_status_t conform_rig_channel(rig_t *rig, uint32_t id, int32_t peer, bool sends, uint32_t slots, size_t bytes,
                                dp_channel_end_t **end_out)
{
    dp_channel_config_t config = {.struct_size = sizeof(config),
                                  .id = id,
                                  .peer = peer,
                                  .sender = sends,
                                  .slots = slots,
                                  .slot_bytes = bytes,
                                  .label = "F chunk 1"};

    return rig->vt->channel_open(rig->comm, &config, end_out);
}

static dp_status_t find_way(rig_t *rig, int32_t peer, bool sends, dp_stream_t **way_out)
{
    dp_stream_t **way = &rig->ways[peer][sends];
    dp_status_t status = DP_OK;

    if (!rig->matched) { /* a receive waits on the stream that reads */
        *way_out = rig->streams[sends ? DP_LANE_P2P : DP_LANE_COMPUTE];
        return DP_OK;
    }
    if (*way == NULL)
        status = rig->device_vt->stream_open(rig->device, DP_LANE_P2P, way);
    *way_out = *way;
    return status;
}

dp_status_t conform_line_open(rig_t *rig, uint32_t id, int32_t peer, bool sends, uint32_t slots, size_t bytes,
                              line_t *line)
{
    dp_status_t status = conform_rig_channel(rig, id, peer, sends, slots, bytes, &line->end);

    if (status != DP_OK)
        return status;
    line->rig = rig;
    line->id = id;
    line->peer = peer;
    line->sends = sends;
    line->slots = slots;
    line->bytes = bytes;
    for (int i = 0; i < 2 && sends; i++) {
        line->buffers[i] = conform_room(rig, bytes);
        line->free[i] = conform_event(rig);
        line->ready[i] = conform_event(rig);
        if (line->buffers[i] == NULL || line->free[i] == NULL || line->ready[i] == NULL)
            return DP_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < slots && !sends; i++)
        if ((line->ready[i] = conform_event(rig)) == NULL)
            return DP_ERR_NOMEM;
    return find_way(rig, peer, sends, &line->way);
}

dp_message_tag_t conform_tag_of(uint32_t number, size_t bytes)
{
    return (dp_message_tag_t){
        .number = number, .step = number / 10, .microbatch = (int32_t)(number % 10), .bytes = (uint32_t)bytes};
}

size_t conform_size_of_message(uint32_t number, size_t slot_bytes)
{
    static const size_t small[] = {1, 0, 7, 63};

    return number % 3 == 2 ? slot_bytes : small[number % 4] < slot_bytes ? small[number % 4] : slot_bytes;
}

dp_status_t conform_begin_bundle(rig_t *rig, dp_stream_t *s)
{
    return rig->matched ? rig->vt->bundle_begin(rig->comm, s) : DP_OK;
}

dp_status_t conform_end_bundle(rig_t *rig, dp_stream_t *s)
{
    return rig->matched ? rig->vt->bundle_end(rig->comm, s) : DP_OK;
}

#define DO(call)                                                                                                       \
    do {                                                                                                               \
        dp_status_t do_status = (call);                                                                                \
        if (do_status != DP_OK)                                                                                        \
            return do_status;                                                                                          \
    } while (0)

dp_status_t conform_send_bundle(line_t *const *lines, int n, uint32_t number, const size_t *bytes)
{
    rig_t *rig = lines[0]->rig;
    dp_stream_t *way = lines[0]->way, *compute = rig->streams[DP_LANE_COMPUTE];
    int at = (int)(number % 2);

    for (int i = 0; i < n; i++) {
        pattern_t p = {lines[i]->buffers[at], bytes[i],
                       seed_of(rig->t->rank, lines[i]->peer, number + lines[i]->id * 1009), NULL};

        DO(rig->device_vt->stream_wait(compute, lines[i]->free[at]));
        DO(conform_nap_now_and_then(rig, compute));
        DO(fill_on(rig, compute, &p));
        DO(rig->device_vt->event_record(lines[i]->ready[at], compute));
        DO(rig->device_vt->stream_wait(way, lines[i]->ready[at]));
    }
    DO(conform_begin_bundle(rig, way));
    for (int i = 0; i < n; i++) {
        dp_message_tag_t tag = conform_tag_of(number, bytes[i]);

        DO(rig->vt->send(lines[i]->end, lines[i]->buffers[at], &tag, way));
    }
    DO(conform_end_bundle(rig, way));
    for (int i = 0; i < n; i++)
        DO(rig->device_vt->event_record(lines[i]->free[at], way));
    return DP_OK;
}

dp_status_t conform_receive_bundle(line_t *const *lines, int n, uint32_t number, const size_t *bytes)
{
    rig_t *rig = lines[0]->rig;
    dp_stream_t *way = lines[0]->way;

    DO(conform_begin_bundle(rig, way));
    for (int i = 0; i < n; i++) {
        dp_message_tag_t tag = conform_tag_of(number, bytes[i]);

        DO(rig->vt->recv(lines[i]->end, &tag, &lines[i]->slot[number % lines[i]->slots], way));
    }
    DO(conform_end_bundle(rig, way));
    for (int i = 0; i < n && rig->matched; i++)
        DO(rig->device_vt->event_record(lines[i]->ready[number % lines[i]->slots], way));
    return DP_OK;
}

dp_status_t conform_arrived(line_t *line, uint32_t number, dp_stream_t *s)
{
    return line->rig->matched ? line->rig->device_vt->stream_wait(s, line->ready[number % line->slots]) : DP_OK;
}

dp_status_t conform_look_at_message(line_t *line, uint32_t number, size_t bytes, dp_stream_t *s)
{
    pattern_t p = {(unsigned char *)line->slot[number % line->slots], bytes,
                   seed_of(line->peer, line->rig->t->rank, number + line->id * 1009), &line->rig->wrong};

    return look_on(line->rig, s, &p);
}

dp_status_t conform_release_message(line_t *line, uint32_t number, dp_stream_t *s)
{
    return line->rig->vt->release(line->end, number, s);
}

dp_status_t conform_send_message(line_t *line, uint32_t number, size_t bytes)
{
    return conform_send_bundle(&line, 1, number, &bytes);
}

dp_status_t conform_receive_message(line_t *line, uint32_t number, size_t bytes)
{
    dp_stream_t *compute = line->rig->streams[DP_LANE_COMPUTE];

    DO(conform_nap_now_and_then(line->rig, compute));
    DO(conform_receive_bundle(&line, 1, number, &bytes));
    DO(conform_arrived(line, number, compute));
    DO(conform_look_at_message(line, number, bytes, compute));
    return conform_release_message(line, number, compute);
}

/* ---- exchanges ---- */

/* Rows from `from` to `to` in exchange `number`; anybody can tell. */
static int32_t rows_between(int32_t from, int32_t to, uint32_t number)
{
    uint64_t state = number * 1000 + (uint64_t)from * 30 + (uint64_t)to;

    if (number % 7 == 3)
        return 0;
    if (number % 7 == 5)
        return CAPACITY;
    return (int32_t)(conform_random(&state) % (CAPACITY + 1));
}

/* Row k for rank `to` is a pattern; the ranks' rows lie in descending order of rank, so that
 * offsets matter. */
static dp_status_t make_rows(void *arg)
{
    const rows_t *r = arg;
    int32_t at = 0;

    for (int32_t to = r->size - 1; to >= 0; to--) {
        r->offsets[to] = at;
        r->counts[to] = rows_between(r->rank, to, r->number);
        for (int32_t k = 0; k < r->counts[to]; k++, at++) {
            pattern_t p = {r->rows + (size_t)at * r->row_bytes, r->row_bytes,
                           seed_of(r->rank, to, r->number * 16 + (uint32_t)k), NULL};

            fill_pattern(&p);
        }
    }
    return DP_OK;
}

static dp_status_t check_rows(void *arg)
{
    const rows_t *r = arg;

    for (int32_t from = 0; from < r->size; from++) {
        if (r->counts[from] != rows_between(from, r->rank, r->number)) {
            __atomic_fetch_add(r->wrong, 1, __ATOMIC_RELAXED);
            continue;
        }
        for (int32_t k = 0; k < r->counts[from]; k++) {
            pattern_t p = {r->rows + ((size_t)from * CAPACITY + (size_t)k) * r->row_bytes, r->row_bytes,
                           seed_of(from, r->rank, r->number * 16 + (uint32_t)k), r->wrong};

            look_at_pattern(&p);
        }
    }
    return DP_OK;
}

static dp_status_t make_rows_on(rig_t *rig, dp_stream_t *s, const rows_t *r)
{
    size_t n = (size_t)r->size, rows_bytes = n * CAPACITY * r->row_bytes;
    int32_t offsets[CONFORM_RANKS_MAX], counts[CONFORM_RANKS_MAX];
    rows_t here = *r;
    dp_status_t status;

    if (rig->launches)
        return rig->device_vt->launch(s, make_rows, r, sizeof(*r));
    here.offsets = offsets;
    here.counts = counts;
    here.rows = calloc(1, rows_bytes);
    make_rows(&here);
    status = bring(rig, s, r->rows, here.rows, rows_bytes);
    free(here.rows);
    if (status == DP_OK)
        status = bring(rig, s, r->offsets, offsets, n * sizeof(int32_t));
    return status == DP_OK ? bring(rig, s, r->counts, counts, n * sizeof(int32_t)) : status;
}

/* Counts first, then all rows, whether they were sent or not. */
dp_status_t conform_look_at_rows(rig_t *rig, const rows_t *in, dp_stream_t *s)
{
    size_t n = (size_t)in->size, at;
    dp_status_t status;

    if (rig->launches)
        return rig->device_vt->launch(s, check_rows, in, sizeof(*in));
    status = arena_take(rig, 256 + n * CAPACITY * in->row_bytes, &at);
    if (status == DP_OK)
        status = rig->device_vt->copy(s, rig->arena + at, in->counts, n * sizeof(int32_t));
    if (status == DP_OK)
        status = rig->device_vt->copy(s, rig->arena + at + 256, in->rows, n * CAPACITY * in->row_bytes);
    rig->laters[rig->later_count++] = (later_t){.is_rows = true, .rows = *in, .at = at};
    return status;
}

static dp_status_t look_now(rig_t *rig)
{
    unsigned char *here = malloc(rig->used + 1);
    dp_status_t status = rig->used > 0 ? conform_move(rig, here, rig->arena, rig->used) : DP_OK;

    for (int i = 0; i < rig->later_count && status == DP_OK; i++) {
        later_t *l = &rig->laters[i];

        if (l->is_rows) {
            l->rows.counts = (int32_t *)(void *)(here + l->at);
            l->rows.rows = here + l->at + 256;
            check_rows(&l->rows);
        } else {
            l->pattern.data = here + l->at;
            look_at_pattern(&l->pattern);
        }
    }
    rig->later_count = 0;
    rig->used = 0;
    free(here);
    return status;
}

dp_status_t conform_rig_exchange(rig_t *rig, uint32_t id, size_t row_bytes, uint32_t slots, dp_exchange_t **x_out)
{
    dp_exchange_config_t config = {.struct_size = sizeof(config),
                                   .id = id,
                                   .row_bytes = row_bytes,
                                   .capacity_rows = CAPACITY,
                                   .slots = slots,
                                   .label = "dispatch"};

    return rig->vt->exchange_open(rig->comm, &config, x_out);
}

bool conform_rows_open(rig_t *rig, size_t row_bytes, rows_t *rows)
{
    *rows = (rows_t){.rank = rig->t->rank, .size = rig->t->size, .row_bytes = row_bytes, .wrong = &rig->wrong};
    rows->rows = conform_room(rig, (size_t)rig->t->size * CAPACITY * row_bytes);
    rows->offsets = conform_room(rig, CONFORM_RANKS_MAX * sizeof(int32_t));
    rows->counts = conform_room(rig, CONFORM_RANKS_MAX * sizeof(int32_t));
    return rows->rows != NULL && rows->offsets != NULL && rows->counts != NULL;
}

typedef dp_status_t (*exchange_fn)(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *offsets,
                                   const int32_t *counts, const void **rows_out, const int32_t **counts_out,
                                   dp_stream_t *s);

static dp_status_t bring_rows(rig_t *rig, exchange_fn exchange, dp_exchange_t *x, rows_t *out, uint32_t number,
                              dp_stream_t *s, rows_t *in)
{
    const int32_t *counts;
    const void *rows;

    out->number = number;
    DO(conform_nap_now_and_then(rig, s));
    DO(make_rows_on(rig, s, out));
    DO(exchange(x, number, out->rows, out->offsets, out->counts, &rows, &counts, s));
    *in = *out;
    in->rows = (unsigned char *)rows;
    in->counts = (int32_t *)counts;
    return DP_OK;
}

dp_status_t conform_exchange_rows(rig_t *rig, dp_exchange_t *x, rows_t *out, uint32_t number, dp_stream_t *s,
                                  rows_t *in)
{
    return bring_rows(rig, rig->vt->exchange, x, out, number, s, in);
}

dp_status_t conform_post_rows(rig_t *rig, dp_exchange_t *x, rows_t *out, uint32_t number, dp_stream_t *s, rows_t *in)
{
    return bring_rows(rig, rig->vt->exchange_post, x, out, number, s, in);
}
