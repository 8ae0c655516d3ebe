# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
AC_DEFUN([DP_PLUGIN_ATTENTION_CUDNN_CONFIGURE], [
    AS_IF([test "x$have_cudnn" = xyes && test "x$have_cublaslt" = xyes], [$1], [
        dp_plugin_wants="the CUDA toolkit with cuBLAS, and cuDNN 9"
        $2
    ])
])
