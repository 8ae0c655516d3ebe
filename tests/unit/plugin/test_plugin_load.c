/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_plugin_load.c: finding, judging and mapping plugins; the bad ones are in tests/mock. */
#include <dualpipe/plugin.h>
#include <elf.h>
#include <errno.h>
#include <grp.h>
#include <link.h>
#include <pthread.h>
#include <pwd.h>
#include <sys/wait.h>

#include "plugin/candidates.h"
#include "plugin/elf_check.h"
#include "plugin/trust.h"
#include "tests/support/coverage.h"
#include "tests/support/files.h"
#include "tests/support/oom.h"
#include "tests/support/suite.h"

static char folder[PATH_BYTES];

static void open_folder(void)
{
    unsetenv("DP_MOCK_CONSTRUCTED");
    unsetenv("DUALPIPE_PLUGIN_PATH");
    files_folder(folder);
}

static void close_folder(void)
{
    files_remove(folder);
}

static const char *mock_path(const char *name)
{
    static char path[PATH_BYTES];
    const char *mocks = getenv("DP_TEST_MOCKS");

    ck_assert_msg(mocks != NULL, "run by make check, or set DP_TEST_MOCKS to tests/mock/.libs of the build");
    snprintf(path, sizeof(path), "%s/%s.so", mocks, name);
    return path;
}

/* Copies a mock to folder/name, cut to `bytes` when that is less; its path. */
static const char *copy_mock(const char *mock, const char *name, size_t bytes)
{
    static char path[PATH_BYTES];
    size_t n;
    unsigned char *content = files_read(mock_path(mock), &n);

    files_write(files_path(path, folder, name), content, n < bytes ? n : bytes);
    free(content);
    return path;
}

static void expect_refused(const char *name, dp_status_t status, const char *word)
{
    const dp_plugin_t *plugin = NULL;
    dp_status_t got = dp_plugin_load(name, &plugin);

    ck_assert_msg(got == status, "%s: %s instead of %s: %s", name, dp_status_name(got), dp_status_name(status),
                  dp_last_error());
    ck_assert_ptr_null(plugin);
    ck_assert_msg(strstr(dp_last_error(), word) != NULL, "%s: \"%s\" is not in: %s", name, word, dp_last_error());
}

static void expect_nothing_ran(void)
{
    ck_assert_ptr_null(getenv("DP_MOCK_CONSTRUCTED"));
}

START_TEST(a_good_plugin_loads_once)
{
    const dp_plugin_t *first = NULL, *second = NULL;
    char path[PATH_BYTES];

    ck_assert_int_eq(dp_plugin_load(mock_path("mock_good"), &first), DP_OK);
    ck_assert_ptr_nonnull(first);
    ck_assert_str_eq(first->name, "mock");
    ck_assert_str_eq(first->version, "1.2.3");
    ck_assert_int_eq(dp_plugin_load(mock_path("mock_good"), &second), DP_OK);
    ck_assert_ptr_eq(first, second);
    /* another way to the same file is the same plugin, another file is another */
    ck_assert_int_eq(symlink(mock_path("mock_good"), files_path(path, folder, "link.so")), 0);
    ck_assert_int_eq(dp_plugin_load(path, &second), DP_OK);
    ck_assert_ptr_eq(first, second);
    ck_assert_int_eq(dp_plugin_load(copy_mock("mock_good", "copy.so", SIZE_MAX), &second), DP_OK);
    ck_assert_ptr_ne(first, second);
}
END_TEST

START_TEST(a_later_minor_loads)
{
    const dp_plugin_t *plugin = NULL;

    ck_assert_int_eq(dp_plugin_load(mock_path("mock_minor"), &plugin), DP_OK);
    ck_assert_uint_eq(plugin->abi_minor, DP_ABI_MINOR + 7);
}
END_TEST

START_TEST(interfaces_are_asked_for_by_name_and_size)
{
    const dp_plugin_t *plugin = NULL;
    const void *table = NULL;

    ck_assert_int_eq(dp_plugin_load(mock_path("mock_good"), &plugin), DP_OK);
    ck_assert_int_eq(dp_plugin_interface(plugin, "test.mock/1", sizeof(uint32_t), &table), DP_OK);
    ck_assert_ptr_nonnull(table);
    table = NULL;
    ck_assert_int_eq(dp_plugin_interface(plugin, "test.mock/2", sizeof(uint32_t), &table), DP_ERR_PLUGIN);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "test.mock/2"));
    ck_assert_int_eq(dp_plugin_interface(plugin, "test.short/1", 64, &table), DP_ERR_PLUGIN);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "64"));
    ck_assert_int_eq(dp_plugin_interface(plugin, "test.short/1", 4, &table), DP_OK);
    ck_assert_int_eq(dp_plugin_interface(NULL, "test.mock/1", 4, &table), DP_ERR_INVALID);
    ck_assert_int_eq(dp_plugin_interface(plugin, "test.mock/1", 4, NULL), DP_ERR_INVALID);
}
END_TEST

