# Named steps with a summary at the end. Sourced by scripts/test.

names=()
declare -A description command installers
summary=()
running=""
finished=no
downloads=""

# define NAME DESCRIPTION COMMAND [INSTALLER...] : adds a step. Its installers run before its command;
# they may run more than once, and must then find everything installed.
define() {
    names+=("$1")
    description[$1]=$2
    command[$1]=$3
    installers[$1]=${*:4}
}

list_steps() {
    local name
    for name in "${names[@]}"; do
        printf '%-15s %s\n' "$name" "${description[$name]}"
    done
    finished=quietly
}

usage_error() {
    printf 'scripts/test: %s; usage: scripts/test [fast | --list | NAME...], names are:\n' "$1" >&2
    list_steps >&2
    exit 2
}

# run_steps NAME... : runs steps in order; the first that fails ends the script. Names joined by
# commas run side by side: for steps that wait often.
run_steps() {
    local name
    for name in ${*//,/ }; do
        if [ -z "${description[$name]:-}" ]; then usage_error "unknown step \"$name\""; fi
    done
    # Downloads overlap with compiling. A step that needs them waits, then runs its installers
    # again for the variables they export, and to show what failed.
    # shellcheck disable=SC2086
    install_for ${*//,/ } >/dev/null 2>&1 &
    downloads=$!
    for name in "$@"; do
        if [[ $name = *,* ]]; then
            run_side_by_side ${name//,/ }
            continue
        fi
        running=$name
        local started=$SECONDS
        printf '\n== %s: %s\n' "$name" "${description[$name]}"
        if [ -n "${installers[$name]}" ]; then
            wait "$downloads" || true
            install_for "$name"
        fi
        ${command[$name]}
        if [ -n "$running" ]; then summary+=("ok       $name ($((SECONDS - started)) s)"); fi
        running=""
    done
    wait "$downloads" || true
    finished=yes
}

# run_side_by_side FIRST NAME... : runs each step in a separate process. The first step has priority and
# prints as it runs; the others use the processor while it waits, and their output follows.
run_side_by_side() {
    local first=$1 name failed="" logs=${CARGO_TARGET_DIR:-target}/steps
    local -A pids=()
    shift
    wait "$downloads" || true
    mkdir -p "$logs"
    for name in "$@"; do
        nice -n 10 ./scripts/test "$name" >"$logs/$name.log" 2>&1 &
        pids[$name]=$!
    done
    running=$first
    ./scripts/test "$first" 2>&1 | tee "$logs/$first.log" | sed -u '/^== summary$/,$d' || failed=$first
    for name in "$@"; do
        running=$name
        wait "${pids[$name]}" || failed=${failed:-$name}
        sed '/^== summary$/,$d' "$logs/$name.log"
    done
    for name in "$first" "$@"; do
        mapfile -t -O "${#summary[@]}" summary < <(sed -n '/^== summary$/,$s/^\(ok\|skipped\)  .*/&/p' "$logs/$name.log")
    done
    running=$failed
    [ -z "$failed" ]
}

# install_for NAME... : runs the installers of these steps, each once.
install_for() {
    local name installer
    local -A done=()
    for name in "$@"; do
        for installer in ${installers[$name]}; do
            if [ -z "${done[$installer]:-}" ]; then
                done[$installer]=yes
                "$installer"
            fi
        done
    done
}

# skip REASON : called by a step that cannot run here; the summary shows it.
skip() {
    printf 'skipped: %s\n' "$1"
    summary+=("skipped  $running: $1")
    running=""
}

# The compiler's own message about a full disk is easily missed.
report_full_disk() {
    local target=${CARGO_TARGET_DIR:-target} free_mib
    [ -d "$target" ] || target=.
    free_mib=$(df -Pm "$target" | awk 'NR == 2 { print $4 }') || return 0
    if [ "$free_mib" -lt 1024 ]; then
        printf '         the disk is nearly full: %s MiB left; a run from empty takes 6 GiB\n' "$free_mib"
    fi
}

# The EXIT trap, so that a failed run prints a summary too.
print_summary() {
    local status=$?
    # A signal that ends the script leaves the status of the last command.
    if [ "$status" -eq 0 ] && [ "$finished" = no ]; then status=1; fi
    if [ "$status" -ne 0 ] && [ -n "$downloads" ]; then kill "$downloads" 2>/dev/null || true; fi
    if [ "$finished" = quietly ]; then exit "$status"; fi
    printf '\n== summary\n'
    if [ "${#summary[@]}" -gt 0 ]; then
        printf '%s\n' "${summary[@]}"
    fi
    if [ "$status" -ne 0 ]; then
        printf 'FAILED   %s\n' "${running:-set-up}"
        report_full_disk
    else
        printf 'all steps passed in %s s\n' "$SECONDS"
    fi
    exit "$status"
}
