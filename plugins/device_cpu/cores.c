/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cores.c: the cores that a device's streams run on: all, a list, or two disjoint shares. */
#include "device_cpu.h"

#include <stdlib.h>
#include <string.h>

static bool read_core(const char **text, uint32_t *core_out)
{
    uint32_t core = 0;
    const char *p = *text;

    for (; *p >= '0' && *p <= '9' && core < CPU_SETSIZE; p++)
        core = core * 10 + (uint32_t)(*p - '0');
    if (p == *text || core >= CPU_SETSIZE)
        return false;
    *text = p;
    *core_out = core;
    return true;
}

/* "0-3,8" */
static bool read_cores(const char *text, cpu_set_t *cores_out)
{
    uint32_t first, last;

    CPU_ZERO(cores_out);
    do {
        if (!read_core(&text, &first))
            return false;
        last = first;
        if (*text == '-') {
            text++;
            if (!read_core(&text, &last) || last < first)
                return false;
        }
        for (; first <= last; first++)
            CPU_SET(first, cores_out);
    } while (*text++ == ',');
    return text[-1] == '\0';
}

/* Gives the last `comm` cores to communication, the others to compute. */
static void split_cores(dp_device_t *device, const cpu_set_t *cores, uint32_t comm)
{
    uint32_t seen = 0, compute = (uint32_t)CPU_COUNT(cores) - comm;

    CPU_ZERO(&device->cores[0]);
    CPU_ZERO(&device->cores[1]);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, cores))
            CPU_SET(core, &device->cores[seen++ >= compute]);
    for (int lane = 0; lane < DP_LANE_COUNT; lane++)
        device->sms[lane] = lane == DP_LANE_COMPUTE ? compute : comm;
}

dp_status_t cpu_cores_choose(dp_device_t *device, const dp_device_config_t *config)
{
    const dp_host_t *host = device->host;
    cpu_set_t usable, wanted;
    uint32_t count;

    if (config->cores == NULL && config->comm_sms == 0)
        return DP_OK;
    if (sched_getaffinity(0, sizeof(usable), &usable) != 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "the system does not say which cores this process may use");
    wanted = usable;
    if (config->cores != NULL && !read_cores(config->cores, &wanted))
        return DP_FAIL(host, DP_ERR_INVALID, "cores \"%s\": write a list of numbers and ranges such as 0-3,8",
                       config->cores);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &wanted) && !CPU_ISSET(core, &usable))
            return DP_FAIL(host, DP_ERR_INVALID, "cores \"%s\": this process may not use core %d", config->cores, core);
    count = (uint32_t)CPU_COUNT(&wanted);
    if (config->comm_sms >= count && config->comm_sms > 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%u cores for communication leave none of %u for compute",
                       config->comm_sms, count);
    device->confined = true;
    if (config->comm_sms > 0) {
        split_cores(device, &wanted, config->comm_sms);
        return DP_OK;
    }
    device->cores[0] = device->cores[1] = wanted;
    for (int lane = 0; lane < DP_LANE_COUNT; lane++)
        device->sms[lane] = count;
    return DP_OK;
}
