/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * load.c: finds a plugin's file, judges it before any of its code can run, maps it for good and
 * judges what it says. */
#include "base/do.h"
#include "base/memory.h"
#include "plugin/candidates.h"
#include "plugin/elf_check.h"
#include "plugin/interfaces.h"
#include "plugin/trust.h"
#include "system/bare_host.h"
#include "system/wait.h"

#include <dualpipe/plugin.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRIED_BYTES  768
#define INIT_SECONDS 5 /* after which an init that runs is named */

/* Every file ever mapped, by device and inode; entries are never removed, as plugins are never
 * unmapped. */
typedef struct loaded {
    struct loaded *next;
    dev_t device;
    ino_t inode;
    const dp_plugin_t *plugin;
} loaded_t;

static struct {
    pthread_mutex_t mutex;
    loaded_t *first;
} registry = {PTHREAD_MUTEX_INITIALIZER, NULL};

/* What was tried and why it was passed over, for the one error message. */
typedef struct tried {
    char text[TRIED_BYTES];
    size_t used;
} tried_t;

static void note(tried_t *tried, const char *path, const char *why)
{
    int n = snprintf(tried->text + tried->used, sizeof(tried->text) - tried->used, "%s%s: %s",
                     tried->used > 0 ? "; " : "", path, why);

    if (n > 0)
        tried->used = tried->used + (size_t)n < sizeof(tried->text) ? tried->used + (size_t)n : sizeof(tried->text) - 1;
}

static int plain_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");

    return n > 0 && n < 128 && name[n] == '\0';
}

static dp_status_t check_folders(const char *path)
{
    char parent[PATH_MAX];
    struct stat st;

    snprintf(parent, sizeof(parent), "%s", path);
    for (char *slash = strrchr(parent, '/'); slash != NULL; slash = strrchr(parent, '/')) {
        const char *folder = slash == parent ? "/" : parent;
        const char *why;

        *slash = '\0';
        if (stat(folder, &st) != 0)
            return dp_fail(DP_ERR_PLUGIN, "plugin %s: folder %s: %s", path, folder, strerror(errno));
        why = dp__distrust(&st);
        if (why != NULL)
            return dp_fail(DP_ERR_SECURITY, "plugin %s: folder %s %s; fix its owner or mode", path, folder, why);
    }
    return DP_OK;
}

static const dp_plugin_t *find_loaded(const struct stat *st)
{
    for (const loaded_t *l = registry.first; l != NULL; l = l->next)
        if (l->device == st->st_dev && l->inode == st->st_ino)
            return l->plugin;
    return NULL;
}

static dp_status_t check_descriptor(const char *path, const dp_plugin_t *plugin)
{
    /* these first members stay put through every major, so a refusal can still name the plugin */
    if (plugin->abi_major != DP_ABI_MAJOR)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s offers ABI %u.%u, this library needs major %d: rebuild the plugin",
                       path, plugin->abi_major, plugin->abi_minor, DP_ABI_MAJOR);
    if (plugin->struct_size < DP_PLUGIN_MIN)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s: its descriptor says %u bytes, too short for ABI %d.0", path,
                       plugin->struct_size, DP_ABI_MAJOR);
    if (plugin->name == NULL || !plain_name(plugin->name) || plugin->get_interface == NULL)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s: its descriptor lacks a name of [a-z0-9_] or get_interface", path);
    return DP_OK;
}

static char starting[PATH_MAX]; /* whose init runs; the registry's lock guards it */

static void name_starting(void)
{
    if (starting[0] != '\0')
        fprintf(stderr, "dualpipe: init of plugin %s has called exit\n", starting);
}

static dp_signal_t returned; /* how many inits have, */
static uint32_t begun;       /* of so many */

