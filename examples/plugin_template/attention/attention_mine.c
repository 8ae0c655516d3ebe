/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_mine.c: an attention plugin to start from: attention.h's formula written down plainly,
 * one row at a time in double, for devices whose streams run host functions on host memory. Correct
 * and slow. Compiles as C11 and as C++20. */
#include <dualpipe/attention.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* All state of one instance: several are open at once, and none changes after open. */
struct dp_attention {
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    dp_dtype_t dtype;
    size_t sequence, tokens, d, heads, kv_heads, qk, vd; /* qk: head_dim, vd: value_dim */
    size_t q_width, k_width, v_width, o_width;           /* heads x dim of one token */
    size_t norm, wq, wk, wv, wo, count;                  /* parameters: elements from their start */
    double eps, theta, scale;
};

/* What one micro-batch keeps in io.saved, all in double whatever the dtype. */
typedef struct saved {
    double *x;    /* [T, d] */
    double *rstd; /* [T] 1 / rms(x) */
    /* [T, heads, dim], q and k rotated; backward_input replaces them by the gradients */
    double *q, *k, *v;
    double *o;          /* [T, heads, vd] what goes into wo */
    double *lse;        /* [T, heads] log of the sum of exp(logits) */
    double *dy, *dnorm; /* [T, d], [d]: left by backward_input for backward_weight */
} saved_t;

static size_t lay_out_saved(const dp_attention_t *a, double *base, saved_t *s)
{
    size_t at = 0;
    double **const fields[] = {&s->x, &s->rstd, &s->q, &s->k, &s->v, &s->o, &s->lse, &s->dy, &s->dnorm};
    const size_t counts[] = {a->tokens * a->d,
                             a->tokens,
                             a->tokens * a->q_width,
                             a->tokens * a->k_width,
                             a->tokens * a->v_width,
                             a->tokens * a->o_width,
                             a->tokens * a->heads,
                             a->tokens * a->d,
                             a->d};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); at += counts[i], i++)
        *fields[i] = base != NULL ? base + at : NULL;
    return at * sizeof(double);
}

/* ---- arithmetic ---- */

static double get(const dp_attention_t *a, const void *tensor, size_t i)
{
    return a->dtype == DP_F64 ? ((const double *)tensor)[i] : (double)((const float *)tensor)[i];
}

static void put(const dp_attention_t *a, void *tensor, size_t i, double value)
{
    if (a->dtype == DP_F64)
        ((double *)tensor)[i] = value;
    else
        ((float *)tensor)[i] = (float)value;
}

/* out[width] = in[rows] W, W at params + offset. */
static void project(const dp_attention_t *a, const void *params, size_t offset, const double *in, size_t rows,
                    size_t width, double *out)
{
    memset(out, 0, width * sizeof(*out));
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < width; c++)
            out[c] += in[i] * get(a, params, offset + i * width + c);
}

/* din[rows] += W dout[width]. */
static void project_back(const dp_attention_t *a, const void *params, size_t offset, const double *dout, size_t width,
                         size_t rows, double *din)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < width; c++)
            din[i] += dout[c] * get(a, params, offset + i * width + c);
}

/* gradient of W += in^T dout. */
static void add_outer(const dp_attention_t *a, void *grads, size_t offset, const double *in, size_t rows,
                      const double *dout, size_t width)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < width; c++)
            put(a, grads, offset + i * width + c, get(a, grads, offset + i * width + c) + in[i] * dout[c]);
}

/* n[d] = RMSNorm(x) of token t. */
static void normalize(const dp_attention_t *a, const saved_t *s, const void *params, size_t t, double *n)
{
    for (size_t i = 0; i < a->d; i++)
        n[i] = s->x[t * a->d + i] * s->rstd[t] * get(a, params, a->norm + i);
}

/* Turns the vectors of all heads of token t by its position; sign -1 turns them back. */
static void rotate(const dp_attention_t *a, double *row, size_t heads, size_t t, double sign)
{
    const size_t half = a->qk / 2;

    for (size_t h = 0; h < heads; h++, row += a->qk)
        for (size_t i = 0; i < half; i++) {
            const double angle = (double)(t % a->sequence) * pow(a->theta, -2.0 * (double)i / (double)a->qk);
            const double c = cos(angle), sn = sign * sin(angle), low = row[i], high = row[i + half];

            row[i] = low * c - high * sn;
            row[i + half] = low * sn + high * c;
        }
}

