/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_moe.c: MoE plugins against the contract of dp.moe/1. */
#include <dualpipe/conform.h>
#include <dualpipe/moe.h>

int main(int argc, char **argv)
{
    return dp_conform_main(DP_IFACE_MOE, NULL, argc, argv);
}
