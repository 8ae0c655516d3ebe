/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * elf_check.c: reads an ELF header and its program headers, so that a foreign or truncated file is refused with a
 * sentence instead of a crash in the loader. */
#include "plugin/elf_check.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#elif defined(__riscv)
#define OUR_MACHINE EM_RISCV
#elif defined(__powerpc64__)
#define OUR_MACHINE EM_PPC64
#else
#define OUR_MACHINE EM_NONE /* not checked */
#endif
#define OUR_CLASS (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32)

static const char *machine_name(unsigned machine, char *text, size_t bytes)
{
    switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_386: return "32-bit x86";
    case EM_AARCH64: return "aarch64";
    case EM_ARM: return "32-bit arm";
    case EM_RISCV: return "risc-v";
    case EM_PPC64: return "ppc64";
    case EM_S390: return "s390";
    default: snprintf(text, bytes, "machine %u", machine); return text;
    }
}

/* The parts of the file that program headers name must be there. */
static dp_status_t check_segments(int fd, const ElfW(Ehdr) *header, uint64_t size, const char *path)
{
    for (unsigned i = 0; i < header->e_phnum; i++) {
        ElfW(Phdr) ph;
        uint64_t at = header->e_phoff + (uint64_t)i * sizeof(ph);

        if (at > size || size - at < sizeof(ph) || pread(fd, &ph, sizeof(ph), (off_t)at) != (ssize_t)sizeof(ph))
            return dp_fail(DP_ERR_PLUGIN, "plugin %s is truncated: program header %u is missing", path, i);
        if (ph.p_offset > size || size - ph.p_offset < ph.p_filesz)
            return dp_fail(DP_ERR_PLUGIN, "plugin %s is truncated: it has %llu bytes, segment %u ends at %llu", path,
                           (unsigned long long)size, i, (unsigned long long)(ph.p_offset + ph.p_filesz));
    }
    return DP_OK;
}

dp_status_t dp__elf_check(int fd, uint64_t size, const char *path)
{
    ElfW(Ehdr) header;
    char theirs[32], ours[32];

    if (size < sizeof(header) || pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header))
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is no shared object: %llu bytes are too few for an ELF header", path,
                       (unsigned long long)size);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is no shared object: it does not start with an ELF header", path);
    if (OUR_MACHINE != EM_NONE && (header.e_machine != OUR_MACHINE || header.e_ident[EI_CLASS] != OUR_CLASS))
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is a module for %s, this process is %s", path,
                       machine_name(header.e_machine, theirs, sizeof(theirs)),
                       machine_name(OUR_MACHINE, ours, sizeof(ours)));
    if (header.e_type != ET_DYN || header.e_phnum == 0 || header.e_phentsize != sizeof(ElfW(Phdr)))
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is no shared object: ELF type %u", path, header.e_type);
    if (header.e_shoff > size || size - header.e_shoff < (uint64_t)header.e_shnum * header.e_shentsize)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is truncated: its section headers lie beyond the end", path);
    return check_segments(fd, &header, size, path);
}
