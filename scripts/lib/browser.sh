# Tests the pages in a real browser: Debian's chromium, driven by playwright-core, which has no
# dependencies and includes no browser. Sourced by scripts/test.

# Installs Chromium, unless TIDEGATE_BROWSER names a browser.
install_chromium() {
    if [ -z "${TIDEGATE_BROWSER:-}" ] && ! command -v chromium >/dev/null; then
        apt_install chromium chromium-sandbox
    fi
}

# prepare_browser : installs the browser and its driver, and builds the server. The tests are copied
# to the target directory, next to their packages.
prepare_browser() {
    local target=${CARGO_TARGET_DIR:-target} source=crates/tidegate-server/tests/browser
    install_chromium || return 1
    mkdir -p "$target/browser"
    browser_home=$(cd "$target/browser" && pwd)
    if ! cmp -s "$source/package-lock.json" "$browser_home/installed.json"; then
        cp "$source/package.json" "$source/package-lock.json" "$browser_home/" || return 1
        npm ci --prefix "$browser_home" --no-audit --no-fund --loglevel=error || return 1
        cp "$source/package-lock.json" "$browser_home/installed.json"
    fi
    rm -f "$browser_home"/*.mjs
    cp "$source"/*.mjs "$browser_home/" || return 1
    # The binary that was built for the tests, or the given one.
    if [ -z "${TIDEGATE_BIN:-}" ]; then
        build || return 1
    fi
    browser_bin=${TIDEGATE_BIN:-$(dirname "$browser_home")/debug/tidegate}
}

# browser_pages : clicks through the playground and the dashboard, and checks all pages with axe.
browser_pages() {
    local browser_home browser_bin
    prepare_browser || return 1
    (cd "$browser_home" && TIDEGATE_BIN=$browser_bin timeout 600 node --test --test-concurrency=2 --test-reporter=dot)
}

# browser_run SCRIPT [ARGUMENT...] : runs another script of the browser tests.
browser_run() {
    local browser_home browser_bin script=$1
    shift
    prepare_browser || return 1
    (cd "$browser_home" && TIDEGATE_BIN=$browser_bin timeout 600 node "$script" "$@")
}
