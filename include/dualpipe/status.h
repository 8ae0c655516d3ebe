/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * status.h: status codes, error messages, logging and memory hooks. Every other header includes
 * this one.
 *
 * Since 0.2: DP_ERR_CORRUPT. */
#ifndef DUALPIPE_STATUS_H
#define DUALPIPE_STATUS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DP_API               __attribute__((visibility("default")))
#define DP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
/* the compiler warns who drops the result */
#define DP_CHECKED __attribute__((warn_unused_result))
#else
#define DP_API
#define DP_PRINTF(fmt, args)
#define DP_CHECKED
#endif

/* Casts of the headers' own inline functions, which C++ wants in its own form. */
#ifdef __cplusplus
#define DP_CAST(type, x)         static_cast<type>(x)
#define DP_SIZE_OF(type, member) sizeof(type::member)
#else
#define DP_CAST(type, x)         ((type)(x))
#define DP_SIZE_OF(type, member) sizeof(((type *)0)->member)
#endif

/* Tags used on functions of all headers, in this order.
 *   [main]        only the thread that drives the object
 *   [any]         any thread, also at once
 *   [enqueue s]   puts work on stream s and returns; never waits for the device
 *   [blocks]      may wait on the host: for a peer, the device or the disk, always with a deadline
 *   [capture]     legal while s is being captured into a graph
 *   [collective]  every rank of the group calls it in the same order
 *   [paired]      the peer makes the matching call
 *   [signal]      async-signal-safe
 * and on the calls of kernels (attention.h, moe.h), which say what a call puts on its stream:
 *   [compute]     work that belongs on a compute lane: kernels, no transfers
 *   [all-to-all]  an exchange between the ranks of the expert group, and what packs and unpacks its
 *                 rows: it belongs on the all-to-all lane, and waits on the stream (never on the
 *                 host) for the other ranks' matching call
 *   [sm<=share]   on devices that divide their multiprocessors between compute and communication,
 *                 keeps to the compute share, dp_host_sm_t.compute_sms, where the host gives one
 *                 (plugin.h) */

/**
 * Structs that cross the library's boundary begin with `uint32_t struct_size`, which whoever owns
 * the memory sets to sizeof(the struct). They grow at their end, and zero is every member's
 * default. There are two kinds:
 *
 *   asks    options, configs, requests, steps, io: somebody wants something. What a shorter one
 *           lacks is zero. Of a longer one, the bytes that the receiver does not know must be zero,
 *           else it is DP_ERR_UNSUPPORTED in a sentence that names struct and byte: nothing that
 *           was asked for is dropped in silence. A member marked [hint] changes no result: who is
 *           refused because of it may set it to zero and call again.
 *   offers  tables of functions, services of the host, results: a longer one is welcome, and what
 *           is not known in it is ignored. DP_HAS asks whether a pointer or function is there.
 *
 * DP_<NAME>_MIN is a struct's size when this ABI major began; a shorter one is DP_ERR_INVALID.
 * Structs without a size say "Frozen": they never grow, and their `reserved` members are zero.
 * DP_SIZE_TO: bytes up to the end of a member. DP_REACHES: struct `s` (may be NULL) has the member.
 * DP_HAS: and it is not NULL.
 */
#define DP_SIZE_TO(type, member)    (offsetof(type, member) + DP_SIZE_OF(type, member))
#define DP_REACHES(s, type, member) ((s) != NULL && (s)->struct_size >= DP_SIZE_TO(type, member))
#define DP_HAS(s, type, member)     (DP_REACHES(s, type, member) && (s)->member != NULL)

/** No struct is longer: a larger struct_size was never set. */
#define DP_SIZED_MOST 4096u

/** 0, or the offset of the first byte behind the first `known` ones that is set in a struct by
 *  which the other side asks; DP_SIZED_MOST: its struct_size is larger than that. [any] [signal] */
static inline uint32_t dp_sized_unknown(const void *s, uint32_t known)
{
    const unsigned char *bytes = DP_CAST(const unsigned char *, s);
    uint32_t size;

    memcpy(&size, s, sizeof(size));
    if (size > DP_SIZED_MOST)
        return DP_SIZED_MOST;
    while (known < size && bytes[known] == 0)
        known++;
    return known < size ? known : 0;
}

/** Takes over a struct of the other side: *to becomes its first members, as many as both know, and
 *  zeros; its struct_size becomes to_bytes. What dp_sized_unknown(from, to_bytes) answers; plugins
 *  use DP_TAKE (plugin.h), which makes a message of it. [any] [signal] */
static inline uint32_t dp_sized_take(void *to, uint32_t to_bytes, const void *from)
{
    uint32_t from_bytes;

    memcpy(&from_bytes, from, sizeof(from_bytes));
    memset(to, 0, to_bytes);
    memcpy(to, from, from_bytes < to_bytes ? from_bytes : to_bytes);
    memcpy(to, &to_bytes, sizeof(to_bytes));
    return dp_sized_unknown(from, to_bytes);
}

/** Puts results into a struct of the other side: as many members as both know, and never its
 *  struct_size. [any] [signal] */
