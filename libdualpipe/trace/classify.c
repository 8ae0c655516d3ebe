/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * classify.c: what a record of a trace is. */
#include "trace/classify.h"

#include <string.h>
#include <strings.h>

dp__trace_source_t dp__trace_source_of(const char *category)
{
    static const struct {
        const char *category;
        dp__trace_source_t source;
    } known[] = {
        {"kernel", DP__TRACE_DEVICE},
        {"gpu_memcpy", DP__TRACE_DEVICE},
        {"gpu_memset", DP__TRACE_DEVICE},
        {"memcpy", DP__TRACE_DEVICE},
        {"memset", DP__TRACE_DEVICE},
        {"concurrent_kernel", DP__TRACE_DEVICE},
        {"user_annotation", DP__TRACE_RANGE},
        {"gpu_user_annotation", DP__TRACE_LANE_RANGE},
        {"compute", DP__TRACE_LANE},
        {"all-to-all", DP__TRACE_LANE},
        {"p2p", DP__TRACE_LANE},
        {"p2p send", DP__TRACE_LANE},
        {"p2p receive", DP__TRACE_LANE},
        {"reduce", DP__TRACE_LANE},
    };

    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
        if (strcasecmp(category, known[k].category) == 0)
            return known[k].source;
    return DP__TRACE_OTHER;
}

/* Parts of names. NCCL: ncclDevKernel_..., ncclKernel_...; DeepEP: deep_ep::internode::dispatch
 * and, in the profile that DeepSeek published, dpsk::ep::...; NVSHMEM: nvshmemi_..., nvshmem_...;
 * PyTorch's symmetric memory: multimem_..., one_shot_..., two_shot_...; vLLM's
 * cross_device_reduce_...; copies over NVLink or PCIe. */
static const char *const comm_names[] = {"nccl",
                                         "rccl",
                                         "mscclKernel",
                                         "mscclpp",
                                         "deep_ep::",
                                         "dpsk::ep",
                                         "nvshmem",
                                         "rocshmem",
                                         "multimem_all_reduce",
                                         "multimem_one_shot",
                                         "one_shot_all_reduce",
                                         "two_shot_all_reduce",
                                         "cross_device_reduce",
                                         "Memcpy PtoP",
                                         NULL};

const char *const *dp__trace_comm_names(void)
{
    return comm_names;
}

dp__trace_class_t dp__trace_class_of(const char *name, const regex_t *comm)
{
    for (size_t k = 0; comm_names[k] != NULL; k++)
        if (strstr(name, comm_names[k]) != NULL)
            return DP__TRACE_COMM;
    return comm != NULL && regexec(comm, name, 0, NULL, 0) == 0 ? DP__TRACE_COMM : DP__TRACE_COMPUTE;
}

dp__trace_class_t dp__trace_lane_class(const char *category, uint8_t *lane_out, uint8_t *kind_out)
{
    static const struct {
        const char *category;
        dp_lane_t lane;
        dp_span_kind_t kind;
        dp__trace_class_t class;
    } known[] = {{"compute", DP_LANE_COMPUTE, DP_SPAN_COMPUTE, DP__TRACE_COMPUTE},
                 {"all-to-all", DP_LANE_ALL_TO_ALL, DP_SPAN_COMPUTE, DP__TRACE_COMM},
                 {"p2p send", DP_LANE_P2P, DP_SPAN_SEND, DP__TRACE_COMM},
                 {"p2p receive", DP_LANE_P2P, DP_SPAN_RECV, DP__TRACE_WAIT},
                 {"reduce", DP_LANE_REDUCE, DP_SPAN_REDUCE, DP__TRACE_COMM}};

    *lane_out = DP_LANE_P2P;
    *kind_out = DP_SPAN_COMPUTE;
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        if (strcasecmp(category, known[k].category) != 0)
            continue;
        *lane_out = (uint8_t)known[k].lane;
        *kind_out = (uint8_t)known[k].kind;
        return known[k].class;
    }
    return DP__TRACE_COMM;
}

uint8_t dp__trace_pass_of(const char *name)
{
    static const struct {
        const char *word;
        dp_op_kind_t pass;
    } known[] = {{"F", DP_OP_F}, {"B", DP_OP_B}, {"I", DP_OP_I}, {"W", DP_OP_W}, {"F&B", DP_OP_FB}, {"R", DP_OP_R}};
    size_t end = strlen(name), begin;

    while (end > 0 && ((name[end - 1] >= '0' && name[end - 1] <= '9') || name[end - 1] == ' '))
        end--;
    for (begin = end; begin > 0 && name[begin - 1] != ' '; begin--)
        ;
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
        if (strlen(known[k].word) == end - begin && strncmp(name + begin, known[k].word, end - begin) == 0)
            return (uint8_t)known[k].pass;
    return DP_OP_F;
}

dp_status_t dp__trace_regex(const char *text, regex_t *regex_out)
{
    char message[128];
    int code = regcomp(regex_out, text, REG_EXTENDED | REG_NOSUB);

    if (code == 0)
        return DP_OK;
    regerror(code, regex_out, message, sizeof(message));
    return dp_fail(DP_ERR_INVALID, "\"%.80s\" is not a regular expression: %s", text, message);
}
