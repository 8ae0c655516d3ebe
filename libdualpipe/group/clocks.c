/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * clocks.c: rank 0's clock, as ranks of other hosts know it: with every beat they ask for its
 * time. */
#include "base/memory.h"
#include "group/process.h"

#include <endian.h>
#include <string.h>

#define ROUNDS 8 /* asked anew when the clock is wanted: the quickest answer counts */

static bool has_own_clock(const dp__process_t *p)
{
    return dp__signal_value(&p->join.done) != 0 && !dp__is_near(p, 0);
}

void dp__clock_ask(dp__process_t *p)
{
    uint64_t now = htole64((uint64_t)dp__now_ns());

    if (has_own_clock(p))
        dp__send(p,
                 &(dp__frame_t){.type = DP__FRAME_CLOCK, .bytes = sizeof(now), .payload = (const unsigned char *)&now});
}

bool dp__clock_answer(dp__process_t *p, int32_t rank, const dp__frame_t *frame)
{
    uint64_t now = htole64((uint64_t)dp__now_ns());

    if (frame->bytes != sizeof(now))
        return false;
    dp__send2(p, &(dp__frame_t){.type = DP__FRAME_CLOCK, .to = rank}, frame->payload, sizeof(now), &now, sizeof(now));
    return true;
}

bool dp__clock_hear(dp__process_t *p, const dp__frame_t *frame)
{
    int64_t now = dp__now_ns();
    uint64_t times[2];

    if (frame->bytes != sizeof(times))
        return false;
    memcpy(times, frame->payload, sizeof(times));
    times[0] = le64toh(times[0]);
    times[1] = le64toh(times[1]);
    if (times[0] > (uint64_t)now || times[1] > INT64_MAX)
        return false;
    if (p->clock.samples == NULL)
        p->clock.samples = dp__calloc(DP__CLOCK_SAMPLES, sizeof(*p->clock.samples));
    if (p->clock.samples != NULL)
        p->clock.samples[p->clock.count++ % DP__CLOCK_SAMPLES] =
            dp__clock_sample((int64_t)times[0], (int64_t)times[1], now);
    dp__signal_post(&p->clock.answers, dp__signal_value(&p->clock.answers) + 1);
    return true;
}

static dp_status_t measure_clock(dp__process_t *p)
{
    dp_status_t status = DP_OK;

    for (int i = 0; i < ROUNDS && status == DP_OK; i++) {
        uint32_t before;

        pthread_mutex_lock(&p->mutex);
        before = dp__signal_value(&p->clock.answers);
        dp__clock_ask(p);
        pthread_mutex_unlock(&p->mutex);
        dp__process_wake(p);
        status =
            dp__cause_wait(&p->cause, &p->clock.answers, before + 1, p->group.hang_ns, "asking rank 0 for its time");
    }
    return status;
}

dp_status_t dp__process_clock(dp_group_t *group, int64_t since_ns, dp__clock_sample_t *samples_out, size_t *count_out)
{
    dp__process_t *p = dp__process_of(group);
    dp_status_t status;

    *count_out = 0;
    if (!has_own_clock(p))
        return DP_OK;
    status = measure_clock(p);
    pthread_mutex_lock(&p->mutex);
    for (uint32_t i = 0; i < DP__CLOCK_SAMPLES && i < p->clock.count && p->clock.samples != NULL; i++)
        if (p->clock.samples[i].at_ns >= since_ns)
            samples_out[(*count_out)++] = p->clock.samples[i];
    pthread_mutex_unlock(&p->mutex);
    if (status == DP_OK && *count_out == 0)
        return dp_fail(DP_ERR_NOMEM, "rank %d: no memory for what is known of rank 0's clock", group->rank);
    return status;
}
