# Tests the Python and TypeScript clients and their examples against a real server.
# Sourced by scripts/test. Needs python3 with venv, Node 20 or later with npm, and access to PyPI
# and npm; everything is installed under the target directory and in node_modules.

# test_clients : type-checks and tests the clients and their examples.
test_clients() {
    local target=${CARGO_TARGET_DIR:-target}
    mkdir -p "$target/clients"
    local home
    home=$(cd "$target" && pwd)
    # The binary that was built for the tests, or the given one.
    if [ -z "${TIDEGATE_BIN:-}" ]; then
        build || return 1
    fi
    local -x TIDEGATE_BIN=${TIDEGATE_BIN:-$home/debug/tidegate}
    if [ ! -x "$TIDEGATE_BIN" ]; then
        echo "the tests of the clients need the server, but $TIDEGATE_BIN does not exist" >&2
        return 1
    fi
    locks_are_public || return 1
    installs_from_a_clone || return 1
    rm -rf "$home/clients/packages" && mkdir "$home/clients/packages" || return 1
    python_client "$home/clients" || return 1
    typescript_client "$home/clients" || return 1
    python3 scripts/lib/clients/packages.py "$home/clients/packages" || return 1
    node_gateway
}

# A lock file created behind a mirror would make all users download from it.
locks_are_public() {
    local lock private
    for lock in clients/typescript/package-lock.json examples/node-gateway/package-lock.json; do
        private=$(grep -E '"resolved": "[a-z+]+:' "$lock" | grep -v '"resolved": "https://registry\.npmjs\.org/') || true
        if [ -n "$private" ]; then
            printf '%s names another registry than registry.npmjs.org:\n%s\n' "$lock" "$private" >&2
            return 1
        fi
    done
}

# While the packages are not published, anyone could register their names.
installs_from_a_clone() {
    local found
    grep -q 'not published yet' README.md || return 0
    found=$(git grep -nE '(pip|npm|cargo) (install|add|i)( -[^ ]+)* (@tidegate/client|tidegate(-[a-z]+)?)([^a-z/]|$)' \
        -- . ':!RELEASING.md') || true
    if [ -n "$found" ]; then
        printf 'these commands install packages that are not published; use a path below CLONE:\n%s\n' "$found" >&2
        return 1
    fi
}

# python_client HOME : tests in a virtual environment, recreated when the pinned packages change.
python_client() {
    local venv=$1/venv client=clients/python
    local pinned=$client/requirements-dev.txt
    if ! cmp -s "$pinned" "$venv/pinned.txt"; then
        rm -rf "$venv"
        python3 -m venv "$venv" || return 1
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$pinned" || return 1
        cp "$pinned" "$venv/pinned.txt"
    fi
    # The tests use the package as it would be published. It is built from a copy, because building
    # leaves files behind; the licences are links, which the copy replaces by the files.
    rm -rf "$1/python" && cp -RL "$client" "$1/python" || return 1
    (cd "$1/python" && "$venv/bin/python" -c '
import sys
from setuptools import build_meta
# setuptools changes sys.argv.
packages = sys.argv[1]
build_meta.build_wheel(packages)
build_meta.build_sdist(packages)' "$1/packages" >"$1/build.log" 2>&1) || { cat "$1/build.log" >&2; return 1; }
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall \
        "$1"/packages/*.whl || return 1
    local -x PYTHONDONTWRITEBYTECODE=1
    (cd "$client" && "$venv/bin/mypy" --cache-dir "$1/mypy") || return 1
    (cd "$client" && timeout 300 "$venv/bin/pytest" -p no:cacheprovider)
}

# Installs the packages that the TypeScript client is built with, when the lock file changes.
typescript_packages() {
    local client=clients/typescript
    local installed=$client/node_modules/.tidegate-lock
    if ! cmp -s "$client/package-lock.json" "$installed"; then
        npm ci --prefix "$client" --no-audit --no-fund --loglevel=error || return 1
        cp "$client/package-lock.json" "$installed"
    fi
}

# typescript_client HOME : type-checks and tests the client with the examples.
typescript_client() {
    local client=clients/typescript
    typescript_packages || return 1
    rm -rf "$client/dist" "$client/build"
    (
        cd "$client" || exit 1
        PATH=$PWD/node_modules/.bin:$PATH
        tsc -p tsconfig.build.json && tsc --noEmit && tsc -p tsconfig.test.json || exit 1
        timeout 300 node --test --test-reporter=dot build/tests/ || exit 1
        npm pack --silent --pack-destination "$1/packages" >/dev/null
    )
}

# The gateway uses the client that `npm ci` links.
node_gateway() {
    local gateway=examples/node-gateway
    npm ci --prefix "$gateway" --no-audit --no-fund --loglevel=error || return 1
    clients/typescript/node_modules/.bin/tsc -p "$gateway/jsconfig.json" || return 1
    (cd "$gateway" && timeout 120 node --test --test-reporter=dot)
}
