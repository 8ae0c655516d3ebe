/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_address.c: where rank 0 listens, by options and environment, what cannot be listened
 * at, and which ranks are told apart. */
#include "tests/support/oom.h"
#include "tests/support/suite.h"

#include "group/address.h"
#include "group/group.h"
#include "tests/support/debug.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <unistd.h>

static void clear(void)
{
    static const char *const names[] = {
        "MASTER_ADDR",  "MASTER_PORT",     "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE",
        "SLURM_JOB_ID", "DUALPIPE_LAUNCH", "OMPI_MCA_ess_base_jobid",      "DUALPIPE_DEBUG"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
}

static dp__address_t find(const char *address, int32_t port)
{
    const dp_group_options_t options = {.struct_size = sizeof(options), .address = address, .port = port};
    dp__address_t found;

    ck_assert_msg(dp__address_find(&options, &found) == DP_OK, "%s", dp_last_error());
    return found;
}

static void refused(const char *address, int32_t port, dp_status_t expected, const char *words)
{
    const dp_group_options_t options = {.struct_size = sizeof(options), .address = address, .port = port};
    dp__address_t found;

    ck_assert_int_eq(dp__address_find(&options, &found), expected);
    ck_assert_msg(strstr(dp_last_error(), words) != NULL, "'%s' lacks '%s'", dp_last_error(), words);
}

START_TEST(options_come_before_the_environment)
{
    ck_assert_str_eq(find(NULL, 29500).text, "127.0.0.1:29500");
    ck_assert_str_eq(find("LocalHost", 29500).text, "127.0.0.1:29500");
    ck_assert_str_eq(find("[::1]", 29500).text, "[::1]:29500");
    ck_assert(find("::1", 29500).loopback && find("127.3.2.1", 1).loopback && !find("10.0.0.1", 1).loopback);
    ck_assert(!find("fd77::1", 65535).loopback);
    setenv("MASTER_ADDR", "10.1.2.3", 1);
    setenv("MASTER_PORT", "4000", 1);
    ck_assert_str_eq(find(NULL, 0).text, "10.1.2.3:4000");
    ck_assert_str_eq(find("10.9.9.9", 5).text, "10.9.9.9:5");
    setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
    ck_assert_str_eq(find(NULL, 0).text, "10.1.2.3:4000");
    /* torchrun's agent sits at the port itself */
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    ck_assert_str_eq(find(NULL, 0).text, "10.1.2.3:4001");
    setenv("MASTER_ADDR", "", 1);
    ck_assert_str_eq(find(NULL, 0).text, "127.0.0.1:4001");
}
END_TEST

/* Launchers that name the job and no port: all its ranks make the same, ranks of another job most
 * often another. */
START_TEST(a_port_is_made_of_the_jobs_name)
{
    char first[64];

    setenv("SLURM_JOB_ID", "4711", 1);
    snprintf(first, sizeof(first), "%s", find(NULL, 0).text);
    ck_assert_int_ge(atoi(strchr(first, ':') + 1), 23000);
    ck_assert_int_lt(atoi(strchr(first, ':') + 1), 31000);
    ck_assert_str_eq(find(NULL, 0).text, first);
    setenv("SLURM_JOB_ID", "4712", 1);
    ck_assert_str_ne(find(NULL, 0).text, first);
}
END_TEST

START_TEST(what_is_no_address_is_refused)
{
    refused(NULL, 0, DP_ERR_INVALID, "no port to meet at: set MASTER_PORT");
    refused(NULL, -1, DP_ERR_INVALID, "port -1: 1 to 65535 are possible");
    refused(NULL, 65536, DP_ERR_INVALID, "port 65536");
    refused("no host has blanks", 5, DP_ERR_RENDEZVOUS, "the address of rank 0, \"no host has blanks\"");
    setenv("MASTER_PORT", "many", 1);
    refused(NULL, 0, DP_ERR_INVALID, "MASTER_PORT");
    setenv("MASTER_PORT", "65535", 1); /* torchrun's agent would need the one behind it */
    refused(NULL, 0, DP_ERR_INVALID, "MASTER_PORT");
}
END_TEST

START_TEST(loopback_is_told_to_who_waits_for_other_hosts)
{
    dp__address_t address = find("127.0.0.1", 29500);
    char text[512];

    dp__address_hint(&address, "here", text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "only ranks of the same host (here here) can meet there"));
    /* as some distributions have it in /etc/hosts */
    snprintf(address.name, sizeof(address.name), "node1");
    dp__address_hint(&address, "here", text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "\"node1\" is a name of loopback on this host"));
    address = find("10.0.0.1", 29500);
    dp__address_hint(&address, "here", text, sizeof(text));
    ck_assert_str_eq(text, "");
}
END_TEST

/* A socket that listens at a free port of loopback; its port. */
static int32_t listener(int *fd_out)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(at);

    *fd_out = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(*fd_out, (struct sockaddr *)&at, sizeof(at)), 0);
    ck_assert_int_eq(listen(*fd_out, 1), 0);
    ck_assert_int_eq(getsockname(*fd_out, (struct sockaddr *)&at, &bytes), 0);
    return ntohs(at.sin_port);
}

