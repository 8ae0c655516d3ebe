/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * topology.c: see topology.h. */
#include "topology.h"

#include "cost_keys.h"
#include "input.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define LARGEST_FILE ((size_t)1 << 20)

enum { HOSTS, RANKS_PER_HOST, NEAR_HOP, NEAR_BANDWIDTH, FAR_HOP, FAR_BANDWIDTH, KEYS };

static const char *const names[KEYS] = {"HOSTS",          "RANKS_PER_HOST", "NEAR.HOP",
                                        "NEAR.BANDWIDTH", "FAR.HOP",        "FAR.BANDWIDTH"};

static dp_status_t read_hosts(topology_t *t, const char *text)
{
    int32_t n = 1;

    for (const char *at = text; *at != 0; at++)
        n += *at == ',';
    t->hosts = calloc((size_t)n, sizeof(*t->hosts));
    if (t->hosts == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the hosts of %d ranks", n);
    t->nhosts = n;
    for (int32_t r = 0; r < n; r++) {
        char *end;
        long host = strtol(text, &end, 10);

        if (end == text || *end != (r + 1 < n ? ',' : 0) || host < 0 || host >= DP_MAX_RANKS)
            return dp_fail(DP_ERR_INVALID,
                           "HOSTS: at \"%.40s\": numbers of hosts from 0, with commas between them, are expected",
                           text);
        t->hosts[r] = (int32_t)host;
        text = end + 1;
    }
    return DP_OK;
}

static dp_status_t read_value(topology_t *t, int key, const char *text)
{
    double *const values[] = {&t->near_hop, &t->near_bandwidth, &t->far_hop, &t->far_bandwidth};
    double value;
    const char *end;

    if ((t->given >> key & 1) != 0)
        return dp_fail(DP_ERR_INVALID, "%s is there twice", names[key]);
    t->given |= 1u << key;
    if (key == HOSTS)
        return read_hosts(t, text);
    end = cost_keys_number(text, &value);
    if (end == NULL || *end != 0)
        return dp_fail(DP_ERR_INVALID, "%s=%.40s: a number of 0 or more is expected", names[key], text);
    if (key != RANKS_PER_HOST) {
        *values[key - NEAR_HOP] = value;
        return DP_OK;
    }
    t->per_host = value <= DP_MAX_RANKS ? (int32_t)value : 0;
    return t->per_host >= 1 && (double)t->per_host == value
               ? DP_OK
               : dp_fail(DP_ERR_INVALID, "RANKS_PER_HOST=%.40s: a whole number from 1 to %d is expected", text,
                         DP_MAX_RANKS);
}

static dp_status_t read_line(void *t, char *line)
{
    char *at, *equals, *end;

    line[strcspn(line, "#\n")] = 0;
    at = line + strspn(line, " \t\r");
    for (end = at + strlen(at); end > at && strchr(" \t\r", end[-1]) != NULL;)
        *--end = 0;
    if (*at == 0)
        return DP_OK;
    equals = strchr(at, '=');
    for (int key = 0; key < KEYS && equals != NULL; key++)
        if (strlen(names[key]) == (size_t)(equals - at) && strncmp(names[key], at, (size_t)(equals - at)) == 0)
            return read_value(t, key, equals + 1);
    return dp_fail(
        DP_ERR_INVALID,
        "\"%.40s\": HOSTS, RANKS_PER_HOST, NEAR.HOP, NEAR.BANDWIDTH, FAR.HOP or FAR.BANDWIDTH is expected, as in "
        "FAR.HOP=0.5",
        at);
}

static dp_status_t check_topology(const topology_t *t, const char *path)
{
    if (t->hosts != NULL && t->per_host > 0)
        return dp_fail(DP_ERR_INVALID, "%s: either HOSTS or RANKS_PER_HOST", path);
    if (t->hosts == NULL && t->per_host == 0)
        return dp_fail(DP_ERR_INVALID, "%s: HOSTS=0,0,1,1 or RANKS_PER_HOST=2 is required", path);
    return DP_OK;
}

dp_status_t topology_read(const char *path, topology_t *t)
{
    dp_status_t status = input_lines(path, LARGEST_FILE, read_line, t);

    return status == DP_OK ? check_topology(t, path) : status;
}

void topology_clear(topology_t *t)
{
    free(t->hosts);
    t->hosts = NULL;
}

const char *topology_placing_name(topology_placing_t placing)
{
    static const char *const all[] = {"as given", "blocks", "in turn", "mirrors"};

    return all[placing];
}

dp_status_t topology_hosts(const topology_t *t, int32_t ranks, int32_t *hosts_out)
{
    *hosts_out = t->per_host > 0 ? (ranks - 1) / t->per_host + 1 : 0;
    if (t->per_host > 0)
        return DP_OK;
    if (t->nhosts != ranks)
        return dp_fail(DP_ERR_INVALID, "the topology has %d ranks in HOSTS, the schedule has %d", t->nhosts, ranks);
    for (int32_t r = 0; r < ranks; r++) {
        bool seen = false;

        for (int32_t q = 0; q < r && !seen; q++)
            seen = t->hosts[q] == t->hosts[r];
        *hosts_out += !seen;
    }
    return DP_OK;
}

dp_status_t topology_place(const topology_t *t, topology_placing_t placing, int32_t ranks, int32_t *host_of,
                           dp_topology_t *topology_out)
{
    int32_t hosts, each;
    dp_status_t status = topology_hosts(t, ranks, &hosts);

    if (status < 0)
        return status;
    each = t->per_host > 0 ? t->per_host : (ranks - 1) / hosts + 1;
    for (int32_t r = 0; r < ranks; r++) {
        int32_t folded = r < ranks - 1 - r ? 2 * r : 2 * (ranks - 1 - r) + 1;

        host_of[r] = placing == TOPOLOGY_TURNS                          ? r % hosts
                     : placing == TOPOLOGY_MIRRORS                      ? folded / each
                     : placing == TOPOLOGY_AS_GIVEN && t->hosts != NULL ? t->hosts[r]
                                                                        : r / each;
    }
    *topology_out = (dp_topology_t){.struct_size = sizeof(*topology_out),
                                    .ranks = ranks,
                                    .host_of = host_of,
                                    .near_hop = t->near_hop,
                                    .near_bandwidth = t->near_bandwidth,
                                    .far_hop = t->far_hop,
                                    .far_bandwidth = t->far_bandwidth};
    return DP_OK;
}
