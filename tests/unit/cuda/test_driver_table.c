/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_driver_table.c: the driver has every function that our table asks for by name, as the
 * toolkit's stub of it says. */
#include "plugins/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>

#define NAME_OF(function)  NAME_OF_(function)
#define NAME_OF_(function) #function,

static const char *const names[] = {CUDA_REQUIRED(NAME_OF) CUDA_OPTIONAL(NAME_OF)};

int main(void)
{
    void *stub = dlopen(CUDA_STUB, RTLD_LAZY | RTLD_LOCAL);
    int missing = 0;

    if (stub == NULL) {
        printf("SKIP: %s\n", dlerror());
        return 77;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (dlsym(stub, names[i]) == NULL && ++missing > 0)
            printf("%s has no %s\n", CUDA_STUB, names[i]);
    printf("%zu names, %d missing\n", sizeof(names) / sizeof(names[0]), missing);
    return missing > 0;
}
