/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_twin.c: moe_cpu on the inline device. */
#include "moe_twin.h"

#include "../support/moe_block.h"

static double *copy_of(const guarded_t *g)
{
    double *copy = malloc(g->bytes + 1);

    memcpy(copy, guarded_memory(g), g->bytes);
    return copy;
}

twin_t twin_run(const dp_moe_config_t *config, const double *params, const double *x, const double *dy,
                int32_t microbatch, const int32_t *placement)
{
    dp_moe_config_t c = *config;
    inline_group_t group;
    guarded_t p, g;
    twin_t twin;
    block_t b;
    pass_t pass;
    step_t s;

    c.shape.dtype = DP_F64;
    inline_group_open(&group, 1);
    block_open(&b, &c, &group, 0);
    p = guarded_allocate(b.sizes.param_count * sizeof(double));
    g = guarded_zeros(b.sizes.param_count * sizeof(double));
    memcpy(guarded_memory(&p), params, p.bytes);
    pass = pass_open(&b, guarded_memory(&p), guarded_memory(&g), microbatch);
    pass.aux_scale = 3;
    memcpy(guarded_memory(&pass.x), x, pass.x.bytes);
    memcpy(guarded_memory(&pass.dy), dy, pass.dy.bytes);
    for (s = ROUTE; s < STEPS; s++) {
        dp_moe_io_t io = pass_io(&b, &pass, s);

        if (s != ROUTE) {
            pass_step(&b, &pass, s);
            continue;
        }
        io.placement = placement;
        ck_assert_int_eq(b.vt->route(b.moe, &io, b.lanes[0]), DP_OK);
        ck_assert_int_eq(b.compute.status, DP_OK);
    }
    twin.y = copy_of(&pass.y);
    twin.dx = copy_of(&pass.dx);
    twin.grads = copy_of(&g);
    twin.aux = pass.aux_loss;
    pass_close(&pass);
    guarded_free(&p, "params");
    guarded_free(&g, "grads");
    block_close(&b);
    inline_group_close(&group);
    return twin;
}

void twin_free(twin_t *twin)
{
    free(twin->y);
    free(twin->dx);
    free(twin->grads);
}