START_TEST(broken_descriptors_are_refused)
{
    static const struct {
        const char *mock, *word;
    } cases[] = {
        {"mock_major", "ABI 3."},  {"mock_short", "too short"},    {"mock_nameless", "name"},
        {"mock_misnamed", "name"}, {"mock_mute", "get_interface"}, {"mock_no_entry", "dp_plugin_entry"},
        {"mock_needy", "dp_log"},  {"mock_needy", "DP_FAIL(host"}, {"mock_late", "ABI 3.0"},
    };
    int before = files_open_descriptors();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        expect_refused(mock_path(cases[i].mock), DP_ERR_PLUGIN, cases[i].word);
        ck_assert_ptr_nonnull(strstr(dp_last_error(), cases[i].mock)); /* names the file */
    }
    expect_refused(mock_path("mock_major"), DP_ERR_PLUGIN, "major 2"); /* again, and both numbers */
    ck_assert_int_eq(files_open_descriptors(), before);
}
END_TEST

/* Symbols, the ABI major among them, are read from the file: a plugin that is refused has run
 * nothing. */
START_TEST(what_the_symbols_tell_is_judged_before_any_code_runs)
{
    static const struct {
        const char *mock, *word;
    } cases[] = {
        {"mock_major", "this library needs major 2"},
        {"mock_exporting", "has a separate dp_mock_helper"},
        {"mock_linked", "has a separate dp_fail"},
        {"mock_linked", "Leave libdualpipe out of its link, use DP_FAIL(host, ...)"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_refused(mock_path(cases[i].mock), DP_ERR_PLUGIN, cases[i].word);
    expect_nothing_ran();
}
END_TEST

START_TEST(an_init_that_says_nothing_is_told)
{
    (void)dp_fail(DP_ERR_IO, "an older message");
    expect_refused(mock_path("mock_silent"), DP_ERR_UNSUPPORTED, "failed with DP_ERR_UNSUPPORTED without a message");
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "init of plugin mock_silent"));
}
END_TEST

