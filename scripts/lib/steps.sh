# Named steps with a summary at the end. Sourced by scripts/test.

summary=()
running=""

# step NAME COMMAND... : runs a command under a heading; the first that fails ends the script.
step() {
    running=$1
    shift
    local started=$SECONDS
    printf '\n== %s\n' "$running"
    "$@"
    summary+=("ok       $running ($((SECONDS - started)) s)")
    running=""
}

# skipped NAME WHY : says aloud what was not done.
skipped() {
    printf '\n== %s: skipped, %s\n' "$1" "$2"
    summary+=("skipped  $1: $2")
}

# A compiler that cannot write says so far above, if at all.
tell_of_full_disk() {
    local target=${CARGO_TARGET_DIR:-target} free_mib
    [ -d "$target" ] || target=.
    free_mib=$(df -Pm "$target" | awk 'NR == 2 { print $4 }') || return 0
    if [ "$free_mib" -lt 1024 ]; then
        printf '         the disk is nearly full: %s MiB are left, a run from empty takes 6 GiB\n' \
            "$free_mib"
    fi
}

# Set as the EXIT trap, so that a failure is summed up too.
print_summary() {
    local status=$?
    printf '\n== summary\n'
    if [ "${#summary[@]}" -gt 0 ]; then
        printf '%s\n' "${summary[@]}"
    fi
    if [ "$status" -ne 0 ]; then
        printf 'FAILED   %s\n' "${running:-set-up}"
        tell_of_full_disk
    else
        printf 'all steps passed\n'
    fi
    exit "$status"
}
