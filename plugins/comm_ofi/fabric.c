/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fabric.c: which provider and interface, and the objects of the provider. */
#include "join.h"

#include "plugins/common/debug.h"
#include "plugins/common/do.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define API           FI_VERSION(1, 14)
#define BELL_BYTES    4 /* completion data that a put carries */
#define MR_MODES      (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT)
#define ENV_PROVIDER  "DUALPIPE_OFI_PROVIDER"
#define ENV_INTERFACE "DUALPIPE_OFI_INTERFACE"
#define DEBUG_STAGE   "ofi.stage"
#define TRIAL_BYTES   4096

/* Not taken unless named: they end at this host, are there for debugging, or are not kept up any
 * more. */
static const char *const passed_over[] = {"shm", "sm2", "sockets", "udp", "net", "ofi_rxd"};

static const char *setting(const char *name)
{
    const char *text = secure_getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* ---- addresses ---- */

static const struct sockaddr *socket_of(const struct fi_info *info)
{
    uint32_t format = info->addr_format;

    return format == FI_SOCKADDR || format == FI_SOCKADDR_IN || format == FI_SOCKADDR_IN6 ? info->src_addr : NULL;
}

static bool is_loopback(const struct sockaddr *address)
{
    const struct in6_addr *in6;

    if (address == NULL)
        return false;
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 == 127;
    in6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(in6);
}

static bool same_host_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a == NULL || a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

static void write_socket(const struct sockaddr *address, char text[INET6_ADDRSTRLEN])
{
    text[0] = '\0';
    if (address != NULL && address->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr, text, INET6_ADDRSTRLEN);
    else if (address != NULL && address->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, text, INET6_ADDRSTRLEN);
}

static void write_address(const struct fi_info *info, char text[INET6_ADDRSTRLEN])
{
    write_socket(socket_of(info), text);
}

/* The address that this host has on the way to rank 0's: no packet is sent to find it. */
static bool way_to_master(struct sockaddr_storage *ours_out)
{
    const char *master = setting("MASTER_ADDR");
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *list = NULL;
    bool found = false;

    if (master == NULL || getaddrinfo(master, "9", &hints, &list) != 0)
        return false;
    for (const struct addrinfo *a = list; a != NULL && !found; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        socklen_t bytes = sizeof(*ours_out);

        memset(ours_out, 0, sizeof(*ours_out));
        found = fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
                getsockname(fd, (struct sockaddr *)ours_out, &bytes) == 0;
        if (fd >= 0)
            close(fd);
    }
    freeaddrinfo(list);
    return found && !is_loopback((const struct sockaddr *)ours_out);
}

/* ---- choosing ---- */

static void drop(struct fid *fid)
{
    if (fid != NULL)
        (void)fi_close(fid);
}

static bool is_passed_over(const char *provider)
{
    for (size_t i = 0; i < sizeof(passed_over) / sizeof(passed_over[0]); i++) {
        const char *at = strstr(provider, passed_over[i]);
        size_t length = strlen(passed_over[i]);

        if (at != NULL && (at == provider || at[-1] == ';') && (at[length] == '\0' || at[length] == ';'))
            return true;
    }
    return false;
}

/* 0: not this one. Providers come in libfabric's order, so the first of the best is taken. */
static int rank_of(const struct fi_info *info, const char *interface, const struct sockaddr *way)
{
    const struct sockaddr *address = socket_of(info);
    char text[INET6_ADDRSTRLEN];

    if ((info->domain_attr->mr_mode & ~(uint64_t)(MR_MODES | FI_MR_HMEM)) != 0 ||
        info->domain_attr->cq_data_size < BELL_BYTES || info->domain_attr->mr_key_size > sizeof(uint64_t) ||
        (info->mode & ~(FI_CONTEXT | FI_CONTEXT2)) != 0)
        return 0;
    write_address(info, text);
    if (interface != NULL)
        return strcmp(info->domain_attr->name, interface) == 0 || strcmp(text, interface) == 0 ? 1 : 0;
    if (address == NULL)
        return 4;
    if (way != NULL && same_host_address(address, way))
        return 6;
    if (is_loopback(address))
        return 1;
    if (address->sa_family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr))
        return 2;
    return address->sa_family == AF_INET ? 4 : 3;
}

