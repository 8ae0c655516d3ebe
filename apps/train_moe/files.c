/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * files.c: what a run leaves behind as files: losses, trace, costs. */
#include "train_moe.h"

#include <errno.h>
#include <string.h>

static dp_status_t open_file(const char *path, FILE **file_out)
{
    *file_out = fopen(path, "w");
    return *file_out != NULL ? DP_OK : dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno));
}

static dp_status_t close_file(const char *path, FILE *file, dp_status_t status)
{
    const int failed = ferror(file);

    if (fclose(file) != 0 || failed)
        return dp_fail(DP_ERR_IO, "%s: %s", path, strerror(errno));
    return status;
}

dp_status_t losses_write(const history_t *h, const char *path)
{
    FILE *f;
    dp_status_t status = open_file(path, &f);
    int64_t v = 0;

    if (status < 0)
        return status;
    fputs("# step, loss, norm of the gradient, held-out loss\n", f);
    for (int64_t i = 0; i < h->steps; i++) {
        fprintf(f, "%lld %a %a", (long long)i + 1, h->loss[i], h->norm[i]);
        if (v < h->nvalid && h->valid_step[v] == i + 1)
            fprintf(f, " %a", h->valid_loss[v++]);
        fputs("\n", f);
    }
    return close_file(path, f, status);
}

dp_status_t file_write(void *file, const char *text, size_t bytes)
{
    return fwrite(text, 1, bytes, file) == bytes ? DP_OK : dp_fail(DP_ERR_IO, "write: %s", strerror(errno));
}

dp_status_t trace_write(const dp_timeline_t *timeline, const char *path)
{
    FILE *f;
    dp_status_t status = open_file(path, &f);

    if (status < 0)
        return status;
    status = dp_timeline_write_chrome(timeline, file_write, f);
    return close_file(path, f, status);
}

dp_status_t costs_write(const trainer_t *t, const dp_timeline_t *timeline, const char *path)
{
    dp_measured_costs_t measured = {.struct_size = sizeof(measured)};
    FILE *f;
    dp_status_t status = open_file(path, &f);

    if (status < 0)
        return status;
    status = dp_costs_measure(timeline, dp_pipeline_program(t->pipeline)->schedule, &measured);
    if (status == DP_OK)
        status = dp_measured_costs_write(&measured, file_write, f);
    dp_measured_costs_clear(&measured);
    return close_file(path, f, status);
}
