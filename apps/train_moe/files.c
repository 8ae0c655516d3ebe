/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * files.c: what a run leaves behind as files: losses, report, trace, costs. */
#include "tools/io/output.h"
#include "train_moe.h"

dp_status_t losses_write(const history_t *h, const char *path)
{
    output_t output;
    const dp_status_t status = output_open(&output, path);
    int64_t v = 0;

    if (status < 0)
        return status;
    fputs("# step, loss, norm of the gradient, held-out loss\n", output.file);
    for (int64_t i = 0; i < h->steps; i++) {
        fprintf(output.file, "%lld %a %a", (long long)i + 1, h->loss[i], h->norm[i]);
        if (v < h->nvalid && h->valid_step[v] == i + 1)
            fprintf(output.file, " %a", h->valid_loss[v++]);
        fputs("\n", output.file);
    }
    return output_close(&output, DP_OK);
}

dp_status_t report_write(const char *text, size_t bytes, const char *path)
{
    output_t output;
    const dp_status_t status = output_open(&output, path);

    return status < 0 ? status : output_close(&output, output_write(&output, text, bytes));
}

dp_status_t trace_write(const dp_timeline_t *timeline, const char *path)
{
    output_t output;
    const dp_status_t status = output_open(&output, path);

    return status < 0 ? status : output_close(&output, dp_timeline_write_chrome(timeline, output_write, &output));
}

dp_status_t costs_write(const trainer_t *t, const dp_timeline_t *timeline, const char *path)
{
    dp_measured_costs_t measured = {.struct_size = sizeof(measured)};
    output_t output;
    dp_status_t status = output_open(&output, path);

    if (status < 0)
        return status;
    status = dp_costs_measure(timeline, dp_pipeline_program(t->pipeline)->schedule, &measured);
    if (status == DP_OK)
        status = dp_measured_costs_write(&measured, output_write, &output);
    dp_measured_costs_clear(&measured);
    return output_close(&output, status);
}
