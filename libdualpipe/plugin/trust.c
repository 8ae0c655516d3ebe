/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trust.c: owner and mode of files and folders that code is taken from. */
#include "plugin/trust.h"

#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* a private group and a user fit; a group with a longer member list is not private */
#define ENTRY_BYTES 4096

/* The group that a user gets for himself alone: it has his name and no other member. Never so for
 * root. */
static bool is_private_group(gid_t gid)
{
    char user_text[ENTRY_BYTES], group_text[ENTRY_BYTES];
    struct passwd user, *user_found = NULL;
    struct group group, *group_found = NULL;

    if (geteuid() == 0 || getpwuid_r(geteuid(), &user, user_text, sizeof(user_text), &user_found) != 0 ||
        getgrgid_r(gid, &group, group_text, sizeof(group_text), &group_found) != 0)
        return false;
    if (user_found == NULL || group_found == NULL || user.pw_gid != gid || strcmp(user.pw_name, group.gr_name) != 0)
        return false;
    return group.gr_mem[0] == NULL || (strcmp(group.gr_mem[0], user.pw_name) == 0 && group.gr_mem[1] == NULL);
}

const char *dp__distrust(const struct stat *st)
{
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return "belongs to another user";
    if (S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX) != 0)
        return NULL;
    if ((st->st_mode & S_IWOTH) != 0)
        return "is writable by others";
    if ((st->st_mode & S_IWGRP) != 0 && !is_private_group(st->st_gid))
        return "is writable by its group";
    return NULL;
}
