# Installs packages of the distribution. Sourced by scripts/test.

# as_root COMMAND... : runs a command as root, or with sudo without a password prompt.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

# apt_install PACKAGE... : installs packages; a service among them is not started.
apt_install() {
    local policy=/usr/sbin/policy-rc.d status=0 mine=no
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=120)
    # Debian's packages run policy-rc.d before they start a service; here it denies that
    # temporarily. An existing policy-rc.d is kept.
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root install -m 755 /dev/stdin "$policy" || return 1
        mine=yes
    fi
    { as_root "${apt[@]}" update && as_root "${apt[@]}" install --no-install-recommends "$@"; } \
        >/dev/null || status=$?
    if [ "$mine" = yes ]; then as_root rm -f "$policy"; fi
    return "$status"
}
