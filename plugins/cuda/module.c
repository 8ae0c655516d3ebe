/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * module.c: loads device images and looks up their kernels. */
#include "module.h"

dp_status_t dp_cuda_module_load(const dp_host_t *host, const unsigned char *image, CUmodule *module_out)
{
    const dp_cuda_driver_t *cu;
    dp_status_t status = dp_cuda_driver(host, &cu);

    if (status < 0)
        return status;
    return DP_CU(host, cu->cuModuleLoadDataEx(module_out, image, 0, NULL, NULL), "loading the plugin's kernels");
}

void dp_cuda_module_unload(CUmodule module)
{
    const dp_cuda_driver_t *cu;

    if (module != NULL && dp_cuda_driver(NULL, &cu) == DP_OK)
        (void)cu->cuModuleUnload(module);
}

dp_status_t dp_cuda_kernel(const dp_host_t *host, CUmodule module, const char *name, CUfunction *function_out)
{
    const dp_cuda_driver_t *cu;
    CUfunction function = NULL;
    dp_status_t status = dp_cuda_driver(host, &cu);

    if (status == DP_OK)
        status = DP_CU(host, cu->cuModuleGetFunction(&function, module, name), "looking up kernel %s", name);
    if (status == DP_OK && cu->cuFuncLoad != NULL)
        status = DP_CU(host, cu->cuFuncLoad(function), "loading kernel %s", name);
    if (status == DP_OK)
        *function_out = function;
    return status;
}

dp_status_t dp_cuda_kernels(const dp_host_t *host, CUmodule module, const dp_cuda_kernel_t *kernels, size_t count)
{
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < count && status == DP_OK; i++)
        status = dp_cuda_kernel(host, module, kernels[i].name, kernels[i].function_out);
    return status;
}

dp_status_t dp_cuda_kernel_shared(const dp_host_t *host, CUfunction function, size_t bytes)
{
    const dp_cuda_driver_t *cu;
    dp_status_t status = dp_cuda_driver(host, &cu);

    if (status < 0)
        return status;
    return DP_CU(host,
                 cu->cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes),
                 "asking for %zu bytes of shared memory", bytes);
}
