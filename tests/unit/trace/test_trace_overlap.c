/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_trace_overlap.c: figures of the published profile, and of random traces against a count
 * instant by instant. */
#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/suite.h"
#include "tests/support/trace_text.h"
#include "tools/trace/trace_detail.h"
#include "tools/trace/trace_file.h"

/* ---- the published profile ---- */

#ifdef HAVE_ZLIB
static void load_profile(dp_trace_t **trace)
{
    dp_trace_options_t options = {.struct_size = sizeof(options)};
    char path[1024];

    snprintf(path, sizeof(path), "%s/trace/deepseek_v3_train_1f1b.json.gz", getenv("DP_TEST_DATA"));
    ck_assert_msg(trace_load(path, &options, trace) == DP_OK, "%s", dp_last_error());
}

START_TEST(published_profile_has_its_figures)
{
    static const struct {
        const char *label;
        size_t records;
        int64_t busy;
    } streams[] = {{"stream 7", 927, 118193000}, {"stream 27", 40, 114521000}, {"stream 23", 16, 11355000}};
    trace_detail_t overlap;
    dp_trace_t *trace;
    const trace_detail_rank_t *rank;
    char percent[16];

    load_profile(&trace);
    ck_assert_int_eq(trace_detail_measure(trace, 3, &overlap), DP_OK);
    ck_assert_uint_eq(trace->head.events, 14240);
    ck_assert_int_eq(trace->head.sms, 132);
    ck_assert_uint_eq(overlap.nranks, 1);
    rank = &overlap.ranks[0];
    ck_assert_str_eq(rank->rank->label, "rank 0");
    ck_assert_int_eq(rank->figures.end - rank->figures.start, 129012000);
    ck_assert_int_eq(rank->figures.comm, 113440000);
    snprintf(percent, sizeof(percent), "%.2f", 100.0 * (double)rank->figures.hidden / (double)rank->figures.comm);
    ck_assert_str_eq(percent, "96.32");
    snprintf(percent, sizeof(percent), "%.2f",
             100.0 * (double)rank->figures.compute / (double)(rank->figures.end - rank->figures.start));
    ck_assert_str_eq(percent, "96.38");
    ck_assert_uint_eq(rank->nstreams, 3);
    for (size_t s = 0; s < 3; s++) {
        ck_assert_str_eq(trace->streams[rank->streams[s].stream].label, streams[s].label);
        ck_assert_uint_eq(rank->streams[s].records, streams[s].records);
        ck_assert_int_eq(rank->streams[s].busy, streams[s].busy);
    }
    ck_assert_uint_eq(rank->ngaps, 3);
    for (size_t g = 0; g < rank->figures.ngrids; g++)
        if (rank->figures.grids[g].class == DP__TRACE_COMM) {
            ck_assert_uint_eq(rank->figures.grids[g].blocks, 20); /* the one with the most time */
            break;
        }
    trace_detail_clear(&overlap);
    dp_trace_free(trace);
}
END_TEST

/* What one layer pair of the profile takes on a stream; in the canonical order of an overlapped
 * pair. The profile's own table counts kernels without copies: attention forward has 5 us of
 * them. */
START_TEST(published_profile_has_its_annotations)
{
    static const struct {
        const char *name;
        const char *stream;
        int64_t first; /* of the first of four layers */
    } wanted[] = {{"combine(B)", "stream 27", 4380000},  {"attn(F)", "stream 7", 4311000},
                  {"mlp(B)", "stream 7", 5693000},       {"dispatch(F)", "stream 27", 6059000},
                  {"dispatch(B)", "stream 27", 7302000}, {"mlp(W)", "stream 7", 3575000},
                  {"mlp(F)", "stream 7", 4250000},       {"attn(B)", "stream 7", 9018000},
                  {"attn(W)", "stream 7", 2375000},      {"combine(F)", "stream 27", 7325000}};
    trace_detail_t overlap;
    dp_trace_t *trace;
    const trace_detail_rank_t *rank;

    load_profile(&trace);
    ck_assert_int_eq(trace_detail_measure(trace, 0, &overlap), DP_OK);
    rank = &overlap.ranks[0];
    ck_assert_uint_eq(rank->ngaps, 0);
    ck_assert_uint_eq(rank->ngroups, 10);
    for (size_t g = 0; g < 10; g++) {
        uint32_t first = DP__TRACE_NONE;
        int64_t sum = 0;

        ck_assert_str_eq(dp__trace_name(trace, rank->groups[g].name), wanted[g].name);
        ck_assert_uint_eq(rank->groups[g].times, 4);
        for (size_t i = 0; i < trace->nrecords; i++) {
            const dp__trace_record_t *record = &trace->records[i];

            if (dp__trace_group(trace, record) != rank->groups[g].name)
                continue;
            first = first == DP__TRACE_NONE ? record->range : first;
            if (record->range == first && strcmp(trace->streams[record->stream].label, wanted[g].stream) == 0)
                sum += record->end - record->start;
        }
        ck_assert_int_eq(sum, wanted[g].first);
    }
    trace_detail_clear(&overlap);
    dp_trace_free(trace);
}
END_TEST
#endif

/* ---- made traces ---- */

static dp_trace_t *load_text(const char *text)
{
    dp_trace_options_t options = {.struct_size = sizeof(options)};
    trace_text_t from = trace_text_of(text);
    dp_trace_t *trace;

    ck_assert_msg(dp_trace_read(trace_text_read, &from, &options, &trace) == DP_OK, "%s", dp_last_error());
    return trace;
}

