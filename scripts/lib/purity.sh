# Checks the properties of tidegate-core that the compiler enforces. Sourced by scripts/test.

# With `no_std` and without dependencies the crate cannot name a clock, a file,
# a lock or a runtime. A single changed line could lose either property.
core_is_pure() {
    local source=crates/tidegate-core/src
    if ! grep -qx '#!\[no_std\]' "$source/lib.rs"; then
        echo "$source/lib.rs must say #![no_std]" >&2
        return 1
    fi
    # The only conversion that needs std is behind a feature that is off by default.
    if grep -rnE '\b(extern crate std|std::|f32|f64)\b' "$source" --exclude=system_time.rs |
        grep -vE ':[0-9]+:\s*//'; then
        echo "tidegate-core names std or a float in the lines above" >&2
        return 1
    fi
    local crates
    crates=$(cargo tree --locked -p tidegate-core -e normal,build --prefix none)
    if [ "$(wc -l <<<"$crates")" -ne 1 ]; then
        printf 'tidegate-core must have no dependencies, but has:\n%s\n' "$crates" >&2
        return 1
    fi
    echo "no_std, no dependencies, no float"
}
