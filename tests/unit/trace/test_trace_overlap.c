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
    regfree(&regex);
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
    SUITE_ADD(suite, names_are_shortened_to_what_tells_them_apart);
    SUITE_ADD(suite, extreme_times_and_sizes_are_counted);
    SUITE_ADD(suite, what_is_no_trace_is_refused);
    SUITE_ADD(suite, memory_is_bounded);
    return suite_run(suite);
}
