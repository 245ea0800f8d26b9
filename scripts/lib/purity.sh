# What the compiler is relied on for in tidegate-core. Sourced by scripts/test.

# With `no_std` and without dependencies the crate cannot name a clock, a file,
# a lock or a runtime; both are one careless line away from being lost.
core_is_pure() {
    local source=crates/tidegate-core/src
    if ! grep -qx '#!\[no_std\]' "$source/lib.rs"; then
        echo "$source/lib.rs must say #![no_std]" >&2
        return 1
    fi
    # The one conversion that needs std is a feature that is off by default.
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