static double dot(const double *x, const double *y, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* The row of head h at token t: of queries, and of the key/value head that it reads at token u. */
static double *query(const dp_attention_t *a, double *q, size_t t, size_t h)
{
    return q + t * a->q_width + h * a->qk;
}

static double *key(const dp_attention_t *a, double *k, size_t u, size_t h)
{
    return k + u * a->k_width + h / (a->heads / a->kv_heads) * a->qk;
}

static double *value(const dp_attention_t *a, double *v, size_t u, size_t h)
{
    return v + u * a->v_width + h / (a->heads / a->kv_heads) * a->vd;
}

/* Head h of token t over the tokens of its sequence up to t. */
static void attend(const dp_attention_t *a, const saved_t *s, size_t t, size_t h)
{
    const size_t first = t / a->sequence * a->sequence;
    const double *q = query(a, s->q, t, h);
    double *o = s->o + t * a->o_width + h * a->vd, max = -INFINITY, sum = 0;

    for (size_t u = first; u <= t; u++)
        max = fmax(max, a->scale * dot(q, key(a, s->k, u, h), a->qk));
    memset(o, 0, a->vd * sizeof(*o));
    for (size_t u = first; u <= t; u++) {
        const double p = exp(a->scale * dot(q, key(a, s->k, u, h), a->qk) - max);

        sum += p;
        for (size_t c = 0; c < a->vd; c++)
            o[c] += p * value(a, s->v, u, h)[c];
    }
    for (size_t c = 0; c < a->vd; c++)
        o[c] /= sum;
    s->lse[t * a->heads + h] = max + log(sum);
}

static void run_forward(const dp_attention_t *a, const dp_io_t *io)
{
    double *n = (double *)io->scratch, *out = n;
    saved_t s;

    lay_out_saved(a, (double *)io->saved, &s);
    for (size_t t = 0; t < a->tokens; t++) {
        for (size_t i = 0; i < a->d; i++)
            s.x[t * a->d + i] = get(a, io->x, t * a->d + i);
        s.rstd[t] = 1 / sqrt(dot(s.x + t * a->d, s.x + t * a->d, a->d) / (double)a->d + a->eps);
        normalize(a, &s, io->params, t, n);
        project(a, io->params, a->wq, n, a->d, a->q_width, s.q + t * a->q_width);
        project(a, io->params, a->wk, n, a->d, a->k_width, s.k + t * a->k_width);
        project(a, io->params, a->wv, n, a->d, a->v_width, s.v + t * a->v_width);
        rotate(a, s.q + t * a->q_width, a->heads, t, 1);
        rotate(a, s.k + t * a->k_width, a->kv_heads, t, 1);
        for (size_t h = 0; h < a->heads; h++)
            attend(a, &s, t, h); /* only tokens before t, and they are done */
        project(a, io->params, a->wo, s.o + t * a->o_width, a->o_width, a->d, out);
        for (size_t i = 0; i < a->d; i++)
            put(a, io->y, t * a->d + i, s.x[t * a->d + i] + out[i]);
    }
}

/* One head of one token: adds to the gradients of the query and of all keys and values it saw. */
static void attend_back(const dp_attention_t *a, const saved_t *s, size_t t, size_t h, const double *d_out, double *dq,
                        double *dk, double *dv)
{
    const double delta = dot(d_out, s->o + t * a->o_width + h * a->vd, a->vd);

    for (size_t u = t / a->sequence * a->sequence; u <= t; u++) {
        const double *q = query(a, s->q, t, h), *k = key(a, s->k, u, h);
        const double p = exp(a->scale * dot(q, k, a->qk) - s->lse[t * a->heads + h]);
        const double ds = a->scale * p * (dot(d_out, value(a, s->v, u, h), a->vd) - delta);

        for (size_t c = 0; c < a->vd; c++)
            value(a, dv, u, h)[c] += p * d_out[c];
        for (size_t i = 0; i < a->qk; i++) {
            query(a, dq, t, h)[i] += ds * k[i];
            key(a, dk, u, h)[i] += ds * q[i];
        }
    }
}

/* Scratch of backward_input: the gradients of q, k and v, then a row of o and a row of n. */
static size_t scratch_bytes(const dp_attention_t *a)
{
    return (a->tokens * (a->q_width + a->k_width + a->v_width) + a->o_width + a->d) * sizeof(double);
}

static void run_backward_input(const dp_attention_t *a, const dp_io_t *io)
{
    const size_t nq = a->tokens * a->q_width, nk = a->tokens * a->k_width, nv = a->tokens * a->v_width;
    double *dq = (double *)io->scratch, *dk = dq + nq, *dv = dk + nk, *d_out = dv + nv, *dn = d_out + a->o_width;
    saved_t s;

    lay_out_saved(a, (double *)io->saved, &s);
    memset(dq, 0, (nq + nk + nv) * sizeof(*dq));
    memset(s.dnorm, 0, a->d * sizeof(*s.dnorm));
    for (size_t t = 0; t < a->tokens; t++) {
        for (size_t i = 0; i < a->d; i++)
            s.dy[t * a->d + i] = get(a, io->dy, t * a->d + i);
        memset(d_out, 0, a->o_width * sizeof(*d_out));
        project_back(a, io->params, a->wo, s.dy + t * a->d, a->d, a->o_width, d_out);
        for (size_t h = 0; h < a->heads; h++)
            attend_back(a, &s, t, h, d_out + h * a->vd, dq, dk, dv);
    }
    for (size_t t = 0; t < a->tokens; t++) {
        const double *x = s.x + t * a->d;
        double along = 0;

        rotate(a, dq + t * a->q_width, a->heads, t, -1);
        rotate(a, dk + t * a->k_width, a->kv_heads, t, -1);
        memset(dn, 0, a->d * sizeof(*dn));
        project_back(a, io->params, a->wq, dq + t * a->q_width, a->q_width, a->d, dn);
        project_back(a, io->params, a->wk, dk + t * a->k_width, a->k_width, a->d, dn);
        project_back(a, io->params, a->wv, dv + t * a->v_width, a->v_width, a->d, dn);
        for (size_t i = 0; i < a->d; i++) {
            s.dnorm[i] += dn[i] * x[i] * s.rstd[t];
            dn[i] *= get(a, io->params, a->norm + i);
            along += dn[i] * x[i] * s.rstd[t] / (double)a->d;
        }
        for (size_t i = 0; i < a->d && io->dx != NULL; i++)
            put(a, io->dx, t * a->d + i, s.dy[t * a->d + i] + s.rstd[t] * (dn[i] - along * x[i] * s.rstd[t]));
    }
    /* what backward_weight needs must lie in saved: scratch is gone by then */
    memcpy(s.q, dq, nq * sizeof(*dq));
    memcpy(s.k, dk, nk * sizeof(*dk));
    memcpy(s.v, dv, nv * sizeof(*dv));
}

static void run_backward_weight(const dp_attention_t *a, const dp_io_t *io)
{
    double *n = (double *)io->scratch;
    saved_t s;

    lay_out_saved(a, (double *)io->saved, &s);
    for (size_t i = 0; i < a->d; i++)
        put(a, io->grads, a->norm + i, get(a, io->grads, a->norm + i) + s.dnorm[i]);
    for (size_t t = 0; t < a->tokens; t++) {
        normalize(a, &s, io->params, t, n);
        add_outer(a, io->grads, a->wq, n, a->d, s.q + t * a->q_width, a->q_width);
        add_outer(a, io->grads, a->wk, n, a->d, s.k + t * a->k_width, a->k_width);
        add_outer(a, io->grads, a->wv, n, a->d, s.v + t * a->v_width, a->v_width);
        add_outer(a, io->grads, a->wo, s.o + t * a->o_width, a->o_width, s.dy + t * a->d, a->d);
    }
}

/* ---- the calls ---- */

/* What a stream carries: it copies this, so nothing of the caller's is needed later. */
typedef struct call {
    const dp_attention_t *attention;
    void (*run)(const dp_attention_t *a, const dp_io_t *io);
    dp_io_t io;
} call_t;

static dp_status_t run(void *arg)
{
    const call_t *c = (const call_t *)arg;

    c->run(c->attention, &c->io);
    return DP_OK;
}

enum { GRADS = 1, X = 2, Y = 4, DY = 8 };

/* Takes the call over, refuses it when a pointer is missing, and puts it on the stream. */
static dp_status_t enqueue(dp_attention_t *a, const char *name,
                           void (*pass)(const dp_attention_t *a, const dp_io_t *io), unsigned needs, const dp_io_t *io,
                           dp_stream_t *s)
{
    const char *missing;
    call_t c;
    dp_status_t status = DP_TAKE(a->host, "attention_mine: io", dp_io_t, DP_IO_MIN, &c.io, io);

    if (status < 0)
        return status;
    c.attention = a;
    c.run = pass;
    missing = c.io.params == NULL                     ? "params"
              : c.io.saved == NULL                    ? "saved"
              : c.io.scratch == NULL                  ? "scratch"
              : c.io.grads == NULL && (needs & GRADS) ? "grads"
              : c.io.x == NULL && (needs & X)         ? "x"
              : c.io.y == NULL && (needs & Y)         ? "y"
              : c.io.dy == NULL && (needs & DY)       ? "dy"
                                                      : NULL;
    if (c.io.documents != 0 || (c.io.tokens != 0 && c.io.tokens != a->tokens))
        return DP_FAIL(a->host, DP_ERR_UNSUPPORTED, "attention_mine: %s of micro-batch %d: it takes whole sequences",
                       name, c.io.microbatch);
    if (missing != NULL)
        return DP_FAIL(a->host, DP_ERR_INVALID, "attention_mine: %s of micro-batch %d: io.%s is NULL", name,
                       c.io.microbatch, missing);
    return a->device_vt->launch(s, run, &c, sizeof(c));
}

static dp_status_t attn_forward(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return enqueue(a, "forward", run_forward, X | Y, io, s);
}

static dp_status_t attn_backward_input(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return enqueue(a, "backward_input", run_backward_input, DY, io, s);
}

static dp_status_t attn_backward_weight(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return enqueue(a, "backward_weight", run_backward_weight, GRADS, io, s);
}

/* ---- instances ---- */

static dp_status_t attn_sizes(const dp_attention_t *a, dp_block_sizes_t *sizes_out)
{
    saved_t none;
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes),
        .saved_bytes = lay_out_saved(a, NULL, &none),
        .scratch_bytes = scratch_bytes(a),
        .param_count = a->count,
        .nparams = 5,
    };

    dp_sized_put(sizes_out, &sizes);
    return DP_OK;
}