START_TEST(arguments_are_checked)
{
    static const char *const names[] = {"", "Comm", "comm-shm", "comm.so", "comm shm", "comm\n", "dp_comm_shm.so"};
    const dp_plugin_t *plugin = NULL;
    char text[300];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        expect_refused(names[i], DP_ERR_INVALID, "no plugin name");
    memset(text, 'a', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    expect_refused(text, DP_ERR_INVALID, "no plugin name");
    ck_assert_int_eq(dp_plugin_load(NULL, &plugin), DP_ERR_INVALID);
    ck_assert_int_eq(dp_plugin_load("mock", NULL), DP_ERR_INVALID);
}
END_TEST

START_TEST(folders_are_searched_in_order)
{
    char empty[PATH_BYTES], full[PATH_BYTES], both[PATH_BYTES], search[5 * PATH_BYTES];
    const dp_plugin_t *found = NULL, *expected = NULL;

    ck_assert_int_eq(mkdir(files_path(empty, folder, "empty"), 0755), 0);
    ck_assert_int_eq(mkdir(files_path(full, folder, "full"), 0755), 0);
    ck_assert_int_eq(mkdir(files_path(both, folder, "later"), 0755), 0);
    copy_mock("mock_good", "later/dp_mock.so", SIZE_MAX);
    ck_assert_int_eq(dp_plugin_load(copy_mock("mock_good", "full/dp_mock.so", SIZE_MAX), &expected), DP_OK);

    snprintf(search, sizeof(search), "::relative:%s:/nonexistent:%s:%s", empty, full, both);
    setenv("DUALPIPE_PLUGIN_PATH", search, 1);
    ck_assert_int_eq(dp_plugin_load("mock", &found), DP_OK);
    ck_assert_ptr_eq(found, expected);
}
END_TEST

/* By name and preference, without a look at anything but the file. */
START_TEST(candidates_are_listed_unmapped)
{
    static const char *const links[][2] = {
        {"mock_comm_groups", "inner/dp_comm_b.so"}, {"mock_comm_groups", "inner/dp_comm_a.so"},
        {"mock_late", "inner/dp_comm_late.so"},     {"mock_good", "dp_comm_plain.so"},
        {"mock_comm_groups", "dp_comm_plain2.so"},  {"mock_comm_groups", "dp_other_c.so"}};
    char path[PATH_BYTES], search[4 * PATH_BYTES];
    dp__candidate_t list[DP__CANDIDATES];

    ck_assert_int_eq(mkdir(files_path(path, folder, "inner"), 0700), 0);
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
        ck_assert_int_eq(symlink(mock_path(links[i][0]), files_path(path, folder, links[i][1])), 0);
    files_write(files_path(path, folder, "inner/dp_comm_plain2.so"), "hides the other", 15);
    snprintf(search, sizeof(search), "relative:%s/inner::%s:%s/nowhere", folder, folder, folder);
    setenv("DUALPIPE_PLUGIN_PATH", search, 1);
    ck_assert_int_ge(dp__plugin_candidates("comm_", list), 2);
    ck_assert_str_eq(list[0].name, "comm_a");
    ck_assert_str_eq(list[1].name, "comm_b");
    ck_assert_uint_eq(list[0].preference, 900);
    for (int i = 2; i < dp__plugin_candidates("comm_", list); i++)
        ck_assert(strstr(list[i].name, "plain") == NULL && list[i].preference < 900);
    ck_assert_ptr_null(getenv("DP_MOCK_CONSTRUCTED"));
}
END_TEST

START_TEST(a_miss_says_what_was_tried)
{
    char search[2 * PATH_BYTES];

    snprintf(search, sizeof(search), "%s:relative/folder:/nonexistent", folder);
    setenv("DUALPIPE_PLUGIN_PATH", search, 1);
    expect_refused("absent", DP_ERR_PLUGIN, folder);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "relative/folder"));
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "not an absolute folder"));
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "/nonexistent/dp_absent.so"));
    /* where `make install` puts them */
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "/dualpipe/plugins/dp_absent.so"));
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "DUALPIPE_PLUGIN_PATH"));
}
END_TEST

START_TEST(a_search_path_of_any_length_is_survived)
{
    enum { BYTES = 100000 };
    char *search = malloc(BYTES);

    ck_assert_ptr_nonnull(search);
    memset(search, 'x', BYTES);
    search[0] = '/';
    search[BYTES - 1] = '\0';
    setenv("DUALPIPE_PLUGIN_PATH", search, 1);
    expect_refused("absent", DP_ERR_PLUGIN, "too long");
    for (int i = 2; i < BYTES - 1; i += 3) /* thirty thousand folders "/x" */
        memcpy(search + i, ":/x", i + 3 < BYTES ? 3 : (size_t)(BYTES - 1 - i));
    setenv("DUALPIPE_PLUGIN_PATH", search, 1);
    expect_refused("absent", DP_ERR_PLUGIN, "not found");
    free(search);
}
END_TEST

/* A bad file in an earlier folder is told, not passed over in silence. */
START_TEST(a_bad_file_found_by_name_is_an_error)
{
    char path[PATH_BYTES];

    files_write(files_path(path, folder, "dp_mock.so"), "junk", 4);
    setenv("DUALPIPE_PLUGIN_PATH", folder, 1);
    expect_refused("mock", DP_ERR_PLUGIN, "dp_mock.so");
}
END_TEST

START_TEST(what_is_no_file_of_ours_is_refused)
{
    char path[PATH_BYTES];
    int before = files_open_descriptors();

    expect_refused("/nonexistent/x.so", DP_ERR_PLUGIN, "No such file");
    ck_assert_int_eq(mkdir(files_path(path, folder, "folder.so"), 0755), 0);
    expect_refused(path, DP_ERR_PLUGIN, "not a regular file");
    ck_assert_int_eq(mkfifo(files_path(path, folder, "fifo.so"), 0644), 0);
    expect_refused(path, DP_ERR_PLUGIN, "not a regular file"); /* and no one waits for a writer */
    files_write(files_path(path, folder, "empty.so"), "", 0);
    expect_refused(path, DP_ERR_PLUGIN, "0 bytes");
    files_write(files_path(path, folder, "text.so"),
                "This is a text of more than sixty-four bytes, the size of the head that a module has.\n", 87);
    expect_refused(path, DP_ERR_PLUGIN, "ELF");
    ck_assert_int_eq(symlink("loop.so", files_path(path, folder, "loop.so")), 0);
    expect_refused(path, DP_ERR_PLUGIN, "loop.so");
    ck_assert_int_eq(files_open_descriptors(), before);
    expect_nothing_ran();
}
END_TEST

