/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * guard.c: see guard.h. A module's calls are seen by pointing its slots of the global offset table
 * at functions of ours; other modules, and what other libraries do on its behalf, are left alone,
 * as is the program that these are part of. */
#include "guard.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- fences ---- */

bool conform_guard_open(guard_t *guard, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page, behind = 16 * page;

    guard->mapped = whole + behind;
    guard->base = mmap(NULL, guard->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (guard->base == MAP_FAILED)
        return false;
    guard->end = guard->base + whole;
    return mprotect(guard->end, behind, PROT_NONE) == 0;
}

void conform_guard_close(guard_t *guard)
{
    munmap(guard->base, guard->mapped);
}

/* ---- calls of a module ---- */

static struct {
    int armed;
    int64_t calls;
    const char *first;
} counter;

static void count(const char *name)
{
    const char *none = NULL;

    if (!__atomic_load_n(&counter.armed, __ATOMIC_ACQUIRE))
        return;
    __atomic_fetch_add(&counter.calls, 1, __ATOMIC_RELAXED);
    __atomic_compare_exchange_n(&counter.first, &none, name, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static void *counted_malloc(size_t bytes)
{
    count("malloc");
    return malloc(bytes);
}

static void *counted_calloc(size_t n, size_t bytes)
{
    count("calloc");
    return calloc(n, bytes);
}

static void *counted_realloc(void *memory, size_t bytes)
{
    count("realloc");
    return realloc(memory, bytes);
}

static void *counted_aligned_alloc(size_t alignment, size_t bytes)
{
    count("aligned_alloc");
    return aligned_alloc(alignment, bytes);
}

static int counted_posix_memalign(void **memory_out, size_t alignment, size_t bytes)
{
    count("posix_memalign");
    return posix_memalign(memory_out, alignment, bytes);
}

static char *counted_strdup(const char *text)
{
    count("strdup");
    return strdup(text);
}

static void *counted_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    count("mmap");
    return mmap(at, bytes, protection, flags, fd, offset);
}

static void *counted_new(size_t bytes)
{
    static void *(*real)(size_t);

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_DEFAULT, "_Znwm");
    count("operator new");
    return real != NULL ? real(bytes) : malloc(bytes);
}

static const struct {
    const char *name;
    void *counted;
} watched[] = {
    {"malloc", counted_malloc},
    {"calloc", counted_calloc},
    {"realloc", counted_realloc},
    {"aligned_alloc", counted_aligned_alloc},
    {"posix_memalign", counted_posix_memalign},
    {"strdup", counted_strdup},
    {"mmap", counted_mmap},
    {"_Znwm", counted_new},
    {"_Znam", counted_new},
};

static void point(ElfW(Addr) slot, void *to)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *begin = (void *)(slot / page * page);

    /* it may have been made read-only once it was bound */
    if (mprotect(begin, page, PROT_READ | PROT_WRITE) == 0)
        __atomic_store_n((void **)slot, to, __ATOMIC_RELEASE);
}

#if __ELF_NATIVE_CLASS == 64 && (defined(__x86_64__) || defined(__aarch64__))
#ifdef __x86_64__
#define IS_SLOT(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT || (type) == R_X86_64_64)
#else
#define IS_SLOT(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT || (type) == R_AARCH64_ABS64)
#endif

typedef struct tables {
    const ElfW(Sym) * symbols;
    const char *names;
    const ElfW(Rela) * lists[2];
    size_t bytes[2];
} tables_t;

static void point_slots(const tables_t *tables, ElfW(Addr) base)
{
    for (int list = 0; list < 2; list++)
        for (size_t i = 0; tables->lists[list] != NULL && i < tables->bytes[list] / sizeof(ElfW(Rela)); i++) {
            const ElfW(Rela) *rela = &tables->lists[list][i];
            const char *name = tables->names + tables->symbols[ELF64_R_SYM(rela->r_info)].st_name;

            for (size_t k = 0; k < sizeof(watched) / sizeof(watched[0]) && IS_SLOT(ELF64_R_TYPE(rela->r_info)); k++)
                if (strcmp(name, watched[k].name) == 0)
                    point(base + rela->r_offset, watched[k].counted);
        }
}

typedef struct search {
    const void *code;
    bool found;
} search_t;

static bool is_in(const ElfW(Phdr) * header, ElfW(Addr) begin, const void *at)
{
    return header->p_type == PT_LOAD && (ElfW(Addr))at >= begin && (ElfW(Addr))at < begin + header->p_memsz;
}

static int look_at_module(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    search_t *search = arg;
    const ElfW(Dyn) *dynamic = NULL;
    tables_t tables = {0};
    bool here = false, ours = false; /* the counters would call themselves */

    (void)bytes;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        ElfW(Addr) begin = info->dlpi_addr + header->p_vaddr;

        here = here || is_in(header, begin, search->code);
        ours = ours || is_in(header, begin, &counter);
        if (header->p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)begin;
    }
    for (; here && dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
        ElfW(Addr) at = dynamic->d_un.d_ptr;

        if (at < info->dlpi_addr) /* the C library makes them absolute; others may not */
            at += info->dlpi_addr;
        if (dynamic->d_tag == DT_SYMTAB)
            tables.symbols = (const ElfW(Sym) *)at;
        else if (dynamic->d_tag == DT_STRTAB)
            tables.names = (const char *)at;
        else if (dynamic->d_tag == DT_JMPREL)
            tables.lists[0] = (const ElfW(Rela) *)at;
        else if (dynamic->d_tag == DT_RELA)
            tables.lists[1] = (const ElfW(Rela) *)at;
        else if (dynamic->d_tag == DT_PLTRELSZ)
            tables.bytes[0] = dynamic->d_un.d_val;
        else if (dynamic->d_tag == DT_RELASZ)
            tables.bytes[1] = dynamic->d_un.d_val;
    }
    if (!here || ours || tables.symbols == NULL || tables.names == NULL)
        return here;
    point_slots(&tables, info->dlpi_addr);
    search->found = true;
    return 1;
}

bool conform_watch_module(const void *code)
{
    search_t search = {code, false};

    dl_iterate_phdr(look_at_module, &search);
    return search.found;
}
#else
bool conform_watch_module(const void *code)
{
    (void)code, (void)watched, (void)point;
    return false;
}
#endif

void conform_watch_begin(void)
{
    __atomic_store_n(&counter.armed, 1, __ATOMIC_RELEASE);
}

int64_t conform_watch_end(const char **name_out)
{
    __atomic_store_n(&counter.armed, 0, __ATOMIC_RELEASE);
    *name_out = __atomic_load_n(&counter.first, __ATOMIC_RELAXED);
    return __atomic_load_n(&counter.calls, __ATOMIC_RELAXED);
}
