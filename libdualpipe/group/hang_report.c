/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * hang_report.c: why no rank makes progress. The rank that has waited too long, the reporter, is
 * rarely the one to blame. Rank 0 asks every rank what it is doing, follows who waits for whom, and
 * ends the job with the rank at the root. Control threads answer, so a rank that computes for ever
 * answers too. A rank that does not answer is stopped, or its machine stands still. `dualpipe
 * status` (status.c) has all ranks asked as well, and ends nothing. */
#include "base/memory.h"
#include "group/process.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* for the answers; less than a rank that proposes the end waits for rank 0 */
#define PATIENCE_SECONDS 0.4

/* ---- what a rank says ---- */

#define HELD 'd' /* a debugger holds it, and it runs nevertheless */

/* Ranks of this host that neither run nor sleep, or that a debugger holds: "3T 5t". */
static void list_states(const dp__process_t *p, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int32_t r = 0; r < p->group.size && used + 16 < bytes; r++) {
        char state = dp__stands_still(p, r);

        if (dp__is_near(p, r) && dp__process_traced(dp__process_number(p, r)))
            state = state != '\0' ? 't' : HELD;
        if (state != '\0')
            used += (size_t)snprintf(text + used, bytes - used, "%s%d%c", used > 0 ? " " : "", r, state);
    }
}

static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    long pages = 0;

    if (file != NULL && fscanf(file, "%*d %ld", &pages) != 1)
        pages = 0;
    if (file != NULL)
        fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

enum { HEAD = 5 }; /* numbers before the texts: for how long, and the progress */

/* Payload: the numbers; two texts, what this rank is doing and who stands still on its host; the
 * last spans. */
void dp__hang_report_tell(dp__process_t *p, bool spans)
{
    unsigned char said[HEAD * sizeof(uint64_t) + sizeof(((dp__doing_t *)0)->text) + 256], *told = NULL;
    const size_t told_bytes = spans ? dp__told_spans_write(p, &told) : 0;
    const dp__progress_t progress = dp__group_progress_of(&p->group);
    dp__doing_t doing;
    uint64_t head[HEAD] = {0, htole64(progress.steps), htole64(progress.step_ns), htole64(progress.busy_ns),
                           htole64(resident_bytes())};
    char *at = (char *)said + sizeof(head);

    if (dp__recorder_look(p->recorders, p->group.rank, &doing))
        head[0] = htole64((uint64_t)(dp__now_ns() - doing.since_ns));
    memcpy(said, head, sizeof(head));
    at += snprintf(at, sizeof(doing.text), "%s", doing.text) + 1;
    list_states(p, at, (size_t)((char *)said + sizeof(said) - at));
    at += strlen(at) + 1;
    dp__send2(p,
              &(dp__frame_t){.type = DP__FRAME_TELL,
                             .value = (doing.open ? 1 : 0) | (doing.computes ? 2 : 0) | (spans ? 4 : 0),
                             .extra = (uint32_t)(doing.peer + 1)},
              said, (size_t)((unsigned char *)at - said), told, told_bytes);
    dp__free(told);
}

static const char *state_word(char state)
{
    switch (state) {
    case 'T':
        return "; process state T (stopped)";
    case 't':
        return "; process state t (stopped by a debugger)";
    case 'D':
        return "; process state D (waits for a device)";
    case 'Z':
    case 'X':
        return "; its process has ended";
    default:
        return "";
    }
}

/* What can be read from here needs nobody to tell it. */
static void take_near(dp__process_t *p)
{
    for (int32_t r = 0; r < p->group.size; r++)
        if (r == p->group.rank || dp__is_near(p, r))
            (void)dp__last_spans_take(p->recorders, r, p->last.timeline, r);
}

static bool can_replace(const dp__process_t *p)
{
    return p->group.respawn && p->join.ends.tell >= 0;
}

