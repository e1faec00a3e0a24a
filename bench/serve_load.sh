#!/bin/sh
# The server under wrk: how many answers a second the transport gives (/v1/models), then short chats over many connections.
#
#   bench/serve_load.sh [program] [model folder] [connections] [seconds]
set -eu
program=${1:-build/release/quire} model=${2:-models/tiny-v41} connections=${3:-64} seconds=${4:-10}
command -v wrk >/dev/null || { echo "wrk is not here (apt-get install wrk)" >&2; exit 1; }
folder=$(mktemp -d) server=
trap 'set +e; kill $server 2>/dev/null; wait $server 2>/dev/null; rm -rf "$folder"' EXIT
"$program" serve --model "$model" --port 0 --quiet --kv-ram-bytes 200000000 --max-model-len 2048 --max-queue 4096 >"$folder/address" &
server=$!
while [ ! -s "$folder/address" ]; do
    kill -0 "$server" 2>/dev/null || exit 1 # it has said why
    sleep 0.1
done
url=$(cat "$folder/address")
cat >"$folder/chat.lua" <<'LUA'
wrk.method = "POST"
wrk.body = '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0, "thinking": {"type": "disabled"}}'
wrk.headers["Content-Type"] = "application/json"
LUA
echo "== /v1/models, $connections connections"
wrk -t 2 -c "$connections" -d "${seconds}s" --latency "$url/v1/models"
echo "== chats of 4 tokens, $connections connections"
wrk -t 2 -c "$connections" -d "${seconds}s" --timeout 60s --latency -s "$folder/chat.lua" "$url/v1/chat/completions"
curl -s "$url/metrics" | grep -E '^quire_(steps_total|generation_tokens_total|step_seconds_sum|requests_finished_total)' || true
