/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * address.c: finding, checking and opening the place where rank 0 listens. */
#include "group/address.h"
#include "base/do.h"
#include "group/environment.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* Without MASTER_PORT a port is made of the job's name; below where systems take the ports of
 * outgoing connections from. */
#define FIRST_MADE_PORT 23000
#define MADE_PORTS      8000

static dp_status_t make_port(int32_t *port_out)
{
    char name[DP__JOB_BYTES], *job = name;
    uint32_t hash = 2166136261u;

    dp__environment_job(name);
    if (job[0] == '\0')
        return dp_fail(DP_ERR_INVALID,
                       "no port to meet at: set MASTER_PORT to the same free port for all ranks, or start "
                       "them with dualpipe run");
    for (; *job != '\0'; job++)
        hash = (hash ^ (unsigned char)*job) * 16777619u;
    *port_out = (int32_t)(FIRST_MADE_PORT + hash % MADE_PORTS);
    return DP_OK;
}

static dp_status_t find_port(const dp_group_options_t *options, int32_t *port_out)
{
    const char *store = secure_getenv("TORCHELASTIC_USE_AGENT_STORE");
    dp_status_t status;

    if (options->port != 0) {
        *port_out = options->port;
        if (options->port < 1 || options->port > 65535)
            return dp_fail(DP_ERR_INVALID, "group options: port %d: 1 to 65535 are possible", options->port);
        return DP_OK;
    }
    if (secure_getenv("MASTER_PORT") == NULL)
        return make_port(port_out);
    status = dp__environment_number("MASTER_PORT", 1, 65534, port_out);
    /* torchrun's agent may be listening at MASTER_PORT itself */
    if (status == DP_OK && store != NULL && strcmp(store, "True") == 0)
        *port_out += 1;
    return status;
}

void dp__address_text(const struct sockaddr *address, socklen_t bytes, char *text, size_t text_bytes)
{
    char host[INET6_ADDRSTRLEN] = "?", port[8] = "?";

    if (getnameinfo(address, bytes, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(text, text_bytes, "?");
    else
        snprintf(text, text_bytes, address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    if (address->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
    return false;
}

/* "[fd77::1]" as in a URL is "fd77::1". */
static void strip_brackets(const char *host, char *name, size_t bytes)
{
    size_t length = strlen(host);
    bool bracketed = length > 2 && host[0] == '[' && host[length - 1] == ']';

    snprintf(name, bytes, "%.*s", (int)(bracketed ? length - 2 : length), host + bracketed);
}

static dp_status_t resolve(const char *host, int32_t port, dp__address_t *address)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL, *best;
    char service[8], name[NI_MAXHOST];
    int error;

    /* By RFC 6761 localhost needs no asking: bare roots have neither resolver nor /etc/hosts. */
    strip_brackets(strcasecmp(host, "localhost") == 0 ? "127.0.0.1" : host, name, sizeof(name));
    snprintf(service, sizeof(service), "%d", port);
    error = getaddrinfo(name, service, &hints, &found);
    if (error != 0)
        return dp_fail(
            DP_ERR_RENDEZVOUS,
            "the address of rank 0, \"%.200s\": %s; MASTER_ADDR has to be a name or an address that is known on "
            "every host",
            host, gai_strerror(error));
    best = found;
    for (struct addrinfo *a = found; a != NULL && best->ai_family != AF_INET; a = a->ai_next)
        if (a->ai_family == AF_INET)
            best = a; /* all ranks must take the same one */
    memset(address, 0, sizeof(*address));
    memcpy(&address->storage, best->ai_addr, best->ai_addrlen);
    address->bytes = best->ai_addrlen;
    address->loopback = is_loopback(best->ai_addr);
    snprintf(address->name, sizeof(address->name), "%.127s", name);
    dp__address_text(best->ai_addr, best->ai_addrlen, address->text, sizeof(address->text));
    freeaddrinfo(found);
    return DP_OK;
}

dp_status_t dp__address_find(const dp_group_options_t *options, dp__address_t *address_out)
{
    const char *host = options->address;
    int32_t port = 0;

    DO(find_port(options, &port));
    if (host == NULL)
        host = secure_getenv("MASTER_ADDR");
    return resolve(host != NULL && host[0] != '\0' ? host : "127.0.0.1", port, address_out);
}

void dp__address_hint(const dp__address_t *address, const char *host, char *text, size_t bytes)
{
    bool by_name = strstr(address->text, address->name) == NULL;

    text[0] = '\0';
    if (address->loopback)
        snprintf(
            text, bytes,
            "; %s%.100s%sonly ranks of the same host (here %.64s) can meet there: for others MASTER_ADDR has to be an "
            "address of rank 0's host that they can reach",
            by_name ? "\"" : "", by_name ? address->name : "",
            by_name ? "\" is a name of loopback on this host, and " : "", host);
}

/* ---- listening ---- */

/* true when fd is a socket bound to that very address. */
static bool is_bound_to(int fd, const dp__address_t *address)
{
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof(bound);
    char text[64];

    memset(&bound, 0, sizeof(bound));
    if (getsockname(fd, (struct sockaddr *)&bound, &bytes) != 0)
        return false;
    dp__address_text((struct sockaddr *)&bound, bytes, text, sizeof(text));
    return strcmp(text, address->text) == 0;
}

static int inherited(const dp__address_t *address)
{
    int listening = 0;
    socklen_t bytes = sizeof(listening);
    int32_t fd;

    /* The number may be stale, and the descriptor of something else by now. */
    if (!dp__launch_has("listen") || dp__launch_number("listen", 3, 1 << 20, &fd) != DP_OK)
        return -1;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) != 0 || !listening || !is_bound_to(fd, address))
        return -1;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
        return -1;
    return fd;
}

static dp_status_t bind_and_listen(int fd, const dp__address_t *address, int32_t size)
{
    int on = 1;

    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (const struct sockaddr *)&address->storage, address->bytes) != 0)
        return dp_fail(DP_ERR_RENDEZVOUS, "rank 0 cannot listen at %s: %s%s", address->text, strerror(errno),
                       errno == EADDRINUSE      ? "; set MASTER_PORT to another port, or start with dualpipe run"
                       : errno == EADDRNOTAVAIL ? "; MASTER_ADDR must be an address of the host that rank 0 runs on"
                                                : "");
    if (listen(fd, size < 128 ? 128 : size) != 0)
        return dp_fail(DP_ERR_RENDEZVOUS, "rank 0 cannot listen at %s: %s", address->text, strerror(errno));
    if (!is_bound_to(fd, address))
        return dp_fail(DP_ERR_SECURITY, "rank 0 wanted to listen at %s and was put elsewhere", address->text);
    return DP_OK;
}

dp_status_t dp__address_listen(const dp__address_t *address, int32_t size, int *fd_out)
{
    int fd = inherited(address);
    dp_status_t status;

    if (fd >= 0) {
        *fd_out = fd;
        return DP_OK;
    }
    fd = socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return dp_fail(DP_ERR_NOMEM, "rank 0 has no socket to listen with: %s", strerror(errno));
    status = bind_and_listen(fd, address, size);
    if (status != DP_OK)
        close(fd);
    else
        *fd_out = fd;
    return status;
}