START_TEST(every_truncation_is_refused_unmapped)
{
    char path[PATH_BYTES];
    size_t whole, step = 1;
    unsigned char *content = files_read(mock_path("mock_good"), &whole);
    int before = files_open_descriptors();

    ck_assert_uint_gt(whole, 1000);
    files_path(path, folder, "cut.so");
    for (size_t n = 0; n < whole; n += step) {
        files_write(path, content, n);
        expect_refused(path, DP_ERR_PLUGIN, "cut.so");
        step = n < 1000 || n + 600 > whole ? 1 : 499;
    }
    expect_nothing_ran();
    ck_assert_int_eq(files_open_descriptors(), before);
    free(content);
}
END_TEST

START_TEST(foreign_modules_are_refused_unmapped)
{
    static const struct {
        uint16_t number;
        const char *name;
    } machines[] = {{EM_X86_64, "x86-64"}, {EM_386, "32-bit x86"}, {EM_ARM, "32-bit arm"},   {EM_RISCV, "risc-v"},
                    {EM_PPC64, "ppc64"},   {EM_S390, "s390"},      {0x7777, "machine 30583"}};
    char path[PATH_BYTES];
    size_t n;
    unsigned char *content = files_read(mock_path("mock_good"), &n);
    ElfW(Ehdr) *header = (void *)content, saved = *header;

    files_path(path, folder, "foreign.so");
    header->e_machine = saved.e_machine == EM_AARCH64 ? EM_X86_64 : EM_AARCH64;
    files_write(path, content, n);
    expect_refused(path, DP_ERR_PLUGIN, "aarch64");
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "this process is"));

    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        *header = saved;
        header->e_machine = machines[i].number;
        if (header->e_machine == saved.e_machine)
            continue;
        files_write(path, content, n);
        expect_refused(path, DP_ERR_PLUGIN, machines[i].name);
    }

    *header = saved;
    header->e_ident[EI_CLASS] = saved.e_ident[EI_CLASS] == ELFCLASS64 ? ELFCLASS32 : ELFCLASS64;
    files_write(path, content, n);
    expect_refused(path, DP_ERR_PLUGIN, "32 bits, this process has 64");

    *header = saved;
    header->e_type = ET_REL;
    files_write(path, content, n);
    expect_refused(path, DP_ERR_PLUGIN, "no shared object");

    *header = saved;
    header->e_phoff = UINT64_MAX - 8;
    files_write(path, content, n);
    expect_refused(path, DP_ERR_PLUGIN, "truncated");
    expect_nothing_ran();
    free(content);
}
END_TEST

/* The check itself must survive any head: random bytes in the ELF and program headers, nothing is
 * mapped. */
START_TEST(headers_of_random_bytes_do_no_harm)
{
    char path[PATH_BYTES];
    size_t n;
    unsigned char *content = files_read(mock_path("mock_good"), &n);
    unsigned char saved[1024];
    uint64_t state = 20240101;
    int accepted = 0, refused = 0;
    uint32_t preference = 0;

    memcpy(saved, content, sizeof(saved));
    files_path(path, folder, "fuzz.so");
    for (int round = 0; round < 2000; round++) {
        int fd;

        memcpy(content, saved, sizeof(saved));
        for (int change = 0; change <= round % 8; change++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
            content[(state >> 33) % sizeof(saved)] = (unsigned char)(state >> 56);
        }
        files_write(path, content, n);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        if (dp__elf_check(fd, n, path) == DP_OK && dp__elf_symbols_check(fd, n, path, &preference) == DP_OK)
            accepted++;
        else
            refused++;
        close(fd);
    }
    ck_assert_int_gt(accepted, 0); /* a changed note or address is no matter of this check */
    ck_assert_int_gt(refused, 0);
    free(content);
}
END_TEST

/* The same for what names its symbols: section headers, at the end of the file, and the symbols
 * themselves. */
