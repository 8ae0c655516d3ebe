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

# DP_CUDA: sets have_cuda, have_cublaslt, have_cutlass, have_nccl, have_cudnn, NVCC, CUDA_CPPFLAGS and the conditional HAVE_CUDA. CUDA is found when nvcc
# and cuda.h are; libraries are opened at run time. --without-cuda skips the search.
AC_DEFUN([DP_CUDA], [
    AC_ARG_WITH([cuda],
        [AS_HELP_STRING([--with-cuda=DIR], [where the CUDA toolkit (12.4 or later) is; --without-cuda does not look for it])],
        [], [with_cuda=auto])
    AC_ARG_WITH([cutlass],
        [AS_HELP_STRING([--with-cutlass=DIR], [where CUTLASS (4.2 or later) is: a folder with cutlass/cutlass.h, with include/, or with a nvidia-cutlass of PyPI @<:@the compiler's own places@:>@])],
        [], [with_cutlass=auto])
    have_cuda=no have_cublaslt=no have_cutlass=no have_nccl=no have_cudnn=no NVCC= CUDA_CPPFLAGS= CUTLASS_CPPFLAGS=
    AS_CASE([$with_cuda],
        [no], [],
        [auto|yes], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin])],
        [AC_PATH_PROG([NVCC], [nvcc], [], [$with_cuda/bin])])
    AS_IF([test -n "$NVCC"], [
        dp_cuda_home=`dirname "\`dirname "$NVCC"\`"`
        dp_saved_CPPFLAGS=$CPPFLAGS
        AS_IF([test -f "$dp_cuda_home/include/cuda.h"], [CUDA_CPPFLAGS="-isystem $dp_cuda_home/include"])
        CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
        AC_CHECK_HEADER([cuda.h], [AC_PREPROC_IFELSE([AC_LANG_SOURCE([
#include <cuda.h>
#if CUDA_VERSION < 12040
#error too old
#endif
            ])], [have_cuda=yes], [AC_MSG_WARN([the CUDA toolkit of $NVCC is older than 12.4: left out])])])
        AC_CHECK_HEADER([cublasLt.h], [have_cublaslt=$have_cuda])
        AC_CHECK_HEADER([nccl.h], [have_nccl=yes])
        AC_CHECK_HEADER([cudnn.h], [have_cudnn=yes])
        CPPFLAGS=$dp_saved_CPPFLAGS
        AS_IF([test "x$have_cuda" = xyes && test "x$with_cutlass" != xno], [
            AC_MSG_CHECKING([for CUTLASS, 4.2 or later])
            AS_CASE([$with_cutlass], [auto|yes], [dp_places="$dp_cuda_home/include /usr/local/include /usr/include"],
                [dp_places="$with_cutlass/include $with_cutlass $with_cutlass/cutlass_library/source/include"])
            for dp_place in $dp_places; do
                dp_version=`awk '@S|@2 == "CUTLASS_MAJOR" { v += 100 * @S|@3 } @S|@2 == "CUTLASS_MINOR" { v += @S|@3 } END { print v + 0 }' \
                    "$dp_place/cutlass/version.h" 2>/dev/null`
                AS_IF([test "0$dp_version" -ge 402], [have_cutlass=yes CUTLASS_CPPFLAGS="-isystem $dp_place"; break])
            done
            AC_MSG_RESULT([$have_cutlass])
        ])
        AS_IF([test "x$have_cuda" = xno && test "x$with_cuda" != xauto],
            [AC_MSG_ERROR([--with-cuda=$with_cuda was asked for, but its cuda.h is missing or too old])])
    ], [
        AS_IF([test "x$with_cuda" != xauto && test "x$with_cuda" != xno],
            [AC_MSG_ERROR([--with-cuda=$with_cuda was asked for, but nvcc is not there])])
    ])
    AS_CASE([$with_cutlass:$have_cutlass], [auto:*|no:*|*:yes], [],
        [AC_MSG_ERROR([--with-cutlass=$with_cutlass was asked for, but there is no CUTLASS of 4.2 or later, or no CUDA])])
    AC_SUBST([CUDA_CPPFLAGS])
    AM_CONDITIONAL([HAVE_CUDA], [test "x$have_cuda" = xyes])
    AC_SUBST([CUTLASS_CPPFLAGS])
    AM_CONDITIONAL([HAVE_CUBLASLT], [test "x$have_cublaslt" = xyes])
    AM_CONDITIONAL([HAVE_CUTLASS], [test "x$have_cutlass" = xyes])
])