/* device: the provider reaches memory of a device by itself. */
static struct fi_info *make_hints(const char *provider, bool delivery, bool device)
{
    struct fi_info *hints = fi_allocinfo();

    if (hints == NULL)
        return NULL;
    hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE | (device ? FI_HMEM : 0);
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = MR_MODES | (device ? FI_MR_HMEM : 0);
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->cq_data_size = BELL_BYTES;
    hints->tx_attr->op_flags = delivery ? FI_DELIVERY_COMPLETE : 0;
    if (provider != NULL && (hints->fabric_attr->prov_name = strdup(provider)) == NULL) {
        fi_freeinfo(hints);
        return NULL;
    }
    return hints;
}

static dp_status_t refuse_none(const dp_comm_t *comm, const char *provider, const char *interface, int error)
{
    const dp_host_t *host = comm->host;
    const char *filter = setting("FI_PROVIDER"); /* libfabric's own */

    if (interface != NULL && error == 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "rank %d, group %s: " ENV_INTERFACE
                       "=%s names no interface that libfabric's provider %s can use: fi_info lists them by domain",
                       comm->world[comm->rank], comm->name, interface, provider != NULL ? provider : "of any name");
    if (provider != NULL)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "rank %d, group %s: libfabric %u.%u offers no provider \"%s\" with one-sided writes that carry "
                       "completion data (%s): fi_info lists those that work here, " ENV_PROVIDER " chooses",
                       comm->world[comm->rank], comm->name, FI_MAJOR(fi_version()), FI_MINOR(fi_version()), provider,
                       error != 0 ? fi_strerror(-error) : "none of its interfaces fits");
    return DP_FAIL(
        host, DP_ERR_UNSUPPORTED,
        "rank %d, group %s: libfabric %u.%u has no provider here with one-sided writes that carry completion "
        "data (%s)%s%s: see fi_info, and choose with " ENV_PROVIDER,
        comm->world[comm->rank], comm->name, FI_MAJOR(fi_version()), FI_MINOR(fi_version()),
        error != 0 ? fi_strerror(-error) : "none fits",
        filter != NULL ? ", and offers no others with FI_PROVIDER=" : "", filter != NULL ? filter : "");
}

static int ask_provider(const char *provider, bool delivery, bool device, struct fi_info **list_out)
{
    struct fi_info *hints = make_hints(provider, delivery, device);
    int error = hints != NULL ? fi_getinfo(API, NULL, NULL, 0, hints, list_out) : -FI_ENOMEM;

    if (hints != NULL)
        fi_freeinfo(hints);
    return error;
}

/* A copy of what fits best; NULL: nothing does. */
static struct fi_info *pick(const struct fi_info *list, bool named, const char *interface)
{
    const struct fi_info *best = NULL;
    struct sockaddr_storage way;
    bool has_way = way_to_master(&way);
    int most = 0;

    for (const struct fi_info *info = list; info != NULL; info = info->next) {
        int rank = rank_of(info, interface, has_way ? (struct sockaddr *)&way : NULL);

        if (!named && is_passed_over(info->fabric_attr->prov_name))
            continue;
        /* a provider further down never wins by its address alone */
        if (best != NULL && strcmp(best->fabric_attr->prov_name, info->fabric_attr->prov_name) != 0)
            break;
        if (rank > most) {
            most = rank;
            best = info;
        }
    }
    return best != NULL ? fi_dupinfo(best) : NULL;
}

