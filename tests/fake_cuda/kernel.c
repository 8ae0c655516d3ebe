/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernel.c: modules and launches. A device image is looked at no further than its header: its
 * kernels are the host's, linked into this library under the same names. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC  0xba55ed50u
#define SHARED_STATIC (48 << 10)
#define SHARED_MOST   (227 << 10)

FAKE_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options,
                                        void **values)
{
    uint32_t magic;
    CUmodule m;

    ENTER(cuModuleLoadDataEx);
    (void)options;
    (void)values;
    if (image == NULL || count > 16)
        return CUDA_ERROR_INVALID_VALUE;
    if (capture_hinders())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    memcpy(&magic, image, sizeof(magic));
    if (magic != FATBIN_MAGIC)
        return CUDA_ERROR_INVALID_IMAGE;
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->device = fake_device();
    m->image = image;
    *module = m;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuModuleUnload(CUmodule module)
{
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    while (module->functions != NULL) {
        CUfunction f = module->functions;

        module->functions = f->next;
        free(f);
    }
    free(module);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    emu_kernel_t *kernel;
    CUfunction f;

    ENTER(cuModuleGetFunction);
    kernel = emu_find(name);
    if (kernel == NULL)
        return CUDA_ERROR_NOT_FOUND;
    f = calloc(1, sizeof(*f));
    if (f == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    f->kernel = kernel;
    f->module = module;
    f->shared_limit = SHARED_STATIC;
    f->next = module->functions;
    module->functions = f;
    *function = f;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuFuncLoad(CUfunction function)
{
    ENTER(cuFuncLoad);
    return function != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    ENTER(cuFuncGetAttribute);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = EMU_THREADS;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = function->shared_limit;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 64;
        return CUDA_SUCCESS;
    default:
        *value = 0;
        return CUDA_SUCCESS;
    }
}

FAKE_EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    ENTER(cuFuncSetAttribute);
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || value > SHARED_MOST)
            return CUDA_ERROR_INVALID_VALUE;
        function->shared_limit = value;
    }
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                                 size_t shared_bytes)
{
    ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    if (threads <= 0 || threads > EMU_THREADS || shared_bytes > (size_t)function->shared_limit)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = 2048 / threads;
    if (*blocks > 32)
        *blocks = 32;
    if (shared_bytes > 0 && (size_t)*blocks > (228u << 10) / (shared_bytes + 1024))
        *blocks = (int)((228u << 10) / (shared_bytes + 1024));
    return CUDA_SUCCESS;
}

/* Arguments are copied now: the caller's go away. */
static CUresult copy_arguments(op_t *op, void **params)
{
    const emu_kernel_t *k = op->u.kernel.kernel;
    size_t total = 1, at = 0;

    for (unsigned i = 0; i < k->nparameters; i++)
        total += (k->parameters[i] + 15) / 16 * 16;
    op->u.kernel.bytes = aligned_alloc(64, (total + 63) / 64 * 64);
    op->u.kernel.args = calloc(k->nparameters + 1, sizeof(void *));
    if (op->u.kernel.bytes == NULL || op->u.kernel.args == NULL) {
        free(op->u.kernel.bytes);
        free(op->u.kernel.args);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (unsigned i = 0; i < k->nparameters; i++) {
        memcpy(op->u.kernel.bytes + at, params[i], k->parameters[i]);
        op->u.kernel.args[i] = op->u.kernel.bytes + at;
        at += (k->parameters[i] + 15) / 16 * 16;
    }
    return CUDA_SUCCESS;
}

static bool launches_block(void)
{
    const char *text = getenv("CUDA_LAUNCH_BLOCKING");

    return text != NULL && strcmp(text, "1") == 0;
}

FAKE_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    op_t op = {.run = run_kernel, .name = "kernel"};
    uint64_t threads;
    CUresult result;

    ENTER(cuLaunchKernelEx);
    if (function == NULL || config->hStream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    if (extra != NULL || config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0 || threads == 0 ||
        threads > EMU_THREADS || config->gridDimX > 0x7fffffffu || config->gridDimY > 65535 ||
        config->gridDimZ > 65535 || config->blockDimZ > 64 || config->sharedMemBytes > (unsigned)function->shared_limit)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN &&
            config->attrs[i].value.memSyncDomain != CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT &&
            config->attrs[i].value.memSyncDomain != CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE)
            return CUDA_ERROR_INVALID_VALUE;
    op.u.kernel.kernel = function->kernel;
    op.u.kernel.grid = (emu_dim_t){config->gridDimX, config->gridDimY, config->gridDimZ};
    op.u.kernel.block = (emu_dim_t){config->blockDimX, config->blockDimY, config->blockDimZ};
    op.u.kernel.shared_bytes = config->sharedMemBytes;
    result = copy_arguments(&op, params);
    if (result == CUDA_SUCCESS) {
        result = stream_put(config->hStream, &op);
        if (result != CUDA_SUCCESS) {
            free(op.u.kernel.bytes);
            free(op.u.kernel.args);
        }
    }
    if (result == CUDA_SUCCESS)
        (void)__atomic_add_fetch(&function->kernel->launches, 1, __ATOMIC_RELAXED);
    if (result == CUDA_SUCCESS && config->hStream->capture == NULL && launches_block()) {
        stream_drain(config->hStream);
        result = fake_broken();
    }
    return result;
}

FAKE_EXPORT unsigned long fake_launches(const char *name)
{
    const emu_kernel_t *kernel = emu_find(name);

    return kernel != NULL ? __atomic_load_n(&kernel->launches, __ATOMIC_RELAXED) : 0;
}