static void ask_for_another(dp__process_t *p, int32_t rank, const char *doing, const char *why)
{
    const int32_t pid = dp__process_number(p, rank);

    dp__ends_tell(&p->join.ends, "died", rank, pid, doing);
    dp__ends_tell(&p->join.ends, "hung", rank, pid, why);
}

void dp__hang_report_without_hub(dp__process_t *p, dp_status_t status, const char *text)
{
    char longer[DP__CAUSE_BYTES], name[128], file[DP__LAST_SPANS_TEXT];
    dp__doing_t doing = {.since_ns = 0};

    (void)dp__recorder_look(p->recorders, 0, &doing);
    dp__peer_name(p, 0, name, sizeof(name));
    if (dp__last_spans_open(&p->last, p->group.size))
        take_near(p);
    dp__last_spans_name(&p->last, file, sizeof(file));
    snprintf(longer, sizeof(longer),
             "%s, which would find out why no rank makes progress, does not answer%s%s%s%s; %.300s", name,
             doing.text[0] == '\0' ? ""
             : doing.open          ? ", and was last seen in "
                                   : ", and was last seen after ",
             doing.text, state_word(dp__stands_still(p, 0)), file, text);
    if (can_replace(p) && dp__is_near(p, 0) && strchr("TZX", dp__stands_still(p, 0)) != NULL &&
        !dp__process_traced(dp__process_number(p, 0))) {
        ask_for_another(p, 0, doing.text, longer);
        dp__cause_set(&p->cause, DP_ERR_PEER, "%s", longer);
        return;
    }
    dp__send(p, &(dp__frame_t){.type = DP__FRAME_ABORT, /* for when it goes on */
                               .value = status,
                               .extra = 1,
                               .bytes = (uint32_t)strlen(longer),
                               .payload = (const unsigned char *)longer});
    dp__cause_set(&p->cause, status, "%s", longer);
}

/* ---- what rank 0 makes of it ---- */

static dp__answer_t *answer_of(dp__process_t *p, int32_t rank)
{
    return &p->hub.hang_report.answers[rank];
}

static void answer_ourselves(dp__process_t *p)
{
    dp__answer_t *mine = answer_of(p, 0);

    mine->came = true;
    mine->progress = dp__group_progress_of(&p->group);
    mine->progress.resident_bytes = resident_bytes();
    (void)dp__recorder_look(p->recorders, 0, &mine->doing);
    list_states(p, mine->states, sizeof(mine->states));
}

/* The two texts behind the numbers, and where they end; false: they do not. */
static bool find_texts(const dp__frame_t *frame, const char **states_out, const unsigned char **end_out)
{
    const char *text = (const char *)frame->payload + HEAD * sizeof(uint64_t);
    const unsigned char *end = frame->payload + frame->bytes;

    if (frame->bytes < HEAD * sizeof(uint64_t))
        return false;
    *states_out = text + strlen(text) + 1;
    if ((const unsigned char *)*states_out > end)
        return false;
    *end_out = (const unsigned char *)*states_out + strlen(*states_out) + 1;
    if (*end_out > end)
        *end_out = end;
    return true;
}

static void take_answer(dp__process_t *p, dp__answer_t *answer, const dp__frame_t *frame, const char *states)
{
    uint64_t head[HEAD], age;

    memcpy(head, frame->payload, sizeof(head));
    age = le64toh(head[0]);
    answer->came = true;
    answer->progress = (dp__progress_t){le64toh(head[1]), le64toh(head[2]), le64toh(head[3]), le64toh(head[4])};
    answer->doing.open = (frame->value & 1) != 0;
    answer->doing.computes = (frame->value & 2) != 0;
    answer->doing.peer = (int32_t)frame->extra - 1;
    answer->doing.since_ns = age < (uint64_t)dp__now_ns() ? dp__now_ns() - (int64_t)age : 0;
    snprintf(answer->doing.text, sizeof(answer->doing.text), "%s", (const char *)frame->payload + sizeof(head));
    snprintf(answer->states, sizeof(answer->states), "%s", states);
    p->hub.hang_report.missing--;
}

