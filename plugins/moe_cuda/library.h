/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * library.h: the experts' products through cuBLASLt's grouped layouts (13.4 or later), bf16. */
#ifndef MOE_CUDA_LIBRARY_H
#define MOE_CUDA_LIBRARY_H

#include "moe_cuda.h"

/* Finds cuBLASLt and how it makes each product of the experts; each runs once on no rows, so that no step waits for a
   kernel that is loaded. DP_ERR_UNSUPPORTED: there is none, or it is too old. */
dp_status_t moe_library_open(dp_moe_t *moe);
void moe_library_close(dp_moe_t *moe);
/* Whether a product of this form is one of those. */
bool moe_library_knows(const dp_moe_t *moe, moe_form_t form, const moe_product_t *product);
dp_status_t moe_library_multiply(dp_moe_t *moe, moe_form_t form, const moe_product_t *product, CUstream s);

#endif
