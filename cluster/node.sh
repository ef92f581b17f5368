# What start-head and start-worker share; sourced by both, not run. Comes in: options and the
# environment. Goes out: one Ray node of this machine, and in the state folder what `stop` and `env`
# must know of it.

# What Ray reads from the environment, each with its reason. What the user has set stays.
set_ray_environment() {
    # Whoever reaches a port of Ray without a token runs code on the machine.
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$token"
    # Nothing is reported to Ray's makers.
    export RAY_USAGE_STATS_ENABLED="${RAY_USAGE_STATS_ENABLED:-0}"
    # Ray hides every NPU and GPU from an actor that asks for none. ray_precheck asks for none: it
    # pins each process itself, to the very device that -d or --devices names.
    export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="${RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO:-0}"
    # Ray refuses a node or a driver with another patch release of Python, whose pickles are the same.
    export RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL="${RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL:-minor}"
    # A node whose link is down is given up after three checks that fail, one each second: about 5 s
    # instead of a minute. Its records then run elsewhere. Read by the head; harmless on workers.
    export RAY_health_check_initial_delay_ms="${RAY_health_check_initial_delay_ms:-1000}"
    export RAY_health_check_period_ms="${RAY_health_check_period_ms:-1000}"
    export RAY_health_check_timeout_ms="${RAY_health_check_timeout_ms:-1000}"
    export RAY_health_check_failure_threshold="${RAY_health_check_failure_threshold:-3}"
    case $host in
    # Without this Ray listens on the network's address even where loopback was asked for; with it
    # the head takes no other nodes.
    127.*) export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 ;;
    esac
    # Those of another cluster, from the shell that this was started in.
    unset RAY_ADDRESS RAY_TMPDIR RAY_AUTH_TOKEN
    # Ray's own child processes, and the jobs of `submit`, take the first python and ray on the PATH.
    PATH="$(dirname "$ray"):$PATH"
    # ASCEND_RT_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES stay as they are: Ray counts the devices that
    # they let through (all of /dev/davinci* and all GPUs where they are not set), so set them before
    # the start to keep a card out of the cluster: ASCEND_RT_VISIBLE_DEVICES=4,5,6,7 cluster/start-worker ...
}

fail() {
    echo "$(basename "$0"): error: $*" >&2
    exit 2
}

set_defaults() {
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    state=${RAY_PRECHECK_STATE:-/tmp/ray_precheck-$(id -u)}
    token=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}
    host=${RAY_PRECHECK_HOST:-}
    port=${RAY_PRECHECK_PORT:-6379}
    base_port=${RAY_PRECHECK_BASE_PORT:-6800}
    worker_ports=${RAY_PRECHECK_WORKER_PORTS:-10002-19999}
    cpus=${RAY_PRECHECK_CPUS:-}
    store_bytes=${RAY_PRECHECK_STORE_BYTES:-}
    start_timeout_s=${RAY_PRECHECK_START_TIMEOUT_S:-120}
    ray_options=()
}

# Read one common option; return 1 where it is none. The caller shifts twice.
read_common_option() {
    case $1 in
    --state) state=${2:?} ;;
    --token) token=${2:?} ;;
    --host) host=${2:?} ;;
    --base-port) base_port=${2:?} ;;
    --worker-ports) worker_ports=${2:?} ;;
    --cpus) cpus=${2:?} ;;
    --store-bytes) store_bytes=${2:?} ;;
    *) return 1 ;;
    esac
}

common_help() {
    cat <<'EOF'
  --host ADDRESS          this node's address (default: Ray finds it); 127.0.0.1 for this machine alone
  --base-port PORT        first of the seven ports of this node's own servers (default 6800)
  --worker-ports MIN-MAX  ports of the worker processes (default 10002-19999)
  --cpus N                processor cores that the cluster may use here (default: all)
  --store-bytes N         size of Ray's object store here (default: 30 % of the memory)
  --token FILE            the token (default: RAY_AUTH_TOKEN_PATH, else ~/.ray/auth_token)
  --state FOLDER          what stop and env need, and Ray's logs (default /tmp/ray_precheck-UID, or
                          RAY_PRECHECK_STATE); one node for each folder, on a local disk
  -- ...                  what follows goes to `ray start` as it is
Each has an environment variable: RAY_PRECHECK_HOST, _BASE_PORT, _WORKER_PORTS, _CPUS, _STORE_BYTES.
EOF
}

find_ray() {
    ray=$(command -v ray || true)
    [ -n "$ray" ] || ray=$root/.venv/bin/ray
    [ -x "$ray" ] || fail "no command ray on the PATH nor in $root/.venv; run scripts/setup or activate the environment that has ray_precheck"
}