bool dp__hang_report_hear(dp__process_t *p, int32_t rank, const dp__frame_t *frame)
{
    const unsigned char *spans;
    const char *states;

    if (frame->extra > (uint32_t)p->group.size || !find_texts(frame, &states, &spans))
        return false;
    if (p->hub.hang_report.answers == NULL)
        return true; /* too late */
    if (!answer_of(p, rank)->came)
        take_answer(p, answer_of(p, rank), frame, states);
    if ((frame->value & 4) != 0 && !answer_of(p, rank)->told_spans) {
        answer_of(p, rank)->told_spans = true;
        p->hub.hang_report.silent--;
    }
    return dp__told_spans_read(p, rank, spans, frame->payload + frame->bytes);
}

/* The letter that any rank of its host has seen; 0: none. */
static char seen_letter(dp__process_t *p, int32_t rank)
{
    for (int32_t r = 0; r < p->group.size; r++) {
        const dp__answer_t *a = answer_of(p, r);

        if (!a->came || !dp__same_machine(p, r, rank))
            continue;
        for (const char *at = a->states; *at != '\0';) {
            char *end;

            if (strtol(at, &end, 10) == rank)
                return *end;
            at = end + (*end != '\0');
            at += *at == ' ';
        }
    }
    return 0;
}

/* 0: it does not stand still. */
static char seen_state(dp__process_t *p, int32_t rank)
{
    const char letter = seen_letter(p, rank);

    return letter == HELD ? 0 : letter;
}

static bool in_control(dp__process_t *p, int32_t rank)
{
    return p->hub.gather.arrived > 0 && p->hub.gather.here[rank];
}

/* For whom that rank waits; -1: for nobody, or who knows. */
static int32_t waits_for(dp__process_t *p, int32_t rank)
{
    const dp__answer_t *a = answer_of(p, rank);

    if (a->doing.computes || seen_state(p, rank) != 0)
        return -1;
    if (a->doing.peer >= 0)
        return a->doing.peer;
    for (int32_t r = 0; in_control(p, rank) && r < p->group.size; r++)
        if (!p->hub.gather.here[r])
            return r;
    return -1;
}

/* A rank that stands still, or else one that does not answer; -1: there is none. */
static int32_t find_stalled(dp__process_t *p)
{
    for (int32_t r = 0; r < p->group.size; r++)
        if (seen_state(p, r) != 0)
            return r;
    for (int32_t r = 0; r < p->group.size; r++)
        if (!answer_of(p, r)->came)
            return r;
    return -1;
}

/* The only rank that waits for nobody; -1: there are several, or none. */
static int32_t find_busy(dp__process_t *p)
{
    int32_t found = -1, n = 0;

    for (int32_t r = 0; r < p->group.size; r++) {
        const dp__answer_t *a = answer_of(p, r);

        if (a->came && (a->doing.computes || (!a->doing.open && !in_control(p, r)))) {
            found = r;
            n++;
        }
    }
    return n == 1 ? found : -1;
}

/* From the reporter along the waits; *circle_out: they come back to where they were. Where they end
 * at somebody of whom less is known, the stalled rank is the likelier one. */
static int32_t find_root(dp__process_t *p, bool *circle_out)
{
    int32_t at = p->hub.hang_report.reporter, stalled = find_stalled(p), next;

    *circle_out = false;
    for (int32_t steps = 0; (next = waits_for(p, at)) >= 0; steps++, at = next)
        if (steps > p->group.size) {
            *circle_out = true;
            return at;
        }
    if (stalled < 0 && answer_of(p, at)->doing.open && !answer_of(p, at)->doing.computes && find_busy(p) >= 0)
        return find_busy(p); /* for whom a reduction waits, its spans do not say */
    if (stalled < 0 || seen_state(p, at) != 0)
        return at;
    return answer_of(p, at)->came || seen_state(p, stalled) != 0 ? stalled : at;
}