START_TEST(symbols_of_random_bytes_do_no_harm)
{
    char path[PATH_BYTES];
    size_t n;
    unsigned char *content = files_read(mock_path("mock_good"), &n), *saved = malloc(n);
    const ElfW(Ehdr) *header = (void *)content;
    size_t at = header->e_shoff, bytes = (size_t)header->e_shnum * header->e_shentsize;
    uint64_t state = 20240102;
    int accepted = 0, refused = 0;
    uint32_t preference = 0;

    ck_assert_ptr_nonnull(saved);
    ck_assert_uint_le(at + bytes, n);
    memcpy(saved, content, n);
    files_path(path, folder, "fuzz.so");
    for (int round = 0; round < 2000; round++) {
        int fd;

        memcpy(content, saved, n);
        for (int change = 0; change <= round % 8; change++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
            content[round % 2 == 0 ? at + (state >> 33) % bytes
                                   : sizeof(*header) + (state >> 33) % (n - sizeof(*header))] =
                (unsigned char)(state >> 56);
        }
        files_write(path, content, n);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        if (dp__elf_symbols_check(fd, n, path, &preference) == DP_OK)
            accepted++;
        else
            refused++;
        close(fd);
    }
    ck_assert_int_gt(accepted, 0);
    ck_assert_int_gt(refused, 0);
    free(content);
    free(saved);
}
END_TEST

START_TEST(files_that_others_may_write_are_refused)
{
    char inner[PATH_BYTES], path[PATH_BYTES];

    ck_assert_int_eq(mkdir(files_path(inner, folder, "inner"), 0755), 0);
    snprintf(path, sizeof(path), "%s", copy_mock("mock_good", "inner/dp_mock.so", SIZE_MAX));
    ck_assert_int_eq(chmod(path, 0646), 0);
    expect_refused(path, DP_ERR_SECURITY, "writable by others");
    ck_assert_int_eq(chmod(path, 0644), 0);
    ck_assert_int_eq(chmod(inner, 0757), 0);
    expect_refused(path, DP_ERR_SECURITY, "inner");
    setenv("DUALPIPE_PLUGIN_PATH", inner, 1);
    expect_refused("mock", DP_ERR_SECURITY, "inner");
    ck_assert_int_eq(chmod(inner, 0755), 0);
    ck_assert_int_eq(chmod(folder, 0757), 0); /* a folder further up is as good a way in */
    expect_refused(path, DP_ERR_SECURITY, "writable by others");
    expect_nothing_ran();
}
END_TEST

START_TEST(files_of_others_are_refused)
{
    char path[PATH_BYTES];

    if (geteuid() != 0)
        return; /* only root can make one; trust_is_by_owner_and_mode covers the rule */
    snprintf(path, sizeof(path), "%s", copy_mock("mock_good", "dp_mock.so", SIZE_MAX));
    ck_assert_int_eq(chown(path, 12345, 0), 0);
    expect_refused(path, DP_ERR_SECURITY, "another user");
    ck_assert_int_eq(chown(path, 0, 0), 0);
    ck_assert_int_eq(chmod(path, 0664), 0);
    expect_refused(path, DP_ERR_SECURITY, "group");
    expect_nothing_ran();
}
END_TEST

static void expect_trust(bool trusted, uid_t uid, gid_t gid, mode_t mode)
{
    struct stat st = {.st_uid = uid, .st_gid = gid, .st_mode = mode};
    const char *why = dp__distrust(&st);

    ck_assert_msg((why == NULL) == trusted, "uid %u, gid %u, mode %o: %s", (unsigned)uid, (unsigned)gid, (unsigned)mode,
                  why != NULL ? why : "trusted");
}

static void expect_common_rules(void)
{
    uid_t us = geteuid();

    expect_trust(true, 0, 0, S_IFREG | 0755);
    expect_trust(true, us, 12345, S_IFREG | 0644);
    expect_trust(false, us + 1, 0, S_IFREG | 0644);
    expect_trust(false, us, 12345, S_IFREG | 0664);
    expect_trust(false, us, 12345, S_IFDIR | 0775);
    expect_trust(false, us, 12345, S_IFREG | 0646);
    expect_trust(false, 0, 0, S_IFDIR | 0777);
    expect_trust(true, 0, 0, S_IFDIR | S_ISVTX | 0777);
    expect_trust(false, 0, 0, S_IFREG | S_ISVTX | 0777); /* means nothing on a file */
    expect_trust(false, us + 1, 0, S_IFDIR | S_ISVTX | 0777);
}

START_TEST(trust_is_by_owner_and_mode)
{
    expect_common_rules();
    if (geteuid() == 0)
        expect_trust(false, 0, 0, S_IFREG | 0664);
}
END_TEST