/* Takes what fits best now. */
static int choose_best(dp_comm_t *comm)
{
    const char *provider = setting(ENV_PROVIDER);
    struct fi_info *list = NULL;
    const int error = ask_provider(provider, false, false, &list);

    if (comm->wire.info != NULL)
        fi_freeinfo(comm->wire.info);
    comm->wire.info = pick(list, provider != NULL, setting(ENV_INTERFACE));
    if (list != NULL)
        fi_freeinfo(list);
    return error;
}

static bool spans_hosts(const dp_comm_t *comm)
{
    const dp_host_places_t *places = comm->host->get_service(comm->host, DP_HOST_PLACES);

    for (int32_t r = 1; places != NULL && r < comm->nranks; r++)
        if (places->host_of[comm->world[r]] != places->host_of[comm->world[0]])
            return true;
    return false;
}

static dp_status_t look_for_way(void *user)
{
    dp_comm_t *comm = user;

    (void)choose_best(comm);
    return comm->wire.info != NULL && is_loopback(socket_of(comm->wire.info)) ? DP_PENDING : DP_OK;
}

/* An interface that has come up has its address before providers list it. */
static dp_status_t await_way(dp_comm_t *comm)
{
    const dp_host_limits_t *limits = comm->host->get_service(comm->host, DP_HOST_LIMITS);
    char what[256];
    struct sockaddr_storage way;
    dp_status_t status;

    if (setting(ENV_INTERFACE) != NULL || !is_loopback(socket_of(comm->wire.info)) || !spans_hosts(comm) ||
        !way_to_master(&way))
        return DP_OK;
    write_socket((struct sockaddr *)&way, comm->wire.unlisted);
    snprintf(what, sizeof(what), "rank %d, group %s: libfabric lists no interface at %s, the way to rank 0",
             comm->world[comm->rank], comm->name, comm->wire.unlisted);
    comm->host->log(comm->host, DP_LOG_INFO, "comm_ofi", what);
    /* the others wait for us as long as for anything */
    status = comm->host->poll(comm->host, look_for_way, comm, limits != NULL ? limits->hang_ns / 2 : 0, what);
    return status == DP_ERR_TIMEOUT ? DP_OK : status; /* check_reach says so */
}

static dp_status_t choose_provider(dp_comm_t *comm)
{
    struct fi_info *list = NULL;
    int error;

    if (debug_check(comm->host, "ofi", "stage") < 0)
        return DP_ERR_INVALID;
    error = choose_best(comm);
    if (comm->wire.info != NULL)
        DO(await_way(comm));
    if (comm->wire.info == NULL)
        return refuse_none(comm, setting(ENV_PROVIDER), setting(ENV_INTERFACE), error);
    comm->wire.delivery = ask_provider(comm->wire.info->fabric_attr->prov_name, true, false, &list) == 0;
    if (list != NULL)
        fi_freeinfo(list);
    return DP_OK;
}

/* ---- memory of the device ---- */

static int register_by(dp_comm_t *comm, struct fid_domain *domain, void *base, size_t bytes, uint64_t access,
                       bool device, struct fid_mr **mr_out)
{
    struct iovec iov = {base, bytes};
    struct fi_mr_attr attr = {.mr_iov = &iov,
                              .iov_count = 1,
                              .access = access,
                              .requested_key = comm->wire.keys++,
                              .iface = device ? FI_HMEM_CUDA : FI_HMEM_SYSTEM};

    if (device)
        attr.device.cuda = ofi_gpu_ordinal(comm->gpu);
    return fi_mr_regattr(domain, &attr, 0, mr_out);
}

