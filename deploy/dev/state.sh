# shellcheck shell=bash
# What one development installation remembers (its state folder) and how its processes are found again.
# Sourced by ./dev; STATE is the absolute path of the state folder.

# ---------------------------------------------------------------- words to the person

say() { printf '%s\n' "$*"; }

# A line of the list of parts: name, then what happens to it.
report() { printf '  %-12s %s\n' "$1" "$2"; }

fail() {
    printf '\nerror: %s\n' "$*" >&2
    exit 1
}

# Fails with the last lines of a part's log, which nearly always hold the reason.
fail_with_log() {
    local part=$1 reason=$2
    {
        printf '\n--- the last lines of %s\n' "$STATE/logs/$part.log"
        tail -n 25 "$STATE/logs/$part.log" 2>/dev/null || true
        printf -- '---\n'
    } >&2
    fail "$reason"
}

# ---------------------------------------------------------------- the env file

# The settings of this state, as in $STATE/env: AIVIDEO_… go to the binary, DEV_… belong to this script.
declare -A SETTING=()

load_settings() {
    local line
    SETTING=()
    [[ -f $STATE/env ]] || return 0
    while IFS= read -r line || [[ -n $line ]]; do
        [[ $line == [A-Z]*=* ]] && SETTING[${line%%=*}]=${line#*=}
    done <"$STATE/env"
    return 0
}

# Values are written as they are, one a line, never evaluated by a shell: a test reads them by splitting at the first '='.
save_settings() {
    local key temporary=$STATE/env.$$
    (
        umask 077
        for key in "${!SETTING[@]}"; do
            [[ ${SETTING[$key]} != *$'\n'* ]] || fail "The value of $key contains a line break; remove it from the environment."
            printf '%s=%s\n' "$key" "${SETTING[$key]}"
        done | LC_ALL=C sort >"$temporary"
    ) || fail "Cannot write $temporary: the disk may be full or the folder not yours."
    mv "$temporary" "$STATE/env"
}

random_hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }

# Keeps a secret once made: tokens handed out yesterday must still be valid today.
keep_or_make() {
    local key=$1
    shift
    [[ -n ${SETTING[$key]:-} ]] || SETTING[$key]=$("$@")
}

signing_key() { head -c 32 /dev/urandom | base64 | tr -d '\n'; }

webhook_secret() { printf 'whsec_%s' "$(head -c 32 /dev/urandom | base64 | tr -d '\n')"; }

# Only a folder that was made here may be filled, and deleted.
made_by_us() { [[ -f $STATE/.aivideo-state ]]; }

prepare_state_folder() {
    mkdir -p "$STATE" 2>/dev/null ||
        fail "Cannot create $STATE: choose a folder you may write to with AIVIDEO_STATE=/path ./dev …"
    [[ -w $STATE && -x $STATE ]] ||
        fail "$STATE belongs to another user: delete it, or choose another folder with AIVIDEO_STATE=/path ./dev …"
    if ! made_by_us && [[ -n $(ls -A "$STATE") ]]; then
        fail "$STATE holds other things already: choose an empty or new folder with AIVIDEO_STATE=/path ./dev …"
    fi
    printf 'A state of ./dev: ./dev reset deletes this folder.\n' >"$STATE/.aivideo-state"
    # The database's own system user must pass through; secrets are in files of mode 0600.
    chmod 0711 "$STATE" 2>/dev/null || true
    mkdir -p "$STATE/run" "$STATE/logs" "$STATE/objects"
    chmod 0711 "$STATE/run"
    chmod 0700 "$STATE/logs" "$STATE/objects"
    [[ -f $STATE/.gitignore ]] || printf '*\n' >"$STATE/.gitignore"
}

# One `up`, `start`, `stop`, `down` … of a state at a time. Children close descriptor 9, or they would hold the lock.
lock_state() {
    exec 9>"$STATE/run/lock"
    flock -w 900 9 || fail "Another ./dev works on $STATE for more than 15 minutes: find it with: fuser $STATE/run/lock"
}

# need_space FOLDER MEGABYTES PURPOSE
need_space() {
    local folder=$1 free
    while [[ ! -d $folder ]]; do folder=$(dirname "$folder"); done
    free=$(df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1024) }')
    ((free >= $2)) ||
        fail "Only $free MB are free where $folder is, and $3 needs $2 MB: make room, or point ${4:-AIVIDEO_STATE} to another disk."
}

# ---------------------------------------------------------------- ports

