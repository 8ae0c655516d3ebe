/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * classify.c: what a record of a trace is. */
#include "trace/classify.h"

#include <string.h>
#include <strings.h>

dp__trace_source_t dp__trace_source_of(const char *category, const regex_t *devices)
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
        {"mtia_ccp_events", DP__TRACE_DEVICE},
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
    if (devices != NULL && category[0] != 0 && regexec(devices, category, 0, NULL, 0) == 0)
        return DP__TRACE_DEVICE;
    return DP__TRACE_OTHER;
}

/* Names: Ascend's mstt (compare_tools) and torch_npu; XLA's xplane_to_trace_events. Merged traces
 * have "rank 3: " in front. */
dp__trace_machine_t dp__trace_machine_of(const char *process)
{
    const char *colon = strncmp(process, "rank ", 5) == 0 ? strstr(process, ": ") : NULL;
    const char *name = colon != NULL ? colon + 2 : process;

    if (strncmp(name, "Ascend Hardware", 15) == 0)
        return DP__TRACE_ASCEND;
    if (strncmp(name, "Communication", 13) == 0 || strncmp(name, "HCCL", 4) == 0)
        return DP__TRACE_ASCEND_COMM;
    return strstr(name, "/device:GPU:") != NULL ? DP__TRACE_XLA_GPU : DP__TRACE_HOST;
}

/* Of a communicator the operations count, not the tasks ("Plane 0") they are made of; of a GPU the
 * streams, not what XLA derives from them ("XLA Ops", "Steps"). */
bool dp__trace_machine_counts(dp__trace_machine_t machine, const char *thread)
{
    return machine == DP__TRACE_ASCEND ||
           (machine == DP__TRACE_ASCEND_COMM && strstr(thread, "Communication") != NULL) ||
           (machine == DP__TRACE_XLA_GPU && strncmp(thread, "Stream #", 8) == 0);
}

/* Parts of names, as the sources of these libraries, or traces of them, have them. Collectives:
 * NCCL and its EP kernels, RCCL, MSCCL; HCCL of Ascend (hcom_allReduce__428_0_1) and of MTIA;
 * oneCCL (oneccl_allreduce_pcie). Experts: DeepEP, published and in DeepSeek's profile, its hybrid
 * kernels, UCCL-EP, MORI (EpDispatchInterNodeKernel_bf16), pplx-garden (a2a_dispatch_send_kernel),
 * TensorRT-LLM and FlashInfer (moeA2ADispatchKernel). Shared and symmetric memory: NVSHMEM,
 * rocSHMEM, PyTorch. All-reduces of inference: vLLM, SGLang, aiter (cross_device_reduce_1stage,
 * quickreduce), FlashInfer (allreduce_fusion_kernel_oneshot_lamport), TensorRT-LLM
 * (oneShotAllReduceKernel). Copies over NVLink or PCIe. */
static const char *const comm_names[] = {"nccl",
                                         "rccl",
                                         "mscclKernel",
                                         "mscclpp",
                                         "hccl",
                                         "hcom_",
                                         "oneccl_",
                                         "deep_ep::",
                                         "dpsk::ep",
                                         "hybrid_ep::",
                                         "uccl::",
                                         "EpDispatch",
                                         "EpCombine",
                                         "mori_shmem",
                                         "a2a_dispatch_",
                                         "a2a_combine_",
                                         "moeA2A",
                                         "nvshmem",
                                         "rocshmem",
                                         "c10d::symmetric_memory::",
                                         "multimem_",
                                         "one_shot_all_reduce",
                                         "two_shot_all_reduce",
                                         "exchangeSplitAndOffset",
                                         "cross_device_reduce",
                                         "quickreduce::",
                                         "allreduce_prototype_twoshot",
                                         "allreduce_fusion_kernel",
                                         "ShotAllReduceKernel",
                                         "Memcpy PtoP"};

dp__trace_class_t dp__trace_class_of(const char *name, const regex_t *comm)
{
    for (size_t k = 0; k < sizeof(comm_names) / sizeof(comm_names[0]); k++)
        if (strstr(name, comm_names[k]) != NULL)
            return DP__TRACE_COMM;
    if (comm != NULL && regexec(comm, name, 0, NULL, 0) == 0)
        return DP__TRACE_COMM;
    /* A stream of an NPU or of MTIA that waits has a record of it. */
    return strncasecmp(name, "event_wait", 10) == 0 || strncasecmp(name, "notify_wait", 11) == 0 ? DP__TRACE_WAIT
                                                                                                 : DP__TRACE_COMPUTE;
}

/* Control tasks keep nothing busy: EVENT_WAIT, NOTIFY_WAIT_SQE, WRITE_VALUE_SQE. Source:
 * torchtitan_npu, whole_graph_benchmark. */
dp__trace_class_t dp__trace_class_of_task(const char *task, dp__trace_class_t by_name)
{
    if (strcmp(task, "COMMUNICATION") == 0)
        return DP__TRACE_COMM;
    return by_name == DP__TRACE_COMPUTE && (strncmp(task, "EVENT_", 6) == 0 || strncmp(task, "NOTIFY_", 7) == 0 ||
                                            strncmp(task, "WRITE_VALUE", 11) == 0)
               ? DP__TRACE_WAIT
               : by_name;
}

/* `text` within the first `bytes` of `name`, in lower or upper case. */
static bool has_text(const char *name, size_t bytes, const char *text)
{
    size_t length = strlen(text);

    for (size_t at = 0; at + length <= bytes; at++)
        if (strncasecmp(name + at, text, length) == 0)
            return true;
    return false;
}

/* What is behind '<' are types. Attention over splits of its keys ends with a combine. */
bool dp__trace_resembles_comm(const char *name)
{
    static const char *const like[] = {"allreduce",      "all_reduce",  "allgather",  "all_gather", "reducescatter",
                                       "reduce_scatter", "alltoall",    "all_to_all", "all2all",    "a2a",
                                       "sendrecv",       "send_recv",   "dispatch",   "combine",    "lamport",
                                       "rdma",           "cross_device"};
    static const char *const unlike[] = {"flash", "split", "fmha", "attn", "attention", "mla"};
    size_t bytes = strcspn(name, "<");

    for (size_t k = 0; k < sizeof(unlike) / sizeof(unlike[0]); k++)
        if (has_text(name, bytes, unlike[k]))
            return false;
    for (size_t k = 0; k < sizeof(like) / sizeof(like[0]); k++)
        if (has_text(name, bytes, like[k]))
            return true;
    return false;
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
