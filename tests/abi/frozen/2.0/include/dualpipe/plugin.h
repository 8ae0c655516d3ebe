/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plugin.h: what a plugin exports and what the host hands it. A plugin includes our headers and
 * links nothing of ours.
 *
 * A plugin is a shared module dp_<name>.so with one exported symbol, the data `dp_plugin_entry`.
 * The host judges the file first: owner and mode, ELF header, and by its symbols that it exports
 * the entry, of this ABI major, and nothing else of dp_*. Then it maps the file, which runs the
 * constructors of its code, reads the entry, calls init() where there is one, and asks for
 * interfaces by string ("dp.comm/1"). A file without section headers, or an entry that only a
 * constructor fills in, tells nothing before it is mapped and is judged after. So a constructor
 * does nothing that needs the host, and nothing that harms one that refuses the plugin. An
 * interface is a table of functions with its size in front; instances carry all state (several
 * pipelines, or several ranks as threads, use one mapped plugin at the same time). Appended members
 * are a minor change, a changed meaning gets a new string. No C++ exception may leave a function of
 * a table: it would end the process. */
#ifndef DUALPIPE_PLUGIN_H
#define DUALPIPE_PLUGIN_H

#include <dualpipe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DP_ABI_MAJOR 2 /* breaks: the host refuses to load, and says both numbers */
#define DP_ABI_MINOR 0 /* grows: appended members and new interfaces */

/** Interface names. A third party adds its own ("com.acme.sparse_attn/1") without asking. */
#define DP_IFACE_DEVICE    "dp.device/1"
#define DP_IFACE_COMM      "dp.comm/1"
#define DP_IFACE_ATTENTION "dp.attention/1"
#define DP_IFACE_MOE       "dp.moe/1"
#define DP_IFACE_PROFILER  "dp.profiler/1"

/** A 32-bit counter that one side advances and others wait for; may lie in memory shared between
 *  processes. All zero is a valid start. Frozen: never grows; the layout is part of the ABI: two
 *  naturally aligned 32-bit words. */
typedef struct dp_signal {
    uint32_t value;   /* only through the functions below, or with release/acquire atomics */
    uint32_t waiters; /* the host's */
} dp_signal_t;

/** Moves something on and says how it stands: DP_OK when what was waited for is there, DP_PENDING
 *  when not yet, a negative status when it failed. */
typedef dp_status_t (*dp_poll_fn)(void *arg);

/**
 * The host's services, one table for one rank of one job. Valid from open() to close() of the
 * instance it was given to; the host outlives every instance.
 */
struct dp_host {
    uint32_t struct_size; /* sizeof(dp_host_t) as the host was compiled */
    uint16_t abi_major, abi_minor;
    void *impl; /* the host's own; not for plugins */

    /** Writes a log line. [any] */
    void (*log)(const dp_host_t *h, int level, const char *origin, const char *message);

    /** Records why, returns `status`; `return DP_FAIL(h, DP_ERR_X, "...")` is the whole error path.
     *  Messages name the peer, the operation and what to do. [any] */
    dp_status_t (*fail)(const dp_host_t *h, dp_status_t status, const char *file, int line, const char *fmt, ...)
        DP_PRINTF(5, 6);

    /** Memory with the host's hooks. Never during a step. alignment: a power of two, at least 16.
     * [any] */
    void *(*allocate)(const dp_host_t *h, size_t bytes, size_t alignment);
    void (*release)(const dp_host_t *h, void *memory);

    /** Monotonic nanoseconds, the clock of timelines and deadlines. [any] */
    int64_t (*now_ns)(const dp_host_t *h);

    /**
     * The one way to wait. Returns DP_OK once (int32_t)(value - target) >= 0, with acquire order.
     * DP_ERR_TIMEOUT after `timeout_ns` (< 0: the job's own limit, see
     * dp_group_options.hang_seconds), the first cause (DP_ERR_PEER, DP_ERR_INTERRUPTED,
     * DP_ERR_ABORTED, ...) as soon as the job is aborted. With timeout_ns >= 0 DP_ERR_TIMEOUT
     * always means "not yet": a job that ended with it is DP_ERR_ABORTED there. `what` goes into
     * the message ("rank 2: send of F dir 0 mb 5 to rank 3 waits for a credit"). Spins some
     * microseconds at most, and only while nobody else wants the core, then sleeps in the kernel:
     * ranks may outnumber cores. Works across processes on shared memory. [any] [blocks]
     */
    dp_status_t (*wait)(const dp_host_t *h, dp_signal_t *signal, uint32_t target, int64_t timeout_ns, const char *what);

    /**
     * wait() for runtimes that make progress only while somebody asks (MPI, NVSHMEM): calls
     * progress(arg) until it answers something else than DP_PENDING, and returns that. Asks often
     * at first, then less and less often, and sleeps in between. Deadline, abort and message are
     * those of wait(): DP_ERR_TIMEOUT after timeout_ns (< 0: the job's own limit), the job's first
     * cause as soon as it is aborted, `what` in the message. [any] [blocks]
     */
    dp_status_t (*poll)(const dp_host_t *h, dp_poll_fn progress, void *arg, int64_t timeout_ns, const char *what);