# DP_OFI: sets have_ofi, OFI_CFLAGS and OFI_LIBS.
AC_DEFUN([DP_OFI], [
    PKG_CHECK_MODULES([OFI], [libfabric >= 1.14], [have_ofi=yes], [have_ofi=no])
])

# DP_MPI: sets have_mpi, MPI (ompi or mpich, as pkg-config calls them), MPI_CFLAGS, MPI_LIBS, MPICC and MPIRUN; the same of the other
# one, where both are there, as OTHER_MPI...: the tests try it as well.
AC_DEFUN([DP_MPI], [
    AC_ARG_WITH([mpi],
        [AS_HELP_STRING([--with-mpi=ompi|mpich], [the MPI of comm_mpi, by its name for pkg-config @<:@the first that is there@:>@; --without-mpi looks for none])],
        [], [with_mpi=auto])
    AS_CASE([$with_mpi], [auto|yes|no|ompi|mpich], [], [AC_MSG_ERROR([--with-mpi=$with_mpi: the value must be ompi or mpich])])
    have_ompi=no have_mpich=no MPI= OTHER_MPI=
    AS_IF([test "x$with_mpi" != xno], [
        PKG_CHECK_MODULES([OMPI], [ompi], [have_ompi=yes], [:])
        PKG_CHECK_MODULES([MPICH], [mpich], [have_mpich=yes], [:])
        AC_PATH_PROGS([OMPICC], [mpicc.openmpi mpicc])
        AC_PATH_PROGS([MPICHCC], [mpicc.mpich mpicc])
        AC_PATH_PROGS([OMPIRUN], [mpirun.openmpi mpirun])
        AC_PATH_PROGS([MPICHRUN], [mpirun.mpich mpiexec.hydra mpirun])
    ])
    AS_IF([test "x$have_ompi" = xyes && test "x$with_mpi" != xmpich], [
        MPI=ompi MPI_CFLAGS=$OMPI_CFLAGS MPI_LIBS=$OMPI_LIBS MPICC=$OMPICC MPIRUN=$OMPIRUN
    ], [test "x$have_mpich" = xyes && test "x$with_mpi" != xompi], [
        MPI=mpich MPI_CFLAGS=$MPICH_CFLAGS MPI_LIBS=$MPICH_LIBS MPICC=$MPICHCC MPIRUN=$MPICHRUN
    ], [test "x$with_mpi" != xauto && test "x$with_mpi" != xno], [
        AC_MSG_ERROR([--with-mpi=$with_mpi was asked for, but pkg-config does not know it])
    ])
    AS_IF([test "x$have_ompi$have_mpich" = xyesyes], [
        AS_IF([test "x$MPI" = xompi], [
            OTHER_MPI=mpich OTHER_MPI_CFLAGS=$MPICH_CFLAGS OTHER_MPI_LIBS=$MPICH_LIBS OTHER_MPIRUN=$MPICHRUN
        ], [
            OTHER_MPI=ompi OTHER_MPI_CFLAGS=$OMPI_CFLAGS OTHER_MPI_LIBS=$OMPI_LIBS OTHER_MPIRUN=$OMPIRUN
        ])
    ])
    AS_IF([test -n "$MPI"], [have_mpi=yes], [have_mpi=no])
    m4_foreach_w([dp_variable],
        [MPI MPI_CFLAGS MPI_LIBS MPICC MPIRUN OTHER_MPI OTHER_MPI_CFLAGS OTHER_MPI_LIBS OTHER_MPIRUN],
        [AC_SUBST(dp_variable)])
    AM_CONDITIONAL([HAVE_MPI], [test -n "$MPI" && test -n "$MPICC"])
    AM_CONDITIONAL([HAVE_OTHER_MPI], [test -n "$OTHER_MPI"])
])

# DP_WASM: sets have_wasm, and WASM_CC: a compiler that links programs for wasm32-wasi, for the page of dualpipe explore.
AC_DEFUN([DP_WASM], [
    AC_ARG_VAR([WASM_CC], [compiler for wasm32-wasi, for the explorer @<:@clang --target=wasm32-wasi@:>@])
    : ${WASM_CC="clang --target=wasm32-wasi"}
    AC_MSG_CHECKING([whether $WASM_CC links])
    echo 'int main(void) { return 0; }' >conftest.c
    AS_IF([$WASM_CC -o conftest.wasm conftest.c >/dev/null 2>&1], [have_wasm=yes], [have_wasm=no])
    rm -f conftest.c conftest.wasm
    AC_MSG_RESULT([$have_wasm])
    AM_CONDITIONAL([HAVE_WASM], [test "x$have_wasm" = xyes])
])
