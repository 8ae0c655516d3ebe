/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dualpipe.hpp: dualpipe.h for C++17 and later: structs with their size, and functions that may
 * throw.
 *
 *     auto segment = dualpipe::sized<dp_segment_t>();
 *     segment.name = "times w";
 *     segment.host_forward = dualpipe::guarded<forward>;    // dp_status_t forward(void *, const
 *                                                           dp_segment_call_t *)
 *     options.build = dualpipe::guarded<build>;
 *
 * No exception may leave a function that is given to the library: the library is C, and would be
 * left half-way.
 *
 * Since 0.2. */
#ifndef DUALPIPE_DUALPIPE_HPP
#define DUALPIPE_DUALPIPE_HPP

#include <dualpipe/dualpipe.h>

#include <exception>
#include <new>

namespace dualpipe
{
/** A T that is zero but for its struct_size: every member has its default. */
template <class T> T sized()
{
    T t{};

    t.struct_size = sizeof(T);
    return t;
}

template <auto function> struct guard;
template <class... Args, dp_status_t (*function)(Args...)> struct guard<function> {
    static dp_status_t call(Args... args) noexcept
    {
        try {
            return function(args...);
        } catch (const std::bad_alloc &) {
            return dp_fail(DP_ERR_NOMEM, "out of memory (std::bad_alloc)");
        } catch (const std::exception &e) {
            return dp_fail(DP_ERR_INVALID, "%s", e.what());
        } catch (...) {
            return dp_fail(DP_ERR_INVALID, "an exception that is no std::exception");
        }
    }
};

/** `function`, whose exceptions have become errors: what() is the message. For functions that
 * return dp_status_t. */
template <auto function> inline constexpr auto guarded = &guard<function>::call;
} // namespace dualpipe

#endif
