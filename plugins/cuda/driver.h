/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * driver.h: the CUDA driver as a table of functions that is filled when the first CUDA plugin
 * opens. Nothing is linked with libcuda: a plugin loads, and says what it misses, on machines
 * without a driver.
 *
 * DUALPIPE_DEBUG=lib.cuda=FILE names another library than libcuda.so.1 (a path, or a name that
 * dlopen finds). */
#ifndef PLUGINS_CUDA_DRIVER_H
#define PLUGINS_CUDA_DRIVER_H

#include <cuda.h>

#include <dualpipe/plugin.h>

/* Functions that must be there. cuda.h maps names to versions (cuMemAlloc is cuMemAlloc_v2):
 * members and symbols follow. */
#define CUDA_REQUIRED(X)                                                                                               \
    X(cuInit)                                                                                                          \
    X(cuDriverGetVersion)                                                                                              \
    X(cuGetErrorString)                                                                                                \
    X(cuDeviceGet)                                                                                                     \
    X(cuDeviceGetCount)                                                                                                \
    X(cuDeviceGetName)                                                                                                 \
    X(cuDeviceGetAttribute)                                                                                            \
    X(cuDeviceCanAccessPeer)                                                                                           \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuDevicePrimaryCtxRelease)                                                                                       \
    X(cuCtxSetCurrent)                                                                                                 \
    X(cuCtxGetCurrent)                                                                                                 \
    X(cuCtxGetDevice)                                                                                                  \
    X(cuCtxSynchronize)                                                                                                \
    X(cuCtxGetStreamPriorityRange)                                                                                     \
    X(cuCtxEnablePeerAccess)                                                                                           \
    X(cuMemAlloc)                                                                                                      \
    X(cuMemFree)                                                                                                       \
    X(cuMemGetAddressRange)                                                                                            \
    X(cuPointerGetAttribute)                                                                                           \
    X(cuMemHostAlloc)                                                                                                  \
    X(cuMemFreeHost)                                                                                                   \
    X(cuMemHostGetDevicePointer)                                                                                       \
    X(cuMemcpyHtoD)                                                                                                    \
    X(cuMemcpyDtoH)                                                                                                    \
    X(cuMemcpyAsync)                                                                                                   \
    X(cuMemcpyHtoDAsync)                                                                                               \
    X(cuMemcpyDtoHAsync)                                                                                               \
    X(cuMemcpyDtoDAsync)                                                                                               \
    X(cuMemsetD8)                                                                                                      \
    X(cuMemsetD8Async)                                                                                                 \
    X(cuMemsetD32Async)                                                                                                \
    X(cuIpcGetMemHandle)                                                                                               \
    X(cuIpcOpenMemHandle)                                                                                              \
    X(cuIpcCloseMemHandle)                                                                                             \
    X(cuMemGetAllocationGranularity)                                                                                   \
    X(cuMemCreate)                                                                                                     \
    X(cuMemRelease)                                                                                                    \
    X(cuMemAddressReserve)                                                                                             \
    X(cuMemAddressFree)                                                                                                \
    X(cuMemMap)                                                                                                        \
    X(cuMemUnmap)                                                                                                      \
    X(cuMemSetAccess)                                                                                                  \
    X(cuMemExportToShareableHandle)                                                                                    \
    X(cuMemImportFromShareableHandle)                                                                                  \
    X(cuStreamCreateWithPriority)                                                                                      \
    X(cuStreamDestroy)                                                                                                 \
    X(cuStreamSynchronize)                                                                                             \
    X(cuStreamQuery)                                                                                                   \
    X(cuStreamWaitEvent)                                                                                               \
    X(cuStreamWaitValue32)                                                                                             \
    X(cuStreamWriteValue32)                                                                                            \
    X(cuStreamBatchMemOp)                                                                                              \
    X(cuStreamIsCapturing)                                                                                             \
    X(cuStreamBeginCapture)                                                                                            \
    X(cuStreamEndCapture)                                                                                              \
    X(cuLaunchHostFunc)                                                                                                \
    X(cuEventCreate)                                                                                                   \
    X(cuEventDestroy)                                                                                                  \
    X(cuEventRecord)                                                                                                   \
    X(cuEventQuery)                                                                                                    \
    X(cuEventSynchronize)                                                                                              \
    X(cuEventElapsedTime)                                                                                              \
    X(cuModuleLoadDataEx)                                                                                              \
    X(cuModuleUnload)                                                                                                  \
    X(cuModuleGetFunction)                                                                                             \
    X(cuFuncSetAttribute)                                                                                              \
    X(cuLaunchKernelEx)                                                                                                \
    X(cuGraphInstantiate)                                                                                              \
    X(cuGraphUpload)                                                                                                   \
    X(cuGraphLaunch)                                                                                                   \
    X(cuGraphDestroy)                                                                                                  \
    X(cuGraphExecDestroy)

/* Functions of newer drivers: NULL where missing. */
#define CUDA_OPTIONAL(X)                                                                                               \
    X(cuFuncLoad)                                                                                                      \
    X(cuTensorMapEncodeTiled)                                                                                          \
    X(cuDeviceGetDevResource)                                                                                          \
    X(cuDevSmResourceSplitByCount)                                                                                     \
    X(cuDevResourceGenerateDesc)                                                                                       \
    X(cuGreenCtxCreate)                                                                                                \
    X(cuGreenCtxDestroy)                                                                                               \
    X(cuGreenCtxStreamCreate)

typedef struct cuda_driver {
#define CUDA_MEMBER(function) __typeof__(function) *function;
    CUDA_REQUIRED(CUDA_MEMBER)
    CUDA_OPTIONAL(CUDA_MEMBER)
#undef CUDA_MEMBER
    int version; /* of the driver's interface: 13000 is 13.0 */
    /* hardware queues that the streams of a device share: CUDA_DEVICE_MAX_CONNECTIONS */
    int queues;
} cuda_driver_t;

/**
 * The table, the same for all callers of this plugin. The first call opens the driver and
 * initialises CUDA, after it has set CUDA_DEVICE_MAX_CONNECTIONS to 32 unless the environment has a
 * value. Fails with DP_ERR_UNSUPPORTED and a message that begins with "no CUDA device" and names
 * what was tried; a later call tries again. [any]
 */
dp_status_t cuda_driver(const dp_host_t *host, const cuda_driver_t **cu_out);

/** DP_OK for CUDA_SUCCESS; else records the message of format `fmt` with the driver's words behind
 *  it. The status is DP_ERR_NOMEM when memory ran out, DP_ERR_UNSUPPORTED when the driver cannot do
 *  it, DP_ERR_INVALID for a refused argument, DP_ERR_DEVICE otherwise. Only after cuda_driver() has
 *  succeeded. [any] */
dp_status_t cuda_check(const dp_host_t *host, CUresult result, const char *file, int line, const char *fmt, ...)
    DP_PRINTF(5, 6);
#define CUDA_CHECK(host, call, ...) cuda_check((host), (call), __FILE__, __LINE__, __VA_ARGS__)

/** Opens the first library of the NULL-terminated list that dlopen finds; the value of `variable`
 *  in the environment, when set, is the only candidate. NULL: none, with `tried` holding each name
 *  and its error. For cuBLASLt, cuDNN, NCCL, CUPTI. */
void *cuda_library(const char *key, const char *const names[], char *tried, size_t tried_bytes);

/** The device whose context is current in this thread: device_cuda makes its primary context
 *  current in the thread that opens it. DP_ERR_DEVICE where none is. [any] */
dp_status_t cuda_current(const dp_host_t *host, CUdevice *device_out);

#endif