/* A capability says little of this device: the provider is asked to register some of its memory. */
static int try_device(dp_comm_t *comm, struct fi_info *info)
{
    struct fid_fabric *fabric = NULL;
    struct fid_domain *domain = NULL;
    struct fid_mr *mr = NULL;
    void *memory = NULL;
    int error;

    if (comm->device->allocate(comm->instance, TRIAL_BYTES, &memory) < 0)
        return -FI_ENOMEM;
    error = fi_fabric(info->fabric_attr, &fabric, NULL);
    if (error == 0)
        error = fi_domain(fabric, info, &domain, NULL);
    if (error == 0)
        error = register_by(comm, domain, memory, TRIAL_BYTES, FI_WRITE | FI_REMOTE_WRITE, true, &mr);
    drop(mr != NULL ? &mr->fid : NULL);
    drop(domain != NULL ? &domain->fid : NULL);
    drop(fabric != NULL ? &fabric->fid : NULL);
    comm->device->release(comm->instance, memory);
    return error;
}

/* The chosen provider is to reach memory of the device by itself where it can. */
static void choose_direct(dp_comm_t *comm)
{
    wire_t *w = &comm->wire;
    struct fi_info *list = NULL, *info = NULL;
    char text[8];
    const char *staging = debug_value(DEBUG_STAGE, text, sizeof(text));
    char address[INET6_ADDRSTRLEN];
    int error = -FI_ENODATA;

    if (staging != NULL && strcmp(staging, "0") != 0) {
        snprintf(w->staged, sizeof(w->staged), "DUALPIPE_DEBUG=%s is set", DEBUG_STAGE);
        return;
    }
    if (!ofi_gpu_sees_writes(comm->gpu)) {
        snprintf(w->staged, sizeof(w->staged), "the device does not say when it sees what others write");
        return;
    }
    write_address(w->info, address);
    if (ask_provider(w->info->fabric_attr->prov_name, false, true, &list) == 0)
        info = pick(list, true, address[0] != '\0' ? address : w->info->domain_attr->name);
    if (list != NULL)
        fi_freeinfo(list);
    if (info != NULL && (info->caps & FI_HMEM) != 0)
        error = try_device(comm, info);
    w->direct = error == 0;
    if (w->direct) {
        fi_freeinfo(w->info);
        w->info = info;
        return;
    }
    if (info != NULL)
        fi_freeinfo(info);
    snprintf(w->staged, sizeof(w->staged), "FI_HMEM: %s", info == NULL ? "not of this provider" : fi_strerror(-error));
}

/* ---- opening ---- */

static dp_status_t refuse_fabric(const dp_comm_t *comm, const char *what, int error)
{
    return DP_FAIL(comm->host, error == -FI_ENOMEM || error == -FI_EMFILE ? DP_ERR_NOMEM : DP_ERR_IO,
                   "rank %d, group %s: libfabric provider %s cannot open %s: %s%s", comm->world[comm->rank], comm->name,
                   comm->wire.provider, what, fi_strerror(-error),
                   error == -FI_EADDRINUSE || error == -FI_EADDRNOTAVAIL
                       ? " (no port is free: net.ipv4.ip_local_port_range has them, or "
                         "FI_TCP_PORT_LOW_RANGE and FI_TCP_PORT_HIGH_RANGE)"
                       : "");
}

static void name_host(char text[128])
{
    char space[48] = "";
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    ssize_t n = readlink("/proc/self/ns/net", space, sizeof(space) - 1);

    memset(text, 0, 128);
    if (boot != NULL && fgets(text, 40, boot) != NULL)
        text[strcspn(text, "\n")] = '\0';
    if (boot != NULL)
        fclose(boot);
    if (n > 0)
        snprintf(text + strlen(text), 64, " %s", space);
}

/* When a connection ends, tcp reports an injected write that has not left yet, and a write with
 * completion data that has come in part, as errors without a context. ofi_rxm looks into the
 * context all the same, and the process dies (libfabric 1.17; 2.1 has the same lines). So nothing
 * is injected there, and what rings carries little. */
static void choose_sizes(wire_t *w)
{
    bool careful = strcmp(w->info->fabric_attr->prov_name, "tcp;ofi_rxm") == 0;

    w->inject_bytes = careful ? 0 : w->info->tx_attr->inject_size;
    w->whole_bytes = careful ? w->info->tx_attr->inject_size : SIZE_MAX;
}

