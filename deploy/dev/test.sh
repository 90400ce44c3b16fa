# shellcheck shell=bash
# ./dev test [fast]: everything that must hold before a change is merged. Stops at the first failure. Sourced by ./dev.

STEP='' TEST_ROOT='' PASSED=0 ONLY_PROVIDERS=no

step() {
    STEP=$1
    printf '\n======== %s\n' "$STEP"
    shift
    "$@"
    PASSED=$((PASSED + 1))
}

# Runs however the tests end: no process and no folder of theirs stays behind.
clean_up_tests() {
    local status=$? env
    trap - EXIT INT TERM
    if [[ -n $TEST_ROOT ]]; then
        # States that a test left running, the script's own PostgreSQL among them.
        while IFS= read -r env; do
            AIVIDEO_STATE=$(dirname "$env") "$REPO/dev" reset --yes >/dev/null 2>&1 || true
        done < <(find "$TEST_ROOT" -maxdepth 4 -name env -type f 2>/dev/null)
        rm -rf "$TEST_ROOT"
    fi
    if ((status == 0)); then
        printf '\n%s steps passed in %s min %s s.\n' "$PASSED" $((SECONDS / 60)) $((SECONDS % 60))
        [[ $FAST == no ]] || printf 'THE END-TO-END TESTS WERE LEFT OUT: ./dev test runs them.\n'
    else
        printf '\nFAILED at: %s (%s steps passed before it).\n' "${STEP:-preparation}" "$PASSED" >&2
    fi
    exit "$status"
}

prepare_tests() {
    need_cargo
    ensure_tools postgres redis media java maven
    apache_fetched || fetch_apache
    fetch_node_packages
}

start_test_database() {
    # What is written here is deleted in an hour: durability would only cost time. Tests make databases of their own, and slots.
    AIVIDEO_STATE=$TEST_ROOT/database \
        DEV_POSTGRES_OPTIONS='-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c wal_level=logical' \
        DEV_POSTGRES_CREATEDB=yes "$REPO/dev" up --only postgres
    DATABASE_URL=$(AIVIDEO_STATE=$TEST_ROOT/database "$REPO/dev" env | sed -n 's/^AIVIDEO_DATABASE__OWNER_URL=//p')
    export DATABASE_URL
}

# Of the whole workspace, as all that is built here: another selection of packages has other features, and builds them again.
end_to_end() {
    DEV_BROKER=$1 cargo test --workspace --test e2e
}

# Both at once: each has a system of its own, and waits more than it works.
end_to_end_on_both() {
    local log=$TEST_ROOT/embedded.log embedded status=0
    end_to_end embedded >"$log" 2>&1 &
    embedded=$!
    end_to_end apache || status=$?
    wait "$embedded" || status=$?
    printf '\n---- on the embedded broker\n'
    cat "$log"
    return "$status"
}

run_tests() {
    local key
    FAST=no
    case ${1:-} in
        fast) FAST=yes ;;
        providers)
            ONLY_PROVIDERS=yes
            shift
            ;;
        '') ;;
        *) fail "./dev test knows the words fast and providers, not $1." ;;
    esac
    [[ $FAST == no ]] || printf 'FAST: the end-to-end tests are left out.\n'
    # Settings of whoever runs this would make the result theirs.
    for key in $(compgen -e AIVIDEO_) $(compgen -e DEV_); do unset "$key"; done
    trap clean_up_tests EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    cd "$REPO" || exit 1
    TEST_ROOT=$(mktemp -d /tmp/aivideo-test.XXXXXX)
    chmod 0711 "$TEST_ROOT"
    mkdir -m 1777 "$TEST_ROOT/tmp"
    # Tests put their states here, where they are found again if a test is killed.
    export TMPDIR=$TEST_ROOT/tmp AIVIDEO_REPO=$REPO AIVIDEO_OWN_PARTS=1

    if [[ $ONLY_PROVIDERS == yes ]]; then
        need_cargo
        ensure_tools postgres media
        start_test_database
        STEP="the matrix of providers, faults and crashes"
        cargo test --workspace --test matrix -- "$@"
        return
    fi
    step "what the tests need" prepare_tests
    step "format" cargo fmt --all --check
    step "lints" cargo clippy --workspace --all-targets --quiet -- -D warnings
    step "build" build_binary debug
    export AIVIDEO_BIN=$BIN
    step "a PostgreSQL for the tests" start_test_database
    step "documentation tests, among them what must not compile" cargo test --workspace --doc
    step "unit, database and broker tests, and the repository's rules" cargo test --workspace --lib --bins --tests
    if [[ $FAST == no ]]; then
        step "providers, their faults, and crashes" cargo test --workspace --test matrix
        step "end to end, on the embedded broker and on Apache RocketMQ" end_to_end_on_both
    fi
}
