/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * secret.c: where the secret comes from, and what is proved with it. */
#include "group/secret.h"
#include "group/environment.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A pipe can be read once, but a process may join more than once. */
static struct {
    pthread_mutex_t mutex;
    bool loaded;
    dp__secret_t secret;
} from_pipe = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Reads to the end; false with errno when that fails or there is more than fits. */
static bool read_all(int fd, dp__secret_t *secret)
{
    secret->bytes = 0;
    for (;;) {
        char more;
        bool full = secret->bytes == sizeof(secret->data);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n;

        if (poll(&p, 1, 5000) == 0) {
            errno = ETIMEDOUT;
            return false;
        }
        n = full ? read(fd, &more, 1) : read(fd, secret->data + secret->bytes, sizeof(secret->data) - secret->bytes);
        if (n == 0)
            return true;
        if (n > 0 && full) {
            errno = EFBIG;
            return false;
        }
        if (n > 0)
            secret->bytes += (size_t)n;
        else if (errno != EINTR)
            return false;
    }
}

static dp_status_t check_length(const dp__secret_t *secret, const char *where)
{
    if (secret->bytes >= DP__SECRET_MIN_BYTES)
        return DP_OK;
    return dp_fail(DP_ERR_SECURITY, "%s holds a secret of %zu bytes; at least %d are needed", where, secret->bytes,
                   DP__SECRET_MIN_BYTES);
}

static dp_status_t load_pipe(dp__secret_t *secret)
{
    struct stat st;
    int32_t fd;
    bool good;

    if (dp__launch_number("secret", 0, 1 << 20, &fd) < 0)
        return DP_ERR_SECURITY;
    if (fstat(fd, &st) != 0 || !S_ISFIFO(st.st_mode))
        return dp_fail(DP_ERR_SECURITY,
                       "DUALPIPE_LAUNCH: secret=%d is not an open pipe: only a program that was started by "
                       "the launcher itself can join",
                       fd);
    good = read_all(fd, secret);
    close(fd);
    if (!good)
        return dp_fail(DP_ERR_SECURITY, "DUALPIPE_LAUNCH: secret=%d: %s", fd, strerror(errno));
    return check_length(secret, "the pipe of DUALPIPE_LAUNCH");
}

static dp_status_t load_pipe_once(dp__secret_t *secret)
{
    dp_status_t status = DP_OK;

    pthread_mutex_lock(&from_pipe.mutex);
    if (!from_pipe.loaded)
        status = load_pipe(&from_pipe.secret);
    if (status == DP_OK) {
        from_pipe.loaded = true;
        *secret = from_pipe.secret;
    }
    pthread_mutex_unlock(&from_pipe.mutex);
    return status;
}

static dp_status_t load_opened(int fd, const char *path, dp__secret_t *secret)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return dp_fail(DP_ERR_SECURITY, "DUALPIPE_SECRET_FILE=%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) || (st.st_mode & 077) != 0 || (st.st_uid != geteuid() && st.st_uid != 0))
        return dp_fail(DP_ERR_SECURITY,
                       "DUALPIPE_SECRET_FILE=%s: it must be a regular file of this user with mode 0600, "
                       "and is of user %u with mode %04o",
                       path, (unsigned)st.st_uid, (unsigned)(st.st_mode & 07777));
    if (!read_all(fd, secret))
        return dp_fail(DP_ERR_SECURITY, "DUALPIPE_SECRET_FILE=%s: %s", path, strerror(errno));
    while (secret->bytes > 0 && secret->data[secret->bytes - 1] == '\n')
        secret->bytes--; /* editors and echo add one */
    return check_length(secret, path);
}

static dp_status_t load_file(const char *path, dp__secret_t *secret)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    dp_status_t status;

    if (fd < 0)
        return dp_fail(DP_ERR_SECURITY, "DUALPIPE_SECRET_FILE=%s: %s", path, strerror(errno));
    status = load_opened(fd, path, secret);
    close(fd);
    return status;
}

dp_status_t dp__secret_load(dp__secret_t *secret_out)
{
    const char *path = secure_getenv("DUALPIPE_SECRET_FILE");

    memset(secret_out, 0, sizeof(*secret_out));
    if (dp__launch_has("secret"))
        return load_pipe_once(secret_out);
    return path != NULL ? load_file(path, secret_out) : DP_OK;
}

static void update_u32(dp__hmac_t *hmac, uint32_t value)
{
    value = htole32(value);
    dp__hmac_update(hmac, &value, sizeof(value));
}

void dp__secret_prove(const dp__secret_t *secret, const char *label, const dp__transcript_t *transcript,
                      uint8_t out[DP__SHA256_BYTES])
{
    dp__hmac_t hmac;

    dp__hmac_init(&hmac, secret->data, secret->bytes);
    dp__hmac_update(&hmac, label, strlen(label) + 1);
    update_u32(&hmac, transcript->version);
    update_u32(&hmac, (uint32_t)transcript->rank);
    update_u32(&hmac, (uint32_t)transcript->size);
    dp__hmac_update(&hmac, transcript->rank_nonce, DP__NONCE_BYTES);
    dp__hmac_update(&hmac, transcript->hub_nonce, DP__NONCE_BYTES);
    dp__hmac_update(&hmac, transcript->digest, DP__SHA256_BYTES);
    dp__hmac_final(&hmac, out);
    explicit_bzero(&hmac, sizeof(hmac));
}
