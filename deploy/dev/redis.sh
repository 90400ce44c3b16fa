# shellcheck shell=bash
# Redis, which counts slots: nothing of it is kept on disk, because its counts are made again from the facts. Sourced by ./dev.

redis_binary() { command -v redis-server || command -v valkey-server; }

redis_listens() { port_busy "${SETTING[DEV_REDIS_PORT]}"; }

start_redis() {
    local folder=$STATE/redis server
    server=$(redis_binary) || fail "redis-server is missing: run ./dev up, which installs it."
    keep_or_make DEV_REDIS_PASSWORD random_hex 24
    (
        umask 077
        mkdir -p "$folder"
        # In a file: arguments are visible to every user of the machine.
        cat >"$folder/redis.conf" <<CONF
bind 127.0.0.1
port ${SETTING[DEV_REDIS_PORT]}
requirepass ${SETTING[DEV_REDIS_PASSWORD]}
dir "$folder"
save ""
appendonly no
maxmemory 256mb
maxmemory-policy noeviction
CONF
    ) || fail "Cannot write $folder: the disk may be full or the folder not yours."
    start_detached redis "$server" "$folder/redis.conf"
    wait_until redis 20 "its port is closed" redis_listens
}
