/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * news.c: what is known of ranks: by the flight recorders of this host, and by what those of
 * other hosts have told. */
#include "base/memory.h"
#include "group/process.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

bool dp__news_hear(dp__process_t *p, int32_t rank, const dp__frame_t *frame)
{
    int64_t now = dp__now_ns();
    dp__contact_t *peer = dp__contact(p, rank);
    uint64_t number;

    if (frame->bytes < sizeof(number) || frame->bytes - sizeof(number) >= sizeof(peer->news->doing))
        return false;
    if (peer->news == NULL)
        peer->news = dp__calloc(1, sizeof(*peer->news));
    if (peer->news == NULL)
        return true; /* a few words less in a message */
    memcpy(&number, frame->payload, sizeof(number));
    number = le64toh(number);
    if (!dp__is_hub(p) && number <= (uint64_t)now && now - (int64_t)number > p->beat.job_sign_ns)
        p->beat.job_sign_ns = now - (int64_t)number;
    if (dp__is_hub(p) && number != peer->news->sign)
        peer->news->sign_ns = now;
    peer->news->sign = number;
    peer->news->told_ns = now;
    peer->news->open = frame->value != 0;
    snprintf(peer->news->doing, sizeof(peer->news->doing), "%s", (const char *)frame->payload + sizeof(number));
    return true;
}

int64_t dp__news_latest(const dp__process_t *p)
{
    int64_t latest = dp__recorder_latest(p->recorders, -1);

    if (p->beat.job_sign_ns > latest)
        latest = p->beat.job_sign_ns;
    for (int32_t r = 0; dp__is_hub(p) && r < p->group.size; r++) {
        const dp__news_t *news = p->contacts[r].news;

        if (news != NULL && news->sign_ns > latest)
            latest = news->sign_ns;
    }
    return latest;
}

void dp__news_describe(const dp__process_t *p, int32_t rank, char *text, size_t bytes)
{
    const dp__contact_t *contact = dp__contact(p, rank);

    (void)dp__recorder_describe(p->recorders, rank, text, bytes);
    if (text[0] == '\0' && contact != NULL && contact->news != NULL)
        snprintf(text, bytes, "%s", contact->news->doing);
}

void dp__news_doing(const dp__process_t *p, int32_t rank, char *text, size_t bytes)
{
    const dp__contact_t *contact = dp__contact(p, rank);
    const dp__news_t *news = contact != NULL ? contact->news : NULL;
    char doing[256];
    bool open = dp__recorder_describe(p->recorders, rank, doing, sizeof(doing));

    text[0] = '\0';
    if (doing[0] != '\0')
        snprintf(text, bytes, " %s %s", open ? "in" : "after", doing);
    else if (news != NULL && news->doing[0] != '\0')
        snprintf(text, bytes, " %s %s (told %.1f s before)", news->open ? "in" : "after", news->doing,
                 (double)(dp__now_ns() - news->told_ns) * 1e-9);
}
