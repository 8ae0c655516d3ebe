/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * boundary.c: where several tensors lie that cross from part to part together. */
#include "base/memory.h"
#include "stage/dtype.h"

#include <dualpipe/stage.h>

/* rows are multiples of this, so that every tensor of every length is as aligned as the first */
enum { ROW = 16 };

dp_status_t dp_boundary_offsets(const dp_boundary_tensor_t *tensors, int32_t count, uint32_t tokens,
                                size_t *offsets_out, size_t *bytes_out)
{
    size_t at = 0, bytes;

    if (bytes_out == NULL || (tensors == NULL && count > 0))
        return dp_fail(DP_ERR_INVALID, "dp_boundary_offsets: tensors and bytes_out must not be NULL");
    for (int32_t i = 0; i < count; i++) {
        const size_t row = tensors[i].width * dp_dtype_bytes(tensors[i].dtype);

        if (row == 0 || row % ROW != 0)
            return dp_fail(DP_ERR_INVALID,
                           "dp_boundary_offsets: tensor %d (%s) has rows of %u elements of %s, %zu bytes: they must be "
                           "multiples of %d bytes",
                           i, tensors[i].name != NULL ? tensors[i].name : "", tensors[i].width,
                           dp__dtype_name(tensors[i].dtype), row, ROW);
        if (offsets_out != NULL)
            offsets_out[i] = at;
        if (!dp__mul(row, tokens, &bytes) || !dp__add(at, bytes, &at))
            return dp_fail(DP_ERR_INVALID, "dp_boundary_offsets: tensor %d (%s) with %u tokens does not fit memory", i,
                           tensors[i].name != NULL ? tensors[i].name : "", tokens);
    }
    *bytes_out = at;
    return DP_OK;
}
