/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_checkpoint_crash.c: a power cut at any moment leaves the checkpoint that is being saved,
 * whole, or the one before it: the system calls of three saves are recorded, and every state that a
 * disk may be in after each of them is made and loaded. What was not synced may be there, not
 * there, half there or zeros; names that were not synced as well, in any order. And each call fails
 * in turn. */
#include "checkpoint/files.h"
#include "recorder.h"
#include "saved.h"
#include "tests/support/files.h"
#include "tests/support/suite.h"

#include <errno.h>

enum { SYNCED, LOST, THERE, ZEROS, TORN, RANDOM_STATES = 12 };

/* ---- a disk ---- */

typedef struct entry {
    int folder, node;
    char name[RECORD_NAME];
} entry_t;

typedef struct disk {
    entry_t entries[NODES_MOST];
    int n;
    char *data[NODES_MOST];
    size_t bytes[NODES_MOST];
    bool is_folder[NODES_MOST];
} disk_t;

static entry_t *find(disk_t *disk, int folder, const char *name)
{
    for (int i = 0; i < disk->n; i++)
        if (disk->entries[i].folder == folder && strcmp(disk->entries[i].name, name) == 0)
            return &disk->entries[i];
    return NULL;
}

static void drop(disk_t *disk, entry_t *entry)
{
    if (entry != NULL)
        *entry = disk->entries[--disk->n];
}

static void write_some(disk_t *disk, const record_t *r, int fate, unsigned *random)
{
    if (r->at + r->bytes > disk->bytes[r->node]) {
        disk->data[r->node] = realloc(disk->data[r->node], r->at + r->bytes);
        memset(disk->data[r->node] + disk->bytes[r->node], 0, r->at + r->bytes - disk->bytes[r->node]);
        disk->bytes[r->node] = r->at + r->bytes;
    }
    for (size_t i = 0; i < r->bytes && fate != ZEROS; i += 512) {
        const size_t n = r->bytes - i < 512 ? r->bytes - i : 512;

        *random = *random * 1664525u + 1013904223u;
        if (fate != TORN || (*random >> 20 & 1) != 0)
            memcpy(disk->data[r->node] + r->at + i, r->data + i, n);
    }
}

static void apply(disk_t *disk, const record_t *r, int fate, unsigned *random)
{
    entry_t *entry, *other;

    switch (r->kind) {
    case RECORD_CREATE:
    case RECORD_MKDIR:
        disk->is_folder[r->node] = r->kind == RECORD_MKDIR;
        drop(disk, find(disk, r->folder, r->name));
        disk->entries[disk->n] = (entry_t){.folder = r->folder, .node = r->node};
        snprintf(disk->entries[disk->n++].name, RECORD_NAME, "%s", r->name);
        break;
    case RECORD_WRITE:
        write_some(disk, r, fate, random);
        break;
    case RECORD_RENAME:
    case RECORD_SWAP:
        entry = find(disk, r->folder, r->name), other = find(disk, r->folder, r->to);
        if (entry == NULL || entry->node != r->node)
            break;
        snprintf(entry->name, RECORD_NAME, "%s", r->to);
        if (other != NULL && r->kind == RECORD_SWAP)
            snprintf(other->name, RECORD_NAME, "%s", r->name);
        else
            drop(disk, other);
        break;
    case RECORD_UNLINK:
        entry = find(disk, r->folder, r->name);
        if (entry != NULL && entry->node == r->node)
            drop(disk, entry);
        break;
    case RECORD_SYNC:
    case RECORD_MARK:
        break;
    }
}

static void put_folder(const disk_t *disk, int node, const char *path)
{
    char below[PATH_BYTES];

    mkdir(path, 0777);
    for (int i = 0; i < disk->n; i++) {
        const entry_t *entry = &disk->entries[i];

        if (entry->folder != node)
            continue;
        files_path(below, path, entry->name);
        if (disk->is_folder[entry->node])
            put_folder(disk, entry->node, below);
        else
            files_write(below, disk->data[entry->node], disk->bytes[entry->node]);
    }
}

/* ---- what a cut may leave ---- */

/* A record is safe once what it changed was synced before the cut. */
static bool is_safe(int i, int cut)
{
    for (int k = i + 1; k < cut; k++)
        if (records[k].kind == RECORD_SYNC &&
            records[k].node == (records[i].kind == RECORD_WRITE ? records[i].node : records[i].folder))
            return true;
    return false;
}

static bool changes(int i)
{
    return records[i].kind != RECORD_SYNC && records[i].kind != RECORD_MARK;
}

/* The steps that must and may be found after a cut. */
static void bounds(int cut, uint64_t *least, uint64_t *most)
{
    *least = *most = 0;
    for (int i = 0; i < nrecords; i++)
        if (records[i].kind == RECORD_MARK && i < cut)
            *least = (uint64_t)records[i].mark;
    for (int i = nrecords - 1; i >= cut; i--)
        if (records[i].kind == RECORD_MARK)
            *most = (uint64_t)records[i].mark;
    if (*most < *least)
        *most = *least;
}

