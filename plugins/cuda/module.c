/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * module.c: loads device images and looks up their kernels. */
#include "module.h"
#include "plugins/common/do.h"

dp_status_t cuda_module_load(const dp_host_t *host, const unsigned char *image, CUmodule *module_out)
{
    const cuda_driver_t *cu;

    DO(cuda_driver(host, &cu));
    return CUDA_CHECK(host, cu->cuModuleLoadDataEx(module_out, image, 0, NULL, NULL), "loading the plugin's kernels");
}

void cuda_module_unload(CUmodule module)
{
    const cuda_driver_t *cu;

    if (module != NULL && cuda_driver(NULL, &cu) == DP_OK)
        (void)cu->cuModuleUnload(module);
}

dp_status_t cuda_kernel(const dp_host_t *host, CUmodule module, const char *name, CUfunction *function_out)
{
    const cuda_driver_t *cu;
    CUfunction function = NULL;
    dp_status_t status = cuda_driver(host, &cu);

    if (status == DP_OK)
        status = CUDA_CHECK(host, cu->cuModuleGetFunction(&function, module, name), "looking up kernel %s", name);
    if (status == DP_OK && cu->cuFuncLoad != NULL)
        status = CUDA_CHECK(host, cu->cuFuncLoad(function), "loading kernel %s", name);
    if (status == DP_OK)
        *function_out = function;
    return status;
}

dp_status_t cuda_kernels(const dp_host_t *host, CUmodule module, const cuda_kernel_t *kernels, size_t count)
{
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < count && status == DP_OK; i++)
        status = cuda_kernel(host, module, kernels[i].name, kernels[i].function_out);
    return status;
}

dp_status_t cuda_kernel_shared(const dp_host_t *host, CUfunction function, size_t bytes)
{
    const cuda_driver_t *cu;

    DO(cuda_driver(host, &cu));
    return CUDA_CHECK(host,
                      cu->cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes),
                      "asking for %zu bytes of shared memory", bytes);
}