static char said[256], stray[256]; /* names of the last overlap_of() */

#define RANKS   2
#define STREAMS 3
#define TICKS   200

/* Which of them run at an instant. */
typedef struct counted {
    bool compute[TICKS], comm[TICKS];
    bool stream[STREAMS][TICKS];
    int first, last;
} counted_t;

static void count(counted_t *counted, int stream, bool comm, int start, int end)
{
    for (int t = start; t < end; t++)
        *(comm ? &counted->comm[t] : &counted->compute[t]) = counted->stream[stream][t] = true;
    counted->first = start < counted->first ? start : counted->first;
    counted->last = end > counted->last ? end : counted->last;
}

static void compare_public(const dp_trace_t *trace, const trace_detail_rank_t *rank, size_t r)
{
    dp_trace_overlap_t overlap = {.struct_size = sizeof(overlap)};

    ck_assert_int_eq(dp_trace_overlap(trace, (int32_t)r, &overlap), DP_OK);
    ck_assert_str_eq(overlap.name, rank->rank->label);
    ck_assert_int_eq(overlap.span, rank->figures.end - rank->figures.start);
    ck_assert_int_eq(overlap.computation, rank->figures.compute);
    ck_assert_int_eq(overlap.communication, rank->figures.comm);
    ck_assert_int_eq(overlap.hidden, rank->figures.hidden);
    ck_assert_int_eq(overlap.idle, rank->figures.idle);
    ck_assert_int_eq(overlap.gaps, (int64_t)rank->figures.nexposed);
    ck_assert(overlap.computation_sms == rank->figures.sm_share[DP__TRACE_COMPUTE]);
    ck_assert(overlap.communication_sms == rank->figures.sm_share[DP__TRACE_COMM]);
}

