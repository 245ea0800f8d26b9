# Installs the Redis clients that the RESP front is tested with: redis-cli from the distribution, redis-py from
# PyPI, ioredis from npm. Sourced by scripts/test after apt.sh; the tests look for redis-cli,
# redis-benchmark and node in PATH, and for the others at REDIS_PY_PYTHON and IOREDIS_MODULES.

# Pinned to the versions that the tests are known to pass with.
REDIS_PY_WHEEL=redis==8.1.0
IOREDIS_PACKAGE=ioredis@6.0.0

# Installs missing clients, exports their paths and prints the versions.
redis_clients() {
    local home=${CARGO_TARGET_DIR:-target}/resp
    mkdir -p "$home"
    home=$(cd "$home" && pwd)
    redis_client_packages || redis_clients_failed "redis-cli and Node.js" || return 1
    redis_py_wheel "$home" || redis_clients_failed "redis-py" || return 1
    ioredis_package "$home" || redis_clients_failed "ioredis" || return 1
    redis-cli --version && "$REDIS_PY_PYTHON" -c 'import redis; print("redis-py", redis.__version__)' &&
        NODE_PATH=$IOREDIS_MODULES node -p '"ioredis " + require("ioredis/package.json").version' ||
        redis_clients_failed "one of the clients"
}

redis_clients_failed() {
    {
        printf '\n!! %s could not be installed (the reason is above).\n' "$1"
        printf '!! The tests of the RESP front fail without them. They need apt-get (as root, or with sudo that\n'
        printf '!! asks nothing), or redis-cli, redis-benchmark, node and npm in PATH, python3 with venv, and\n'
        printf '!! access to PyPI and npm.\n\n'
    } >&2
    return 1
}

redis_client_packages() {
    local missing=()
    if ! type -P redis-cli redis-benchmark >/dev/null; then missing+=(redis-tools); fi
    if ! type -P node >/dev/null; then missing+=(nodejs); fi
    if ! type -P npm >/dev/null; then missing+=(npm); fi
    if [ "${#missing[@]}" -gt 0 ]; then apt_install "${missing[@]}"; fi
}

# redis_py_wheel HOME : installs the wheel in a virtual environment. A stamp file records the version.
redis_py_wheel() {
    local venv=$1/venv
    if [ "$(cat "$venv/wheels" 2>/dev/null)" != "$REDIS_PY_WHEEL" ]; then
        rm -rf "$venv"
        python3 -m venv "$venv" || return 1
        "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "$REDIS_PY_WHEEL" || return 1
        printf '%s\n' "$REDIS_PY_WHEEL" >"$venv/wheels"
    fi
    export REDIS_PY_PYTHON=$venv/bin/python
}

# ioredis_package HOME : installs the package in a separate directory. A stamp file records the version.
ioredis_package() {
    local npm=$1/npm
    if [ "$(cat "$npm/packages" 2>/dev/null)" != "$IOREDIS_PACKAGE" ]; then
        rm -rf "$npm"
        mkdir -p "$npm"
        npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$npm" "$IOREDIS_PACKAGE" || return 1
        printf '%s\n' "$IOREDIS_PACKAGE" >"$npm/packages"
    fi
    export IOREDIS_MODULES=$npm/node_modules
}