static void *watch_init(void *path)
{
    const int64_t limit = dp__scaled_ns(INIT_SECONDS);

    if (dp__signal_wait(&returned, begun, dp__now_ns() + limit, NULL) == DP_ERR_TIMEOUT)
        dp_log(DP_LOG_ERROR, "plugin", "init of plugin %s has not returned for %.3g s", (const char *)path,
               (double)limit / 1e9);
    return NULL;
}

/* Beside the init, without signals. False: there is no thread, and it goes unwatched. */
static bool begin_watch(pthread_t *thread)
{
    sigset_t all, before;
    bool created;

    begun++;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    created = pthread_create(thread, NULL, watch_init, starting) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return created;
}

static void end_watch(pthread_t thread)
{
    dp__signal_post(&returned, begun);
    pthread_join(thread, NULL);
}

/* An init that ends the process, or does not return, is named on standard error. */
static dp_status_t start_plugin(const char *path, const dp_plugin_t *plugin)
{
    static bool guarded;
    pthread_t thread;
    dp_status_t status;
    bool watched;

    if (!guarded)
        guarded = atexit(name_starting) == 0;
    snprintf(starting, sizeof(starting), "%s", path);
    watched = begin_watch(&thread);
    status = plugin->init(&dp__bare_host);
    if (watched)
        end_watch(thread);
    starting[0] = '\0';
    return status;
}

/* Called for the program, which is the first; no other is asked for. */
static int judge_program(struct dl_phdr_info *program, size_t bytes, void *is_static)
{
    (void)bytes;
    for (int i = 0; i < program->dlpi_phnum; i++)
        *(bool *)is_static &= program->dlpi_phdr[i].p_type != PT_INTERP;
    return 1;
}

/* Libraries that it needs may install handlers in their constructors (libfabric's do): those that
 * were there are put back. */
static void *map_file(const char *path)
{
    enum { SIGNALS = 64 };
    struct sigaction before[SIGNALS + 1], now;
    bool known[SIGNALS + 1] = {false};
    void *module;

    for (int s = 1; s <= SIGNALS; s++)
        known[s] = sigaction(s, NULL, &before[s]) == 0; /* some are libc's */
    module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (int s = 1; s <= SIGNALS; s++)
        if (known[s] && sigaction(s, NULL, &now) == 0 && now.sa_handler != before[s].sa_handler)
            (void)sigaction(s, &before[s], NULL);
    return module;
}

/* Maps the file, whose constructors run here, and lets it introduce itself. Memory that is missing
 * shows before its init runs: that happens once. */
static dp_status_t introduce(const char *path, const dp_plugin_t **plugin_out)
{
    const dp_plugin_t *plugin;
    bool is_static = true;
    dp_status_t status;
    void *module;

    dl_iterate_phdr(judge_program, &is_static);
    if (is_static) /* the plugin would get a second libc, which nobody has started */
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "plugin %s needs a dynamically linked program, and this one is static: link without -static",
                       path);
    module = map_file(path);
    if (module == NULL)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s cannot be loaded: %s", path, dlerror());
    plugin = dlsym(module, "dp_plugin_entry");
    if (plugin == NULL)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is no plugin: it does not export dp_plugin_entry", path);
    status = check_descriptor(path, plugin);
    if (status >= 0 && plugin->init != NULL) {
        (void)dp_fail(DP_OK, "%s", "");
        status = start_plugin(path, plugin);
        if (status > 0)
            return dp_fail(DP_ERR_PLUGIN, "init of plugin %s (%s) returned %d: DP_OK is 0, failures are negative",
                           plugin->name, path, (int)status);
        if (status < 0 && dp_last_error()[0] == '\0')
            return dp_fail(status, "init of plugin %s (%s) failed with %s without a message", plugin->name, path,
                           dp_status_name(status));
    }
    if (status >= 0)
        *plugin_out = plugin;
    return status;
}