static inline void dp_sized_put(void *to, const void *from)
{
    uint32_t bytes, from_bytes;

    memcpy(&bytes, to, sizeof(bytes));
    memcpy(&from_bytes, from, sizeof(from_bytes));
    if (from_bytes < bytes)
        bytes = from_bytes;
    if (bytes > sizeof(bytes))
        memcpy(DP_CAST(char *, to) + sizeof(bytes), DP_CAST(const char *, from) + sizeof(bytes), bytes - sizeof(bytes));
}

/** What a call returned. 0 is success, positive means "not yet", negative is an error. Values never
 * change meaning. */
typedef int32_t dp_status_t;

enum {
    DP_OK = 0,
    DP_PENDING = 1,      /* not there yet: only from functions given to dp_host_t.poll */
    DP_ERR_INVALID = -1, /* an argument, option or file content is wrong; nothing was done */
    DP_ERR_NOMEM = -2,   /* memory, descriptors or threads ran out */
    /* a plugin is missing, foreign, of another ABI major, or broke its contract */
    DP_ERR_PLUGIN = -3,
    DP_ERR_PEER = -4, /* another rank died or left */
    /* a peer or device is alive but made no progress before the deadline */
    DP_ERR_TIMEOUT = -5,
    /* a message arrived that the program does not expect (order, size, content) */
    DP_ERR_PROTOCOL = -6,
    DP_ERR_NUMERIC = -7,      /* NaN or infinity where a finite number is required */
    DP_ERR_IO = -8,           /* a file or socket operation failed */
    DP_ERR_MISMATCH = -9,     /* ranks were started with different settings */
    DP_ERR_RENDEZVOUS = -10,  /* the ranks did not find each other in time */
    DP_ERR_REJECTED = -11,    /* verify refused the schedule or program */
    DP_ERR_UNSUPPORTED = -12, /* legal, but this build, plugin or machine cannot do it */
    DP_ERR_ABORTED = -13,     /* the job was aborted; the message holds the first cause */
    /* refused because it would not be safe (permissions, missing secret) */
    DP_ERR_SECURITY = -14,
    DP_ERR_DEVICE = -15,      /* the device reported an error */
    DP_ERR_OVERFLOW = -16,    /* a fixed capacity announced at set-up was exceeded */
    DP_ERR_INTERRUPTED = -17, /* stopped on request (a signal, dp_group_interrupt) */
    DP_ERR_LOST = -18,        /* state that no living rank holds */
    DP_ERR_CORRUPT = -19      /* memory has changed by itself: copies of it differ */
};

/** The name of a code, "DP_ERR_PEER" say; "DP_ERR_?" for values this version does not know. Static
 * text. [any] */
DP_API const char *dp_status_name(dp_status_t status);

/**
 * The message of this thread's latest failed call: one line that names rank, operation and
 * micro-batch where there are any, the cause, and what to do. "" before the first failure. Owned by
 * the library, valid until the next failing call on this thread. [any]
 */
DP_API const char *dp_last_error(void);

/**
 * Records a message for dp_last_error() and returns `status`, so that `return dp_fail(...)` is a
 * whole error path. For trainers: use it inside callbacks given to the engine. Messages are cut at
 * 1,023 bytes. [any]
 */
DP_API dp_status_t dp_fail(dp_status_t status, const char *fmt, ...) DP_PRINTF(2, 3);
/** The same with the arguments of a function of the trainer's own. [any] */
DP_API dp_status_t dp_failv(dp_status_t status, const char *fmt, va_list args) DP_PRINTF(2, 0);

/** Receives what a function writes, part by part: text of `bytes` bytes, no 0 behind it. A
 *  negative status ends the writing and is passed on. */
typedef dp_status_t (*dp_write_fn)(void *user, const char *text, size_t bytes);

/** Severity of a log line; lower is graver. */
enum { DP_LOG_ERROR = 0, DP_LOG_WARN = 1, DP_LOG_INFO = 2, DP_LOG_DEBUG = 3 };

/** Receives log lines. origin: the room or plugin that speaks. Called from any thread; must not
 * call the library. */
typedef void (*dp_log_fn)(void *user, int level, const char *origin, const char *message);

/**
 * Chooses where log lines go. The default writes warnings and errors to stderr (never stdout), and
 * heeds DUALPIPE_LOG=error|warn|info|debug, as it was when a group was last opened (before the
 * first: as it is). fn NULL restores it. [main]
 */
DP_API void dp_log_set(dp_log_fn fn, void *user, int max_level);

/** Writes a log line. [any] */
DP_API void dp_log(int level, const char *origin, const char *fmt, ...) DP_PRINTF(3, 4);

/**
 * Memory hooks: every allocation of the core library goes through this table, and plugins get the
 * same table from their host. allocate returns memory aligned to `alignment` (a power of two, at
 * least 16), or NULL. A step of a pipeline performs no allocation at all: install a table that
 * fails to see it. Frozen: never grows.
 */
typedef struct dp_allocator {
    void *user;
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *memory);
} dp_allocator_t;

/** Installs hooks; NULL restores malloc. Call before any other function, or while no object is
 * alive. [main] */
DP_API void dp_set_allocator(const dp_allocator_t *hooks);

/** The version of configure.ac, and the same as a number. */
#define DP_VERSION        "0.2.0"
#define DP_VERSION_NUMBER 200 /* 10000 * major + 100 * minor + patch */
/** The version of the library that runs; DP_VERSION is that of the headers. Static text. [any] */
DP_API const char *dp_version(void);

#ifdef __cplusplus
}
#endif
#endif
