# Tests the server against its description at /openapi.json. Sourced by scripts/test.

install_schemathesis() {
    local venv=${CARGO_TARGET_DIR:-target}/schemathesis
    if [ ! -x "$venv/bin/schemathesis" ]; then
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check 'schemathesis>=4.32,<5'
    fi
}

# described_api : generates valid and invalid requests from the description and
# sends them to a running server. A 5xx, an answer that is not as described, or
# invalid input that is accepted fails. Three checks are excluded because they do not
# know rules between fields (an id and a wait exclude each other, a lease
# bounds `ttl_ms`), of leases that end after 2 ms, and of paths that take any method.
described_api() {
    local target=${CARGO_TARGET_DIR:-target}
    local venv="$target/schemathesis" log="$target/schemathesis.log"
    build
    # The file of an earlier run names a server that has ended.
    rm -f "$log" "$log.out"
    "$target/debug/tidegate" serve --http 127.0.0.1:0 --admin off --grpc off --resp off 2>"$log" >"$log.out" &
    local server=$! address=""
    for _ in $(seq 100); do
        address=$(grep -ohE 'http://127\.0\.0\.1:[0-9]+' "$log" "$log.out" | head -n 1) || true
        if [ -n "$address" ]; then break; fi
        sleep 0.1
    done
    local status=0
    "$venv/bin/schemathesis" run "$address/openapi.json" --phases examples,coverage,fuzzing \
        --exclude-checks positive_data_acceptance,ensure_resource_availability,unsupported_method \
        --max-examples 40 --seed 7 --request-timeout 10 --max-time 60 || status=$?
    kill "$server" && wait "$server" || status=$?
    return "$status"
}