/* Maps a file that has passed the checks. Called with the registry locked. */
static dp_status_t map(const char *path, const struct stat *st, const dp_plugin_t **plugin_out)
{
    loaded_t *entry = dp__calloc(1, sizeof(*entry));
    dp_status_t status;

    if (entry == NULL)
        return dp_fail(DP_ERR_NOMEM, "plugin %s: no memory for its registry entry", path);
    status = introduce(path, plugin_out);
    if (status < 0) {
        dp__free(entry);
        return status;
    }
    *entry = (loaded_t){registry.first, st->st_dev, st->st_ino, *plugin_out};
    registry.first = entry;
    dp__interfaces_prepare(*plugin_out);
    return DP_OK;
}

/* Whether a file may be mapped. */
static dp_status_t judge_file(const char *path, char real[PATH_MAX], struct stat *st, uint32_t *preference)
{
    const char *why;
    dp_status_t status;
    int fd;

    if (realpath(path, real) == NULL)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s: %s", path, strerror(errno));
    DO(check_folders(real));
    fd = open(real, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s: %s", real, strerror(errno));
    if (fstat(fd, st) != 0 || !S_ISREG(st->st_mode)) {
        close(fd);
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is not a regular file", real);
    }
    why = dp__distrust(st);
    status = why != NULL ? dp_fail(DP_ERR_SECURITY, "plugin %s %s; fix its owner or mode", real, why)
                         : dp__elf_check(fd, (uint64_t)st->st_size, real);
    if (status >= 0)
        status = dp__elf_symbols_check(fd, (uint64_t)st->st_size, real, preference);
    close(fd);
    return status;
}

static dp_status_t load_file(const char *path, const dp_plugin_t **plugin_out)
{
    char real[PATH_MAX];
    uint32_t preference = 0;
    struct stat st;
    dp_status_t status = DP_OK;

    DO(judge_file(path, real, &st, &preference));
    pthread_mutex_lock(&registry.mutex);
    *plugin_out = find_loaded(&st);
    if (*plugin_out == NULL)
        status = map(real, &st, plugin_out);
    pthread_mutex_unlock(&registry.mutex);
    return status;
}

/* Looks for dp_<name>.so in one folder. DP_PENDING: not there. */
static dp_status_t try_folder(const char *folder, size_t length, const char *name, tried_t *tried,
                              const dp_plugin_t **plugin_out)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%.*s/dp_%s.so", (int)length, folder, name);

    if (length == 0 || folder[0] != '/') {
        snprintf(path, sizeof(path), "'%.*s'", (int)(length < 256 ? length : 256), folder);
        note(tried, path, "not an absolute folder, skipped");
        return DP_PENDING;
    }
    if (n < 0 || (size_t)n >= sizeof(path)) {
        note(tried, "a folder of DUALPIPE_PLUGIN_PATH", "name too long, skipped");
        return DP_PENDING;
    }
    if (access(path, F_OK) != 0) {
        note(tried, path, strerror(errno));
        return DP_PENDING;
    }
    return load_file(path, plugin_out);
}

