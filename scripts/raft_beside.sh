#!/usr/bin/env bash
# Figures of apps/raft-kv on this machine, with three nodes as processes: writes and reads with 1 and 64 in
# flight, over UDP and shared memory, batching of entries on and off, logs in memory and synced to disk.
# Beside it, with one client: etcd (three processes, synced) for writes, Redis (one process) for reads.
# A program that is not installed is skipped with a line that says so: apt-get install etcd-server redis-server
#
# The client of etcd uses its JSON gateway, the one interface that needs no further package: its
# figures have the gateway's time. Redis is not replicated.
#
#   scripts/raft_beside.sh [TIME]     time of each measurement, default 3s
set -euo pipefail
cd "$(dirname "$0")/.."
time="${1:-3s}"
CARGO_INCREMENTAL=0 cargo build --release --locked -q -p courser-raft-kv --bin raft-kv
bin="${CARGO_TARGET_DIR:-target}/release/raft-kv"
work="$(mktemp -d)"
pids=()
stop() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  pids=()
}
trap 'stop; rm -rf "$work"' EXIT

lscpu | sed -n 's/^\(Model name\|CPU family\|Model\|CPU(s)\): */\1: /p'
for transport in udp shm; do
  for log in '' --memory; do
    for batching in '' --no-batching; do
      echo "raft-kv, $transport ${log:---data} $batching"
      # shellcheck disable=SC2086 # a flag or none
      "$bin" bench --transport "$transport" --time "$time" $log $batching --anyway
    done
  done
done

beside_etcd() {
  local n cluster=n1=http://127.0.0.1:23801,n2=http://127.0.0.1:23802,n3=http://127.0.0.1:23803
  for n in 1 2 3; do
    etcd --name "n$n" --data-dir "$work/etcd$n" --initial-cluster "$cluster" \
      --initial-advertise-peer-urls "http://127.0.0.1:2380$n" --listen-peer-urls "http://127.0.0.1:2380$n" \
      --listen-client-urls "http://127.0.0.1:2379$n" --advertise-client-urls "http://127.0.0.1:2379$n" \
      >"$work/etcd$n.log" 2>&1 &
    pids+=($!)
  done
  python3 - <<'PY'
import base64, http.client, json, time

def call(connection, path, body):
    connection.request("POST", path, json.dumps(body))
    return json.load(connection.getresponse())

end = time.time() + 30
leader = None
while leader is None:
    assert time.time() < end, "etcd elects no leader"
    for port in (23791, 23792, 23793):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            status = call(connection, "/v3/maintenance/status", {})
            if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                leader = connection
        except OSError:
            time.sleep(0.2)
text = lambda b: base64.b64encode(b).decode()
took = []
for n in range(3000):
    body = {"key": text(b"%016d" % (n % 1000)), "value": text(bytes(64))}
    began = time.perf_counter_ns()
    assert "header" in call(leader, "/v3/kv/put", body)
    took.append(time.perf_counter_ns() - began)
took = sorted(took[500:])
at = lambda q: took[int(q * len(took))] / 1000
print(f"put     1 in flight  p50 {at(0.5):.0f} us  p99 {at(0.99):.0f} us")
PY
  stop
}
if command -v etcd >/dev/null; then
  echo "etcd $(etcd --version | sed -n 's/^etcd Version: //p'), three processes, synced, by its JSON gateway"
  beside_etcd
else
  echo "SKIPPED: etcd is not installed: apt-get install etcd-server"
fi

beside_redis() {
  redis-server --port 26379 --save '' --appendonly no --bind 127.0.0.1 >"$work/redis.log" 2>&1 &
  pids+=($!)
  local ask=(redis-benchmark -h 127.0.0.1 -p 26379 -d 64 -r 1000 --csv)
  until "${ask[@]}" -n 1 -c 1 -t ping >/dev/null 2>&1; do kill -0 "${pids[-1]}"; done
  "${ask[@]}" -n 1000 -c 1 -t set >/dev/null
  local clients
  for clients in 1 64; do
    "${ask[@]}" -n 50000 -c "$clients" -t get | awk -F'","|"' -v c="$clients" '
      $2 == "GET" { printf "get  %4d in flight  p50 %.0f us  p99 %.0f us  %.0f/s\n", c, 1000 * $5, 1000 * $7, $3 }'
  done
  stop
}
if command -v redis-server >/dev/null && command -v redis-benchmark >/dev/null; then
  echo "Redis $(redis-server --version | sed 's/.* v=\([^ ]*\).*/\1/'), one process, a connection for each call in flight"
  beside_redis
else
  echo "SKIPPED: Redis is not installed: apt-get install redis-server"
fi
