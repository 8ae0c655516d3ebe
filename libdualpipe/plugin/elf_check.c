/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * elf_check.c: reads an ELF header, its program headers and symbols, so that a foreign or truncated
 * file, and one that is no plugin or carries parts of the library, is refused with a sentence
 * instead of a crash in the loader. */
#include "plugin/elf_check.h"
#include "base/do.h"
#include "base/memory.h"
#include "system/read_at.h"

#include <dualpipe/plugin.h>

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
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
    static const struct {
        unsigned machine;
        const char *name;
    } known[] = {{EM_X86_64, "x86-64"}, {EM_386, "32-bit x86"}, {EM_AARCH64, "aarch64"}, {EM_ARM, "32-bit arm"},
                 {EM_RISCV, "risc-v"},  {EM_PPC64, "ppc64"},    {EM_S390, "s390"}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].machine == machine)
            return known[i].name;
    snprintf(text, bytes, "machine %u", machine);
    return text;
}

/* The parts of the file that program headers name must be there. */
static dp_status_t check_segments(int fd, const ElfW(Ehdr) * header, uint64_t size, const char *path)
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
    if (header.e_ident[EI_CLASS] != OUR_CLASS)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is a module of %s bits, this process has %d", path,
                       header.e_ident[EI_CLASS] == ELFCLASS32   ? "32"
                       : header.e_ident[EI_CLASS] == ELFCLASS64 ? "64"
                                                                : "unknown",
                       (int)(8 * sizeof(void *)));
    if (OUR_MACHINE != EM_NONE && header.e_machine != OUR_MACHINE)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is a module for %s, this process is %s", path,
                       machine_name(header.e_machine, theirs, sizeof(theirs)),
                       machine_name(OUR_MACHINE, ours, sizeof(ours)));
    if (header.e_type != ET_DYN || header.e_phnum == 0 || header.e_phentsize != sizeof(ElfW(Phdr)))
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is no shared object: ELF type %u", path, header.e_type);
    if (header.e_shoff > size || size - header.e_shoff < (uint64_t)header.e_shnum * header.e_shentsize)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is truncated: its section headers lie beyond the end", path);
    return check_segments(fd, &header, size, path);
}

/* ---- symbols ---- */

/* A file that lies in memory; nothing in it is believed before it is known to lie inside. */
typedef struct image {
    const unsigned char *base;
    uint64_t size;
    const char *path;
} image_t;

/* NULL: not inside. */
static const void *inside(const image_t *image, uint64_t at, uint64_t bytes)
{
    return at <= image->size && bytes <= image->size - at ? image->base + at : NULL;
}

static bool section(const image_t *image, const ElfW(Ehdr) * header, uint64_t index, ElfW(Shdr) * section_out)
{
    const void *at = header->e_shentsize == sizeof(*section_out) && index < header->e_shnum
                         ? inside(image, header->e_shoff + index * sizeof(*section_out), sizeof(*section_out))
                         : NULL;

    if (at != NULL)
        memcpy(section_out, at, sizeof(*section_out));
    return at != NULL;
}

/* A symbol's name; NULL where it does not end inside of its table. */
static const char *name_of(const image_t *image, const ElfW(Shdr) * strings, const ElfW(Sym) * symbol)
{
    const char *table = inside(image, strings->sh_offset, strings->sh_size);

    if (table == NULL || symbol->st_name >= strings->sh_size)
        return NULL;
    return memchr(table + symbol->st_name, 0, strings->sh_size - symbol->st_name) != NULL ? table + symbol->st_name
                                                                                          : NULL;
}

static dp_status_t refuse_symbol(const image_t *image, const char *name)
{
    return dp_fail(DP_ERR_PLUGIN,
                   "plugin %s has a separate %s: plugins export dp_plugin_entry alone and link nothing of libdualpipe. "
                   "Leave libdualpipe out of its link, use DP_FAIL(host, ...) instead of dp_fail, and name functions "
                   "otherwise",
                   image->path, name);
}

/* From a shared library that the host need not have, or not this copy of. */
static dp_status_t refuse_need(const image_t *image, const char *name)
{
    return dp_fail(DP_ERR_PLUGIN,
                   "plugin %s needs %s from outside: plugins link nothing of libdualpipe. Leave libdualpipe out of its "
                   "link, and use what dp_host_t has: DP_FAIL(host, ...) instead of dp_fail",
                   image->path, name);
}

/* Other symbols of a plugin may be called dp_something as long as they stay inside; these are the
 * library's. */
static bool is_of_library(const char *name)
{
    return strncmp(name, "dp__", 4) == 0 || strcmp(name, "dp_fail") == 0 || strcmp(name, "dp_failv") == 0;
}