static void compare(const trace_detail_t *overlap, const counted_t *counted, size_t r)
{
    const trace_detail_rank_t *rank = &overlap->ranks[r];
    int64_t compute = 0, comm = 0, hidden = 0, idle = 0, longest = 0, run = 0;

    for (int t = 0; t < TICKS; t++) {
        bool exposed = counted->comm[t] && !counted->compute[t];

        compute += counted->compute[t];
        comm += counted->comm[t];
        hidden += counted->comm[t] && counted->compute[t];
        idle += t >= counted->first && t < counted->last && !counted->comm[t] && !counted->compute[t];
        run = exposed ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    ck_assert_int_eq(rank->figures.end - rank->figures.start, (counted->last - counted->first) * 1000);
    ck_assert_int_eq(rank->figures.compute, compute * 1000);
    ck_assert_int_eq(rank->figures.comm, comm * 1000);
    ck_assert_int_eq(rank->figures.hidden, hidden * 1000);
    ck_assert_int_eq(rank->figures.idle, idle * 1000);
    ck_assert_int_eq(rank->ngaps > 0 ? rank->gaps[0].end - rank->gaps[0].start : 0, longest * 1000);
    for (size_t s = 0; s < rank->nstreams; s++) {
        int number = overlap->trace->streams[rank->streams[s].stream].label[7] - '0';
        int64_t busy = 0;

        for (int t = 0; t < TICKS; t++)
            busy += counted->stream[number][t];
        ck_assert_int_eq(rank->streams[s].busy, busy * 1000);
    }
}

START_TEST(random_traces_are_counted_instant_by_instant)
{
    srand(20261121);
    for (int trial = 0; trial < 300; trial++) {
        counted_t counted[RANKS];
        char text[65536];
        int n = snprintf(text, sizeof(text),
                         "[{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":7,\"args\":{\"name\":\"rank 1\"}},"
                         "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":9,\"args\":{\"name\":\"rank 0\"}}");
        dp_trace_t *trace;
        trace_detail_t overlap;

        for (int r = 0; r < RANKS; r++)
            counted[r] = (counted_t){.first = TICKS, .last = 0};
        for (int k = 0; k < 2 + trial % 40; k++) {
            int r = k < 2 ? k : rand() % RANKS, stream = rand() % STREAMS, start = rand() % (TICKS - 20),
                length = rand() % 20;
            bool comm = rand() % 2 == 0;

            count(&counted[r], stream, comm, start, start + length);
            n +=
                snprintf(text + n, sizeof(text) - (size_t)n,
                         ",\n{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%"
                         "d,\"dur\":%d,"
                         "\"args\":{\"stream\":%d}}",
                         comm ? "ncclDevKernel_AllReduce" : "gemm<ncc>", r == 0 ? 9 : 7, stream, start, length, stream);
        }
        strcpy(text + n, "]");
        trace = load_text(text);
        ck_assert_int_eq(trace_detail_measure(trace, 1, &overlap), DP_OK);
        ck_assert_uint_eq(overlap.nranks, RANKS);
        for (size_t r = 0; r < RANKS; r++)
            compare(&overlap, &counted[r], r), compare_public(trace, &overlap.ranks[r], r);
        trace_detail_clear(&overlap);
        dp_trace_free(trace);
    }
}
END_TEST

START_TEST(kernels_belong_to_the_annotation_that_launched_them)
{
    /* Launched on thread 2 while thread 1 is in "outer" and then "inner"; on thread 1 itself; after
     * all; without launch, but below an annotation on the stream. */
    dp_trace_t *trace =
        load_text("{\"traceEvents\":["
                  "{\"ph\":\"X\",\"cat\":\"user_annotation\",\"name\":\"inner\",\"pid\":1,\"tid\":1,\"ts\":10,\"dur\":"
                  "10},"
                  "{\"ph\":\"X\",\"cat\":\"user_annotation\",\"name\":\"outer\",\"pid\":1,\"tid\":1,\"ts\":0,\"dur\":"
                  "30},"
                  "{\"ph\":\"X\",\"cat\":\"user_annotation\",\"name\":\"own\",\"pid\":1,\"tid\":2,\"ts\":25,\"dur\":2},"
                  "{\"ph\":\"X\",\"cat\":\"gpu_user_annotation\",\"name\":\"below\",\"pid\":0,\"tid\":7,\"ts\":90,"
                  "\"dur\":10},"
                  "{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"l\",\"pid\":1,\"tid\":2,\"ts\":5,\"dur\":1,"
                  "\"args\":{\"correlation\":11}},"
                  "{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"l\",\"pid\":1,\"tid\":2,\"ts\":15,\"dur\":1,"
                  "\"args\":{\"correlation\":12}},"
                  "{\"ph\":\"X\",\"cat\":\"cuda_driver\",\"name\":\"l\",\"pid\":1,\"tid\":1,\"ts\":21,\"dur\":1,"
                  "\"args\":{\"correlation\":13}},"
                  "{\"ph\":\"X\",\"cat\":\"cuda_driver\",\"name\":\"l\",\"pid\":1,\"tid\":1,\"ts\":40,\"dur\":1,"
                  "\"args\":{\"correlation\":14}},"
                  "{\"ph\":\"X\",\"cat\":\"cuda_driver\",\"name\":\"l\",\"pid\":1,\"tid\":2,\"ts\":26,\"dur\":1,"
                  "\"args\":{\"correlation\":15}},"
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"a\",\"pid\":0,\"tid\":7,\"ts\":50,\"dur\":1,\"args\":{"
                  "\"correlation\":11}},"
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"b\",\"pid\":0,\"tid\":7,\"ts\":60,\"dur\":1,\"args\":{"
                  "\"correlation\":12}},"
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"c\",\"pid\":0,\"tid\":7,\"ts\":70,\"dur\":1,\"args\":{"
                  "\"correlation\":13}},"
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"d\",\"pid\":0,\"tid\":7,\"ts\":80,\"dur\":1,\"args\":{"
                  "\"correlation\":14}},"
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"e\",\"pid\":0,\"tid\":7,\"ts\":85,\"dur\":1,\"args\":{"
                  "\"correlation\":15}},"
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"f\",\"pid\":0,\"tid\":7,\"ts\":95,\"dur\":1}]}");
    static const char *const wanted[] = {"outer", "inner", "outer", "", "own", "below"};

    ck_assert_uint_eq(trace->nrecords, 6);
    for (size_t i = 0; i < 6; i++)
        ck_assert_str_eq(dp__trace_name(trace, dp__trace_group(trace, &trace->records[i])), wanted[i]);
    dp_trace_free(trace);
}
END_TEST

START_TEST(devices_without_a_number_have_none)
{
    static const struct {
        const char *pid;
        int64_t number;
    } cases[] = {{"3", 3}, {"3 GPUs", -1}, {"GPU 3", -1}, {"-3", -1}};
    char text[256];
    dp_trace_t *trace;

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        snprintf(text, sizeof(text),
                 "[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"pid\":\"%s\",\"tid\":7,\"ts\":1,\"dur\":1}]",
                 cases[k].pid);
        trace = load_text(text);
        ck_assert_uint_eq(trace->nranks, 1);
        ck_assert_msg(trace->ranks[0].number == cases[k].number, "%s: %" PRId64, cases[k].pid, trace->ranks[0].number);
        dp_trace_free(trace);
    }
}
END_TEST

START_TEST(gaps_know_their_neighbours)
{
    dp_trace_t *trace =
        load_text("[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"early\",\"pid\":0,\"tid\":7,\"ts\":0,\"dur\":10},"
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"late\",\"pid\":0,\"tid\":7,\"ts\":30,\"dur\":10},"
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"deep_ep::short\",\"pid\":0,\"tid\":8,\"ts\":5,\"dur\":8}"
                  ","
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"deep_ep::long\",\"pid\":0,\"tid\":8,\"ts\":13,\"dur\":"
                  "40}]");
    trace_detail_t overlap;
    const trace_detail_gap_t *gaps;

    ck_assert_int_eq(trace_detail_measure(trace, 10, &overlap), DP_OK);
    ck_assert_uint_eq(overlap.ranks[0].ngaps, 2);
    gaps = overlap.ranks[0].gaps;
    ck_assert_int_eq(gaps[0].start, 10000);
    ck_assert_int_eq(gaps[0].end, 30000);
    ck_assert_str_eq(dp__trace_name(trace, trace->records[gaps[0].comm].name), "deep_ep::long");
    ck_assert_str_eq(dp__trace_name(trace, trace->records[gaps[0].before].name), "early");
    ck_assert_str_eq(dp__trace_name(trace, trace->records[gaps[0].after].name), "late");
    ck_assert_int_eq(gaps[1].start, 40000);
    ck_assert_uint_eq(gaps[1].after, SIZE_MAX);
    trace_detail_clear(&overlap);
    dp_trace_free(trace);
}
END_TEST

