/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_kernels.c: PLUGIN, one of the CUDA attentions or MoEs, against the contract of
 * INTERFACE on device_cuda. */
#include "gpu.h"

#include <dualpipe/attention.h>
#include <dualpipe/conform.h>
#include <dualpipe/moe.h>

int main(int argc, char **argv)
{
    gpu_or_skip(argv[0]);
    return dp_conform_main(INTERFACE, PLUGIN, argc + 2, gpu_suite_arguments(argc, argv));
}
