/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * hmem_provider.c: a libfabric whose provider reaches memory of CUDA devices (FI_HMEM), for the
 * emulated device, whose memory is the host's: in front of the real one, whose providers get it as
 * memory of the host. Where DP_TEST_HMEM is set; else nothing changes. It refuses what hardware
 * would: memory of a device that is not registered as such, or beside memory of the host in one
 * write. Where DP_TEST_BUSY is set it has no room for writes of nothing, two times of three. */
#include "tests/support/debug.h"

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include <cuda.h>

#define LENT 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fi_ops_fabric fabric_ops;
static struct fi_ops_domain domain_ops;
static struct fi_ops_mr mr_ops;
static struct fi_ops_rma rma_ops;
static int (*real_domain)(struct fid_fabric *, struct fi_info *, struct fid_domain **, void *);
static int (*real_endpoint)(struct fid_domain *, struct fi_info *, struct fid_ep **, void *);
static int (*real_regattr)(struct fid *, const struct fi_mr_attr *, uint64_t, struct fid_mr **);
static ssize_t (*real_writemsg)(struct fid_ep *, const struct fi_msg_rma *, uint64_t);
static struct lent {
    const char *base;
    size_t bytes;
    void *desc;
} all[LENT]; /* memory of the device that was registered to send from; the oldest is forgotten */
static unsigned lent;
static _Thread_local bool inside; /* a provider opens others below itself: those are left alone */

static bool is_on(void)
{
    return getenv("DP_TEST_HMEM") != NULL;
}

static __typeof__(cuPointerGetAttribute) *ask;

static void find_driver(void)
{
    void *driver = dlopen(debug_entry("lib.cuda"), RTLD_LAZY | RTLD_NOLOAD);

    ask = (__typeof__(ask))dlsym(driver, "cuPointerGetAttribute");
}

static bool on_device(const void *memory)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    unsigned type = 0;

    pthread_once(&once, find_driver);
    return ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)memory) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
}

static struct fi_info *without(const struct fi_info *info)
{
    struct fi_info *plain = fi_dupinfo(info);

    if (plain == NULL)
        return NULL;
    plain->caps &= ~FI_HMEM;
    if (plain->tx_attr != NULL)
        plain->tx_attr->caps &= ~FI_HMEM;
    if (plain->rx_attr != NULL)
        plain->rx_attr->caps &= ~FI_HMEM;
    if (plain->domain_attr != NULL)
        plain->domain_attr->mr_mode &= ~FI_MR_HMEM;
    return plain;
}

static int regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr)
{
    struct fi_mr_attr plain = *attr;
    bool device = on_device(attr->mr_iov[0].iov_base);
    int error;

    if (device != (attr->iface == FI_HMEM_CUDA))
        return -FI_EINVAL;
    plain.iface = FI_HMEM_SYSTEM;
    plain.device.reserved = 0;
    error = real_regattr(fid, &plain, flags, mr);
    if (error == 0 && device && (attr->access & FI_WRITE) != 0) {
        pthread_mutex_lock(&lock);
        all[lent++ % LENT] = (struct lent){attr->mr_iov[0].iov_base, attr->mr_iov[0].iov_len, fi_mr_desc(*mr)};
        pthread_mutex_unlock(&lock);
    }
    return error;
}

static bool is_lent(const struct iovec *iov, const void *desc)
{
    bool found = false;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < LENT && !found; i++)
        found = all[i].base != NULL && all[i].desc == desc && (const char *)iov->iov_base >= all[i].base &&
                (const char *)iov->iov_base + iov->iov_len <= all[i].base + all[i].bytes;
    pthread_mutex_unlock(&lock);
    return found;
}

static ssize_t writemsg(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags)
{
    static unsigned tries;

    if (getenv("DP_TEST_BUSY") != NULL && msg->iov_count == 1 && msg->msg_iov[0].iov_len == 0 &&
        __atomic_add_fetch(&tries, 1, __ATOMIC_RELAXED) % 3 != 0)
        return -FI_EAGAIN;
    for (size_t i = 0; i < msg->iov_count; i++)
        if (on_device(msg->msg_iov[i].iov_base) &&
            (msg->iov_count > 1 || msg->desc == NULL || !is_lent(&msg->msg_iov[i], msg->desc[i])))
            return -FI_EFAULT;
    return real_writemsg(ep, msg, flags);
}

static int endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
    struct fi_info *plain = without(info);
    int error;

    inside = true;
    error = plain != NULL ? real_endpoint(domain, plain, ep, context) : -FI_ENOMEM;
    inside = false;
    if (plain != NULL)
        fi_freeinfo(plain);
    if (error != 0)
        return error;
    pthread_mutex_lock(&lock);
    if (real_writemsg == NULL) {
        real_writemsg = (*ep)->rma->writemsg;
        rma_ops = *(*ep)->rma;
        rma_ops.writemsg = writemsg;
    }
    (*ep)->rma = &rma_ops;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
    struct fi_info *plain = without(info);
    int error;

    inside = true;
    error = plain != NULL ? real_domain(fabric, plain, domain, context) : -FI_ENOMEM;
    inside = false;
    if (plain != NULL)
        fi_freeinfo(plain);
    if (error != 0)
        return error;
    pthread_mutex_lock(&lock);
    if (real_endpoint == NULL) {
        real_endpoint = (*domain)->ops->endpoint;
        domain_ops = *(*domain)->ops;
        domain_ops.endpoint = endpoint;
        real_regattr = (*domain)->mr->regattr;
        mr_ops = *(*domain)->mr;
        mr_ops.regattr = regattr;
    }
    (*domain)->ops = &domain_ops;
    (*domain)->mr = &mr_ops;
    pthread_mutex_unlock(&lock);
    return 0;
}

__attribute__((visibility("default"))) int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric,
                                                     void *context)
{
    int (*real)(struct fi_fabric_attr *, struct fid_fabric **, void *) =
        (__typeof__(real))dlsym(RTLD_NEXT, "fi_fabric");
    bool below = inside;
    int error;

    inside = true;
    error = real(attr, fabric, context);
    inside = below;
    if (error != 0 || !is_on() || below)
        return error;
    pthread_mutex_lock(&lock);
    if (real_domain == NULL) {
        real_domain = (*fabric)->ops->domain;
        fabric_ops = *(*fabric)->ops;
        fabric_ops.domain = open_domain;
    }
    (*fabric)->ops = &fabric_ops;
    pthread_mutex_unlock(&lock);
    return 0;
}

__attribute__((visibility("default"))) int fi_getinfo(uint32_t version, const char *node, const char *service,
                                                      uint64_t flags, const struct fi_info *hints,
                                                      struct fi_info **info)
{
    int (*real)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) =
        (__typeof__(real))dlsym(RTLD_NEXT, "fi_getinfo");
    struct fi_info *plain;
    int error;

    if (!is_on() || hints == NULL || (hints->caps & FI_HMEM) == 0)
        return real(version, node, service, flags, hints, info);
    plain = without(hints);
    error = plain != NULL ? real(version, node, service, flags, plain, info) : -FI_ENOMEM;
    for (struct fi_info *i = error == 0 ? *info : NULL; i != NULL; i = i->next) {
        i->caps |= FI_HMEM;
        i->domain_attr->mr_mode |= FI_MR_HMEM;
    }
    if (plain != NULL)
        fi_freeinfo(plain);
    return error;
}
