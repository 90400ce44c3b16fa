# shellcheck shell=bash
# The broker: rocketmq-rust inside our binary (embedded), or Apache RocketMQ as two Java processes (apache).
# Sourced by ./dev.

broker_listens() { port_busy "${SETTING[DEV_BROKER_PORT]}" && port_busy "${SETTING[DEV_NAMESERVER_PORT]}"; }

start_embedded_broker() {
    # Without this script's own variables, which the binary would take for settings with unknown names.
    mkdir -p "$STATE/broker/embedded"
    start_detached broker env -u AIVIDEO_STATE -u AIVIDEO_BIN -u AIVIDEO_REPO -u AIVIDEO_OWN_PARTS \
        "$BIN" broker --name-server "127.0.0.1:${SETTING[DEV_NAMESERVER_PORT]}" \
        --broker-port "${SETTING[DEV_BROKER_PORT]}" --store "$STATE/broker/embedded"
    wait_until broker 60 "its ports are closed" broker_listens
}

# java_process PART HEAP CLASS ARGUMENTS…
# Only the quick compiler: these processes live for minutes, and the other one would take a third of a core all that time.
java_process() {
    local part=$1 heap=$2 class=$3 java
    shift 3
    java=$(java_command) || fail "Java 17 or newer is missing: run ./dev up --broker apache, which installs it."
    start_detached "$part" env ROCKETMQ_HOME="$STATE/broker/apache" "$java" -server -XX:TieredStopAtLevel=1 -Xms128m "-Xmx$heap" \
        -XX:-UsePerfData -XX:+ExitOnOutOfMemoryError -Duser.home="$STATE/broker/apache" -Djava.io.tmpdir="$STATE/broker/apache/tmp" \
        --add-exports java.base/jdk.internal.ref=ALL-UNNAMED --add-exports java.base/sun.nio.ch=ALL-UNNAMED \
        --add-opens java.base/java.nio=ALL-UNNAMED -cp "$STATE/broker/apache/conf:$ROCKETMQ/lib/*" "$class" "$@"
}

write_apache_configuration() {
    local home=$STATE/broker/apache port=${SETTING[DEV_BROKER_PORT]}
    mkdir -p "$home/conf" "$home/store" "$home/tmp"
    cat >"$home/conf/namesrv.conf" <<CONF
listenPort=${SETTING[DEV_NAMESERVER_PORT]}
bindAddress=127.0.0.1
kvConfigPath=$home/store/kvConfig.json
configStorePath=$home/store/namesrv.properties
CONF
    # Topics and groups are created by `aivideo topics ensure`, so that a misspelt name is an error and not a new topic.
    # Asynchronous flush as in production with replicas; the files are small because many states share a developer's disk. A flush
    # of the timer compares all of its 38 MB, byte by byte: each second, as it is by default, that takes a quarter of a core.
    cat >"$home/conf/broker.conf" <<CONF
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
namesrvAddr=127.0.0.1:${SETTING[DEV_NAMESERVER_PORT]}
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
bindAddress=127.0.0.1
listenPort=$port
haListenPort=$((port + 1))
autoCreateTopicEnable=false
autoCreateSubscriptionGroup=false
timerWheelEnable=true
timerFlushIntervalMs=5000
diskMaxUsedSpaceRatio=98
storePathRootDir=$home/store
storePathCommitLog=$home/store/commitlog
storePathConsumeQueue=$home/store/consumequeue
storePathIndex=$home/store/index
storeCheckpoint=$home/store/checkpoint
abortFile=$home/store/abort
mappedFileSizeCommitLog=134217728
CONF
}

nameserver_listens() { port_busy "${SETTING[DEV_NAMESERVER_PORT]}"; }

start_nameserver() {
    write_apache_configuration
    java_process nameserver 256m org.apache.rocketmq.namesrv.NamesrvStartup -c "$STATE/broker/apache/conf/namesrv.conf"
    wait_until nameserver 60 "its port is closed" nameserver_listens
}

# The broker's own words since this start; it says them after it has registered at the name server.
apache_broker_booted() { tail -c "+$((LOG_BEFORE + 1))" "$STATE/logs/broker.log" | grep -q 'boot success'; }

apache_broker_registered() {
    rocketmq_admin clusterList -n "127.0.0.1:${SETTING[DEV_NAMESERVER_PORT]}" 2>/dev/null |
        grep -q "127.0.0.1:${SETTING[DEV_BROKER_PORT]}"
}

start_apache_broker() {
    write_apache_configuration
    LOG_BEFORE=$(stat -c %s "$STATE/logs/broker.log" 2>/dev/null || echo 0)
    # start_detached moves a large log away.
    ((LOG_BEFORE <= 20000000)) || LOG_BEFORE=0
    java_process broker 1g org.apache.rocketmq.broker.BrokerStartup -c "$STATE/broker/apache/conf/broker.conf"
    wait_until broker 90 "it did not report a successful start" apache_broker_booted
    wait_until broker 60 "it is not registered at the name server" apache_broker_registered
}

# Apache's own administration tool against this state's name server: ./dev rocketmq clusterList …
rocketmq_admin() {
    local java
    java=$(java_command) || fail "Java 17 or newer is missing: run ./dev up --broker apache, which installs it."
    mkdir -p "$STATE/broker/admin/conf"
    # Found on the class path before the broker's configuration, which would print hundreds of lines about itself.
    cat >"$STATE/broker/admin/conf/rmq.logback.xml" <<'XML'
<configuration>
  <statusListener class="org.apache.rocketmq.logging.ch.qos.logback.core.status.NopStatusListener"/>
  <root level="OFF"/>
</configuration>
XML
    env ROCKETMQ_HOME="$STATE/broker/admin" NAMESRV_ADDR="127.0.0.1:${SETTING[DEV_NAMESERVER_PORT]}" \
        "$java" -Xmx128m -XX:-UsePerfData -Duser.home="$STATE/broker/admin" -Djava.io.tmpdir="$STATE/broker/admin" \
        --add-exports java.base/jdk.internal.ref=ALL-UNNAMED --add-exports java.base/sun.nio.ch=ALL-UNNAMED \
        --add-opens java.base/java.nio=ALL-UNNAMED -cp "$STATE/broker/admin/conf:$ROCKETMQ/lib/*" org.apache.rocketmq.tools.command.MQAdminStartup "$@"
}

start_broker() {
    case ${SETTING[DEV_BROKER]} in
        embedded) start_embedded_broker ;;
        apache) start_apache_broker ;;
    esac
}
