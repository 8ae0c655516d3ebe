/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_comm.c: comm plugins against the contract of dp.comm/1. */
#include "conform.h"

int main(int argc, char **argv)
{
    return conform_main(&conform_comm, argc, argv);
}
