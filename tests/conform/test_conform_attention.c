/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_attention.c: attention plugins against the contract of dp.attention/1. */
#include <dualpipe/attention.h>
#include <dualpipe/conform.h>

int main(int argc, char **argv)
{
    return dp_conform_main(DP_IFACE_ATTENTION, NULL, argc, argv);
}
