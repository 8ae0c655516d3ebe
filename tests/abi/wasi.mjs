// SPDX-FileCopyrightText: The libdualpipe authors
// SPDX-License-Identifier: MIT
// wasi.mjs PROGRAM ARGUMENTS...: runs a program for wasm32-wasi, which gets its arguments and standard streams alone.
import { readFile } from 'node:fs/promises';
import { WASI } from 'node:wasi';

const wasi = new WASI({ version: 'preview1', args: process.argv.slice(2), returnOnExit: true });
const { instance } = await WebAssembly.instantiate(await readFile(process.argv[2]), { wasi_snapshot_preview1: wasi.wasiImport });
process.exitCode = wasi.start(instance);
