/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_comm.c: comm plugins against the contract of dp.comm/1. */
#include <dualpipe/comm.h>
#include <dualpipe/conform.h>

int main(int argc, char **argv)
{
    return dp_conform_main(DP_IFACE_COMM, NULL, argc, argv);
}
