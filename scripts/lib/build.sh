# The build that all steps share. Sourced by scripts/test.

# Every step names the same packages and features. With another selection Cargo would compile the
# library and many dependencies again.
PACKAGES=(--workspace --features tidegate-server/otlp)

# build : the server and the libraries, as `cargo test` builds them. Without the libraries some
# dependencies would be needed by build scripts only, and Cargo would compile those and the server
# again.
build() {
    cargo build --locked --profile test "${PACKAGES[@]}" --lib --bin tidegate
}
