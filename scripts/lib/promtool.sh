# promtool, which the tests hold /metrics against. Sourced by scripts/test.

# Installs it from the distribution's package of Prometheus, without running the server.
install_promtool() {
    if command -v promtool >/dev/null; then
        promtool --version 2>&1 | head -n 1
        return
    fi
    local sudo=()
    [ "$(id -u)" -eq 0 ] || sudo=(sudo)
    # The package would start a server on port 9090, which is not ours to take.
    local policy=/usr/sbin/policy-rc.d mine=no
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
        "${sudo[@]}" chmod +x "$policy"
        mine=yes
    fi
    "${sudo[@]}" apt-get update -qq
    local status=0
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends prometheus >/dev/null || status=$?
    if [ "$mine" = yes ]; then
        "${sudo[@]}" rm -f "$policy"
    fi
    if [ "$status" -ne 0 ] || ! command -v promtool >/dev/null; then
        echo "promtool is needed and apt could not install it (package prometheus)" >&2
        return 1
    fi
    promtool --version 2>&1 | head -n 1
}
