# Formatting, lints, tests, models and dependencies. Sourced by scripts/test.

# The release that the dependencies were last checked with.
CARGO_DENY=0.20.2

# Modules of tests that start other programs: servers, gateways, clients, promtool.
NEED_PROGRAMS=(redis gateways:: grpc:: promtool resp::clients shared_store:: http::documented)
# Recorded traces through a debug build, and clients that are waited for: half of the time.
SLOW=(recorded_traces:: closes_slow_clients closes_stalled_connections_and_keeps_idle_ones)

# rust_component COMMAND COMPONENT : installs a component of the toolchain that is missing.
rust_component() { cargo "$1" --version || rustup component add "$2"; }

check_format() {
    rust_component fmt rustfmt
    cargo fmt --all --check
}

lint() {
    rust_component clippy clippy
    cargo clippy --locked "${PACKAGES[@]}" --all-targets -- -D warnings
}

# The other steps build with every feature; these are the defaults. The whole workspace shares most
# dependencies with them, where the server alone would be checked with other features throughout.
lint_features() {
    rust_component clippy clippy
    cargo clippy --locked -p tidegate -- -D warnings
    cargo clippy --locked --workspace -- -D warnings
}

# Many tests wait for another program or for a time to pass: more threads than processors.
run_tests() {
    RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))} cargo test --locked "${PACKAGES[@]}" "$@"
}

run_quick_tests() {
    local name skips=()
    for name in "${NEED_PROGRAMS[@]}" "${SLOW[@]}"; do skips+=(--skip "$name"); done
    run_tests -- "${skips[@]}"
}

# The program is built for its own tests. `cargo build` would compile it again, because some of its
# dependencies have more features in tests.
redis_faults() {
    cargo test --locked "${PACKAGES[@]}" --no-run --test cli
    "${CARGO_TARGET_DIR:-target}/debug/tidegate-bench" faults --short
}

# Every interleaving of small cases, up to a number of switches. A separate directory, because the
# flag rebuilds everything.
loom() {
    local -x RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
    # Optimised for the models, but without link-time optimisation, which takes longer than they do.
    local -x CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
    local models=(cargo test --locked --release -p tidegate --test it loom)
    "${models[@]}"
    # A filter that matches no test would pass too. The list is read whole before it is searched:
    # a search that ends early would break the pipe.
    local listed
    listed=$("${models[@]}" -- --list 2>/dev/null)
    if ! grep -q ': test$' <<<"$listed"; then
        echo "no loom model was found" >&2
        return 1
    fi
}

# The libraries, with the features they have in `lint_features`.
api_docs() {
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --lib --no-deps
}

# Built from source, because no registry that the other steps use has a current binary. Compiled
# without optimisation it takes half the time, and the check itself a second.
install_cargo_deny() {
    if ! cargo deny --version 2>/dev/null; then
        cargo install --quiet --locked --debug --version "$CARGO_DENY" cargo-deny
    fi
}

check_dependencies() { cargo deny check bans licenses sources; }

check_advisories() {
    if ! cargo deny fetch db; then
        skip "the advisory database cannot be fetched from here"
        return 0
    fi
    cargo deny check advisories
}
