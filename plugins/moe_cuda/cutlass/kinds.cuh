/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kinds.cuh: the kernels of CUTLASS for each kind of product: groups by arrays of pointers, TMA,
 * one producer and two consumer warpgroups on a tile of 128 x 256, no clusters, so that any number
 * of multiprocessors will do. */
#ifndef MOE_CUDA_CUTLASS_KINDS_CUH
#define MOE_CUDA_CUTLASS_KINDS_CUH

#include <cutlass/cutlass.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/version.h>

typedef cutlass::layout::RowMajor by_rows;
typedef cutlass::layout::ColumnMajor by_columns;

template <typename LayoutA, typename LayoutB, typename Out> struct product {
    using tile = cute::Shape<cute::_128, cute::_256, cute::_64>;
    using alone = cute::Shape<cute::_1, cute::_1, cute::_1>;
    using bf16 = cutlass::bfloat16_t;
    using problem = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
    using epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, tile, alone,
        cutlass::epilogue::collective::EpilogueTileAuto, float, float, Out, by_rows *, 16 / sizeof(Out), Out, by_rows *,
        16 / sizeof(Out), cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative,
        cutlass::epilogue::fusion::LinearCombination<Out, float>>::CollectiveOp;
    using mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, bf16, LayoutA *, 8, bf16, LayoutB *, 8, float, tile, alone,
        cutlass::gemm::collective::StageCountAutoCarveout<(int)sizeof(typename epilogue::SharedStorage)>,
        cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>::CollectiveOp;
    using kernel = cutlass::gemm::kernel::GemmUniversal<problem, mainloop, epilogue>;
};

using kind_nn = product<by_rows, by_rows, cutlass::bfloat16_t>::kernel;
using kind_nt = product<by_rows, by_columns, cutlass::bfloat16_t>::kernel;
using kind_nt_sums = product<by_rows, by_columns, float>::kernel;
using kind_tn = product<by_columns, by_rows, float>::kernel;

#endif