    /** Sets the value with release order and wakes all waiters, in any process. One writer per
     * signal. [any] */
    void (*post)(const dp_host_t *h, dp_signal_t *signal, uint32_t value);

    /** DP_OK while the job is healthy, else its first cause. Cheap: for long loops in device code.
     * [any] */
    dp_status_t (*aborted)(const dp_host_t *h);

    /** Where, if anywhere, this host has the service `id`; NULL otherwise. [any]
     *    "dp.host.boot/1"  dp_host_boot_t: bytes between ranks before any transport exists
     *    "dp.host.sm/1"    dp_host_sm_t: the share of the device granted to this plugin's own
     *                      kernels
     *    "dp.host.limits/1" dp_host_limits_t: the job's deadlines as numbers, for waits that happen
     *    on a device "dp.host.places/1" dp_host_places_t: which ranks of the job live on the same
     *    host */
    const void *(*get_service)(const dp_host_t *h, const char *id);

    /** The message of this thread's latest failed service call ("" before the first); valid until
     *  the next one. For plugins with threads, which hand an error to the thread that will report
     *  it. [any] */
    const char *(*last_error)(const dp_host_t *h);

    /**
     * Ends the job for what a plugin finds out by itself, often on a thread that it started: a peer
     * that is gone (DP_ERR_PEER), a runtime that has failed. The job's own cause wins: the control
     * plane knows who died and where. So the call first waits for it, one second at most. Without
     * one the job ends with `status` and `why`. Returns the job's first cause. Every wait of every
     * rank then ends with it, so a thread that makes progress need not wake those that wait for a
     * signal: they wait for the signal or the end of the job. [any] [blocks]
     */
    dp_status_t (*abort_job)(const dp_host_t *h, dp_status_t status, const char *why);
};
enum { DP_HOST_MIN = DP_SIZE_TO(dp_host_t, abort_job) };
#define DP_FAIL(h, st, ...) (((h)->fail)((h), (st), __FILE__, __LINE__, __VA_ARGS__))

/** Takes over a struct by which the host asks (status.h): DP_TAKE(host, "comm_mine: config",
 *  dp_comm_config_t, DP_COMM_CONFIG_MIN, &own, config); into NULL it only looks. DP_ERR_INVALID:
 *  `from` is NULL or too short; DP_ERR_UNSUPPORTED: it asks for what these headers do not know.
 *  [any] */
#define DP_TAKE(h, what, type, least, to, from) dp_take((h), (what), #type, (least), (to), sizeof(type), (from))
static inline dp_status_t dp_take(const dp_host_t *h, const char *what, const char *type, size_t least, void *to,
                                  size_t to_bytes, const void *from)
{
    uint32_t bytes, set;

    if (from == NULL)
        return DP_FAIL(h, DP_ERR_INVALID, "%s is NULL", what);
    memcpy(&bytes, from, sizeof(bytes));
    if (bytes < least || bytes > DP_SIZED_MOST)
        return DP_FAIL(h, DP_ERR_INVALID, "%s: struct_size is %u, at least %u is needed: set it to sizeof(%s)", what,
                       bytes, DP_CAST(unsigned, least), type);
    set = dp_sized_unknown(from, DP_CAST(uint32_t, to_bytes));
    if (set != 0)
        return DP_FAIL(h, DP_ERR_UNSUPPORTED,
                       "%s: byte %u of %s is set, but this plugin (ABI %d.%d) knows %u bytes: use a newer plugin, or "
                       "leave newer members zero",
                       what, set, type, DP_ABI_MAJOR, DP_ABI_MINOR, DP_CAST(unsigned, to_bytes));
    if (to != NULL)
        (void)dp_sized_take(to, DP_CAST(uint32_t, to_bytes), from);
    return DP_OK;
}

/** "dp.host.boot/1": a key-value store shared by all ranks of the job. Set-up only, never in a
 * step. */
#define DP_HOST_BOOT "dp.host.boot/1"
typedef struct dp_host_boot {
    uint32_t struct_size;
    /** Publishes `bytes` (at most 64 KiB) under `key` (at most 127 characters, unique in the job).
     *  What is published while a pipeline opens or swaps its comm is there until all ranks have
     *  finished that. [any] [blocks] */
    dp_status_t (*put)(const dp_host_t *h, const char *key, const void *data, size_t bytes);
    /** Waits for `key` and copies it; its size must be exactly `bytes`. Fails as wait() does. [any]
     * [blocks] */
    dp_status_t (*get)(const dp_host_t *h, const char *key, void *data, size_t bytes);
} dp_host_boot_t;
enum { DP_HOST_BOOT_MIN = DP_SIZE_TO(dp_host_boot_t, get) };

/** "dp.host.sm/1": the share of SMs (GPU) or cores (CPU). */
#define DP_HOST_SM "dp.host.sm/1"
typedef struct dp_host_sm {
    uint32_t struct_size;
    uint32_t compute_sms; /* units that compute lanes run on; 0: the whole device, unpartitioned */
    uint32_t comm_sms;    /* units that communication lanes run on; 0: unpartitioned */
} dp_host_sm_t;
enum { DP_HOST_SM_MIN = DP_SIZE_TO(dp_host_sm_t, comm_sms) };

