/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kinds.cuh: the kernels of CUTLASS for each kind of product: groups by arrays of pointers, TMA,
 * one producer and two consumer warpgroups on a tile of 128 x 256. Two blocks with tiles below each
 * other load B once, as a cluster, where groups have rows enough to fill both. */
#ifndef MOE_CUDA_CUTLASS_KINDS_CUH
#define MOE_CUDA_CUTLASS_KINDS_CUH

#include "../kernels.h"

#include <cutlass/cutlass.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/version.h>

typedef cutlass::layout::RowMajor by_rows;
typedef cutlass::layout::ColumnMajor by_columns;

/* The two parts of a sum as one K: the loads of the second half begin with the first step again, in
 * rows further on of the same two matrices. Their maps have all those rows and the columns of one
 * part, so that what is behind its columns is read as zero. */
template <typename Mainloop> struct two_parts : Mainloop {
    struct Arguments : Mainloop::Arguments {
        const moe_cutlass_second_t *second;
    };
    struct Params : Mainloop::Params {
        const moe_cutlass_second_t *second;
    };

    template <typename Problem>
    static Params to_underlying_arguments(Problem problem, Arguments const &arguments, void *workspace)
    {
        return {Mainloop::to_underlying_arguments(problem, arguments, workspace), arguments.second};
    }

    template <typename Shape> CUTLASS_DEVICE auto load_init(Shape const &shape, Params const &params) const
    {
        const auto first = Mainloop::load_init(shape, params);
        const auto a = params.tma_load_a.get_tma_tensor(cute::make_shape(cute::get<0>(shape), cute::get<2>(shape), 1));
        const auto b = params.tma_load_b.get_tma_tensor(cute::make_shape(cute::get<1>(shape), cute::get<2>(shape), 1));
        const auto all = cute::make_coord(cute::_, cute::_, cute::_);
        using tile = typename Mainloop::TileShape;

        return cute::make_tuple(cute::get<0>(first), cute::get<1>(first),
                                cute::local_tile(cute::domain_offset(cute::make_coord(params.second->a_rows, 0, 0), a),
                                                 tile{}, all, cute::Step<cute::_1, cute::X, cute::_1>{}),
                                cute::local_tile(cute::domain_offset(cute::make_coord(params.second->b_rows, 0, 0), b),
                                                 tile{}, all, cute::Step<cute::X, cute::_1, cute::_1>{}));
    }

    template <typename Inputs, typename Maps, typename Tile, typename Steps>
    CUTLASS_DEVICE void load(Params const &params, typename Mainloop::MainloopPipeline pipeline,
                             typename Mainloop::PipelineState stage, Inputs const &inputs, Maps const &maps,
                             Tile const &tile, Steps steps, int count, int thread, uint32_t block,
                             typename Mainloop::TensorStorage &shared)
    {
        Mainloop::load(params, pipeline, stage, cute::make_tuple(cute::get<0>(inputs), cute::get<1>(inputs)), maps,
                       tile, steps, count / 2, thread, block, shared);
        stage.advance(count / 2);
        Mainloop::load(params, pipeline, stage, cute::make_tuple(cute::get<2>(inputs), cute::get<3>(inputs)), maps,
                       tile, steps, count / 2, thread, block, shared);
    }

    template <typename Maps, typename Shape>
    CUTLASS_DEVICE void tensormaps_perform_update(typename Mainloop::TensorMapStorage &shared, Params const &params,
                                                  Maps const &maps, Shape shape, int32_t group)
    {
        const moe_cutlass_second_t second = *params.second;

        Mainloop::tensormaps_perform_update(
            shared, params, maps,
            cute::make_shape(cute::get<0>(shape) + second.a_rows, cute::get<1>(shape) + second.b_rows, second.k, 1),
            group);
    }
};

template <typename Mainloop> using one_part = Mainloop;

template <typename LayoutA, typename LayoutB, typename Out, template <typename> class Parts, int Blocks>
struct product {
    using tile = cute::Shape<cute::_128, cute::_256, cute::_64>;
    using cluster = cute::Shape<cute::Int<Blocks>, cute::_1, cute::_1>;
    using bf16 = cutlass::bfloat16_t;
    using problem = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
    using epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, tile, cluster,
        cutlass::epilogue::collective::EpilogueTileAuto, float, float, Out, by_rows *, 16 / sizeof(Out), Out, by_rows *,
        16 / sizeof(Out), cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative,
        cutlass::epilogue::fusion::LinearCombination<Out, float>>::CollectiveOp;
    using mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, bf16, LayoutA *, 8, bf16, LayoutB *, 8, float, tile,
        cluster, cutlass::gemm::collective::StageCountAutoCarveout<(int)sizeof(typename epilogue::SharedStorage)>,
        cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>::CollectiveOp;
    using kernel = cutlass::gemm::kernel::GemmUniversal<problem, Parts<mainloop>, epilogue>;
};

using kind_nn = product<by_rows, by_rows, cutlass::bfloat16_t, one_part, 1>::kernel;
using kind_nt = product<by_rows, by_columns, cutlass::bfloat16_t, one_part, 1>::kernel;
using kind_nt_pair = product<by_rows, by_columns, cutlass::bfloat16_t, two_parts, 1>::kernel;
using kind_tn = product<by_columns, by_rows, float, one_part, 1>::kernel;
using kind_nn_two = product<by_rows, by_rows, cutlass::bfloat16_t, one_part, 2>::kernel;
using kind_nt_two = product<by_rows, by_columns, cutlass::bfloat16_t, one_part, 2>::kernel;
using kind_nt_pair_two = product<by_rows, by_columns, cutlass::bfloat16_t, two_parts, 2>::kernel;

#endif
