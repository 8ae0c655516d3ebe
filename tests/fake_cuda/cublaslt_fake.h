/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cublaslt_fake.h: what the fake cuBLASLt tells a test, found by dlsym. */
#ifndef CUBLASLT_FAKE_H
#define CUBLASLT_FAKE_H

unsigned long fake_cublaslt_searches(void); /* for an algorithm, since the process started */
unsigned long fake_cublaslt_products(void); /* put on streams */
int fake_cublaslt_last_sms(void);           /* multiprocessors the latest one counted on */

#endif