START_TEST(communication_is_known_by_name)
{
    static const char *const comm[] = {
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void deep_ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*)",
        "void dpsk::ep::internode::cached_notify<false>(int, int)",
        "nvshmemi_transfer_barrier_kernel",
        "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16>(c10::BFloat16**)",
        "Memcpy PtoP (Device -> Device)",
        "void uccl::internode_ll::dispatch<true, false, 7168, false>(void*, void*, int*)",
        "void hybrid_ep::dispatch_kernel<hybrid_ep::warp_group<4, 0>>(hybrid_ep::dispatch_kernel_param_t)",
        "EpDispatchInterNodeV1KernelLowLatency_bf16",
        "void mori::moe::EpCombineIntraNodeKernel<__hip_bfloat16>(mori::moe::EpDispatchCombineArgs<__hip_bfloat16>)",
        "hcom_allReduce__428_0_1",
        "oneccl_allreduce_pcie<half, Rt64_128_PCIE, RingTransmit>",
        "void a2a_dispatch_send_kernel<true, 16, NotFixed>(unsigned long, unsigned long)",
        "void tensorrt_llm::kernels::mnnvl_throughput::moeA2ADispatchKernel<8>(int const*)",
        "exchangeSplitAndOffset(long*, int, int)",
        "void multimem_all_gather_kernel<16>(char*, char*, unsigned long)",
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>(__half const*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, __nv_bfloat16, 8>()",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8, true>(tensorrt_llm::kernels::AllReduceParams)",
        "void aiter::cross_device_reduce_2stage<half, 8>(aiter::RankData*)",
        "my_ring_exchange"};
    static const char *const compute[] = {
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(Params)", "Memset (Device)",
        "Memcpy DtoD (Device -> Device)", "void flash::compute_attn_ws<Flash_fwd_kernel_traits>(Params)"};
    regex_t regex;

    ck_assert_int_eq(dp__trace_regex("(", &regex), DP_ERR_INVALID);
    ck_assert_int_eq(dp__trace_regex("^my_ring|my_tree", &regex), DP_OK);
    for (size_t k = 0; k < sizeof(comm) / sizeof(comm[0]); k++)
        ck_assert_int_eq(dp__trace_class_of(comm[k], &regex), DP__TRACE_COMM);
    for (size_t k = 0; k < sizeof(compute) / sizeof(compute[0]); k++)
        ck_assert_int_eq(dp__trace_class_of(compute[k], &regex), DP__TRACE_COMPUTE);
    ck_assert_int_eq(dp__trace_class_of("my_ring_exchange", NULL), DP__TRACE_COMPUTE);
    ck_assert_int_eq(dp__trace_class_of("event_wait", NULL), DP__TRACE_WAIT);
    ck_assert_int_eq(dp__trace_class_of("NOTIFY_WAIT_SQE", NULL), DP__TRACE_WAIT);
    regfree(&regex);
}
END_TEST

/* What torchtitan_npu's tests hold to be work of a device that is no collective. */
START_TEST(tasks_of_ascend_are_known_by_type)
{
    static const struct {
        const char *name, *task;
        dp__trace_class_t class;
    } cases[] = {{"aclnnMul", "AI_VECTOR_CORE", DP__TRACE_COMPUTE},
                 {"KERNEL_MIX_AIC", "MIX_AIC", DP__TRACE_COMPUTE},
                 {"MEMCPY_ASYNC", "MEMCPY_ASYNC", DP__TRACE_COMPUTE},
                 {"SDMA_SQE", "SDMA_SQE", DP__TRACE_COMPUTE},
                 {"future_kernel", "NEW_CORE", DP__TRACE_COMPUTE},
                 {"EVENT_WAIT", "EVENT_WAIT", DP__TRACE_WAIT},
                 {"notify", "NOTIFY_WAIT_SQE", DP__TRACE_WAIT},
                 {"WRITE_VALUE_SQE", "WRITE_VALUE_SQE", DP__TRACE_WAIT},
                 {"hcom_alltoallv", "", DP__TRACE_COMM},
                 {"task", "COMMUNICATION", DP__TRACE_COMM}};

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        char text[512];
        dp_trace_t *trace;

        snprintf(
            text, sizeof(text),
            "[{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":3,\"args\":{\"name\":\"Ascend Hardware\"}},"
            "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":3,\"tid\":2,\"ts\":\"1.5\",\"dur\":1,\"args\":{\"Task Type\":\"%s\"}}]",
            cases[k].name, cases[k].task);
        trace = load_text(text);
        ck_assert_msg(trace->records[0].class == cases[k].class, "%s %s", cases[k].name, cases[k].task);
        dp_trace_free(trace);
    }
}
END_TEST