/* What will lie at `address` once the file is mapped, as far as the file itself tells. */
static bool read_mapped(const image_t *image, const ElfW(Ehdr) * header, uint64_t address, void *to, size_t bytes)
{
    for (unsigned i = 0; i < header->e_phnum; i++) {
        const void *at = inside(image, header->e_phoff + (uint64_t)i * sizeof(ElfW(Phdr)), sizeof(ElfW(Phdr)));
        ElfW(Phdr) ph;

        if (at == NULL)
            return false;
        memcpy(&ph, at, sizeof(ph));
        if (ph.p_type != PT_LOAD || address < ph.p_vaddr || address - ph.p_vaddr > ph.p_filesz ||
            ph.p_filesz - (address - ph.p_vaddr) < bytes)
            continue;
        at = inside(image, ph.p_offset + (address - ph.p_vaddr), bytes);
        if (at != NULL)
            memcpy(to, at, bytes);
        return at != NULL;
    }
    return false;
}

/* What the file itself says of the ABI major. A descriptor that only code fills in has zeros there
 * and says nothing: load.c asks it again. */
static dp_status_t check_entry(const image_t *image, const ElfW(Ehdr) * header, const ElfW(Sym) * entry,
                               uint32_t *preference)
{
    struct {
        uint32_t struct_size;
        uint16_t abi_major, abi_minor;
    } head;

    if (!read_mapped(image, header, entry->st_value, &head, sizeof(head)) || head.struct_size == 0)
        return DP_OK;
    if (head.abi_major != DP_ABI_MAJOR)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s offers ABI %u.%u, this library needs major %d: rebuild the plugin",
                       image->path, head.abi_major, head.abi_minor, DP_ABI_MAJOR);
    if (head.struct_size >= DP_PLUGIN_MIN)
        (void)read_mapped(image, header, entry->st_value + offsetof(dp_plugin_t, preference), preference,
                          sizeof(*preference));
    return DP_OK;
}

/* exported: the table that the dynamic linker reads; else all symbols that were not stripped. */
static dp_status_t check_symbols(const image_t *image, const ElfW(Ehdr) * header, const ElfW(Shdr) * symbols,
                                 bool exported, uint32_t *preference)
{
    uint64_t count = symbols->sh_size / sizeof(ElfW(Sym));
    bool found = false;
    ElfW(Shdr) strings;

    if (!section(image, header, symbols->sh_link, &strings) ||
        inside(image, symbols->sh_offset, symbols->sh_size) == NULL)
        return dp_fail(DP_ERR_PLUGIN, "plugin %s is truncated: its symbols lie beyond the end", image->path);
    for (uint64_t i = 0; i < count; i++) {
        ElfW(Sym) symbol;
        const char *name;

        memcpy(&symbol, image->base + symbols->sh_offset + i * sizeof(symbol), sizeof(symbol));
        name = name_of(image, &strings, &symbol);
        if (name == NULL || strncmp(name, "dp_", 3) != 0)
            continue;
        if (symbol.st_shndx == SHN_UNDEF) {
            if (exported)
                return refuse_need(image, name);
        } else if (strcmp(name, "dp_plugin_entry") == 0) {
            found = true;
            DO(exported ? check_entry(image, header, &symbol, preference) : DP_OK);
        } else if (exported || is_of_library(name)) {
            return refuse_symbol(image, name);
        }
    }
    return found || !exported
               ? DP_OK
               : dp_fail(DP_ERR_PLUGIN, "plugin %s is no plugin: it does not export dp_plugin_entry", image->path);
}

/* Read, not mapped: a file that shrinks meanwhile would end the process. */
static dp_status_t read_file(int fd, unsigned char *bytes, uint64_t size, const char *path)
{
    if (dp__read_at(fd, bytes, size, 0) == 0)
        return DP_OK;
    return dp_fail(DP_ERR_PLUGIN, "plugin %s: %s", path, errno == 0 ? "it ends while it is read" : strerror(errno));
}

dp_status_t dp__elf_symbols_check(int fd, uint64_t size, const char *path, uint32_t *preference)
{
    unsigned char *bytes = dp__allocate(size, 64);
    const image_t image = {bytes, size, path};
    dp_status_t status;
    ElfW(Ehdr) header;

    if (bytes == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to read plugin %s", path);
    status = read_file(fd, bytes, size, path);
    if (status >= 0)
        memcpy(&header, bytes, sizeof(header));
    for (uint64_t i = 0; status >= 0 && i < header.e_shnum; i++) {
        ElfW(Shdr) found;

        if (section(&image, &header, i, &found) && (found.sh_type == SHT_DYNSYM || found.sh_type == SHT_SYMTAB) &&
            found.sh_entsize == sizeof(ElfW(Sym)))
            status = check_symbols(&image, &header, &found, found.sh_type == SHT_DYNSYM, preference);
    }
    dp__free(bytes);
    return status;
}
