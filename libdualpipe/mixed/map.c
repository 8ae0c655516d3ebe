/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * map.c: see map.h. */
#include "mixed/map.h"

#include <stdbool.h>

static bool begins_run(const dp__mixed_map_t *m, int32_t r)
{
    return r == 0 || m->host[r] != m->host[r - 1];
}

static void find_neighbours(dp__mixed_map_t *m)
{
    int32_t seen = 0;

    for (int32_t r = 0; r < m->n; r++) {
        m->near[r] = 0;
        for (int32_t q = 0; q < r; q++)
            m->near[r] += m->host[q] == m->host[r];
        seen += m->near[r] == 0;
        m->near_n += m->host[r] == m->host[m->rank];
    }
    m->hosts = seen;
}

static void find_runs(dp__mixed_map_t *m)
{
    int32_t first = 0, before = -1;

    m->prev = m->next = -1;
    for (int32_t r = 0; r < m->n; r++) {
        m->carries[r] = begins_run(m, r) ? m->runs : -1;
        if (m->carries[r] < 0)
            continue;
        if (first == m->rank && r > m->rank && m->next < 0)
            m->next = r;
        if (r <= m->rank) {
            before = r == 0 ? -1 : first;
            m->run = m->runs;
            m->run_first = r;
        }
        first = r;
        m->runs++;
    }
    for (int32_t r = m->run_first; r < m->n && (r == m->run_first || !begins_run(m, r)); r++)
        m->run_n++;
    if (m->rank == m->run_first)
        m->prev = before;
}

static int32_t first_of_last_run(const dp__mixed_map_t *m)
{
    int32_t r = m->n - 1;

    while (!begins_run(m, r))
        r--;
    return r;
}

/* Hosts in the order in which the total reaches them: those whose last run is nearest to the end
 * come first. Each is told as its last member. */
static int32_t order_hosts(const dp__mixed_map_t *m, int32_t *last)
{
    int32_t k = 0;

    for (int32_t r = m->n - 1; r >= 0; r--) {
        bool known = false;

        for (int32_t i = 0; i < k && !known; i++)
            known = m->host[last[i]] == m->host[r];
        if (!known)
            last[k++] = r;
    }
    return k;
}

/* Members of a host in the order of its part of the tree: who brings the total in, then those who
 * still need it. */
static int32_t order_members(const dp__mixed_map_t *m, int32_t host, int32_t root, int32_t *list)
{
    int32_t k = 0;

    if (m->host[root] == host)
        list[k++] = root;
    for (int32_t r = 0; r < m->n; r++)
        if (m->host[r] == host && (m->host[root] != host || r < root))
            list[k++] = r;
    return k;
}

static void add_child(dp__mixed_map_t *m, int32_t child)
{
    m->children[m->nchildren++] = child;
}

/* A chain over hosts, so that no network card carries the total twice; a heap within one. */
static void find_tree(dp__mixed_map_t *m, int32_t *last, int32_t *list)
{
    int32_t root = first_of_last_run(m), hosts = order_hosts(m, last), above = -1;

    m->parent = -1;
    for (int32_t h = 0; h < hosts; h++) {
        int32_t host = m->host[last[h]], k = order_members(m, host, root, list), next = -1;

        if (h + 1 < hosts) {
            for (next = 0; m->host[next] != m->host[last[h + 1]];)
                next++;
        }
        for (int32_t i = 0; i < k; i++) {
            if (list[i] != m->rank)
                continue;
            m->parent = i > 0 ? list[(i - 1) / 2] : above;
            m->far_hops = h;
            for (int32_t at = i; at > 0; at = (at - 1) / 2)
                m->near_hops++;
            if (i == 0 && next >= 0)
                add_child(m, next);
            for (int32_t c = 2 * i + 1; c <= 2 * i + 2 && c < k; c++)
                add_child(m, list[c]);
        }
        above = list[0];
    }
}

void dp__mixed_map(dp__mixed_map_t *m, int32_t *memory, int32_t rank, int32_t n, const int32_t *host_of)
{
    *m = (dp__mixed_map_t){.n = n, .rank = rank, .host = memory, .near = memory + n, .carries = memory + 2 * (size_t)n};
    for (int32_t r = 0; r < n; r++)
        m->host[r] = host_of[r];
    find_neighbours(m);
    find_runs(m);
    find_tree(m, memory + 3 * (size_t)n, memory + 4 * (size_t)n);
}
