# The build that all steps share. Sourced by scripts/test.

# Every step names the same packages and features. With another selection Cargo would compile the
# library and many dependencies again.
PACKAGES=(--workspace --features tidegate-server/otlp)

# build : the server, as `cargo test` builds it.
build() {
    cargo build --locked --profile test "${PACKAGES[@]}" --bin tidegate
}