START_TEST(names_of_unknown_libraries_resemble_communication)
{
    /* The first two are of pplx-kernels, which has them in no namespace. */
    static const char *const like[] = {"void dispatchKernel<10u, true, false>(int*, unsigned long, std::byte*)",
                                       "void combineKernel<10u, __nv_bfloat16>(int*)",
                                       "MyAllReduceLL128",
                                       "ring_all_gather",
                                       "all2all_v<float>(float*)",
                                       "void (anonymous namespace)::sendRecv(char*)"};
    static const char *const unlike[] = {
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>, 4>(flash::Flash_fwd_params)",
        "FlashAttnFwdCombine", "void at::native::elementwise_kernel<128, 2, dispatch_t<all_reduce>>(int)", "gemm", ""};

    for (size_t k = 0; k < sizeof(like) / sizeof(like[0]); k++)
        ck_assert_msg(dp__trace_resembles_comm(like[k]), "%s", like[k]);
    for (size_t k = 0; k < sizeof(unlike) / sizeof(unlike[0]); k++)
        ck_assert_msg(!dp__trace_resembles_comm(unlike[k]), "%s", unlike[k]);
}
END_TEST

static dp_trace_overlap_t overlap_of(const char *text, const dp_trace_options_t *options, dp_trace_about_t *about)
{
    dp_trace_overlap_t overlap = {.struct_size = sizeof(overlap)};
    trace_text_t from = trace_text_of(text);
    dp_trace_t *trace;

    ck_assert_msg(dp_trace_read(trace_text_read, &from, options, &trace) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(dp_trace_about(trace, about), DP_OK);
    ck_assert_int_eq(dp_trace_overlap(trace, 0, &overlap), DP_OK);
    snprintf(said, sizeof(said), "%s", overlap.likely_name != NULL ? overlap.likely_name : "");
    snprintf(stray, sizeof(stray), "%s", overlap.stray_name != NULL ? overlap.stray_name : "");
    dp_trace_free(trace);
    return overlap;
}

#define KERNEL(name, tid, ts, dur)                                                                                     \
    "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"" name "\",\"pid\":0,\"tid\":" #tid ",\"ts\":" #ts ",\"dur\":" #dur   \
    "},"
#define NO_KERNEL "{\"ph\":\"M\",\"name\":\"end\",\"pid\":0}]"

START_TEST(computation_named_like_communication_is_counted)
{
    static const char text[] = "[" KERNEL("gemm", 7, 0, 100) KERNEL("dispatchKernel", 8, 50, 30)
        KERNEL("combineKernel", 8, 90, 60) KERNEL("dispatchKernel", 8, 160, 40) NO_KERNEL;
    dp_trace_options_t options = {.struct_size = sizeof(options)};
    dp_trace_about_t about = {.struct_size = sizeof(about)};
    dp_trace_overlap_t overlap = overlap_of(text, &options, &about);

    ck_assert_int_eq(overlap.likely, 3);
    ck_assert_int_eq(overlap.likely_time, 130000);
    ck_assert_str_eq(said, "dispatchKernel");
    ck_assert_int_eq(overlap.communication, 0);
    options.communication = "^dispatch|^combine";
    overlap = overlap_of(text, &options, &about);
    ck_assert_int_eq(overlap.likely, 0);
    ck_assert_int_eq(overlap.likely_time, 0);
    ck_assert_ptr_null(overlap.likely_name);
    ck_assert_int_eq(overlap.communication, 130000);
    ck_assert_int_eq(overlap.hidden, 40000);
}
END_TEST

START_TEST(events_with_impossible_times_are_left_out)
{
    /* What nobody looks at, one by one and together; then a kernel and an annotation as well. A
     * launch needs no length. */
    static const char *const others[] = {
        "{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"aten::add\",\"pid\":1,\"tid\":1,\"ts\":5,\"dur\":-3},",
        "{\"ph\":\"i\",\"name\":\"mark\",\"pid\":1,\"tid\":0,\"ts\":\"now\"},",
        "{\"ph\":\"C\",\"name\":\"mem\",\"pid\":1,\"tid\":0,\"ts\":9223372036854775807},",
        "{\"ph\":\"X\",\"name\":\"f\",\"pid\":1,\"tid\":1,\"ts\":5,\"dur\":\"long\"},"};
    static const char *const kept[] = {
        "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"pid\":0,\"tid\":7,\"ts\":300,\"dur\":-300},",
        "{\"ph\":\"X\",\"cat\":\"gpu_memcpy\",\"name\":\"k\",\"pid\":0,\"tid\":7,\"ts\":\"\",\"dur\":3},",
        "{\"ph\":\"X\",\"cat\":\"user_annotation\",\"name\":\"k\",\"pid\":0,\"tid\":7,\"ts\":9223372036854775,\"dur\":3},"};
    static const char rest[] = KERNEL("a", 7, 0, 100) KERNEL("nccl", 7, 50, 100) NO_KERNEL;
    char text[4096] = "[";
    dp_trace_about_t about = {.struct_size = sizeof(about)};
    dp_trace_overlap_t overlap;

    for (size_t k = 0; k < 4; k++) {
        char one[2048];

        snprintf(one, sizeof(one), "[%s%s", others[k], rest);
        overlap = overlap_of(one, NULL, &about);
        ck_assert_int_eq(overlap.span, 150000);
        ck_assert_int_eq(overlap.hidden, 50000);
        ck_assert_int_eq(about.broken, 1);
        ck_assert_int_eq(about.broken_records, 0);
        strcat(text, others[k]);
    }
    for (size_t k = 0; k < 3; k++)
        strcat(text, kept[k]);
    strcat(text, rest);
    overlap = overlap_of(text, NULL, &about);
    ck_assert_int_eq(overlap.span, 150000);
    ck_assert_int_eq(about.broken, 7);
    ck_assert_int_eq(about.broken_records, 3);
    ck_assert_int_eq(about.records, 2);
    ck_assert_int_eq(about.events, 10);
}
END_TEST

START_TEST(a_trace_of_impossible_times_alone_says_so)
{
    trace_text_t from = trace_text_of("[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"a\",\"ts\":1,\"dur\":-1}]");
    dp_trace_t *trace;

    ck_assert_int_eq(dp_trace_read(trace_text_read, &from, NULL, &trace), DP_ERR_REJECTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "; 1 left out, byte 1: it ends before"));
}
END_TEST