/** "dp.host.limits/1": the job's deadlines, scaled as wait() scales them. */
#define DP_HOST_LIMITS "dp.host.limits/1"
typedef struct dp_host_limits {
    uint32_t struct_size;
    int64_t hang_ns; /* what wait() takes for timeout_ns < 0 (dp_group_options.hang_seconds) */
} dp_host_limits_t;
enum { DP_HOST_LIMITS_MIN = DP_SIZE_TO(dp_host_limits_t, hang_ns) };

/** "dp.host.places/1": who lives where. A host is a boot of a machine and a name space of process
 *  numbers in it: ranks of one can map each other's memory, as far as the system lets them. */
#define DP_HOST_PLACES "dp.host.places/1"
typedef struct dp_host_places {
    uint32_t struct_size;
    int32_t ranks, hosts; /* of the job */
    /* [ranks] each rank's host, from 0 in the order of their first ranks; the same on all ranks.
     * Valid as long as the host's table */
    const int32_t *host_of;
} dp_host_places_t;
enum { DP_HOST_PLACES_MIN = DP_SIZE_TO(dp_host_places_t, host_of) };

/** The only symbol a plugin exports. The first four members stay put forever. */
typedef struct dp_plugin {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor; /* of the headers it was built with, never of the running host */
    /* "comm_shm": [a-z0-9_]+. By this name it is found when its file is dp_comm_shm.so */
    const char *name;
    const char *version, *summary; /* free text and one line, for `dualpipe plugin list` */
    /** Optional. Called once, when the file has been mapped, with a host that has no job: log,
     *  fail, allocate, release and now_ns work, the rest fails. A negative status, with a message
     *  by fail(), refuses the plugin. Opens no device, starts no threads. */
    dp_status_t (*init)(const dp_host_t *host);
    const void *(*get_interface)(const char *id); /* "dp.comm/1" -> const dp_comm_vt_t *, or NULL */
    /* Of a transport: how good a choice it is for a pipeline whose comm is "auto", higher is
     * better; 0: never chosen by itself. It is read from the file, before that is mapped, so it is
     * a constant. Those of libdualpipe: shm 500, cuda_ipc 400, nccl 300, ofi 200, mpi 100 */
    uint32_t preference;
} dp_plugin_t;
enum { DP_PLUGIN_MIN = DP_SIZE_TO(dp_plugin_t, preference) };

#define DP_PLUGIN_HEAD DP_CAST(uint32_t, sizeof(dp_plugin_t)), DP_ABI_MAJOR, DP_ABI_MINOR
#if defined(__GNUC__)
#define DP_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define DP_PLUGIN_EXPORT
#endif
/** Defines the entry. In C:
 *      DP_PLUGIN_DEFINE(comm_mine) = {DP_PLUGIN_HEAD, .name = "comm_mine", .version = "1",
 *                                     .summary = "one line", .get_interface = get_interface};
 *  In C++ before C++20 by position: {DP_PLUGIN_HEAD, "comm_mine", "1", "one line", nullptr,
 *  get_interface}. */
#ifdef __cplusplus
#define DP_PLUGIN_DEFINE(plugin_name) extern "C" DP_PLUGIN_EXPORT const dp_plugin_t dp_plugin_entry
#else
#define DP_PLUGIN_DEFINE(plugin_name)                                                                                  \
    extern DP_PLUGIN_EXPORT const dp_plugin_t dp_plugin_entry;                                                         \
    DP_PLUGIN_EXPORT const dp_plugin_t dp_plugin_entry
#endif

/* ---- for trainers and tools: finding and opening plugins ---- */

/**
 * Finds, checks and maps a plugin. name: a path (holds '/': opened as given) or a bare name
 * [a-z0-9_]+, looked up as dp_<name>.so in each absolute folder of DUALPIPE_PLUGIN_PATH, then in
 * the install's plugin folder; nothing else is searched. File and folders must belong to root or us
 * and not be writable by others or by a group that is not the user's own. The file is judged before
 * it is mapped; a mapped plugin is never unmapped. A second load returns the same pointer. Errors:
 * DP_ERR_PLUGIN with every place tried and why it was passed over, or what the file offers and what
 * was wanted; DP_ERR_SECURITY; what init() returned. [any]
 */
DP_API DP_CHECKED dp_status_t dp_plugin_load(const char *name, const dp_plugin_t **plugin_out);

/**
 * The interface `id` of a plugin, at least `min_size` bytes long. Of the six interfaces of these
 * headers: a completed copy of the plugin's table, as long as this library's type, where every
 * function can be called: those that a plugin may leave out have the default that their header
 * names. DP_ERR_PLUGIN: there is none, it is too short, or it has no NAME of those that it must
 * have. Other interfaces are handed out as they are. Valid until the process ends. [any]
 */
DP_API DP_CHECKED dp_status_t dp_plugin_interface(const dp_plugin_t *plugin, const char *id, size_t min_size,
                                                  const void **table_out);

#ifdef __cplusplus
}
#endif
#endif
