# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
AC_DEFUN([DP_PLUGIN_ATTENTION_CUDA_CONFIGURE], [
    AS_IF([test "x$have_cublaslt" = xyes], [$1], [
        dp_plugin_wants="the CUDA toolkit with cuBLAS"
        $2
    ])
])
