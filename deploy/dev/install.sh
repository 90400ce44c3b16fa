# shellcheck shell=bash
# What must be on the machine: Debian packages, the build, the jars of Apache RocketMQ. Sourced by ./dev.

readonly ROCKETMQ_VERSION=5.5.0
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/aivideo
readonly CACHE
readonly ROCKETMQ=$CACHE/rocketmq-$ROCKETMQ_VERSION

# The folder of PostgreSQL's binaries, 15 or newer. An existing data folder decides: another major version can't read it.
postgres_binaries() {
    local wanted='' folder version best=0 found=''
    [[ -n ${1:-} && -f $1/PG_VERSION ]] && wanted=$(<"$1/PG_VERSION")
    for folder in /usr/lib/postgresql/*/bin "$(dirname "$(command -v postgres || echo /none/postgres)")" \
        "$(pg_config --bindir 2>/dev/null || echo /none)"; do
        [[ -x $folder/postgres && -x $folder/initdb && -x $folder/psql ]] || continue
        version=$("$folder/postgres" --version | sed -E 's/[^0-9]*([0-9]+).*/\1/')
        ((version >= 15)) || continue
        [[ -z $wanted || $version == "$wanted" ]] || continue
        if ((version > best)); then best=$version found=$folder; fi
    done
    [[ -n $found ]] && printf '%s' "$found"
}

# A Java 17 or newer.
java_command() {
    local candidate version
    for candidate in "${JAVA_HOME:-/none}/bin/java" "$(command -v java || echo /none)" /usr/lib/jvm/*/bin/java; do
        [[ -x $candidate ]] || continue
        version=$("$candidate" -version 2>&1 | sed -nE '1s/.*"([0-9]+).*/\1/p')
        if ((${version:-0} >= 17)); then
            printf '%s' "$candidate"
            return
        fi
    done
    return 1
}

apache_fetched() { [[ -f $ROCKETMQ/complete ]]; }

# Node 18 or newer.
node_installed() {
    local version
    version=$(node --version 2>/dev/null | sed -E 's/^v([0-9]+).*/\1/')
    ((${version:-0} >= 18))
}