START_TEST(records_that_stand_out_are_counted)
{
    static const struct {
        const char *text, *name;
        int64_t strays;
    } cases[] = {
        {"[" KERNEL("a", 7, 900, 10) KERNEL("b", 7, 910, 10) KERNEL("c", 7, 920, 10) NO_KERNEL, "", 0},
        /* At 0, with less and with more before the others than these reach. */
        {"[" KERNEL("z", 7, 0, 1) KERNEL("a", 7, 30, 10) KERNEL("b", 7, 40, 10) KERNEL("c", 7, 50, 10) NO_KERNEL, "",
         0},
        {"[" KERNEL("z", 7, 0, 1) KERNEL("a", 7, 32, 10) KERNEL("b", 7, 42, 10) KERNEL("c", 7, 52, 10) NO_KERNEL, "z",
         1},
        {"[" KERNEL("z", 7, 0, 1) KERNEL("z", 8, 0, 0) KERNEL("a", 7, 900, 10) KERNEL("b", 7, 910, 10)
             KERNEL("c", 7, 920, 10) NO_KERNEL,
         "z", 2},
        /* As long as all others reach, longer, and two of them. */
        {"[" KERNEL("z", 8, 900, 30) KERNEL("a", 7, 900, 10) KERNEL("b", 7, 910, 10) KERNEL("c", 7, 920, 10) NO_KERNEL,
         "", 0},
        {"[" KERNEL("z", 8, 900, 31) KERNEL("a", 7, 900, 10) KERNEL("b", 7, 910, 10) KERNEL("c", 7, 920, 10) NO_KERNEL,
         "z", 1},
        {"[" KERNEL("y", 8, 905, 1000) KERNEL("z", 8, 900, 9000000) KERNEL("a", 7, 900, 10) KERNEL("b", 7, 910, 10)
             KERNEL("c", 7, 920, 10) NO_KERNEL,
         "z", 2},
        /* Of few records none stands out, and waits are as long as they are. */
        {"[" KERNEL("z", 8, 900, 9000) KERNEL("a", 7, 900, 10) KERNEL("b", 7, 910, 10) NO_KERNEL, "", 0},
        {"[" KERNEL("event_wait", 8, 900, 31) KERNEL("a", 7, 900, 10) KERNEL("b", 7, 910, 10) KERNEL("c", 7, 920, 10)
             NO_KERNEL,
         "", 0},
    };
    dp_trace_about_t about = {.struct_size = sizeof(about)};

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        dp_trace_overlap_t overlap = overlap_of(cases[k].text, NULL, &about);

        ck_assert_msg(overlap.strays == cases[k].strays, "%zu: %" PRId64, k, overlap.strays);
        ck_assert_str_eq(stray, cases[k].name);
    }
}
END_TEST

/* ---- other profilers ---- */

#define NAMED(what, pid, tid, name)                                                                                    \
    "{\"ph\":\"M\",\"name\":\"" what "\",\"pid\":" #pid ",\"tid\":" #tid ",\"args\":{\"name\":\"" name "\"}},"
#define BARE(name, pid, tid, ts, dur)                                                                                  \
    "{\"ph\":\"X\",\"name\":\"" name "\",\"pid\":" #pid ",\"tid\":" #tid ",\"ts\":\"" #ts "\",\"dur\":" #dur "},"

/* As torch_npu and msprof write them: no categories, times as text, names behind the events.
 * Counted are the streams, and of the communicator the operations, not the tasks within. */
#define ASCEND_EVENTS(p, q)                                                                                            \
    BARE("MatMulV2", p, 2, 1000.000, 100)                                                                              \
    BARE("EVENT_WAIT", p, 3, 1000.000, 200)                                                                            \
    BARE("Add", p, 3, 1200.000, 10)                                                                                    \
    BARE("allreduceAicpuKernel", q, 9, 1050.000, 100) BARE("Notify_Wait", q, 10, 1000.000, 400)
#define ASCEND_HOST                                                                                                    \
    BARE("aclnnMatmul", 5, 1, 500.000, 900)                                                                            \
    BARE("Computing", 6, 1, 1000.000, 100)                                                                             \
    NAMED("process_name", 5, 0, "CANN") NAMED("process_name", 6, 0, "Overlap Analysis")
#define ASCEND_NAMES(rank, p, q, comm)                                                                                 \
    NAMED("process_name", p, 0, rank "Ascend Hardware")                                                                \
    NAMED("process_name", q, 0, rank comm)                                                                             \
    NAMED("thread_name", p, 2, "Stream 2")                                                                             \
    NAMED("thread_name", q, 9, "Group 0 Communication") NAMED("thread_name", q, 10, "Plane 0")

