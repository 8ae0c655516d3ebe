# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# Record layouts of CUPTI change with the toolkit: ours are those of CUDA 13.
AC_DEFUN([DP_PLUGIN_HOOK_CUPTI_CONFIGURE], [
    have_cupti=no
    AS_IF([test "x$have_cuda" = xyes], [
        dp_saved_CPPFLAGS=$CPPFLAGS
        CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
        AC_CHECK_TYPE([CUpti_ActivityKernel10], [AC_CHECK_HEADER([nvtx3/nvToolsExt.h], [have_cupti=yes])], [],
            [[#include <cupti.h>]])
        CPPFLAGS=$dp_saved_CPPFLAGS
    ])
    AS_IF([test "x$have_cupti" = xyes], [$1], [
        dp_plugin_wants="the headers of CUPTI and NVTX of CUDA 13"
        $2
    ])
])