/* A descriptor to sleep on, where the provider has one. */
static int open_queue(wire_t *w)
{
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
    int error = fi_cq_open(w->domain, &attr, &w->cq, NULL);

    if (error == 0 && fi_control(&w->cq->fid, FI_GETWAIT, &w->cq_fd) != 0) {
        w->cq_fd = -1;
        fi_close(&w->cq->fid);
        w->cq = NULL;
        error = -FI_ENOSYS;
    }
    if (error != 0) {
        attr.wait_obj = FI_WAIT_NONE;
        error = fi_cq_open(w->domain, &attr, &w->cq, NULL);
    }
    return error;
}

static dp_status_t open_objects(dp_comm_t *comm)
{
    wire_t *w = &comm->wire;
    struct fi_av_attr av = {.type = FI_AV_TABLE, .count = (size_t)comm->nranks};
    int error = fi_fabric(w->info->fabric_attr, &w->fabric, NULL);

    if (error != 0)
        return refuse_fabric(comm, "a fabric", error);
    error = fi_domain(w->fabric, w->info, &w->domain, NULL);
    if (error != 0)
        return refuse_fabric(comm, "a domain", error);
    error = fi_av_open(w->domain, &av, &w->av, NULL);
    if (error != 0)
        return refuse_fabric(comm, "an address table", error);
    error = open_queue(w);
    if (error != 0)
        return refuse_fabric(comm, "a completion queue", error);
    error = fi_endpoint(w->domain, w->info, &w->ep, NULL);
    if (error == 0)
        error = fi_ep_bind(w->ep, &w->av->fid, 0);
    if (error == 0)
        error = fi_ep_bind(w->ep, &w->cq->fid, FI_TRANSMIT | FI_RECV);
    if (error == 0)
        error = fi_enable(w->ep);
    return error == 0 ? DP_OK : refuse_fabric(comm, "an endpoint", error);
}

static void announce(const dp_comm_t *comm)
{
    const wire_t *w = &comm->wire;
    char text[768];

    snprintf(text, sizeof(text), "group %s: provider %s at %s; %s; %s, published by completion data%s%s%s", comm->name,
             w->provider, w->local,
             w->info->domain_attr->data_progress == FI_PROGRESS_MANUAL ? "manual progress, by a thread of ours"
                                                                       : "the provider progresses by itself",
             w->cq_fd >= 0 ? "waits sleep on its descriptor"
                           : "it has none to sleep on: waits ask, less and less often",
             w->direct
                 ? "; the provider reaches memory of the device by itself (FI_HMEM), sums are staged through the host's"
             : comm->gpu != NULL ? "; memory of the device is staged through the host's ("
             : w->bounce         ? "; data are copied to registered memory first"
                                 : "",
             w->staged, w->staged[0] != '\0' ? ")" : "");
    comm->host->log(comm->host, DP_LOG_INFO, "comm_ofi", text);
}

