/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * tensor_map.c: descriptions of matrices for copies by hardware, refused where the driver's manual
 * says so. */
#include "fake.h"

#include <string.h>

#define MOST_BOX  256
#define MOST_STEP 8

static cuuint32_t bytes_of(CUtensorMapDataType type)
{
    switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
        return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
        return 2;
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
        return 8;
    default:
        return 4;
    }
}

/* Most bytes of the inner side of a box; 0: any. */
static cuuint32_t span(CUtensorMapSwizzle swizzle)
{
    return swizzle == CU_TENSOR_MAP_SWIZZLE_NONE  ? 0
           : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32
           : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                  : 128;
}

FAKE_EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                            const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                            const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                            CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                            CUtensorMapFloatOOBfill fill)
{
    const cuuint32_t bytes = bytes_of(type);

    ENTER(cuTensorMapEncodeTiled);
    (void)promotion;
    (void)fill;
    if (map == NULL || (uintptr_t)map % 64 != 0 || rank < 1 || rank > 5 || address == NULL ||
        (uintptr_t)address % 16 != 0 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < rank; i++)
        if (sizes[i] == 0 || sizes[i] > (cuuint64_t)1 << 32 || box[i] == 0 || box[i] > MOST_BOX ||
            element_strides[i] == 0 || element_strides[i] > MOST_STEP)
            return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i + 1 < rank; i++)
        if (strides[i] % 16 != 0 || strides[i] >= (cuuint64_t)1 << 40)
            return CUDA_ERROR_INVALID_VALUE;
    if (box[0] * bytes % 16 != 0 || (span(swizzle) != 0 && box[0] * bytes > span(swizzle)))
        return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0x5a, sizeof(*map));
    return CUDA_SUCCESS;
}