static dp_status_t attn_params(const dp_attention_t *a, dp_param_t *params_out)
{
    const dp_param_t list[] = {
        {.name = "norm", .kind = DP_PARAM_VECTOR, .offset = a->norm, .count = a->wq - a->norm, .start = 1},
        {.name = "wq", .offset = a->wq, .count = a->wk - a->wq, .fan_in = (uint32_t)a->d},
        {.name = "wk", .offset = a->wk, .count = a->wv - a->wk, .fan_in = (uint32_t)a->d},
        {.name = "wv", .offset = a->wv, .count = a->wo - a->wv, .fan_in = (uint32_t)a->d},
        {.name = "wo", .offset = a->wo, .count = a->count - a->wo, .fan_in = (uint32_t)a->o_width},
    };

    memcpy(params_out, list, sizeof(list));
    return DP_OK;
}

static dp_status_t check(const dp_host_t *host, const dp_attention_config_t *c)
{
    const dp_block_shape_t *shape = c->shape;
    dp_status_t status =
        DP_TAKE(host, "attention_mine: config", dp_attention_config_t, DP_ATTENTION_CONFIG_MIN, NULL, c);

    if (status >= 0)
        status = DP_TAKE(host, "attention_mine: config.shape", dp_block_shape_t, DP_BLOCK_SHAPE_MIN, NULL, shape);
    if (status < 0)
        return status;
    if (c->device_vt == NULL || c->device == NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "attention_mine: device_vt or device is NULL: it needs an open device");
    if (strcmp(c->device_vt->kind, "cpu") != 0 || !(c->device_vt->caps & DP_DEVICE_CAP_LAUNCH))
        return DP_FAIL(
            host, DP_ERR_UNSUPPORTED,
            "attention_mine: it needs a device of kind \"cpu\" whose streams run host functions, this one is "
            "\"%s\": use device_cpu",
            c->device_vt->kind);
    if (c->kv_rank != 0 || c->recompute != DP_RECOMPUTE_NONE || c->variable_tokens != 0 || c->documents != 0 ||
        c->apart != 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "attention_mine: it has no latent attention, recomputation, variable tokens and documents: set "
                       "kv_rank, recompute, variable_tokens, documents and apart to 0");
    if (shape->dtype != DP_F32 && shape->dtype != DP_F64)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "attention_mine: dtype %d: use f32 or f64", (int)shape->dtype);
    if (shape->batch == 0 || shape->sequence == 0 || shape->hidden == 0 || c->heads == 0 || c->kv_heads == 0 ||
        c->heads % c->kv_heads != 0 || c->head_dim == 0 || c->head_dim % 2 != 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "attention_mine: batch %u, sequence %u, hidden %u, heads %u, kv_heads %u, head_dim %u: none may "
                       "be 0, heads must be a multiple of kv_heads, head_dim even",
                       shape->batch, shape->sequence, shape->hidden, c->heads, c->kv_heads, c->head_dim);
    if (!(shape->norm_eps >= 0 && shape->norm_eps < 1) || !(c->rope_theta >= 0 && c->rope_theta < 1e30f))
        return DP_FAIL(
            host, DP_ERR_INVALID,
            "attention_mine: norm_eps is %g, rope_theta %g: give 0 (the default) or something small and positive",
            (double)shape->norm_eps, (double)c->rope_theta);
    return DP_OK;
}