/* ---- who is replaced ---- */

static bool all_compute(dp__process_t *p)
{
    for (int32_t r = 0; r < p->group.size; r++)
        if (!answer_of(p, r)->came || !answer_of(p, r)->doing.computes)
            return false;
    return true;
}

/* It is stopped, or computes without end, or does not come: not one that itself waits for
 * something, or for a device, and not one that somebody is looking at. */
static bool is_replaceable(dp__process_t *p, int32_t rank)
{
    const dp__answer_t *a = answer_of(p, rank);
    const char letter = seen_letter(p, rank);

    if (!can_replace(p) || (letter != 0 && letter != 'T') || dp__peer(p, rank).pid == 0 || all_compute(p))
        return false;
    return letter == 'T' || !a->came || a->doing.computes || (!a->doing.open && !in_control(p, rank));
}

/* With the root all others that are stopped: they do not come when the ranks join again. */
static void replace_hung(dp__process_t *p, int32_t root, const char *why)
{
    for (int32_t r = 0; r < p->group.size; r++)
        if (r == root || (seen_state(p, r) == 'T' && is_replaceable(p, r)))
            ask_for_another(p, r, answer_of(p, r)->doing.text, r == root ? why : "is stopped");
}

static void say_root(dp__process_t *p, int32_t root, bool circle, char *text, size_t bytes)
{
    const dp__answer_t *a = answer_of(p, root);
    char name[128];
    dp__doing_t known = a->doing;
    double seconds = known.since_ns > 0 ? (double)(dp__now_ns() - known.since_ns) * 1e-9 : 0;

    dp__peer_name(p, root, name, sizeof(name));
    if (circle)
        snprintf(text, bytes, "ranks wait for each other in a circle: %s is in %s (%.1f s) and waits for rank %d", name,
                 known.text, seconds, waits_for(p, root));
    else if (!a->came || seen_state(p, root) != 0)
        snprintf(text, bytes, "%s has not moved since %s (%.1f s)%s%s", name,
                 known.text[0] != '\0' ? known.text : "the ranks joined", seconds,
                 a->came ? "" : ", and does not answer", state_word(seen_state(p, root)));
    else if (known.open)
        snprintf(text, bytes, "%s has been in %s for %.1f s%s", name, known.text, seconds,
                 known.computes ? " and waits for nobody" : "");
    else
        snprintf(text, bytes, "%s has not begun anything for %.1f s%s%s", name, seconds,
                 known.text[0] != '\0' ? ", after " : "", known.text);
}

void dp__hang_report_describe(dp__process_t *p, int32_t rank, char *text, size_t bytes)
{
    const dp__answer_t *a = answer_of(p, rank);
    int32_t for_whom = waits_for(p, rank);
    char whom[48] = "";

    if (for_whom >= 0)
        snprintf(whom, sizeof(whom), ", waits for rank %d", for_whom);
    snprintf(text, bytes, "%s%s%s%s%s",
             !a->came              ? "does not answer"
             : a->doing.open       ? "is in "
             : a->doing.text[0]    ? "has ended "
             : in_control(p, rank) ? "has come to the control collective"
                                   : "has recorded nothing",
             a->came ? a->doing.text : "",
             in_control(p, rank) && a->doing.text[0] ? ", is in a control collective" : "", whom,
             state_word(seen_state(p, rank)));
}

/* One line for each rank: the report of the whole job. */
static void log_all(dp__process_t *p)
{
    char text[400];

    for (int32_t r = 0; r < p->group.size; r++) {
        dp__hang_report_describe(p, r, text, sizeof(text));
        dp_log(DP_LOG_ERROR, "group", "no rank makes progress: rank %d %s", r, text);
    }
}

/* Whoever is busy answers late, and its recorder can be read nevertheless. */
static void look_at_silent(dp__process_t *p)
{
    for (int32_t r = 0; r < p->group.size; r++)
        if (!answer_of(p, r)->came)
            (void)dp__recorder_look(p->recorders, r, &answer_of(p, r)->doing);
}

