# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# moe_cuda has kernels of its own; cuBLASLt's header is for the padded way of multiplying.
AC_DEFUN([DP_PLUGIN_MOE_CUDA_CONFIGURE], [
    AS_IF([test "x$have_cublaslt" = xyes], [$1], [
        dp_plugin_wants="the CUDA toolkit with cuBLAS"
        $2
    ])
])
