/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * divide.c: the requests of a step, one after the other, cut where each micro-batch has its share
 * of the load. */
#include <dualpipe/schedule.h>

/* Of `count` tokens behind `past`: each attends to those before it and to itself. */
static double load_of(uint32_t past, uint32_t count, uint32_t per_token)
{
    return count * ((double)past + per_token + (count + 1.0) / 2);
}

/* The number of tokens, 0 to `most`, whose load is nearest to `share`. */
static uint32_t nearest(uint32_t past, uint32_t most, uint32_t per_token, double share)
{
    uint32_t low = 0, high = most;

    while (low < high) {
        const uint32_t middle = high - (high - low) / 2;

        if (load_of(past, middle, per_token) <= share)
            low = middle;
        else
            high = middle - 1;
    }
    if (low < most && load_of(past, low + 1, per_token) - share < share - load_of(past, low, per_token))
        low++;
    return low;
}

static dp_status_t check_requests(const uint32_t *past, const uint32_t *fresh, uint32_t requests, int32_t microbatches,
                                  uint32_t tokens_most, uint64_t *tokens_out)
{
    *tokens_out = 0;
    if (microbatches < 1)
        return dp_fail(DP_ERR_INVALID, "dp_divide_requests: %d micro-batches", microbatches);
    for (uint32_t r = 0; r < requests; *tokens_out += fresh[r++])
        if (fresh[r] > UINT32_MAX - past[r])
            return dp_fail(DP_ERR_INVALID, "dp_divide_requests: request %u has %u tokens and %u more", r, past[r],
                           fresh[r]);
    if (*tokens_out > (uint64_t)microbatches * tokens_most)
        return dp_fail(DP_ERR_INVALID,
                       "dp_divide_requests: %llu tokens are more than %d micro-batches of %u hold: leave some for a "
                       "later step",
                       (unsigned long long)*tokens_out, microbatches, tokens_most);
    return DP_OK;
}

dp_status_t dp_divide_requests(const uint32_t *past, const uint32_t *fresh, uint32_t requests, uint32_t per_token,
                               int32_t microbatches, uint32_t tokens_most, dp_request_part_t *parts_out,
                               uint32_t *count_out)
{
    uint64_t tokens;
    double load = 0;
    uint32_t r = 0, done = 0, n = 0;
    dp_status_t status = check_requests(past, fresh, requests, microbatches, tokens_most, &tokens);

    if (status < 0)
        return status;
    for (uint32_t i = 0; i < requests; i++)
        load += load_of(past[i], fresh[i], per_token);
    for (int32_t m = 0; m < microbatches; m++) {
        const uint64_t later = (uint64_t)(microbatches - 1 - m) * tokens_most;
        uint32_t room = tokens_most, least = tokens > later ? (uint32_t)(tokens - later) : 0;
        double share = load / (microbatches - m);

        while (r < requests && room > 0) {
            const uint32_t left = fresh[r] - done, most = left < room ? left : room;
            uint32_t count = nearest(past[r] + done, most, per_token, share);

            if (count < least)
                count = least < most ? least : most;
            if (count > 0)
                parts_out[n++] =
                    (dp_request_part_t){.request = r, .microbatch = m, .past = past[r] + done, .count = count};
            share -= load_of(past[r] + done, count, per_token);
            load -= load_of(past[r] + done, count, per_token);
            tokens -= count;
            room -= count;
            least -= least < count ? least : count;
            done += count;
            if (done < fresh[r])
                break;
            r++;
            done = 0;
        }
    }
    *count_out = n;
    return DP_OK;
}