dp_status_t ofi_fabric_open(dp_comm_t *comm)
{
    wire_t *w = &comm->wire;
    char address[INET6_ADDRSTRLEN];
    dp_status_t status;

    if (fi_version() < API)
        return DP_FAIL(comm->host, DP_ERR_UNSUPPORTED,
                       "comm_ofi needs libfabric %u.%u or later, the one that was loaded is %u.%u", FI_MAJOR(API),
                       FI_MINOR(API), FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
    DO(choose_provider(comm));
    if (comm->gpu != NULL)
        choose_direct(comm);
    /* memory of host and device in one write is not every provider's */
    w->scatter = w->info->tx_attr->rma_iov_limit >= 2 && !w->direct;
    w->bounce = comm->gpu != NULL || (w->info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
    choose_sizes(w);
    w->loopback = is_loopback(socket_of(w->info));
    name_host(w->host);
    write_address(w->info, address);
    snprintf(w->provider, sizeof(w->provider), "%s", w->info->fabric_attr->prov_name);
    snprintf(w->local, sizeof(w->local), "%s%s%s%s", w->info->domain_attr->name, address[0] != '\0' ? " (" : "",
             address, address[0] != '\0' ? ")" : "");
    status = open_objects(comm);
    if (status == DP_OK)
        announce(comm);
    return status;
}

static bool modes_endpoint(const wire_t *w)
{
    return w->info != NULL && (w->info->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0;
}

/* Nobody reaches our memory any more. */
static void withdraw(dp_comm_t *comm)
{
    for (uint32_t i = 0; i < comm->region_count; i++)
        ofi_join_free_region(comm, &comm->regions[i]);
    for (dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        ofi_part_withdraw(&end->part);
    for (dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        ofi_part_withdraw(&x->part);
}

void ofi_fabric_close(dp_comm_t *comm)
{
    wire_t *w = &comm->wire;

    if (modes_endpoint(w))
        withdraw(comm); /* bound to the endpoint: before it */
    drop(w->ep != NULL ? &w->ep->fid : NULL);
    withdraw(comm);
    drop(w->cq != NULL ? &w->cq->fid : NULL);
    drop(w->av != NULL ? &w->av->fid : NULL);
    drop(w->domain != NULL ? &w->domain->fid : NULL);
    drop(w->fabric != NULL ? &w->fabric->fid : NULL);
    if (w->info != NULL)
        fi_freeinfo(w->info);
    comm_release(comm, w->peers);
    w->ep = NULL;
    w->cq = NULL;
    w->av = NULL;
    w->domain = NULL;
    w->fabric = NULL;
    w->info = NULL;
    w->peers = NULL;
}

/* ---- peers ---- */

dp_status_t ofi_fabric_describe(dp_comm_t *comm, record_t *record)
{
    wire_t *w = &comm->wire;
    size_t bytes = sizeof(record->name);
    int error = fi_getname(&w->ep->fid, record->name, &bytes);

    if (error != 0)
        return refuse_fabric(comm, "its own address", error);
    record->name_bytes = (uint32_t)bytes;
    memcpy(record->provider, w->provider, sizeof(record->provider));
    memcpy(record->host, w->host, sizeof(record->host));
    memcpy(record->unlisted, w->unlisted, sizeof(record->unlisted));
    record->library = fi_version();
    record->scatter = w->scatter;
    record->direct = w->direct;
    record->loopback = w->loopback;
    return DP_OK;
}

static dp_status_t check_reach(const dp_comm_t *comm, int32_t rank, const record_t *record)
{
    const wire_t *w = &comm->wire;
    int32_t lo = w->loopback ? comm->rank : rank;
    const char *unlisted = w->loopback ? w->unlisted : record->unlisted;

    if (!(w->loopback || record->loopback) || memcmp(w->host, record->host, sizeof(w->host)) == 0)
        return DP_OK;
    return DP_FAIL(
        comm->host, DP_ERR_UNSUPPORTED,
        "rank %d, group %s: ranks %d and %d are on different hosts, but rank %d has a loopback address, which "
        "nobody else can reach%s%s%s: set " ENV_INTERFACE " there to an interface or address of its network, or "
        "MASTER_ADDR to an address of rank 0's host that is not a loopback one",
        comm->world[comm->rank], comm->name, comm->world[comm->rank], comm->world[rank], comm->world[lo],
        unlisted[0] != '\0' ? " (libfabric does not list " : "", unlisted,
        unlisted[0] != '\0' ? ", its address towards rank 0: is that interface up?)" : "");
}

dp_status_t ofi_fabric_add(dp_comm_t *comm, int32_t rank, const record_t *record)
{
    wire_t *w = &comm->wire;

    if (record->name_bytes == 0 || record->name_bytes > sizeof(record->name) ||
        memchr(record->provider, '\0', sizeof(record->provider)) == NULL ||
        memchr(record->unlisted, '\0', sizeof(record->unlisted)) == NULL)
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL, "rank %d, group %s: rank %d announces no valid address",
                       comm->world[comm->rank], comm->name, comm->world[rank]);
    if (record->direct != (uint32_t)w->direct)
        return DP_FAIL(comm->host, DP_ERR_MISMATCH,
                       "group %s: provider %s reaches memory of the device by itself on rank %d, not on rank %d: set "
                       "DUALPIPE_DEBUG=" DEBUG_STAGE "=1 on all hosts, and it is staged through the host's",
                       comm->name, w->provider, comm->world[w->direct ? comm->rank : rank],
                       comm->world[w->direct ? rank : comm->rank]);
    if (strcmp(record->provider, w->provider) != 0 || record->scatter != (uint32_t)w->scatter)
        return DP_FAIL(
            comm->host, DP_ERR_MISMATCH,
            "group %s: rank %d uses libfabric provider %s (%u.%u), rank %d uses %s (%u.%u): set " ENV_PROVIDER
            " to the same on all hosts",
            comm->name, comm->world[comm->rank], w->provider, FI_MAJOR(fi_version()), FI_MINOR(fi_version()),
            comm->world[rank], record->provider, FI_MAJOR(record->library), FI_MINOR(record->library));
    DO(check_reach(comm, rank, record));
    if (fi_av_insert(w->av, record->name, 1, &w->peers[rank], 0, NULL) != 1)
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                       "rank %d, group %s: libfabric does not take the address of rank %d for one of provider %s",
                       comm->world[comm->rank], comm->name, comm->world[rank], w->provider);
    return DP_OK;
}

static dp_status_t register_memory(dp_comm_t *comm, void *base, size_t bytes, uint64_t access, bool device,
                                   struct fid_mr **mr_out)
{
    wire_t *w = &comm->wire;
    struct fid_mr *mr = NULL;
    int error = register_by(comm, w->domain, base, bytes, access, device, &mr);
    dp_status_t status = DP_OK;

    if (error == 0 && modes_endpoint(w)) {
        error = fi_mr_bind(mr, &w->ep->fid, 0);
        if (error == 0)
            error = fi_mr_enable(mr);
    }
    if (error != 0)
        status = DP_FAIL(comm->host, DP_ERR_NOMEM, "rank %d, group %s: provider %s cannot register %zu bytes%s: %s",
                         comm->world[comm->rank], comm->name, w->provider, bytes,
                         device ? " of the device (DUALPIPE_DEBUG=" DEBUG_STAGE "=1 does without)" : "",
                         fi_strerror(-error));
    else if (fi_mr_key(mr) == FI_KEY_NOTAVAIL)
        status = DP_FAIL(comm->host, DP_ERR_UNSUPPORTED, "group %s: provider %s has keys of more than 64 bits",
                         comm->name, w->provider);
    if (status == DP_OK)
        *mr_out = mr;
    else
        drop(mr != NULL ? &mr->fid : NULL);
    return status;
}

dp_status_t ofi_fabric_register_device(dp_comm_t *comm, void *base, size_t bytes, uint64_t access,
                                       struct fid_mr **mr_out)
{
    return register_memory(comm, base, bytes, access, true, mr_out);
}

dp_status_t ofi_fabric_register(dp_comm_t *comm, region_t *region)
{
    wire_t *w = &comm->wire;
    uint64_t access = FI_REMOTE_WRITE | (w->bounce ? FI_WRITE : 0);

    DO(register_memory(comm, region->base, region->bytes, access, false, &region->mr));
    region->desc = w->bounce ? fi_mr_desc(region->mr) : NULL;
    region->key = fi_mr_key(region->mr);
    region->address = (w->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0 ? (uintptr_t)region->base : 0;
    return DP_OK;
}