static dp_status_t attn_open(const dp_host_t *host, const dp_attention_config_t *config, dp_attention_t **attention_out)
{
    const dp_status_t status = check(host, config);
    dp_attention_t *a;

    if (status < 0)
        return status;
    a = (dp_attention_t *)host->allocate(host, sizeof(*a), 16);
    if (a == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "attention_mine: no memory for an instance");
    a->host = host;
    a->device_vt = config->device_vt;
    a->dtype = config->shape->dtype;
    a->sequence = config->shape->sequence;
    a->tokens = config->shape->batch * a->sequence;
    a->d = config->shape->hidden;
    a->heads = config->heads;
    a->kv_heads = config->kv_heads;
    a->qk = config->head_dim;
    a->vd = config->value_dim != 0 ? config->value_dim : config->head_dim;
    a->q_width = a->heads * a->qk;
    a->k_width = a->kv_heads * a->qk;
    a->v_width = a->kv_heads * a->vd;
    a->o_width = a->heads * a->vd;
    a->norm = 0;
    a->wq = a->norm + a->d;
    a->wk = a->wq + a->d * a->q_width;
    a->wv = a->wk + a->d * a->k_width;
    a->wo = a->wv + a->d * a->v_width;
    a->count = a->wo + a->o_width * a->d;
    a->eps = config->shape->norm_eps > 0 ? (double)config->shape->norm_eps : 1e-6;
    a->theta = config->rope_theta > 0 ? (double)config->rope_theta : 10000;
    a->scale = 1 / sqrt((double)a->qk);
    *attention_out = a;
    return DP_OK;
}

static void attn_close(dp_attention_t *a)
{
    if (a != NULL)
        a->host->release(a->host, a);
}

static const dp_attention_vt_t table = {
    .struct_size = sizeof(dp_attention_vt_t),
    .open = attn_open,
    .close = attn_close,
    .sizes = attn_sizes,
    .params = attn_params,
    .forward = attn_forward,
    .backward_input = attn_backward_input,
    .backward_weight = attn_backward_weight,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_ATTENTION) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(attention_mine) = {
    /* these three are DP_PLUGIN_HEAD, named: C++ has all members named or none */
    .struct_size = sizeof(dp_plugin_t), .abi_major = DP_ABI_MAJOR, .abi_minor = DP_ABI_MINOR,
    .name = "attention_mine",           .version = "0.1",          .summary = "a template: plain loops on host memory",
    .get_interface = get_interface,
};