/* The same as the user `name`, in a separate process, with his group-writable files trusted or
 * not. */
static void as_user(const char *name, bool trusted)
{
    struct passwd *user = getpwnam(name);
    int status = -1;
    pid_t child;

    if (user == NULL)
        return;
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        ck_assert_int_eq(setgroups(0, NULL), 0);
        ck_assert_int_eq(setgid(user->pw_gid), 0);
        ck_assert_int_eq(setresuid(user->pw_uid, user->pw_uid, 0), 0);
        expect_common_rules();
        expect_trust(trusted, user->pw_uid, user->pw_gid, S_IFDIR | 0775);
        expect_trust(false, user->pw_uid, 0, S_IFDIR | 0775);
        expect_trust(false, user->pw_uid, user->pw_gid, S_IFDIR | 0777);
        ck_assert_int_eq(seteuid(0), 0); /* who may write beside the objects */
        coverage_keep();
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "as %s", name);
}

START_TEST(a_group_of_ones_own_may_write)
{
    if (geteuid() != 0)
        return;
    as_user("daemon", true);  /* group daemon, no other member */
    as_user("nobody", false); /* group nogroup, which is everybody's */
}
END_TEST

START_TEST(no_memory_for_the_registry)
{
    const dp_plugin_t *plugin = NULL;

    oom_install();
    oom_arm(0, _i == 1);
    expect_refused(mock_path("mock_good"), DP_ERR_NOMEM, "memory");
    ck_assert(oom_struck());
    ck_assert_int_eq(oom_live(), 0);
    oom_disarm();
    ck_assert_int_eq(dp_plugin_load(mock_path("mock_good"), &plugin), DP_OK);
    oom_uninstall();
}
END_TEST

typedef struct loading {
    pthread_t thread;
    const char *path;
    const dp_plugin_t *plugin;
} loading_t;

static void *load_here(void *arg)
{
    loading_t *l = arg;

    if (dp_plugin_load(l->path, &l->plugin) < 0)
        l->plugin = NULL;
    return NULL;
}

START_TEST(threads_get_the_same_plugin)
{
    enum { N = 8 };
    const char *path = mock_path("mock_good");
    loading_t l[N];

    for (int i = 0; i < N; i++) {
        l[i] = (loading_t){.path = path};
        ck_assert_int_eq(pthread_create(&l[i].thread, NULL, load_here, &l[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(l[i].thread, NULL);
    ck_assert_ptr_nonnull(l[0].plugin);
    for (int i = 1; i < N; i++)
        ck_assert_ptr_eq(l[i].plugin, l[0].plugin);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plugin/load");
    TCase *tc = tcase_create("plugin/load");

    tcase_add_checked_fixture(tc, open_folder, close_folder);
    tcase_add_test(tc, candidates_are_listed_unmapped);
    tcase_add_test(tc, a_good_plugin_loads_once);
    tcase_add_test(tc, a_later_minor_loads);
    tcase_add_test(tc, interfaces_are_asked_for_by_name_and_size);
    tcase_add_test(tc, broken_descriptors_are_refused);
    tcase_add_test(tc, what_the_symbols_tell_is_judged_before_any_code_runs);
    tcase_add_test(tc, an_init_that_says_nothing_is_told);
    tcase_add_test(tc, arguments_are_checked);
    tcase_add_test(tc, folders_are_searched_in_order);
    tcase_add_test(tc, a_miss_says_what_was_tried);
    tcase_add_test(tc, a_search_path_of_any_length_is_survived);
    tcase_add_test(tc, a_bad_file_found_by_name_is_an_error);
    tcase_add_test(tc, what_is_no_file_of_ours_is_refused);
    tcase_add_test(tc, every_truncation_is_refused_unmapped);
    tcase_add_test(tc, foreign_modules_are_refused_unmapped);
    tcase_add_test(tc, headers_of_random_bytes_do_no_harm);
    tcase_add_test(tc, symbols_of_random_bytes_do_no_harm);
    tcase_add_test(tc, files_that_others_may_write_are_refused);
    tcase_add_test(tc, files_of_others_are_refused);
    tcase_add_test(tc, trust_is_by_owner_and_mode);
    tcase_add_test(tc, a_group_of_ones_own_may_write);
    tcase_add_loop_test(tc, no_memory_for_the_registry, 0, 2);
    tcase_add_test(tc, threads_get_the_same_plugin);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
