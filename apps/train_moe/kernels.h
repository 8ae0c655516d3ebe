/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernels.h: the arithmetic of embedding and head for one element type. ends.c includes it once
 * with REAL float and once with REAL double; NAME(x) makes the functions' names differ. T tokens,
 * width d, V byte values, matrices row-major. */

/* Sum of products in eight strands, which the compiler can keep in vector registers; the order is
 * fixed. */
static REAL NAME(dot_vocab)(const REAL *a, const REAL *b)
{
    REAL part[8] = {0};

    for (int j = 0; j < VOCAB; j += 8)
        for (int l = 0; l < 8; l++)
            part[l] += a[j + l] * b[j + l];
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

/* y[t] = table[token[t]] */
static void NAME(embed_forward)(const REAL *table, const uint8_t *tokens, REAL *y, size_t T, size_t d)
{
    for (size_t t = 0; t < T; t++)
        memcpy(y + t * d, table + tokens[t] * d, d * sizeof(REAL));
}

/* dtable[token[t]] += dy[t] */
static void NAME(embed_backward)(REAL *dtable, const uint8_t *tokens, const REAL *dy, size_t T, size_t d)
{
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < d; i++)
            dtable[tokens[t] * d + i] += dy[t * d + i];
}

/* unit = x / rms(x), rstd = 1 / rms(x): RMSNorm without its gain. */
static void NAME(normalise)(const REAL *x, REAL eps, REAL *unit, REAL *rstd, size_t d)
{
    REAL squares = 0;

    for (size_t i = 0; i < d; i++)
        squares += x[i] * x[i];
    *rstd = 1 / SQRT(squares / (REAL)d + eps);
    for (size_t i = 0; i < d; i++)
        unit[i] = x[i] * *rstd;
}

/* logits = (unit * gain) W */
static void NAME(project)(const REAL *unit, const REAL *gain, const REAL *W, REAL *logits, size_t d)
{
    for (int j = 0; j < VOCAB; j++)
        logits[j] = 0;
    for (size_t i = 0; i < d; i++) {
        const REAL n = unit[i] * gain[i];
        for (int j = 0; j < VOCAB; j++)
            logits[j] += n * W[i * VOCAB + j];
    }
}

/* W as the table [V, d]: every row a sum of products in four strands. */
static void NAME(project_tied)(const REAL *unit, const REAL *gain, const REAL *table, REAL *logits, size_t d)
{
    for (size_t j = 0; j < VOCAB; j++) {
        REAL part[4] = {0};
        size_t i = 0;
        for (; i + 4 <= d; i += 4)
            for (size_t l = 0; l < 4; l++)
                part[l] += unit[i + l] * gain[i + l] * table[j * d + i + l];
        for (; i < d; i++)
            part[0] += unit[i] * gain[i] * table[j * d + i];
        logits[j] = (part[0] + part[2]) + (part[1] + part[3]);
    }
}

/* dn = dlogits W^T */
static void NAME(project_back)(const REAL *dlogits, const REAL *W, int tied, REAL *dn, size_t d)
{
    for (size_t i = 0; i < d; i++)
        dn[i] = tied ? 0 : NAME(dot_vocab)(dlogits, W + i * VOCAB);
    for (size_t j = 0; j < VOCAB && tied; j++)
        for (size_t i = 0; i < d; i++)
            dn[i] += dlogits[j] * W[j * d + i];
}

/* Turns logits into softmax(logits) - onehot(target) and returns -log softmax(logits)[target]. */
static double NAME(cross_entropy)(REAL *logits, uint8_t target)
{
    REAL most = logits[0];
    double sum = 0, loss;

    for (int j = 1; j < VOCAB; j++)
        most = logits[j] > most ? logits[j] : most;
    loss = (double)most - (double)logits[target];
    for (int j = 0; j < VOCAB; j++) {
        logits[j] = EXP(logits[j] - most);
        sum += (double)logits[j];
    }
    for (int j = 0; j < VOCAB; j++)
        logits[j] = (REAL)((double)logits[j] / sum);
    logits[target] -= 1;
    return loss + log(sum);
}

/* What forward keeps for backward, per micro-batch. */
typedef struct {
    REAL *unit;    /* [T, d] */
    REAL *rstd;    /* [T] */
    REAL *dlogits; /* [T, V] */
    REAL *dn;      /* [T, d] gradient of unit * gain, from backward_input to backward_weight */
} NAME(head_saved);

static NAME(head_saved) NAME(head_layout)(void *saved, size_t T, size_t d)
{
    REAL *at = saved;

    return (NAME(head_saved)){at, at + T * d, at + T * d + T, at + T * d + T + T * VOCAB};
}

/* Mean loss over the tokens; output (NULL: none) gets the logits, target NULL: no loss. */
static double NAME(head_forward)(const REAL *params, REAL eps, const REAL *x, const uint8_t *target, REAL *output,
                                 void *memory, size_t T, size_t d, int tied)
{
    const REAL *gain = params, *W = params + d;
    const NAME(head_saved) saved = NAME(head_layout)(memory, T, d);
    double loss = 0;

    for (size_t t = 0; t < T; t++) {
        REAL *logits = saved.dlogits + t * VOCAB;
        NAME(normalise)(x + t * d, eps, saved.unit + t * d, saved.rstd + t, d);
        (tied ? NAME(project_tied) : NAME(project))(saved.unit + t * d, gain, W, logits, d);
        if (output != NULL)
            memcpy(output + t * VOCAB, logits, VOCAB * sizeof(REAL));
        if (target != NULL)
            loss += NAME(cross_entropy)(logits, target[t]);
    }
    return loss / (double)T;
}

/* scale: of the gradient of the loss. */
static void NAME(head_backward_input)(const REAL *params, double scale, void *memory, REAL *dx, size_t T, size_t d,
                                      int tied)
{
    const REAL *gain = params, *W = params + d;
    const NAME(head_saved) saved = NAME(head_layout)(memory, T, d);
    const REAL factor = (REAL)(scale / (double)T);

    for (size_t t = 0; t < T; t++) {
        REAL *dlogits = saved.dlogits + t * VOCAB, *dn = saved.dn + t * d;
        const REAL *unit = saved.unit + t * d;
        REAL along = 0;
        for (int j = 0; j < VOCAB; j++)
            dlogits[j] *= factor;
        NAME(project_back)(dlogits, W, tied, dn, d);
        for (size_t i = 0; i < d; i++)
            along += dn[i] * gain[i] * unit[i];
        along /= (REAL)d;
        for (size_t i = 0; i < d; i++)
            dx[t * d + i] = saved.rstd[t] * (dn[i] * gain[i] - unit[i] * along);
    }
}

static void NAME(head_backward_weight)(const REAL *params, REAL *grads, void *memory, size_t T, size_t d, int tied)
{
    const REAL *gain = params;
    REAL *dgain = grads, *dW = grads + d;
    const NAME(head_saved) saved = NAME(head_layout)(memory, T, d);

    for (size_t t = 0; t < T; t++) {
        const REAL *unit = saved.unit + t * d, *dn = saved.dn + t * d, *dlogits = saved.dlogits + t * VOCAB;
        for (size_t i = 0; i < d; i++) {
            const REAL n = unit[i] * gain[i];
            dgain[i] += dn[i] * unit[i];
            for (int j = 0; j < VOCAB && !tied; j++)
                dW[i * VOCAB + j] += n * dlogits[j];
        }
        for (size_t j = 0; j < VOCAB && tied; j++)
            for (size_t i = 0; i < d; i++)
                dW[j * d + i] += dlogits[j] * (unit[i] * gain[i]);
    }
}
