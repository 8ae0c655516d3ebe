# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT

# DP_SUMMARY: what this configuration builds, and what would have to be there for the rest.
AC_DEFUN([DP_SUMMARY], [
    dp_found() { # VALUE PACKAGE
        AS_IF([test "x@S|@1" = xyes], [printf 'found'], [printf 'missing (Debian: %s)' "@S|@2"])
    }
    dp_later() { # VALUE
        AS_IF([test "x@S|@1" = xyes], [printf 'found'], [printf 'missing'])
    }
    cat <<_DP_EOF

$PACKAGE_STRING
  compiler       $CC ($CFLAGS) $DP_CFLAGS
  installs to    $prefix

  libraries      libdualplan.a libdualpipe.a`AS_IF([test "x$dp_shared" != xno], [printf ' libdualpipe.so'])`
  plugins       ${dp_summary_plugins:- none}
  not built     ${dp_summary_without:- (nothing is missing)}

  CBLAS          `dp_found $have_cblas libopenblas-dev`, for attention_cpu and moe_cpu${cblas_from:+, from $cblas_from}
  cairo          `dp_found $have_cairo libcairo2-dev`, for tests that read our pictures with it
  jansson        `dp_found $have_jansson libjansson-dev`, for tests that read our JSON with it
  zlib           `dp_found $have_zlib zlib1g-dev`, for reading gzip traces with the dualpipe command
  libfabric      `dp_found $have_ofi libfabric-dev`, for comm_ofi
  WebAssembly    `dp_found $have_wasm "clang lld wasi-libc libclang-rt-dev-wasm32"`, for the page of dualpipe explore
  Check          `dp_found $have_check check`, for make check

  CUDA           `dp_later $have_cuda` (toolkit 12.4 or later), for plugins on NVIDIA GPUs
  cuBLASLt       `dp_later $have_cublaslt`, for attention_cuda and attention_cudnn
  CUTLASS        `dp_later $have_cutlass` (4.2 or later), for a way of moe_cuda to multiply
  cuDNN          `dp_later $have_cudnn`, for attention_cudnn
  NCCL           `dp_later $have_nccl`, for comm_nccl
  MPI            `dp_later $have_mpi`${MPI:+ ($MPI)}, for comm_mpi

Next: make && make check

_DP_EOF
])
