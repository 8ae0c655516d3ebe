# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# Libraries that plugins are made of. Each macro sets have_X and never stops configure.

# DP_CBLAS: sets have_cblas, CBLAS_CFLAGS, CBLAS_LIBS. OpenBLAS by pkg-config, else any CBLAS the linker finds.
AC_DEFUN([DP_CBLAS], [
    PKG_CHECK_MODULES([CBLAS], [openblas], [have_cblas=yes; cblas_from=OpenBLAS], [
        have_cblas=no
        dp_saved_LIBS=$LIBS
        AC_CHECK_HEADER([cblas.h], [
            AC_SEARCH_LIBS([cblas_dgemm], [cblas openblas blas], [have_cblas=yes])
        ])
        AS_IF([test "x$have_cblas" = xyes], [
            CBLAS_LIBS=
            AS_CASE([$ac_cv_search_cblas_dgemm], [-l*], [CBLAS_LIBS=$ac_cv_search_cblas_dgemm])
            cblas_from=${CBLAS_LIBS:-"the C library"}
        ])
        LIBS=$dp_saved_LIBS
    ])
    AC_SUBST([CBLAS_CFLAGS])
    AC_SUBST([CBLAS_LIBS])
])

# DP_CUDA: sets have_cuda, have_nccl, have_cudnn and NVCC. --without-cuda skips the search.
AC_DEFUN([DP_CUDA], [
    AC_ARG_WITH([cuda],
        [AS_HELP_STRING([--with-cuda=DIR], [where the CUDA toolkit is; --without-cuda does not look for it])],
        [], [with_cuda=auto])
    have_cuda=no have_nccl=no have_cudnn=no NVCC=
    AS_CASE([$with_cuda],
        [no], [],
        [auto|yes], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin])],
        [AC_PATH_PROG([NVCC], [nvcc], [], [$with_cuda/bin])])
    AS_IF([test -n "$NVCC"], [
        have_cuda=yes
        dp_cuda_home=`dirname "\`dirname "$NVCC"\`"`
        dp_saved_CPPFLAGS=$CPPFLAGS
        CPPFLAGS="$CPPFLAGS -I$dp_cuda_home/include"
        AC_CHECK_HEADER([nccl.h], [have_nccl=yes])
        AC_CHECK_HEADER([cudnn.h], [have_cudnn=yes])
        CPPFLAGS=$dp_saved_CPPFLAGS
    ], [
        AS_IF([test "x$with_cuda" != xauto && test "x$with_cuda" != xno],
            [AC_MSG_ERROR([--with-cuda=$with_cuda was asked for, but nvcc is not there])])
    ])
])

# DP_MPI: sets have_mpi and MPICC.
AC_DEFUN([DP_MPI], [
    AC_ARG_WITH([mpi], [AS_HELP_STRING([--without-mpi], [do not look for MPI])], [], [with_mpi=auto])
    have_mpi=no MPICC=
    AS_IF([test "x$with_mpi" != xno], [AC_PATH_PROG([MPICC], [mpicc])])
    AS_IF([test -n "$MPICC"], [have_mpi=yes], [
        AS_IF([test "x$with_mpi" = xyes], [AC_MSG_ERROR([--with-mpi was asked for, but mpicc is not there])])
    ])
])
