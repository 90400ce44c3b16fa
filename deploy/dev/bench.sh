# shellcheck shell=bash
# The benchmarks of the event store: a PostgreSQL of their own with usual durability, other stores built beside ours.
# Sourced by ./dev.

clean_up_bench() {
    local status=$?
    trap - EXIT
    [[ ! -d $BENCH_ROOT/database ]] || AIVIDEO_OWN_PARTS=1 AIVIDEO_STATE=$BENCH_ROOT/database "$REPO/dev" reset --yes >/dev/null || true
    rm -rf "$BENCH_ROOT"
    exit "$status"
}

# Another profile than release is for trying the benchmark itself.
build_store_bench() {
    local profile=${BENCH_PROFILE:-release}
    need_cargo
    need_space "$CARGO_TARGET_DIR" 4096 "the build" CARGO_TARGET_DIR
    say "Building (the first time takes some minutes; results in $CARGO_TARGET_DIR)"
    cargo build --quiet --profile "$profile" -p bench --bin bench-store || fail "The build failed: the compiler's messages are above."
    BENCH_STORE=$CARGO_TARGET_DIR/$profile/bench-store
    [[ $1 == store ]] || return 0
    # What they ask of the database is checked by sqlx against the answers that are kept in bench/peers/.sqlx.
    (cd "$REPO/bench/peers" && SQLX_OFFLINE=true cargo build --quiet --locked --profile "$profile" --target-dir "$CARGO_TARGET_DIR/peers") ||
        fail "The other stores could not be built: the compiler's messages are above."
    export BENCH_PEERS=$CARGO_TARGET_DIR/peers/$profile/peers
}

# The one in DATABASE_URL, where it is set; its role must be allowed to create databases.
start_bench_database() {
    [[ -z ${DATABASE_URL:-} ]] || return 0
    AIVIDEO_OWN_PARTS=1 AIVIDEO_STATE=$BENCH_ROOT/database DEV_POSTGRES_CREATEDB=yes "$REPO/dev" up --only postgres
    DATABASE_URL=$(AIVIDEO_STATE=$BENCH_ROOT/database "$REPO/dev" env | sed -n 's/^AIVIDEO_DATABASE__OWNER_URL=//p')
    export DATABASE_URL
}

run_store_bench() {
    ensure_tools postgres
    cd "$REPO"
    build_store_bench "$1"
    BENCH_ROOT=$(mktemp -d "${TMPDIR:-/tmp}/aivideo-bench.XXXXXX")
    chmod 0711 "$BENCH_ROOT"
    trap clean_up_bench EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    [[ $1 != growth ]] || need_space "$BENCH_ROOT" 15000 "a log of ten million events" TMPDIR
    start_bench_database
    BENCH_PGBENCH=$(postgres_binaries '')/pgbench
    export BENCH_PGBENCH
    "$BENCH_STORE" "$@"
}