static void name_stalled(dp__process_t *p)
{
    char root_text[512], file[DP__LAST_SPANS_TEXT];
    bool circle;
    int32_t root = find_root(p, &circle);

    log_all(p);
    say_root(p, root, circle, root_text, sizeof(root_text));
    if (p->last.timeline != NULL)
        take_near(p);
    dp__last_spans_name(&p->last, file, sizeof(file));
    if (!circle && is_replaceable(p, root)) {
        replace_hung(p, root, root_text);
        dp__cause_set(&p->cause, DP_ERR_PEER, "%.500s, and is replaced%s", root_text, file);
        return;
    }
    dp__cause_set(&p->cause, p->hub.hang_report.status, "%.500s%s; first to say so: %.200s", root_text, file,
                  p->hub.hang_report.text);
}

void dp__hang_report_conclude(dp__process_t *p)
{
    if (p->hub.hang_report.reporter >= 0)
        name_stalled(p);
    dp__hang_report_end(p);
}

bool dp__hang_report_left(dp__process_t *p)
{
    if (p->hub.hang_report.answers == NULL || p->hub.hang_report.reporter < 0)
        return false;
    dp__cause_set(&p->cause, p->hub.hang_report.status, "%s", p->hub.hang_report.text);
    return true;
}

void dp__hang_report_end(dp__process_t *p)
{
    dp__free(p->hub.hang_report.answers);
    p->hub.hang_report.answers = NULL;
}

/* For spans where no recorder can be read from here. */
static void ask_all(dp__process_t *p, bool spans)
{
    p->hub.hang_report.asked_ns = dp__now_ns();
    p->hub.hang_report.deadline_ns = p->hub.hang_report.asked_ns + dp__scaled_ns(PATIENCE_SECONDS);
    for (int32_t r = 1; r < p->group.size; r++)
        if (!spans || !dp__is_near(p, r)) {
            p->hub.hang_report.silent += spans;
            dp__send(p, &(dp__frame_t){.type = DP__FRAME_ASK, .to = r, .value = spans});
        }
    dp__process_wake(p);
}

bool dp__hang_report_ask(dp__process_t *p)
{
    if (p->hub.hang_report.answers != NULL)
        return true;
    if (dp__signal_value(&p->join.done) == 0 || dp__cause_is_set(&p->cause))
        return false;
    p->hub.hang_report.answers = dp__calloc((size_t)p->group.size, sizeof(*p->hub.hang_report.answers));
    if (p->hub.hang_report.answers == NULL)
        return false;
    for (int32_t r = 0; r < p->group.size; r++)
        answer_of(p, r)->doing.peer = -1;
    p->hub.hang_report.reporter = -1;
    p->hub.hang_report.missing = p->group.size - 1;
    p->hub.hang_report.silent = 0;
    answer_ourselves(p);
    ask_all(p, false);
    return true;
}

bool dp__hang_report_open(dp__process_t *p, int32_t reporter, dp_status_t status, const char *text)
{
    if (!dp__hang_report_ask(p))
        return false;
    if (p->hub.hang_report.reporter >= 0)
        return true;
    p->hub.hang_report.reporter = reporter;
    p->hub.hang_report.status = status;
    snprintf(p->hub.hang_report.text, sizeof(p->hub.hang_report.text), "%s", text);
    if (dp__last_spans_open(&p->last, p->group.size))
        ask_all(p, true);
    return true;
}

bool dp__hang_report_over(dp__process_t *p, int64_t now_ns)
{
    if (p->hub.hang_report.answers == NULL)
        return false;
    if (dp__cause_is_set(&p->cause)) {
        dp__hang_report_end(p);
        return false;
    }
    if ((p->hub.hang_report.missing > 0 || p->hub.hang_report.silent > 0) && now_ns < p->hub.hang_report.deadline_ns)
        return false;
    look_at_silent(p);
    return true;
}