static void check_ascend(const char *text, size_t ranks)
{
    dp_trace_t *trace = load_text(text);
    trace_detail_t overlap;

    ck_assert_int_eq(trace_detail_measure(trace, 5, &overlap), DP_OK);
    ck_assert_uint_eq(overlap.nranks, ranks);
    for (size_t r = 0; r < ranks; r++) {
        const dp__trace_overlap_figures_t *figures = &overlap.ranks[r].figures;

        ck_assert_int_eq(figures->end - figures->start, 210000);
        ck_assert_int_eq(figures->compute, 110000);
        ck_assert_int_eq(figures->comm, 100000);
        ck_assert_int_eq(figures->hidden, 50000);
        ck_assert_int_eq(figures->idle, 50000);
        ck_assert_uint_eq(overlap.ranks[r].nstreams, 3);
    }
    trace_detail_clear(&overlap);
    dp_trace_free(trace);
}

START_TEST(devices_of_ascend_are_found_by_name)
{
    check_ascend("[" ASCEND_EVENTS(3, 4) ASCEND_HOST ASCEND_NAMES("", 3, 4, "Communication") NO_KERNEL, 1);
    check_ascend("[" ASCEND_NAMES("", 3, 4, "HCCL") ASCEND_HOST ASCEND_EVENTS(3, 4) NO_KERNEL, 1);
    check_ascend("[" ASCEND_EVENTS(30, 40) ASCEND_EVENTS(31, 41) ASCEND_NAMES("rank 0: ", 30, 40, "Communication 4")
                     ASCEND_NAMES("rank 1: ", 31, 41, "Communication 4") NO_KERNEL,
                 2);
}
END_TEST

START_TEST(broken_records_of_ascend_are_of_a_device)
{
    dp_trace_about_t about = {.struct_size = sizeof(about)};

    (void)overlap_of("[" ASCEND_EVENTS(3, 4) BARE("MatMulV2", 3, 2, 1300.000, -5) BARE("aclnnMatmul", 5, 1, 500.000, -9)
                         BARE("Notify_Wait", 4, 10, 1000.000, -1) ASCEND_HOST ASCEND_NAMES("", 3, 4, "Communication")
                             NO_KERNEL,
                     NULL, &about);
    ck_assert_int_eq(about.broken, 3);
    ck_assert_int_eq(about.broken_records, 1);
}
END_TEST

/* What XLA derives from the streams ("XLA Ops") is the same time once more. */
#define XLA                                                                                                            \
    NAMED("process_name", 1, 0, "/device:GPU:0")                                                                       \
    NAMED("process_name", 9, 0, "/host:CPU")                                                                           \
    NAMED("thread_name", 1, 13, "Stream #13(Compute)")                                                                 \
    NAMED("thread_name", 1, 14, "Stream #14(Compute,MemcpyD2D)")                                                       \
    NAMED("thread_name", 1, 3, "XLA Ops")                                                                              \
    BARE("fusion_1", 1, 13, 10, 100)                                                                                   \
    BARE("module", 1, 3, 0, 900) BARE("ncclDevKernel_AllReduce", 1, 14, 60, 100) BARE("python", 9, 1, 0, 5000)

START_TEST(devices_of_xla_are_found_by_name)
{
    dp_trace_about_t about = {.struct_size = sizeof(about)};
    dp_trace_overlap_t overlap = overlap_of("[" XLA NO_KERNEL, NULL, &about);
    dp_trace_t *trace = load_text("[" XLA NO_KERNEL);

    ck_assert_str_eq(trace->ranks[0].label, "device 0");
    dp_trace_free(trace);
    ck_assert_int_eq(about.devices, 1);
    ck_assert_int_eq(about.records, 2);
    ck_assert_int_eq(overlap.span, 150000);
    ck_assert_int_eq(overlap.communication, 100000);
    ck_assert_int_eq(overlap.hidden, 50000);
}
END_TEST

START_TEST(devices_of_other_categories_can_be_given)
{
    static const char text[] = "[" NAMED("process_name", 1, 0, "/device:TPU:0") NAMED("thread_name", 1, 3, "XLA Ops")
        BARE("fusion", 1, 3, 10, 100) BARE(
            "module", 1, 2, 0,
            900) "{\"ph\":\"X\",\"cat\":\"hpu_op\",\"name\":\"gemm\",\"pid\":1,\"tid\":9,\"ts\":5,\"dur\":50},"
                 "{\"ph\":\"X\",\"cat\":\"mtia_ccp_events\",\"name\":\"fc\",\"pid\":1,\"tid\":9,\"ts\":105,\"dur\":50}," NO_KERNEL;
    static const struct {
        const char *devices;
        int64_t records, span;
    } cases[] = {{NULL, 1, 50000},
                 {"hpu_op", 2, 150000},
                 {"^/device:TPU:[0-9]+/XLA Ops$", 2, 145000},
                 {"(hpu_op)|(TPU:0/XLA)", 3, 150000}};
    dp_trace_options_t options = {.struct_size = sizeof(options)};
    dp_trace_about_t about = {.struct_size = sizeof(about)};

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        dp_trace_overlap_t overlap;

        options.devices = cases[k].devices;
        overlap = overlap_of(text, &options, &about);
        ck_assert_int_eq(about.records, cases[k].records);
        ck_assert_int_eq(overlap.span, cases[k].span);
    }
}
END_TEST

