# Installs the gRPC client of the tests: Envoy's own messages for Python, from PyPI. Sourced by
# scripts/test; the tests look in envoy-client of the target directory.

# Pinned to the versions that the expected answers were recorded with.
ENVOY_CLIENT_WHEELS="xds-protos==1.85.0 grpcio==1.85.1 grpcio-health-checking==1.85.1 grpcio-reflection==1.85.1"

# Installs missing packages in a virtual environment. A stamp file records the versions.
envoy_client() {
    local venv=${CARGO_TARGET_DIR:-target}/envoy-client
    if [ "$(cat "$venv/wheels" 2>/dev/null)" != "$ENVOY_CLIENT_WHEELS" ]; then
        rm -rf "$venv"
        # shellcheck disable=SC2086 # several words
        python3 -m venv "$venv" &&
            "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: $ENVOY_CLIENT_WHEELS || {
            {
                printf '\n!! The Python client of Envoy'\''s rate limit service could not be installed (the reason is above).\n'
                printf '!! The gRPC tests fail without it. They need python3 with venv and access to PyPI.\n\n'
            } >&2
            return 1
        }
        printf '%s\n' "$ENVOY_CLIENT_WHEELS" >"$venv/wheels"
    fi
    "$venv/bin/python" -c 'import grpc; print("grpcio", grpc.__version__)'
}

# Regenerates the descriptors that reflection returns (crates/tidegate-server/src/fronts/grpc/descriptors.binpb).
envoy_descriptors() {
    envoy_client &&
        "${CARGO_TARGET_DIR:-target}/envoy-client/bin/python" scripts/lib/envoy/descriptors.py \
            crates/tidegate-server/src/fronts/grpc/descriptors.binpb
}
