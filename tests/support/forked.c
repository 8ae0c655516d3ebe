/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * forked.c: ranks as forked processes of a test: each runs a body and tells the test how it went,
 * by a deadline. Afterwards nothing may be left: no process, no descriptor. */
#include "forked.h"

int64_t forked_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double forked_scale(void)
{
    const char *text = getenv("DUALPIPE_TIMEOUT_SCALE");
    double scale = text != NULL ? atof(text) : 1;

    return scale > 0 ? scale : 1;
}

void forked_nap(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};

    nanosleep(&t, NULL);
}

int forked_count_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

/* A socket that listens on a free port of loopback. */
static int forked_listen(int *port_out)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)), 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fd, 512), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port_out = ntohs(address.sin_port);
    return fd;
}

void forked_setenv_number(const char *name, int number)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", number);
    setenv(name, text, 1);
}

void forked_launch(const char *key, int number)
{
    const char *before = getenv("DUALPIPE_LAUNCH");
    char text[256];

    snprintf(text, sizeof(text), "%s,%s=%d", before != NULL ? before : "", key, number);
    setenv("DUALPIPE_LAUNCH", text, 1);
}

int forked_listener(void)
{
    return atoi(strstr(getenv("DUALPIPE_LAUNCH"), "listen=") + 7);
}

void forked_begin(forked_job_t *job, int32_t size)
{
    static const char *const foreign[] = {"DUALPIPE_SECRET_FILE",    "TORCHELASTIC_RUN_ID",
                                          "PMIX_NAMESPACE",          "SLURM_JOB_ID",
                                          "OMPI_MCA_ess_base_jobid", "TORCHELASTIC_USE_AGENT_STORE"};
    const char *launch = getenv("DUALPIPE_LAUNCH");

    memset(job, 0, sizeof(*job));
    job->descriptors = forked_count_descriptors();
    job->size = size;
    job->listener = forked_listen(&job->port);
    job->results =
        mmap(NULL, sizeof(forked_result_t) * FORKED_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    job->shared = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(job->results != MAP_FAILED && job->shared != MAP_FAILED);
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
        unsetenv(foreign[i]);
    if (launch != NULL && strncmp(launch, "respawn=", 8) != 0) /* which the test has set itself */
        unsetenv("DUALPIPE_LAUNCH");
}

void forked_start(forked_job_t *job, int32_t rank, forked_body_fn body, int argument)
{
    forked_t self = {rank, job->size, job->port, argument, job->shared, &job->results[rank]};
    pid_t parent = getpid();

    fflush(NULL);
    job->waits[rank] = -1;
    job->pids[rank] = fork();
    ck_assert_int_ge(job->pids[rank], 0);
    if (job->pids[rank] != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    if (rank == 0 && job->listener >= 0)
        forked_launch("listen", job->listener);
    else if (job->listener >= 0)
        close(job->listener);
    self.result->status = body(&self);
    snprintf(self.result->message, sizeof(self.result->message), "%s",
             self.result->status != DP_OK ? dp_last_error() : "");
    self.result->end_ns = forked_now_ns();
    self.result->finished = 1;
    exit(0);
}

void forked_all_started(forked_job_t *job)
{
    if (job->listener >= 0)
        close(job->listener);
    job->listener = -1;
}

void forked_run(forked_job_t *job, int32_t size, forked_body_fn body, int argument)
{
    forked_begin(job, size);
    for (int32_t r = 0; r < size; r++)
        forked_start(job, r, body, argument);
    forked_all_started(job);
}

void forked_reach(forked_t *self, int place)
{
    self->result->place = place;
}

void forked_await(forked_job_t *job, int32_t rank, int place, double seconds)
{
    int64_t end = forked_now_ns() + (int64_t)(seconds * forked_scale() * 1e9);

    while (job->results[rank].place < place && forked_now_ns() < end)
        forked_nap(1);
    ck_assert_msg(job->results[rank].place >= place, "rank %d did not get to place %d", rank, place);
}

static bool forked_reap(forked_job_t *job)
{
    bool all = true;

    for (int32_t r = 0; r < FORKED_MAX; r++) {
        if (job->pids[r] > 0 && job->waits[r] == -1 && waitpid(job->pids[r], &job->waits[r], WNOHANG) != job->pids[r])
            job->waits[r] = -1;
        all = all && (job->pids[r] <= 0 || job->waits[r] != -1);
    }
    return all;
}

void forked_finish(forked_job_t *job, double seconds)
{
    int64_t end = forked_now_ns() + (int64_t)(seconds * forked_scale() * 1e9);
    char late[256] = "";

    while (!forked_reap(job) && forked_now_ns() < end)
        forked_nap(2);
    for (int32_t r = 0; r < FORKED_MAX; r++)
        if (job->pids[r] > 0 && job->waits[r] == -1) {
            snprintf(late + strlen(late), sizeof(late) - strlen(late), " %d", r);
            kill(job->pids[r], SIGKILL);
            waitpid(job->pids[r], &job->waits[r], 0);
        }
    forked_all_started(job);
    ck_assert_msg(late[0] == '\0', "ranks%s did not end within %g s", late, seconds);
    for (int32_t r = 0; r < FORKED_MAX; r++)
        ck_assert_msg(job->pids[r] <= 0 || WIFSIGNALED(job->waits[r]) || WEXITSTATUS(job->waits[r]) == 0,
                      "rank %d ended with status %d", r, WEXITSTATUS(job->waits[r]));
    ck_assert_int_eq(forked_count_descriptors(), job->descriptors);
}

void forked_end(forked_job_t *job)
{
    munmap(job->results, sizeof(forked_result_t) * FORKED_MAX);
    munmap(job->shared, 65536);
}

void forked_expect(const forked_job_t *job, int32_t rank, dp_status_t status, const char *part)
{
    const forked_result_t *result = &job->results[rank];

    ck_assert_msg(result->finished, "rank %d did not finish", rank);
    ck_assert_msg(result->status == status, "rank %d: %s: %s", rank, dp_status_name(result->status), result->message);
    ck_assert_msg(strstr(result->message, part) != NULL, "rank %d says: %s (\"%s\" was expected)", rank,
                  result->message, part);
}

void forked_expect_all(const forked_job_t *job, dp_status_t status, const char *part)
{
    for (int32_t r = 0; r < job->size; r++)
        forked_expect(job, r, status, part);
}

dp_group_options_t forked_options(const forked_t *self)
{
    return (dp_group_options_t){.struct_size = sizeof(dp_group_options_t),
                                .rank = self->rank,
                                .size = self->size,
                                .port = self->port,
                                .join_seconds = 20,
                                .hang_seconds = 20};
}