dp_status_t dp_plugin_load(const char *name, const dp_plugin_t **plugin_out)
{
    const char *search = secure_getenv("DUALPIPE_PLUGIN_PATH");
    tried_t tried = {.used = 0};
    dp_status_t status;

    if (name == NULL || plugin_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_plugin_load: name and plugin_out must not be NULL");
    if (strchr(name, '/') != NULL)
        return load_file(name, plugin_out);
    if (!plain_name(name))
        return dp_fail(DP_ERR_INVALID, "'%.64s' is no plugin name: use [a-z0-9_], or a path with a '/'", name);
    while (search != NULL && *search != '\0') {
        size_t length = strcspn(search, ":");

        status = try_folder(search, length, name, &tried, plugin_out);
        if (status != DP_PENDING)
            return status;
        search += length + (search[length] == ':');
    }
    status = try_folder(DP_PLUGIN_DIR, strlen(DP_PLUGIN_DIR), name, &tried, plugin_out);
    if (status != DP_PENDING)
        return status;
    return dp_fail(DP_ERR_PLUGIN, "plugin '%s' not found; tried %s; set DUALPIPE_PLUGIN_PATH or give a path", name,
                   tried.text);
}

/* ---- candidates ---- */

static bool is_better(const dp__candidate_t *a, const dp__candidate_t *b)
{
    return a->preference != b->preference ? a->preference > b->preference : strcmp(a->name, b->name) < 0;
}

/* The best stay. A name of an earlier folder hides this one, as it does for dp_plugin_load(). */
static int add_candidate(const char *path, const char *name, size_t length, dp__candidate_t *list, int n)
{
    dp__candidate_t found = {.preference = 0};
    char real[PATH_MAX];
    struct stat st;
    int at = n;
    dp_status_t status;

    memcpy(found.name, name, length);
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].name, found.name) == 0)
            return n;
    status = judge_file(path, real, &st, &found.preference);
    if (status == DP_ERR_NOMEM)
        return status;
    if (status < 0)
        found.preference = 0;
    while (at > 0 && is_better(&found, &list[at - 1]))
        at--;
    if (at == DP__CANDIDATES)
        return n;
    n += n < DP__CANDIDATES;
    memmove(&list[at + 1], &list[at], (size_t)(n - at - 1) * sizeof(*list));
    list[at] = found;
    return n;
}

static int add_folder(const char *folder, size_t length, const char *kind, dp__candidate_t *list, int n)
{
    char path[PATH_MAX];
    const struct dirent *entry;
    DIR *entries;

    if (n < 0 || length == 0 || folder[0] != '/' || length >= sizeof(path) - sizeof(entry->d_name) - 1)
        return n;
    memcpy(path, folder, length);
    path[length] = '\0';
    entries = opendir(path);
    while (entries != NULL && n >= 0 && (entry = readdir(entries)) != NULL) {
        const char *name = entry->d_name + strlen("dp_");
        size_t bytes = strlen(entry->d_name) > 6 ? strlen(entry->d_name) - strlen("dp_.so") : 0;

        if (bytes == 0 || bytes >= sizeof(list->name) || strncmp(entry->d_name, "dp_", 3) != 0 ||
            strcmp(name + bytes, ".so") != 0 || strncmp(name, kind, strlen(kind)) != 0)
            continue;
        snprintf(path + length, sizeof(path) - length, "/%s", entry->d_name);
        n = add_candidate(path, name, bytes, list, n);
    }
    if (entries != NULL)
        closedir(entries);
    return n;
}

int dp__plugin_candidates(const char *kind, dp__candidate_t list[DP__CANDIDATES])
{
    const char *search = secure_getenv("DUALPIPE_PLUGIN_PATH");
    int n = 0;

    while (search != NULL && *search != '\0') {
        size_t length = strcspn(search, ":");

        n = add_folder(search, length, kind, list, n);
        search += length + (search[length] == ':');
    }
    n = add_folder(DP_PLUGIN_DIR, strlen(DP_PLUGIN_DIR), kind, list, n);
    while (n > 0 && list[n - 1].preference == 0)
        n--;
    return n;
}

dp_status_t dp_plugin_interface(const dp_plugin_t *plugin, const char *id, size_t min_size, const void **table_out)
{
    const void *found;
    uint32_t bytes;

    if (plugin == NULL || id == NULL || table_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_plugin_interface: plugin, id and table_out must not be NULL");
    found = plugin->get_interface(id);
    if (found == NULL)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s has no interface %s", plugin->name, id);
    if (dp__interface_known(id))
        DO(dp__interface_complete(plugin, id, &found));
    memcpy(&bytes, found, sizeof(bytes));
    if (bytes < min_size)
        return dp_fail(DP_ERR_PLUGIN,
                       "plugin %s: its table %s has %u bytes, at least %zu are needed: rebuild the plugin",
                       plugin->name, id, bytes, min_size);
    *table_out = found;
    return DP_OK;
}
