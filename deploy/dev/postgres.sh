# shellcheck shell=bash
# PostgreSQL with a data folder of its own: the machine's server, if there is one, is never touched. Sourced by ./dev.

# PostgreSQL refuses to run as root. Root runs it as `postgres`, everybody else as themselves.
postgres_user() {
    if ((EUID != 0)); then
        id -un
    elif id postgres >/dev/null 2>&1; then
        printf postgres
    else
        id aivideo-postgres >/dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin aivideo-postgres
        printf aivideo-postgres
    fi
}

# The prefix that makes a command run as the database's user: empty, or root's way down.
as_postgres_user() {
    if ((EUID == 0)); then
        DOWN=(setpriv "--reuid=${SETTING[DEV_POSTGRES_USER]}" "--regid=$(id -g "${SETTING[DEV_POSTGRES_USER]}")" --init-groups --)
    else
        DOWN=()
    fi
}

# Where data and socket go. In the state folder if the database's user can get there (under /root it can't), otherwise
# in /var/lib/aivideo; `./dev reset` deletes both.
choose_postgres_folders() {
    local name
    SETTING[DEV_POSTGRES_USER]=$(postgres_user)
    as_postgres_user
    name=$(printf '%s' "$STATE" | sha256sum | cut -c1-12)
    if [[ ! -d ${SETTING[DEV_POSTGRES_DATA]:-/none} ]]; then
        if "${DOWN[@]}" test -x "$STATE/run"; then
            SETTING[DEV_POSTGRES_DATA]=$STATE/postgres
        else
            SETTING[DEV_POSTGRES_DATA]=/var/lib/aivideo/$name/postgres
        fi
    fi
    SETTING[DEV_POSTGRES_SOCKET]=$STATE/run/postgres
    # A socket's path may have 107 bytes; `.s.PGSQL.12345.lock` follows the folder.
    if ((${#STATE} > 70)) || ! "${DOWN[@]}" test -x "$STATE/run"; then
        SETTING[DEV_POSTGRES_SOCKET]=/tmp/aivideo-postgres-$name
    fi
}

# own_folder PATH: a folder of mode 0700 that belongs to the database's user; refuses one that somebody else prepared.
own_folder() {
    local user=${SETTING[DEV_POSTGRES_USER]}
    if ! mkdir -p "$(dirname "$1")" || ! { [[ -d $1 ]] || mkdir -m 0700 "$1"; }; then
        fail "Cannot create $1: check who owns $(dirname "$1")."
    fi
    [[ ! -L $1 && (-O $1 || $(stat -c %U "$1") == "$user") ]] ||
        fail "$1 belongs to another user: delete it, or choose another state folder with AIVIDEO_STATE."
    if ((EUID == 0)); then chown "$user" "$1"; fi
    chmod 0700 "$1"
}

create_cluster() {
    local data=${SETTING[DEV_POSTGRES_DATA]}
    report postgres "creating the data folder $data"
    # Made beside its place and renamed, so that an interrupted start leaves nothing half made.
    rm -rf "$data.new"
    own_folder "$data.new"
    (cd / && "${DOWN[@]}" env LC_ALL=C.UTF-8 "$PG/initdb" -D "$data.new" -U postgres --encoding=UTF8 --locale=C --data-checksums \
        --auth-local=peer --auth-host=scram-sha-256 --no-instructions) >>"$STATE/logs/postgres.log" 2>&1 ||
        fail_with_log postgres "PostgreSQL could not create its data folder $data."
    # The superuser comes in over the socket only, and only as the owner of this state. On the loopback the password is sent as it
    # is: the client's side of a SCRAM handshake takes half a second in a debug build, for each connection.
    cat >"$data.new/pg_hba.conf" <<'HBA'
local all postgres                 peer map=owner
local all all                      scram-sha-256
host  all postgres 0.0.0.0/0       reject
host  all all      127.0.0.1/32    password
HBA
    {
        printf 'owner %s postgres\n' "${SETTING[DEV_POSTGRES_USER]}"
        if ((EUID == 0)); then printf 'owner root postgres\n'; fi
    } >"$data.new/pg_ident.conf"
    cat >>"$data.new/postgresql.conf" <<'CONF'

# Set by ./dev
listen_addresses = '127.0.0.1'
max_connections = 300
password_encryption = 'scram-sha-256'
log_min_duration_statement = '250ms'
# Parameters hold prompts and secrets: the log shows statements without them.
log_parameter_max_length = 0
log_parameter_max_length_on_error = 0
log_line_prefix = '%m [%p] %u@%d '
log_timezone = 'UTC'
timezone = 'UTC'
CONF
    mv "$data.new" "$data"
}

# A power cut or a kill leaves postmaster.pid behind; if its number now belongs to another program, PostgreSQL would
# refuse to start. Backends that outlived their parent are ended first: two servers on one folder would destroy it.
clear_stale_postmaster() {
    local data entry pid
    data=$(realpath "${SETTING[DEV_POSTGRES_DATA]}")
    for entry in /proc/[0-9]*; do
        [[ $(readlink "$entry/cwd" 2>/dev/null) == "$data" ]] || continue
        pid=${entry#/proc/}
        [[ $(readlink "$entry/exe" 2>/dev/null) == */postgres ]] || continue
        report postgres "ending process $pid left over from an earlier server"
        kill -KILL "$pid" 2>/dev/null || true
        while start_ticks "$pid" >/dev/null; do sleep 0.05; done
    done
    rm -f "$data/postmaster.pid" "${SETTING[DEV_POSTGRES_SOCKET]}"/.s.PGSQL.*
}

postgres_superuser() {
    "$PG/psql" -X -q -v ON_ERROR_STOP=1 -h "${SETTING[DEV_POSTGRES_SOCKET]}" -p "${SETTING[DEV_POSTGRES_PORT]}" -U postgres "$@"
}

postgres_answers() { postgres_superuser -d postgres -c 'SELECT 1' >/dev/null 2>&1; }

find_postgres() {
    PG=$(postgres_binaries "${SETTING[DEV_POSTGRES_DATA]:-}") ||
        fail "No PostgreSQL binaries that fit ${SETTING[DEV_POSTGRES_DATA]:-this state}: install that version, or delete the data with ./dev reset"
}

start_postgres() {
    local data socket port=${SETTING[DEV_POSTGRES_PORT]} options=()
    choose_postgres_folders
    data=${SETTING[DEV_POSTGRES_DATA]} socket=${SETTING[DEV_POSTGRES_SOCKET]}
    find_postgres
    [[ -f $data/PG_VERSION ]] || create_cluster
    own_folder "$socket"
    clear_stale_postmaster
    read -ra options <<<"${SETTING[DEV_POSTGRES_OPTIONS]:-}"
    start_detached postgres "${DOWN[@]}" env -i PATH=/usr/bin:/bin LC_ALL=C.UTF-8 \
        "$PG/postgres" -D "$data" -p "$port" -k "$socket" "${options[@]}"
    wait_until postgres 60 "it answers no query" postgres_answers
    create_role_and_database
}

# `aivideo` owns the tables and migrates; `aivideo_app` is the service's login, which may do what the service's group may. Only
# where tests ask for it may the owner create databases, roles and replication slots: each test has a database of its own.
create_role_and_database() {
    local may="NOCREATEDB NOCREATEROLE NOREPLICATION"
    [[ ${SETTING[DEV_POSTGRES_CREATEDB]:-} != yes ]] || may="CREATEDB CREATEROLE REPLICATION"
    # Over standard input: arguments are visible to every user of the machine.
    postgres_superuser -d postgres >>"$STATE/logs/postgres.log" 2>&1 <<SQL ||
SET log_min_duration_statement = -1;
SET log_min_error_statement = 'panic';
SELECT 'CREATE ROLE aivideo LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'aivideo') \\gexec
SELECT 'CREATE ROLE aivideo_app LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'aivideo_app') \\gexec
ALTER ROLE aivideo $may PASSWORD '${SETTING[DEV_POSTGRES_PASSWORD]}';
ALTER ROLE aivideo_app PASSWORD '${SETTING[DEV_POSTGRES_SERVICE_PASSWORD]}';
SELECT 'CREATE DATABASE aivideo OWNER aivideo' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'aivideo') \\gexec
SQL
        fail_with_log postgres "The roles and the database could not be created."
    postgres_superuser -d postgres -v login=aivideo_app <"$REPO/deploy/postgres/roles.sql" >>"$STATE/logs/postgres.log" 2>&1 ||
        fail_with_log postgres "The group roles could not be created."
    if [[ ${SETTING[DEV_POSTGRES_CREATEDB]:-} == yes ]]; then
        postgres_superuser -d postgres -c "GRANT aivideo_service, aivideo_reader TO aivideo WITH ADMIN OPTION" \
            >>"$STATE/logs/postgres.log" 2>&1 || fail_with_log postgres "The tests' role could not be made a member."
    fi
}

# SIGINT is PostgreSQL's fast shutdown: sessions end, data is written.
stop_postgres() { stop_part postgres INT 60; }

delete_postgres_data() {
    local data=${SETTING[DEV_POSTGRES_DATA]:-} socket=${SETTING[DEV_POSTGRES_SOCKET]:-}
    [[ $data != */postgres ]] || rm -rf "$data" "$data.new"
    [[ $data != /var/lib/aivideo/*/postgres ]] || rmdir -p "$(dirname "$data")" 2>/dev/null || true
    [[ $socket != /tmp/aivideo-postgres-* ]] || rm -rf "$socket"
}
