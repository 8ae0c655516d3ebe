/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * loading_driver.c: a libcuda.so.1 without a device that accepts every kernel image, and writes the
 * names of the kernels in it to the file $DP_LOADED_KERNELS. With it, cuDNN plans for a device that
 * is only described, as far as the load of what it compiled. Everything else fails as the toolkit's
 * stub does. */
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 0, IS_A_STUB = 34 };

#define EXPORTED __attribute__((visibility("default")))

#define REFUSED(name)                                                                                                  \
    EXPORTED int name(void);                                                                                           \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return IS_A_STUB;                                                                                              \
    }
REFUSED(cuInit)
REFUSED(cuCtxGetCurrent)
REFUSED(cuCtxGetDevice)
REFUSED(cuCtxGetLimit)
REFUSED(cuCtxPopCurrent)
REFUSED(cuCtxPushCurrent)
REFUSED(cuDeviceGet)
REFUSED(cuDeviceGetAttribute)
REFUSED(cuDeviceGetCount)
REFUSED(cuDevicePrimaryCtxRelease)
REFUSED(cuDevicePrimaryCtxReset)
REFUSED(cuDevicePrimaryCtxRetain)
REFUSED(cuFuncGetAttribute)
REFUSED(cuFuncSetAttribute)
REFUSED(cuGetErrorName)
REFUSED(cuGetErrorString)
REFUSED(cuLaunchCooperativeKernel)
REFUSED(cuLaunchKernel)
REFUSED(cuLaunchKernelEx)
REFUSED(cuLibraryLoadFromFile)
REFUSED(cuLinkAddData)
REFUSED(cuLinkAddData_v2)
REFUSED(cuLinkAddFile_v2)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate)
REFUSED(cuLinkCreate_v2)
REFUSED(cuLinkDestroy)
REFUSED(cuMemcpyDtoH_v2)
REFUSED(cuModuleGetFunction)
REFUSED(cuModuleGetGlobal_v2)
REFUSED(cuModuleLoadData)
REFUSED(cuModuleLoadDataEx)
REFUSED(cuModuleLoadFatBinary)
REFUSED(cuModuleUnload)
REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cuOccupancyMaxPotentialClusterSize)
REFUSED(cuStreamGetCtx)
REFUSED(cuStreamSynchronize)
REFUSED(cuTensorMapEncodeTiled)

#define ACCEPTED(name)                                                                                                 \
    EXPORTED int name(void);                                                                                           \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return DONE;                                                                                                   \
    }
ACCEPTED(cuLibraryUnload)
ACCEPTED(cuKernelSetAttribute)

EXPORTED int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return DONE;
}

/* Every kernel has a section .text.<name>. */
static void write_names(const char *image, FILE *to)
{
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
    const Elf64_Shdr *sections;
    const char *names;

    if (memcmp(image, ELFMAG, SELFMAG) != 0 || head->e_shentsize != sizeof(Elf64_Shdr))
        return;
    sections = (const Elf64_Shdr *)(image + head->e_shoff);
    names = image + sections[head->e_shstrndx].sh_offset;
    for (int i = 0; i < head->e_shnum; i++)
        if (strncmp(names + sections[i].sh_name, ".text.", 6) == 0)
            fprintf(to, "%s\n", names + sections[i].sh_name + 6);
}

EXPORTED int cuLibraryLoadData(void **library, const void *image, ...)
{
    const char *path = getenv("DP_LOADED_KERNELS");
    FILE *to = path != NULL ? fopen(path, "a") : NULL;

    if (to != NULL) {
        write_names(image, to);
        fclose(to);
    }
    *library = (void *)image;
    return DONE;
}

EXPORTED int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    (void)name;
    *kernel = library;
    return DONE;
}

EXPORTED int cuKernelGetAttribute(int *value, ...)
{
    *value = 0;
    return DONE;
}