static void hand_down(int fd)
{
    char text[32];

    snprintf(text, sizeof(text), "listen=%d", fd);
    setenv("DUALPIPE_LAUNCH", text, 1);
}

START_TEST(a_socket_that_was_handed_down_is_taken_if_it_is_the_one)
{
    int given, other, got, files[2];
    dp__address_t address = find(NULL, listener(&given));

    (void)listener(&other);
    hand_down(given);
    ck_assert_int_eq(dp__address_listen(&address, 4, &got), DP_OK);
    ck_assert_int_eq(got, given);
    ck_assert_int_eq(fcntl(got, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(fcntl(got, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    /* One at another port, a pipe, none at all, no number: rank 0 opens its own, and the port is
     * taken. */
    ck_assert_int_eq(pipe(files), 0);
    for (int i = 0; i < 4; i++) {
        hand_down(i == 0 ? other : i == 1 ? files[0] : 1000);
        if (i == 3)
            setenv("DUALPIPE_LAUNCH", "listen=three", 1);
        ck_assert_int_eq(dp__address_listen(&address, 4, &got), DP_ERR_RENDEZVOUS);
        ck_assert_ptr_nonnull(strstr(dp_last_error(), "set MASTER_PORT to another port, or start with dualpipe run"));
    }
    close(given);
    unsetenv("DUALPIPE_LAUNCH");
    ck_assert_int_eq(dp__address_listen(&address, 4, &got), DP_OK); /* free again */
    close(got);
}
END_TEST

START_TEST(an_address_of_another_host_cannot_be_listened_at)
{
    dp__address_t address = find("192.0.2.1", 29500); /* for documents: nobody has it */
    int fd;

    ck_assert_int_eq(dp__address_listen(&address, 4, &fd), DP_ERR_RENDEZVOUS);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "must be an address of the host that rank 0 runs on"));
}
END_TEST

START_TEST(a_text_for_what_has_none)
{
    struct sockaddr nothing = {.sa_family = AF_UNSPEC};
    char text[64];

    dp__address_text(&nothing, sizeof(nothing), text, sizeof(text));
    ck_assert_str_eq(text, "?");
}
END_TEST

/* ---- who lives where ---- */

START_TEST(a_list_takes_ranks_apart)
{
    static const struct {
        const char *list;
        int32_t hosts, host_of[4];
        /* ranks beyond the list are on its last host */
    } cases[] = {{NULL, 1, {0, 0, 0, 0}},      {"", 1, {0, 0, 0, 0}},    {"a:a:b:b", 2, {0, 0, 1, 1}},
                 {"a:b:a:b", 2, {0, 1, 0, 1}}, {"a:b", 2, {0, 1, 1, 1}}, {"a:ab:abc:a", 3, {0, 1, 2, 0}}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        dp_group_t *groups[4];
        const dp_host_places_t *places;

        if (cases[i].list != NULL)
            debug_set("hosts", cases[i].list);
        ck_assert_int_eq(dp_group_local(4, NULL, groups), DP_OK);
        for (int r = 0; r < 4; r++) {
            const dp_host_t *host = dp_group_host(groups[r]);

            places = host->get_service(host, DP_HOST_PLACES);
            ck_assert_ptr_nonnull(places);
            ck_assert_ptr_eq(host->get_service(host, DP_HOST_PLACES), places); /* made once */
            ck_assert_int_eq(places->hosts, cases[i].hosts);
            ck_assert_mem_eq(places->host_of, cases[i].host_of, sizeof(cases[i].host_of));
        }
        for (int r = 0; r < 4; r++)
            dp_group_leave(groups[r]);
    }
}
END_TEST

START_TEST(no_memory_for_who_lives_where)
{
    dp_group_t *groups[2];
    const dp_host_t *host;

    ck_assert_int_eq(dp_group_local(2, NULL, groups), DP_OK);
    host = dp_group_host(groups[1]);
    oom_install();
    oom_arm(0, true);
    ck_assert_ptr_null(host->get_service(host, DP_HOST_PLACES));
    oom_disarm();
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "no memory for the hosts of 2 ranks"));
    oom_uninstall();
    dp_group_leave(groups[0]);
    dp_group_leave(groups[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group/address");
    TCase *all = tcase_create("address");

    tcase_add_checked_fixture(all, clear, NULL);
    tcase_add_test(all, options_come_before_the_environment);
    tcase_add_test(all, a_port_is_made_of_the_jobs_name);
    tcase_add_test(all, what_is_no_address_is_refused);
    tcase_add_test(all, loopback_is_told_to_who_waits_for_other_hosts);
    tcase_add_test(all, a_socket_that_was_handed_down_is_taken_if_it_is_the_one);
    tcase_add_test(all, an_address_of_another_host_cannot_be_listened_at);
    tcase_add_test(all, a_text_for_what_has_none);
    tcase_add_test(all, a_list_takes_ranks_apart);
    tcase_add_test(all, no_memory_for_who_lives_where);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