# Is anybody listening on this TCP port of this machine? Read from the kernel: needs no tool and opens no connection.
port_busy() {
    local hex
    hex=$(printf '%04X' "$1")
    awk -v port="$hex" '$4 == "0A" && substr($2, length($2) - 3) == port { found = 1 } END { exit !found }' \
        /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

# A block of ten ports with nobody on them, below the range from which the system serves outgoing connections.
free_block() {
    local attempt offset base
    for ((attempt = 0; attempt < 500; attempt++)); do
        base=$((20000 + (SRANDOM % 1200) * 10))
        for offset in 0 1 2 3 4 5 6 7 8 9; do
            port_busy $((base + offset)) && continue 2
        done
        printf '%s' "$base"
        return
    done
    fail "No ten free neighbouring TCP ports between 20000 and 32000: stop what occupies them (ss -ltnp lists it)."
}

# Every part has its place in a block. The Apache broker also opens its port minus 2 (fast remoting) and plus 1
# (replication), so its neighbours stay empty.
declare -rA PORT_OFFSET=([POSTGRES]=0 [SIMULATOR]=1 [SERVICE]=2 [NAMESERVER]=3 [REDIS]=4 [BROKER]=7)

# Keeps a part's port from the last start; takes another when a stranger sits on it. Call only while the part is down.
choose_port() {
    local key=DEV_$1_PORT port busy=no
    port=${SETTING[$key]:-}
    if [[ -n $port ]]; then
        port_busy "$port" && busy=yes
        if [[ $1 == BROKER ]] && { port_busy $((port - 2)) || port_busy $((port + 1)); }; then busy=yes; fi
        [[ $busy == yes ]] || return 0
        say "  port $port of the $(tr '[:upper:]' '[:lower:]' <<<"$1") is taken by another program: choosing a new one"
    fi
    [[ -n ${BLOCK:-} && -z $port ]] || BLOCK=$(free_block)
    SETTING[$key]=$((BLOCK + PORT_OFFSET[$1]))
}

# ---------------------------------------------------------------- processes

# When the process started, in clock ticks since boot; fails for a process that is gone or only waits to be reaped.
# With the pid it names one process for ever: a recycled pid has another start time.
start_ticks() {
    local line threads
    line=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # Field 2, the name, may contain spaces and brackets: cut behind the last one.
    read -ra line <<<"${line##*) }"
    if [[ ${line[0]} == [ZX] ]]; then
        # A killed program whose other threads are still ending holds its ports and files until they are gone.
        threads=("/proc/$1/task/"*)
        ((${#threads[@]} > 1)) || return 1
    fi
    printf '%s' "${line[19]}"
}

# The pid of a part, if it still runs and is the process that was started here.
pid_of() {
    local pid ticks
    { read -r pid ticks _ <"$STATE/run/$1.pid"; } 2>/dev/null || return 1
    [[ $pid =~ ^[0-9]+$ && $(start_ticks "$pid") == "$ticks" ]] || return 1
    printf '%s' "$pid"
}

running() { pid_of "$1" >/dev/null; }

# A process and everything below it, from the kernel's table of parents.
family_of() {
    local stat fields pid round found=" $1 " before=
    local -A parent=()
    for stat in /proc/[0-9]*/stat; do
        fields=$(cat "$stat" 2>/dev/null) || continue
        pid=${fields%% *}
        read -ra fields <<<"${fields##*) }"
        parent[$pid]=${fields[1]}
    done
    for ((round = 0; round < 20; round++)); do
        [[ $found != "$before" ]] || break
        before=$found
        for pid in "${!parent[@]}"; do
            [[ $found == *" ${parent[$pid]} "* && $found != *" $pid "* ]] && found+="$pid "
        done
    done
    printf '%s' "$found"
}

# start_detached PART COMMAND…: in a session of its own, so that neither Ctrl-C nor the end of this script reaches it.
start_detached() {
    local part=$1 log=$STATE/logs/$1.log
    shift
    if [[ -f $log && $(stat -c %s "$log") -gt 20000000 ]]; then mv "$log" "$log.old"; fi
    printf '=== %s: starting %s\n' "$(date -u +%FT%TZ)" "$part" >>"$log"
    (
        cd "$STATE" || exit 1
        # A script has no job control, so this child leads no group: setsid needs no fork and the pid stays.
        exec setsid "$@"
    ) >>"$log" 2>&1 </dev/null 9>&- &
    printf '%s %s\n' "$!" "$(start_ticks $! || printf gone)" >"$STATE/run/$part.pid"
    disown
}

# wait_until PART SECONDS WHAT COMMAND…: polls until the command succeeds; fails at the deadline or when the part dies.
wait_until() {
    local part=$1 deadline=$((SECONDS + $2)) what=$3
    shift 3
    until "$@"; do
        running "$part" || fail_with_log "$part" "The $part stopped before it was ready: the reason is in the lines above."
        ((SECONDS < deadline)) ||
            fail_with_log "$part" "The $part was not ready in time ($what): see the lines above and ./dev logs $part"
        sleep 0.2
    done
}

# stop_part PART SIGNAL SECONDS: asks politely, and insists at the deadline.
stop_part() {
    local part=$1 pid deadline=$((SECONDS + $3))
    if ! pid=$(pid_of "$part"); then
        rm -f "$STATE/run/$part.pid"
        return 1
    fi
    kill "-$2" "$pid" 2>/dev/null || true
    while running "$part"; do
        if ((SECONDS >= deadline)); then
            report "$part" "did not stop within $3 s: killed"
            kill_part "$part"
            return 0
        fi
        sleep 0.1
    done
    rm -f "$STATE/run/$part.pid"
}

# SIGKILL for the part and all its children. The parent is stopped first, so that it cannot start another meanwhile.
kill_part() {
    local part=$1 pid family member
    pid=$(pid_of "$part") || return 1
    kill -STOP "$pid" 2>/dev/null || true
    family=$(family_of "$pid")
    # shellcheck disable=SC2086 # a list of pids
    kill -KILL $family 2>/dev/null || true
    for member in $family; do
        while start_ticks "$member" >/dev/null; do sleep 0.05; done
    done
    rm -f "$STATE/run/$part.pid"
}
