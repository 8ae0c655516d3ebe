// SPDX-FileCopyrightText: The libdualpipe authors
// SPDX-License-Identifier: MIT
//! libdualpipe as its headers are; they say what each function and member means. What C has as
//! inline functions is `dp_ffi_*` here.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// A struct of the library: `struct_size` is set, and every other member has its default, zero.
///
/// # Safety
/// `T` begins with `struct_size`, and zero is a value of each of its members.
pub unsafe fn sized<T>() -> T {
    let mut t = std::mem::MaybeUninit::<T>::zeroed();

    t.as_mut_ptr().cast::<u32>().write(std::mem::size_of::<T>() as u32);
    t.assume_init()
}