START_TEST(names_are_shortened_to_what_tells_them_apart)
{
    static const char *const pairs[][2] = {
        {"void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(dpsk::x)",
         "cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>"},
        {"void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::X>>(int)",
         "at::native::elementwise_kernel<at::native::gpu_kernel_impl>"},
        {"void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)", "dpsk::ep::internode::dispatch"},
        {"rotary_kernel", "rotary_kernel"},
        {"void (anonymous namespace)::k<1>(int)", "(anonymous namespace)::k"},
        {"Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"},
        {"<", ""},
        {"", ""}};
    char text[256];

    for (size_t k = 0; k < sizeof(pairs) / sizeof(pairs[0]); k++) {
        trace_short_name(pairs[k][0], text, sizeof(text));
        ck_assert_str_eq(text, pairs[k][1]);
    }
}
END_TEST

START_TEST(extreme_times_and_sizes_are_counted)
{
    dp_trace_t *trace =
        load_text("[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"a\",\"pid\":0,\"tid\":7,\"ts\":-2305843009213693,"
                  "\"dur\":"
                  "2305843009213693,\"args\":{\"grid\":[2147483647,2147483647,2147483647]}},"
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"b\",\"pid\":0,\"tid\":7,\"ts\":2305843009213693,"
                  "\"dur\":0,\"args\":{\"grid\":[],\"correlation\":99999999999,\"stream\":\"x\"}},"
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"nccl\",\"pid\":0,\"tid\":\"7\",\"ts\":0,\"dur\":1}]");
    trace_detail_t overlap;

    ck_assert_int_eq(trace_detail_measure(trace, 5, &overlap), DP_OK);
    ck_assert_int_eq(overlap.ranks[0].figures.end - overlap.ranks[0].figures.start, 4611686018427386000);
    ck_assert_int_eq(overlap.ranks[0].figures.comm, 1000);
    trace_detail_clear(&overlap);
    dp_trace_free(trace);
}
END_TEST

START_TEST(what_is_no_trace_is_refused)
{
    static const char *const texts[] = {"{}",
                                        "[]",
                                        "{\"traceEvents\":{}}",
                                        "{\"traceEvents\":[]}",
                                        "3",
                                        "[1]",
                                        "[{\"ph\":\"X\",\"cat\":\"kernel\",\"ts\":\"x\"}]",
                                        "[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"a\",\"ts\":1,\"dur\":-1}]",
                                        "[{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"a\",\"ts\":1,\"dur\":1}]"};
    dp_trace_options_t options = {.struct_size = sizeof(options), .most_bytes = 0};

    for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++) {
        trace_text_t from = trace_text_of(texts[k]);
        dp_trace_t *trace;

        ck_assert_msg(dp_trace_read(trace_text_read, &from, &options, &trace) == DP_ERR_REJECTED, "%s", texts[k]);
        dp_trace_free(trace);
    }
}
END_TEST

START_TEST(memory_is_bounded)
{
    dp_trace_options_t options = {.struct_size = sizeof(options), .most_bytes = 1 << 20};
    size_t room = 8 << 20, n = 1;
    char *text = malloc(room);
    trace_text_t from;
    dp_trace_t *trace;

    ck_assert_ptr_nonnull(text);
    text[0] = '[';
    for (int k = 0; n + 256 < room; k++)
        n += (size_t)sprintf(
            text + n, "%s{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k%d\",\"pid\":0,\"tid\":7,\"ts\":%d,\"dur\":1}",
            k > 0 ? "," : "", k, k);
    strcpy(text + n, "]");
    from = trace_text_of(text);
    ck_assert_int_eq(dp_trace_read(trace_text_read, &from, &options, &trace), DP_ERR_OVERFLOW);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "--memory"));
    dp_trace_free(trace);
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace_overlap");

#ifdef HAVE_ZLIB
    SUITE_ADD(suite, published_profile_has_its_figures);
    SUITE_ADD(suite, published_profile_has_its_annotations);
#else
    puts("built without zlib: the published profile is not read");
#endif
    SUITE_ADD(suite, random_traces_are_counted_instant_by_instant);
    SUITE_ADD(suite, kernels_belong_to_the_annotation_that_launched_them);
    SUITE_ADD(suite, devices_without_a_number_have_none);
    SUITE_ADD(suite, gaps_know_their_neighbours);
    SUITE_ADD(suite, communication_is_known_by_name);
    SUITE_ADD(suite, tasks_of_ascend_are_known_by_type);
    SUITE_ADD(suite, names_of_unknown_libraries_resemble_communication);
    SUITE_ADD(suite, computation_named_like_communication_is_counted);
    SUITE_ADD(suite, events_with_impossible_times_are_left_out);
    SUITE_ADD(suite, a_trace_of_impossible_times_alone_says_so);
    SUITE_ADD(suite, records_that_stand_out_are_counted);
    SUITE_ADD(suite, devices_of_ascend_are_found_by_name);
    SUITE_ADD(suite, broken_records_of_ascend_are_of_a_device);
    SUITE_ADD(suite, devices_of_xla_are_found_by_name);
    SUITE_ADD(suite, devices_of_other_categories_can_be_given);
    SUITE_ADD(suite, names_are_shortened_to_what_tells_them_apart);
    SUITE_ADD(suite, extreme_times_and_sizes_are_counted);
    SUITE_ADD(suite, what_is_no_trace_is_refused);
    SUITE_ADD(suite, memory_is_bounded);
    return suite_run(suite);
}
