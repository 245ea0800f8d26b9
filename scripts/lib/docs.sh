# Tests the code and commands in the documentation. Sourced by scripts/test.

# No block of a page may take longer, in seconds: compiling takes most of it.
DOCS_TIMEOUT=300

pages() { printf '%s\n' README.md docs/*.md crates/*/README.md; }

# Compiles and runs every Rust block.
rust_in_docs() {
    local built=${CARGO_TARGET_DIR:-target}/debug page
    build
    while read -r page; do
        if grep -q '^```rust' "$page"; then
            echo "-- $page"
            timeout "$DOCS_TIMEOUT" rustdoc --test "$page" --edition 2024 --test-args --quiet \
                --extern "tidegate=$built/libtidegate.rlib" \
                --extern "tidegate_core=$built/libtidegate_core.rlib" -L "dependency=$built/deps"
        fi
    done < <(pages)
}

# Runs every `$ tidegate ...` and `$ curl ...` line of the console blocks and compares
# its output with the output on the page. Each page has a separate server with the listeners of the
# page, on other ports.
commands_in_docs() {
    local page bin=${CARGO_TARGET_DIR:-target}/debug/tidegate checked=0
    build
    diff <(examples/traces/make-sample) examples/traces/sample.csv
    while read -r page; do
        if grep -q '^\$ .*tidegate \|^\$ cargo run\|^\$ curl ' "$page"; then
            serve_for "$page" check_page "$page"
        fi
    done < <(pages)
    echo "$checked commands print what the pages say"
    [ "$checked" -gt 0 ]
}

# serve_for PAGE COMMAND... : runs a command while a server runs, with the page's config if it has one.
serve_for() {
    local page=$1 log config=() status=0 server http="" admin=""
    shift
    log=$(mktemp)
    if grep -q '^```yaml tidegate.yaml$' "$page"; then
        sed -n '/^```yaml tidegate.yaml$/,/^```$/{/^```/!p}' "$page" >"$log.yaml"
        config=(--config "$log.yaml")
    fi
    "$bin" serve "${config[@]}" --http 127.0.0.1:0 --admin 127.0.0.1:0 --grpc off --resp off >"$log" 2>&1 &
    server=$!
    for _ in $(seq 100); do
        http=$(sed -n 's|^ *http  *http://||p' "$log") admin=$(sed -n 's|^ *admin  *http://||p' "$log")
        if [ -n "$http" ] && [ -n "$admin" ]; then break; fi
        sleep 0.1
    done
    "$@" || status=$?
    kill "$server"
    wait "$server" || status=$?
    rm -f "$log" "$log.yaml"
    return "$status"
}

# check_page PAGE : checks every command of a page; fails if one of them did. `set -e` does not apply
# here, because the caller handles the failure.
check_page() {
    local line command="" expected="" inside=no status=0
    while IFS= read -r line; do
        case $inside:$line in
        no:'```console') inside=yes ;;
        no:*) ;;
        yes:'$ '* | yes:'```')
            check_command "$1" "$command" "$expected" || status=1
            command="" expected=""
            if [ "$line" = '```' ]; then inside=no; else command=${line#'$ '}; fi
            ;;
        *) expected+=$line$'\n' ;;
        esac
    done <"$1"
    return "$status"
}

check_command() {
    local page=$1 command=$2 expected=$3 actual status=0
    # The command is `cargo run` in a clone and `tidegate` when installed.
    command=${command/#cargo run --release -- /tidegate }
    case $command in
    tidegate\ * | *\|\ tidegate\ *) ;;
    curl\ *)
        command=${command//127.0.0.1:8080/$http}
        command=${command//127.0.0.1:9090/$admin}
        ;;
    *) return 0 ;;
    esac
    # A separate process, as for a user. The page shows the error of a command that is expected to
    # fail, but not of one that does not end.
    actual=$(PATH=$(realpath "$(dirname "$bin")"):$PATH timeout "$DOCS_TIMEOUT" bash -c "$command" 2>&1) || status=$?
    if [ "$status" = 124 ]; then
        printf '%s: this command did not end in %s s:\n  %s\n' "$page" "$DOCS_TIMEOUT" "$command" >&2
        return 1
    fi
    if ! diff <(speeds_out <<<"${expected%$'\n'}") <(speeds_out <<<"$actual"); then
        printf '%s: the above is what differs for\n  %s\n' "$page" "$command" >&2
        return 1
    fi
    checked=$((checked + 1))
}

# Speeds differ from run to run, and with them the widths of their columns; so do
# waits, dates, ports and ids.
speeds_out() {
    sed -E -e 's/("(retry_after|reset_after)_ms":)[1-9][0-9]*/\1.../g' \
        -e 's/^(date|x-request-id): .*/\1: .../I' -e 's/"id":"[0-9a-f]{32}"/"id":"..."/' -e 's/\r$//' \
        -e 's/127\.0\.0\.1:[0-9]+/127.0.0.1:.../g' -e 's/(;t=|retry-after: )[0-9]+/\1.../g' \
        -e 's/^(replayed in ).*/\1.../' -e 's/"(elapsed_us|[a-z_]+_per_second)": [0-9]+/"\1": 0/' \
        -e '/decisions\/s$/,/^$/s/ +[^ ]+$//'
}

# Checks that every snippet is run, runs those that no other step runs, and fails for warnings about a
# shipped config.
snippets_in_docs() {
    local target=${CARGO_TARGET_DIR:-target} config
    local -x PYTHONDONTWRITEBYTECODE=1
    build
    cargo build --locked --profile test "${PACKAGES[@]}" --bin tidegate-bench
    python3 scripts/lib/docs/snippets.py "$target/debug/tidegate"
    python3 scripts/lib/docs/gateways.py "$target/gateways/bin"
    for config in examples/tidegate.yaml examples/*/tidegate.yaml docs/tutorial/*.yaml deploy/docker/*/tidegate.yaml; do
        "$target/debug/tidegate" config check --strict "$config"
    done
    if ! unshare --net --mount --pid --fork --mount-proc true 2>/dev/null; then
        skip "commands that change files or use fixed ports: this user may not create namespaces"
        return
    fi
    "$target/deploy/venv/bin/python" scripts/lib/docs/sessions.py "$target"
}

# The limiters that docs/migration.md converts from, at pinned versions.
DOCS_NODE_PACKAGES="express@5.3.0 express-rate-limit@8.7.4 @upstash/ratelimit@2.2.0 @upstash/redis@1.39.0"

# Installs the npm packages that the snippets import.
docs_packages() {
    local home=${CARGO_TARGET_DIR:-target}/docs-node
    typescript_packages || return 1
    mkdir -p "$home"
    if [ "$(cat "$home/packages" 2>/dev/null)" != "$DOCS_NODE_PACKAGES" ]; then
        # shellcheck disable=SC2086 # several words
        npm install --prefix "$home" --no-audit --no-fund --no-save --loglevel=error $DOCS_NODE_PACKAGES || return 1
        echo "$DOCS_NODE_PACKAGES" >"$home/packages"
    fi
}
