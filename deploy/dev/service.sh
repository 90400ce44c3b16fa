# shellcheck shell=bash
# Our own processes (provider simulator, service), and the settings every part gets. Sourced by ./dev.

# given NAME PART: does the caller's environment give this setting, so that the part is not started here? A value that
# this state made itself (somebody exported its env file) does not count.
given() {
    local value=${!1:-}
    [[ -n $value && ($value != "${SETTING[$1]:-}" || ${SETTING[$2]:-} == given) ]]
}

# Which parts are ours, which are given, and on which ports ours listen. Call with the lock held.
choose_parts() {
    local broker=$1 before=${SETTING[DEV_BROKER]:-}
    # The name other Rust tools use; ours wins.
    if [[ -n ${DATABASE_URL:-} && -z ${AIVIDEO_DATABASE__URL:-} ]]; then export AIVIDEO_DATABASE__URL=$DATABASE_URL; fi
    if given AIVIDEO_DATABASE__URL DEV_POSTGRES; then SETTING[DEV_POSTGRES]=given; else SETTING[DEV_POSTGRES]=own; fi
    if given AIVIDEO_PROVIDERS__REPLICATE__BASE_URL DEV_SIMULATOR; then SETTING[DEV_SIMULATOR]=given; else SETTING[DEV_SIMULATOR]=own; fi
    # Who wants each process to count for itself needs none.
    if given AIVIDEO_ADMISSION__URL DEV_REDIS || [[ ${AIVIDEO_ADMISSION__KIND:-redis} != redis ]]; then
        SETTING[DEV_REDIS]=given
    else
        SETTING[DEV_REDIS]=own
    fi
    if given AIVIDEO_BROKER__NAME_SERVER DEV_BROKER; then broker=given; fi
    if [[ -n $before && $before != "$broker" ]] && { running broker || running nameserver; }; then
        report broker "changing from $before to $broker: stopping the old one, its messages stay with it"
        stop_part broker TERM 60 || true
        stop_part nameserver TERM 30 || true
    fi
    SETTING[DEV_BROKER]=$broker
    running postgres || choose_port POSTGRES
    running redis || choose_port REDIS
    running simulator || choose_port SIMULATOR
    running service || choose_port SERVICE
    if ! running broker; then
        running nameserver || choose_port NAMESERVER
        choose_port BROKER
    fi
    [[ -z ${DEV_POSTGRES_OPTIONS:-} ]] || SETTING[DEV_POSTGRES_OPTIONS]=$DEV_POSTGRES_OPTIONS
    [[ -z ${DEV_POSTGRES_CREATEDB:-} ]] || SETTING[DEV_POSTGRES_CREATEDB]=$DEV_POSTGRES_CREATEDB
}

# Fills the AIVIDEO_ settings: ours first, then whatever the caller's environment says.
compose_settings() {
    local key api=127.0.0.1:${SETTING[DEV_SERVICE_PORT]} simulator=127.0.0.1:${SETTING[DEV_SIMULATOR_PORT]}
    keep_or_make DEV_POSTGRES_PASSWORD random_hex 24
    keep_or_make DEV_POSTGRES_SERVICE_PASSWORD random_hex 24
    keep_or_make DEV_REDIS_PASSWORD random_hex 24
    keep_or_make AIVIDEO_OBJECTS__LINK_SECRET random_hex 32
    keep_or_make AIVIDEO_API__TOKEN_SECRET random_hex 32
    keep_or_make AIVIDEO_PROVIDERS__REPLICATE__TOKEN random_hex 24
    keep_or_make AIVIDEO_PROVIDERS__REPLICATE__WEBHOOK_SECRET webhook_secret
    keep_or_make AIVIDEO_AUDIT__SIGNING_KEY signing_key
    # Settings that only the last caller's environment had end with it.
    for key in "${!SETTING[@]}"; do
        case $key in
            AIVIDEO_OBJECTS__LINK_SECRET | AIVIDEO_API__TOKEN_SECRET | AIVIDEO_PROVIDERS__REPLICATE__TOKEN | AIVIDEO_PROVIDERS__REPLICATE__WEBHOOK_SECRET | \
                AIVIDEO_AUDIT__SIGNING_KEY) ;;
            AIVIDEO_*) unset "SETTING[$key]" ;;
        esac
    done
    SETTING[AIVIDEO_DATABASE__URL]="postgres://aivideo_app:${SETTING[DEV_POSTGRES_SERVICE_PASSWORD]}@127.0.0.1:${SETTING[DEV_POSTGRES_PORT]}/aivideo"
    # Of a given database, only who gives it knows the owner.
    if [[ ${SETTING[DEV_POSTGRES]} == own ]]; then
        SETTING[AIVIDEO_DATABASE__OWNER_URL]="postgres://aivideo:${SETTING[DEV_POSTGRES_PASSWORD]}@127.0.0.1:${SETTING[DEV_POSTGRES_PORT]}/aivideo"
    fi
    if [[ ${SETTING[DEV_REDIS]} == own ]]; then
        SETTING[AIVIDEO_ADMISSION__KIND]=redis
        SETTING[AIVIDEO_ADMISSION__URL]=redis://:${SETTING[DEV_REDIS_PASSWORD]}@127.0.0.1:${SETTING[DEV_REDIS_PORT]}/0
    elif [[ -n ${AIVIDEO_ADMISSION__URL:-} ]]; then
        SETTING[AIVIDEO_ADMISSION__KIND]=redis
    fi
    SETTING[AIVIDEO_BROKER__NAME_SERVER]=127.0.0.1:${SETTING[DEV_NAMESERVER_PORT]}
    SETTING[AIVIDEO_OBJECTS__KIND]=folder
    SETTING[AIVIDEO_OBJECTS__FOLDER]=$STATE/objects
    SETTING[AIVIDEO_API__LISTEN]=$api
    SETTING[AIVIDEO_API__PUBLIC_URL]=http://$api
    SETTING[AIVIDEO_PROVIDERS__REPLICATE__KIND]=replicate
    SETTING[AIVIDEO_PROVIDERS__REPLICATE__BASE_URL]=http://$simulator/v1
    SETTING[AIVIDEO_PROVIDERS__REPLICATE__CALLBACK_BASE_URL]=http://$api
    SETTING[AIVIDEO_OBJECTS__ALLOW_HOSTS]="[\"$simulator\"]"
    SETTING[AIVIDEO_OBJECTS__PUBLIC_URL]=http://$api
    SETTING[AIVIDEO_MEDIA__FFMPEG]=$(command -v ffmpeg || echo ffmpeg)
    SETTING[AIVIDEO_MEDIA__FFPROBE]=$(command -v ffprobe || echo ffprobe)
    # A bucket is given whole: our folder's name would only confuse.
    if [[ ${AIVIDEO_OBJECTS__KIND:-folder} != folder ]]; then unset 'SETTING[AIVIDEO_OBJECTS__FOLDER]'; fi
    for key in $(compgen -e AIVIDEO_); do
        if [[ $key == *__* && -n ${!key} ]]; then SETTING["$key"]=${!key}; fi
    done
}