/* below: what the folder of checkpoints is called in that which is watched. */
static void check_state(const int fates[], int cut, unsigned random, const char *top, const char *below)
{
    char folder[PATH_BYTES];
    static disk_t disk;
    uint64_t least, most, step = 0;
    dp_status_t status;

    memset(&disk, 0, sizeof(disk));
    disk.is_folder[0] = true;
    for (int i = 0; i < cut; i++)
        if (fates[i] != LOST)
            apply(&disk, &records[i], fates[i], &random);
    files_remove(top);
    put_folder(&disk, 0, top);
    files_path(folder, top, below);
    for (int i = 0; i < NODES_MOST; i++)
        free(disk.data[i]);
    bounds(cut, &least, &most);
    status = dp_checkpoint_newest(folder, UINT64_MAX, &step);
    ck_assert_msg(status == (step > 0 ? DP_OK : DP_PENDING), "cut %d: %s", cut, dp_status_name(status));
    ck_assert_msg(step >= least && step <= most, "cut %d: step %d was found, %d to %d were expected", cut, (int)step,
                  (int)least, (int)most);
    if (step > 0)
        ck_assert_msg(saved_read(folder, step) == DP_OK, "cut %d: step %d: %s", cut, (int)step, dp_last_error());
}

static int check_cut(int cut, const char *top, const char *below)
{
    int fates[RECORDS_MOST], loose[RECORDS_MOST], n = 0, states = 0;
    unsigned random = 1;

    for (int i = 0; i < cut; i++) {
        fates[i] = SYNCED;
        if (changes(i) && !is_safe(i, cut))
            loose[n++] = i;
    }
    /* all have one fate but one, which has another; and states that are drawn */
    for (int rest = LOST; rest <= ZEROS; rest++)
        for (int odd = -1; odd < n; odd++)
            for (int other = LOST; other <= (odd < 0 ? LOST : THERE); other++) {
                for (int k = 0; k < n; k++)
                    fates[loose[k]] = k == odd ? other : rest;
                check_state(fates, cut, 1, top, below);
                states++;
            }
    for (int s = 0; s < RANDOM_STATES && n > 1; s++) {
        for (int k = 0; k < n; k++) {
            random = random * 1664525u + 1013904223u;
            fates[loose[k]] = LOST + (int)(random >> 16) % 4;
        }
        check_state(fates, cut, random, top, below);
        states++;
    }
    return states;
}

/* The folder is there, or the run makes it. */
START_TEST(a_power_cut)
{
    const char *below = _i == 0 ? "." : "run";
    char top[PATH_BYTES], folder[PATH_BYTES], made[PATH_BYTES];
    int states = 0;

    files_folder(top);
    files_folder(made);
    recorder_begin(top);
    files_path(folder, top, below);
    if (_i == 0)
        strcpy(folder, top);
    ck_assert_int_eq(dp__folder_begin(folder), DP_OK);
    for (int step = 1; step <= 3; step++) {
        ck_assert_int_eq(saved_all(folder, (uint64_t)(step < 3 ? step : 2)),
                         DP_OK); /* the last takes the place of one */
        recorder_mark(step < 3 ? step : 2);
        ck_assert_int_eq(dp__checkpoint_keep(folder, (uint64_t)step, saved_origin.run, 1), DP_OK);
    }
    ck_assert_int_gt(nrecords, 60);
    for (int cut = 0; cut <= nrecords; cut++)
        states += check_cut(cut, made, below);
    printf("%d calls, %d states\n", nrecords, states);
    ck_assert_int_gt(states, 1000);
    recorder_end();
    files_remove(top);
    files_remove(made);
}
END_TEST

/* ---- calls that fail ---- */

START_TEST(every_call_fails)
{
    static const int errors[] = {ENOSPC, EIO, EDQUOT, EROFS};
    const bool sticky = _i % 2 != 0;
    char folder[PATH_BYTES];
    long n;

    for (n = 0;; n++) {
        const int before = files_open_descriptors();
        uint64_t step;
        dp_status_t status;
        bool struck;

        files_folder(folder);
        ck_assert_int_eq(saved_all(folder, 1), DP_OK);
        recorder_fail(n, sticky, errors[n % 4]);
        status = saved_all(folder, 2);
        if (status >= 0)
            status = dp__checkpoint_keep(folder, 2, saved_origin.run, 2);
        struck = recorder_failed();
        ck_assert_msg(status >= 0 || status == DP_ERR_IO, "call %ld: %s", n, dp_last_error());
        ck_assert_msg(status >= 0 || struck, "%s", dp_last_error());
        if (status < 0)
            ck_assert_msg(strstr(dp_last_error(), folder) != NULL, "call %ld: %s", n, dp_last_error());
        ck_assert_int_eq(dp_checkpoint_newest(folder, UINT64_MAX, &step), DP_OK);
        ck_assert_uint_ge(step, status >= 0 ? 2 : 1);
        ck_assert_int_eq(saved_read(folder, step), DP_OK);
        ck_assert_int_eq(saved_read(folder, 1), DP_OK);
        ck_assert_int_eq(dp__checkpoint_discard(folder, 2), DP_OK);
        ck_assert_int_eq(saved_all(folder, 3), DP_OK); /* and the next one is well */
        ck_assert_int_eq(saved_read(folder, 3), DP_OK);
        ck_assert_int_eq(files_open_descriptors(), before);
        files_remove(folder);
        if (!struck)
            break;
    }
    ck_assert_int_gt(n, 30);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint_crash");
    TCase *tc = tcase_create("loops");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, a_power_cut, 0, 2);
    tcase_add_loop_test(tc, every_call_fails, 0, 2);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
