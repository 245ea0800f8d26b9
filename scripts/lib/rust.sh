# Formatting, lints, tests, models and dependencies. Sourced by scripts/test.

# The release that last checked the dependencies.
CARGO_DENY=0.20.2

# The crates that other programs depend on. They support an older Rust than our programs need.
LIBRARIES=(tidegate-core tidegate tidegate-client)

# Test modules that start other programs: servers, gateways, clients, promtool.
NEED_PROGRAMS=(redis gateways:: grpc:: envoy_mode:: xds:: promtool resp::clients shared_store:: http::documented)
# These take half of the time: recorded traces in a debug build, and tests that wait for clients.
SLOW=(recorded_traces:: closes_slow_clients closes_stalled_connections_and_keeps_idle_ones)

# rust_component COMMAND COMPONENT : installs a component of the toolchain that is missing.
rust_component() { cargo "$1" --version || rustup component add "$2"; }

check_format() {
    rust_component fmt rustfmt
    cargo fmt --all --check
    check_comment_width
}

# rustfmt does not wrap comments. Code blocks, tables and lines with a URL may be wider.
check_comment_width() {
    local wide
    wide=$(find crates examples -name '*.rs' -not -path '*/target/*' -exec awk '
        FNR == 1 || !/^ *\/\// { block = 0 }
        /^ *\/\/[\/!]? *```/ { block = !block }
        /^ *\/\// && length > 100 && !block && !/:\/\// && !/^ *\/\/[\/!]? *\|/ {
            print FILENAME ":" FNR ": the comment is wider than 100 columns"
        }' {} +)
    if [[ $wide ]]; then printf '%s\n' "$wide" >&2; return 1; fi
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

# The rust-version that all libraries declare.
declared_msrv() {
    local crate versions
    versions=$(for crate in "${LIBRARIES[@]}"; do
        grep '^rust-version' "crates/$crate/Cargo.toml"
    done | sort -u)
    if ! [[ $versions =~ ^rust-version\ =\ \"([0-9.]+)\"$ ]]; then
        printf 'the libraries must declare one rust-version, but declare:\n%s\n' "$versions" >&2
        return 1
    fi
    echo "${BASH_REMATCH[1]}"
}

# Compiles the libraries with the oldest Rust they support, in a separate directory. Where that
# toolchain cannot be downloaded, only what is declared and what clippy knows is checked.
builds_with_msrv() {
    local msrv said
    msrv=$(declared_msrv)
    python3 scripts/lib/rust/msrv.py "$msrv" "${LIBRARIES[@]}"
    if ! said=$(install_toolchain "$msrv" 2>&1); then
        printf '%s\n' "$said" >&2
        if ! grep -qE 'could not download file|rustup: command not found' <<<"$said"; then return 1; fi
        # `incompatible_msrv` is among the warnings that are denied.
        lint
        skip "Rust $msrv cannot be installed from here: the libraries were not compiled with it; only the versions that dependencies declare and clippy's incompatible_msrv were checked"
        return 0
    fi
    local -x CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/msrv" CARGO_PROFILE_DEV_DEBUG=false
    cargo "+$msrv" check --locked -p tidegate
    cargo "+$msrv" check --locked "${LIBRARIES[@]/#/--package=}" --all-features
}

# install_toolchain VERSION : installs a release of Rust that is missing, without clippy and rustfmt.
install_toolchain() {
    local installed
    installed=$(rustup toolchain list) || return 1
    if ! grep -q "^$1-" <<<"$installed"; then
        rustup toolchain install --no-self-update --profile minimal "$1"
    fi
}

# More threads than processors, because many tests wait for another program or for time to pass.
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

# Tests every interleaving of small cases, up to a number of context switches. Uses a separate target
# directory, because the flag rebuilds everything.
loom() {
    local -x RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
    # Optimised for the models, but without link-time optimisation, which takes longer than they do.
    local -x CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
    local models=(cargo test --locked --release -p tidegate --test it loom)
    "${models[@]}"
    # A filter that matches no test would pass too. The list is read completely before it is searched,
    # because a search that ends early would break the pipe.
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

# Built from source, because no registry used by the other steps has a current binary. Without
# optimisation it compiles in half the time, and the check itself still takes only a second.
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