# Exports this state's settings; what the caller's environment sets wins. Exported and not given as arguments of `env`,
# which every user of the machine could read. Call after the binary is known: this script's own variables go.
export_settings() {
    local key
    for key in "${!SETTING[@]}"; do
        [[ $key != AIVIDEO_* || -n ${!key:-} ]] || export "$key=${SETTING[$key]}"
    done
    unset AIVIDEO_STATE AIVIDEO_BIN AIVIDEO_REPO AIVIDEO_OWN_PARTS
}

# http_status PORT PATH: prints the status code of a GET on this machine.
http_status() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    timeout 5 bash -c '
        exec 5<>"/dev/tcp/127.0.0.1/$0" || exit 1
        printf "GET %s HTTP/1.0\r\nHost: 127.0.0.1:%s\r\nConnection: close\r\n\r\n" "$1" "$0" >&5
        read -r _ status _ <&5 && cat <&5 >/dev/null && printf "%s" "$status"' "$1" "$2" 2>/dev/null
}

service_port() { printf '%s' "${SETTING[AIVIDEO_API__LISTEN]##*:}"; }

service_ready() { [[ $(http_status "$(service_port)" /ready) == 200 ]]; }

simulator_listens() { port_busy "${SETTING[DEV_SIMULATOR_PORT]}"; }

# What a running process was started from; another binary or other settings mean a restart.
stamp() {
    local key
    {
        stat -c '%Y %s' "$BIN"
        for key in "${!SETTING[@]}"; do [[ $key != AIVIDEO_* ]] || printf '%s=%s\n' "$key" "${SETTING[$key]}"; done | LC_ALL=C sort
    } | sha256sum | cut -c1-16
}

start_simulator() {
    # It reads its token and the callbacks' secret from the environment.
    mkdir -p "$STATE/simulator"
    export_settings
    start_detached simulator "$BIN" simulator --listen "127.0.0.1:${SETTING[DEV_SIMULATOR_PORT]}" --store "$STATE/simulator"
    wait_until simulator 30 "its port is closed" simulator_listens
    stamp >"$STATE/run/simulator.stamp"
}

start_service() {
    export_settings
    # The service needs no more than it may: the owner's password is not in its environment.
    start_detached service env -u AIVIDEO_DATABASE__OWNER_URL "$BIN" dev
    wait_until service 90 "curl http://127.0.0.1:$(service_port)/ready lists what is missing" service_ready
    stamp >"$STATE/run/service.stamp"
}

# run_once NAME SECONDS REASON ARGUMENTS…: a subcommand that must succeed, repeated until the deadline.
run_once() {
    local name=$1 deadline=$((SECONDS + $2)) reason=$3
    shift 3
    export_settings
    until timeout 120 "$BIN" "$@" >"$STATE/logs/$name.log" 2>&1 </dev/null 9>&-; do
        ((SECONDS < deadline)) || fail_with_log "$name" "$reason"
        sleep 0.5
    done
}
