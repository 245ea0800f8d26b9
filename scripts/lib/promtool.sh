# Installs promtool, which the tests use to check /metrics. Sourced by scripts/test.

# Installs promtool from the distribution's package of Prometheus, without running the
# server, which would take port 9090.
install_promtool() {
    if ! command -v promtool >/dev/null; then
        apt_install prometheus || true
    fi
    if ! command -v promtool >/dev/null; then
        echo "promtool is needed and apt could not install it (package prometheus)" >&2
        return 1
    fi
    promtool --version 2>&1 | head -n 1
}