# ensure_tools NEED…: installs what is missing of postgres, redis, media, java, maven, node, npm.
ensure_tools() {
    local need packages=()
    for need in "$@"; do
        case $need in
            postgres) postgres_binaries "$STATE/postgres" >/dev/null || packages+=(postgresql) ;;
            redis) redis_binary >/dev/null || packages+=(redis-server) ;;
            media) { has_command ffmpeg "${AIVIDEO_MEDIA__FFMPEG:-}" && has_command ffprobe "${AIVIDEO_MEDIA__FFPROBE:-}"; } ||
                packages+=(ffmpeg) ;;
            java) java_command >/dev/null || packages+=(java) ;;
            maven) apache_fetched || command -v mvn >/dev/null || packages+=(maven) ;;
            node) command -v node >/dev/null || packages+=(nodejs) ;;
            npm) command -v npm >/dev/null || packages+=(npm) ;;
        esac
    done
    ((${#packages[@]} == 0)) || install_packages "${packages[@]}"
}

has_command() { command -v "${2:-$1}" >/dev/null; }

install_packages() {
    local packages=("$@") as_root=() index
    command -v apt-get >/dev/null ||
        fail "This system has no apt-get: install ${packages[*]} (PostgreSQL 15 or newer, Java 17 or newer), then run this again."
    for index in "${!packages[@]}"; do
        if [[ ${packages[index]} == java ]]; then packages[index]=$(java_package); fi
    done
    if ((EUID != 0)); then
        command -v sudo >/dev/null ||
            fail "Missing on this machine: ${packages[*]}. Ask an administrator to run: apt-get install ${packages[*]}"
        as_root=(sudo)
        # Without a terminal sudo must not wait for a password that nobody can type.
        [[ -t 0 ]] || as_root=(sudo -n)
    fi
    say "Installing with apt-get: ${packages[*]}"
    apt_get "${packages[@]}" || {
        "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=600 update -q >/dev/null &&
            apt_get "${packages[@]}"
    } || fail "apt-get could not install ${packages[*]}: run: ${as_root[*]} apt-get update && ${as_root[*]} apt-get install ${packages[*]}"
}

# Reads the array as_root of its caller.
apt_get() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=600 install -y -q --no-install-recommends "$@" >/dev/null
}

# The packages that the API's tests speak to it with, as their lock file pins them.
fetch_node_packages() {
    local folder=$REPO/api/tests/conformance log attempt
    # npm writes this file last.
    if [[ $folder/node_modules/.package-lock.json -nt $folder/package-lock.json ]]; then return; fi
    # One after the other: some packages of Node bring npm, and do not go together with a package of its own.
    ensure_tools node
    ensure_tools npm
    node_installed ||
        fail "The tests of the API need Node 18 or newer, and this system's packages have $(node --version 2>/dev/null || echo none): install it from https://nodejs.org, then run this again."
    log=$(mktemp)
    for attempt in 1 2 3; do
        if npm ci --prefix "$folder" </dev/null >"$log" 2>&1; then
            rm -f "$log"
            return
        fi
        ((attempt == 3)) || say "  attempt $attempt of npm failed, trying again"
    done
    tail -n 15 "$log" >&2
    rm -f "$log"
    fail "npm could not fetch the packages of api/tests/conformance: check the network (npm's proxy settings are in ~/.npmrc), then run this again."
}

# Debian 12 has Java 17; later releases have newer ones under the default's name.
java_package() {
    if apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
        printf openjdk-17-jre-headless
    else
        printf default-jre-headless
    fi
}

# Fetches the jars once for all checkouts. Into a folder of its own, then renamed: what is there is whole.
fetch_apache() {
    local partial attempt
    if apache_fetched; then
        say "Apache RocketMQ $ROCKETMQ_VERSION is in $ROCKETMQ"
        return
    fi
    ensure_tools java maven
    need_space "$CACHE" 300 "Apache RocketMQ" XDG_CACHE_HOME
    mkdir -p "$CACHE" || fail "Cannot create $CACHE: choose another folder with XDG_CACHE_HOME."
    partial=$(mktemp -d "$CACHE/rocketmq-partial.XXXXXX")
    say "Fetching Apache RocketMQ $ROCKETMQ_VERSION (about 95 MB, once)"
    for attempt in 1 2 3; do
        if mvn -B -q -ntp -f "$REPO/deploy/rocketmq/pom.xml" -Drocketmq.version="$ROCKETMQ_VERSION" \
            dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$partial/lib" </dev/null >"$partial/log" 2>&1 &&
            [[ -f $partial/lib/rocketmq-broker-$ROCKETMQ_VERSION.jar ]]; then
            date -u +%FT%TZ >"$partial/complete"
            # Somebody else may have been faster: theirs is as good.
            rm -rf "${ROCKETMQ:?}.old"
            if ! apache_fetched; then
                [[ ! -d $ROCKETMQ ]] || mv "$ROCKETMQ" "$ROCKETMQ.old"
                mv -T "$partial" "$ROCKETMQ" 2>/dev/null || apache_fetched
            fi
            rm -rf "$partial" "${ROCKETMQ:?}.old"
            say "Apache RocketMQ $ROCKETMQ_VERSION is in $ROCKETMQ"
            return
        fi
        ((attempt == 3)) || say "  attempt $attempt failed, trying again"
    done
    tail -n 15 "$partial/log" >&2
    rm -rf "$partial"
    fail "Maven could not fetch Apache RocketMQ: check the network (Maven's proxy settings are in ~/.m2/settings.xml), or use --broker embedded."
}

# ---------------------------------------------------------------- the build

# One target folder for all checkouts: a second one starts in seconds instead of minutes.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE/target}

need_cargo() {
    command -v cargo >/dev/null || [[ ! -x $HOME/.cargo/bin/cargo ]] || PATH=$HOME/.cargo/bin:$PATH
    command -v cargo >/dev/null ||
        fail "Rust is missing: install it from https://rustup.rs (version 1.95 or newer), open a new shell, and run this again."
    mkdir -p "$CARGO_TARGET_DIR" 2>/dev/null ||
        fail "Cannot create $CARGO_TARGET_DIR: choose a folder for build results with CARGO_TARGET_DIR=/path"
}

# build_binary debug|release: builds it, or takes the one AIVIDEO_BIN names; BIN is its path afterwards.
build_binary() {
    local profile=$1 flags=()
    # On a terminal cargo shows its progress; a log only needs warnings and errors.
    [[ -t 2 ]] || flags+=(--quiet)
    if [[ -n ${AIVIDEO_BIN:-} ]]; then
        BIN=$(realpath -m "$AIVIDEO_BIN")
        [[ -x $BIN ]] || fail "AIVIDEO_BIN names $BIN, which is no program: unset it to build one."
        return
    fi
    BIN=$CARGO_TARGET_DIR/$profile/aivideo
    [[ $profile == debug ]] || flags+=(--release)
    need_cargo
    need_space "$CARGO_TARGET_DIR" 2048 "the build" CARGO_TARGET_DIR
    say "Building (the first time takes some minutes; results in $CARGO_TARGET_DIR)"
    (cd "$REPO" && cargo build "${flags[@]}" --bin aivideo) ||
        fail "The build failed: the compiler's messages are above."
}

# The binary of the last build, for commands that do not build.
find_binary() {
    BIN=$(realpath -m "${AIVIDEO_BIN:-$CARGO_TARGET_DIR/debug/aivideo}")
    [[ -x $BIN ]] || build_binary debug
}
