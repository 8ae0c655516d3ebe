// SPDX-FileCopyrightText: The libdualpipe authors
// SPDX-License-Identifier: MIT
// build.rs: pkg-config says where the library is, bindgen reads its headers. Both are commands, so no crate is fetched.
use std::{env, process::Command};

fn output(command: &mut Command) -> String {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().unwrap_or_else(|e| panic!("{}: {} (Debian: bindgen, pkgconf)", name, e));

    assert!(out.status.success(), "{}: {}", name, String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn main() {
    let cflags = output(Command::new("pkg-config").args(["--cflags", "dualpipe >= 0.2"]));
    let libs = output(Command::new("pkg-config").args(["--libs", "dualpipe"]));
    // bindgen before 0.61 makes u64 of size_t unless told
    let help = output(Command::new("bindgen").arg("--help"));
    let usize_flag = help.split_whitespace().find(|word| *word == "--size_t-is-usize");
    let bindings = format!("{}/bindings.rs", env::var("OUT_DIR").unwrap());

    output(
        Command::new("bindgen")
            .args(["wrapper.h", "--output", &bindings, "--allowlist-function", "dp_.*", "--allowlist-type", "dp_.*"])
            .args(["--allowlist-var", "DP_.*", "--no-layout-tests", "--no-prepend-enum-name"])
            .args(usize_flag)
            .arg("--")
            .args(cflags.split_whitespace()),
    );
    for word in libs.split_whitespace() {
        if let Some(folder) = word.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={}", folder);
        } else if let Some(name) = word.strip_prefix("-l") {
            println!("cargo:rustc-link-lib={}", name);
        }
    }
    println!("cargo:rerun-if-changed=wrapper.h");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
}