# The folder is in /tmp by default, where anybody may have made one of this name before.
make_state() {
    mkdir -p -m 700 "$state" 2>/dev/null || true
    if [ ! -d "$state" ] || [ -L "$state" ] || [ ! -O "$state" ]; then
        fail "the state folder $state is not a folder of yours; choose another with --state"
    fi
    chmod 700 "$state"
    state=$(cd "$state" && pwd)
    # Ray puts Unix sockets 64 characters below its folder, and a socket's path has at most 107.
    [ ${#state} -le 40 ] || fail "the state folder $state has ${#state} characters and Ray's sockets allow 40; choose a shorter one with --state"
    if [ -e "$state/pid" ]; then
        "$root/cluster/stop" --check --state "$state" >/dev/null 2>&1 &&
            fail "a node already runs with the state folder $state (process $(cut -d' ' -f1 "$state/pid")); cluster/stop --state $state ends it"
        "$root/cluster/stop" --state "$state" >/dev/null 2>&1 || true
        mkdir -p -m 700 "$state"
    fi
}

require_token() {
    [ -s "$token" ] || fail "there is no token in $token: copy the head's file there (chmod 600), or name it with --token"
    case $(stat -c %a "$token") in
    *00) ;;
    *) fail "others may read the token $token: chmod 600 $token" ;;
    esac
    token=$(cd "$(dirname "$token")" && pwd)/$(basename "$token")
}

# What both kinds of node give to `ray start`: every port is fixed, so that a firewall can let it in.
node_options() {
    local first=${worker_ports%-*} last=${worker_ports#*-}
    [[ $base_port =~ ^[0-9]+$ ]] || fail "--base-port $base_port is not a number"
    [[ $first =~ ^[0-9]+$ && $last =~ ^[0-9]+$ && $first -le $last ]] ||
        fail "--worker-ports $worker_ports is not MIN-MAX, as 10002-19999"
    options=(
        --node-manager-port="$base_port"
        --object-manager-port="$((base_port + 1))"
        --runtime-env-agent-port="$((base_port + 2))"
        --dashboard-agent-grpc-port="$((base_port + 3))"
        --dashboard-agent-listen-port="$((base_port + 4))"
        --metrics-export-port="$((base_port + 5))"
        --min-worker-port="$first" --max-worker-port="$last"
        # Below the private folder, because Ray lets everyone into the folder that it is given.
        --temp-dir="$state/r"
        --log-style=record --log-color=false
        ${host:+"--node-ip-address=$host"}
        ${cpus:+"--num-cpus=$cpus"}
        ${store_bytes:+"--object-store-memory=$store_bytes"}
        "${ray_options[@]}"
    )
}

# The lines that `env` prints. The address is where the cluster answers.
write_environment() {
    {
        echo "export RAY_ADDRESS=$1"
        echo "export RAY_AUTH_MODE=token"
        printf 'export RAY_AUTH_TOKEN_PATH=%q\n' "$token"
        if [ -n "${RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER:-}" ]; then
            echo "export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=$RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
        fi
    } >"$state/env"
}

# A process id alone may belong to another process one day; with the start time it cannot.
write_pid() {
    echo "$1 $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20)" >"$state/pid"
}

# End with a sentence where Ray says in its log that the head has another Ray or Python.
fail_for_versions() {
    grep -q "Version mismatch" "$1" || return 0
    local found
    # First those of the cluster, then those of this machine.
    mapfile -t found < <(sed -n 's/^ *\(Ray\|Python\): *//p' "$1")
    [ ${#found[@]} -ge 4 ] || return 0
    fail "the head has Ray ${found[0]} and Python ${found[1]}, but this machine ($(hostname)) has Ray ${found[2]} and Python ${found[3]} ($ray), and Ray needs the same Ray and the same minor version of Python on all nodes; activate an environment here that has those of the head"
}

# Start Ray in a session of its own and wait until it runs; its words go to a log.
start_in_background() {
    local log=$state/ray.log waited=0
    # In a folder without code: Ray lets its workers import from where it was started.
    (cd "$state" && exec setsid "$ray" start --block "$@" >"$log" 2>&1 </dev/null) &
    local pid=$!
    write_pid "$pid"
    until grep -q "Ray runtime started" "$log"; do
        if ! kill -0 "$pid" 2>/dev/null || [ "$waited" -ge $((start_timeout_s * 5)) ]; then
            "$root/cluster/stop" --state "$state" --keep-logs >/dev/null 2>&1 || true
            fail_for_versions "$log"
            tail -n 15 "$log" >&2
            fail "Ray did not start here; its last words are above, all of them in $log"
        fi
        sleep 0.2
        waited=$((waited + 1))
    done
}
