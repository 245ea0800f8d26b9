# What is built for the tests, once. Sourced by scripts/test.

# Everything but the benchmarks, whose peers are many. All steps name the same packages: with
# others the library would have other features, and be compiled again.
PACKAGES=(--workspace --exclude tidegate-bench)

# build : the binary and the library, as `cargo test` builds them.
build() {
    cargo build --locked --profile test "${PACKAGES[@]}"
}
