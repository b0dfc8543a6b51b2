#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# check_distributed_faults.sh TRAIN_GPT FOLDER KILLS [PYTHON]: trains with two processes in FOLDER while
# things go wrong. If one is killed (KILLS times, at random moments), the other must end soon and say
# which operation failed. Each run must go on where it was saved last and end with the same bytes as one
# that nothing happened to. With a PYTHON that has torch, torchrun is interrupted, too.
set -euo pipefail
steps=12
# shellcheck source=tests/examples/faults.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/faults.sh"

ways=(data context tensor)
soon=30  # seconds in which processes end when one is gone; the timeout of an operation is longer
whole_run=200

# Below those that Linux gives to connections.
find_port() {
  port=$((10000 + RANDOM % 20000))
  while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    port=$((10000 + RANDOM % 20000))
  done
}

# start OUT WAY [ARGUMENT...]: two processes start the run in OUT at `port`, or go on with it.
start() {
  local rank arguments
  choose_arguments "$1" --"$2"-parallel 2 "${@:3}"
  rm -f "$1"/.checkpoint.*  # what the last kill left
  touch "$folder/started"
  processes=()
  for rank in 0 1; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=$port "$program" "${arguments[@]}" >"$folder/log$rank" 2>&1 &
    processes+=($!)
  done
}

# Whether the run in OUT has saved its state since its processes started.
has_saved() {
  [ "$1/checkpoint.safetensors" -nt "$folder/started" ]
}

await_save() {
  until has_saved "$1"; do sleep 0.02; done
}

# await_end SECONDS: waits until all have ended; sets `statuses`. Fails if one is still there then.
await_end() {
  local process status end=$((SECONDS + $1))
  statuses=()
  for process in "${processes[@]}"; do
    while kill -0 "$process" 2>/dev/null; do
      if [ "$SECONDS" -gt "$end" ]; then
        kill -s KILL "${processes[@]}" 2>/dev/null || true
        fail "a process did not end within $1 s"
      fi
      sleep 0.02
    done
    status=0
    { wait "$process"; } 2>/dev/null || status=$?
    statuses+=("$status")
  done
}

# expect_ends SECONDS STATUS STATUS: both end with these.
expect_ends() {
  await_end "$1"
  [ "${statuses[*]}" = "${*:2}" ] || fail "exit statuses ${statuses[*]}, expected ${*:2}"
}

# expect_said RANK REGEX
expect_said() {
  grep --quiet --extended-regexp -- "$2" "$folder/log$1" || fail "the output of process $1 lacks: $2"
}

# finish OUT WAY: ends the run in OUT.
finish() {
  find_port
  start "$1" "$2"
  expect_ends "$whole_run" 0 0
  compare "$1" "$folder/unbroken_$2"
}

for way in "${ways[@]}"; do
  began=$(date +%s%N)
  find_port
  start "$folder/unbroken_$way" "$way"
  expect_ends "$whole_run" 0 0
  milliseconds=$((($(date +%s%N) - began) / 1000000))
done

killed=0 writing=0 ended=0
while [ "$killed" -lt "$kills" ]; do
  way=${ways[killed % 3]} out=$folder/killed_${ways[killed % 3]}
  find_port
  start "$out" "$way"
  sleep_randomly "$milliseconds"
  victim=$((RANDOM % 2)) other=$((1 - victim))
  kill -s KILL "${processes[victim]}" 2>/dev/null || true
  # torchrun, too, ends a process that still waits for one that never joined.
  sleep 1
  if ! has_saved "$out"; then kill -s KILL "${processes[other]}" 2>/dev/null || true; fi
  await_end "$soon"
  if [ "${statuses[victim]}" -eq 137 ]; then
    killed=$((killed + 1))
    if compgen -G "$out/.checkpoint.*" >/dev/null; then writing=$((writing + 1)); fi
  fi
  case ${statuses[other]} in
    1) expect_said "$other" "^train_gpt: .* failed in process $other of 2: |^train_gpt: init_process_group: " ;;
    0 | 137) ;;
    *) fail "process $other ended with ${statuses[other]} when process $victim was killed" ;;
  esac
  if [ "${statuses[0]}" -eq 0 ]; then
    compare "$out" "$folder/unbroken_$way"
    ended=$((ended + 1))
    rm -r "$out"
  fi
done
for way in "${ways[@]}"; do
  finish "$folder/killed_$way" "$way"
done
echo "killed $killed times, $writing of them while a checkpoint was written; $((ended + 3)) runs" \
  "ended as the unbroken ones"

# Ctrl-C to one of them, and to both. On a busy machine, a run may end before the signal is sent:
# then another begins.
for interrupted in "0" "1" "0 1"; do
  out=$folder/interrupted_${interrupted// /_} expected=(0 0)
  for _ in 1 2 3; do
    rm -rf "${out:?}"
    find_port
    start "$out" tensor
    await_save "$out"
    # Both get it in the same step.
    kill -s STOP "${processes[@]}" 2>/dev/null || true
    for rank in $interrupted; do
      kill -s INT "${processes[rank]}" 2>/dev/null || true
      expected[rank]=130
    done
    kill -s CONT "${processes[@]}" 2>/dev/null || true
    await_end "$soon"
    if [ "${statuses[*]}" != "0 0" ]; then break; fi
  done
  [ "${statuses[*]}" = "${expected[*]}" ] || fail "exit statuses ${statuses[*]}, expected ${expected[*]}"
  expect_said 0 "^stopped after step [0-9]+ of $steps"
  finish "$out" tensor
  echo "SIGINT to process $interrupted: both stopped, went on"
done

# One process goes on with what two have saved.
find_port
start "$folder/fewer" context --stop-after 5
expect_ends "$whole_run" 0 0
choose_arguments "$folder/fewer"
"$program" "${arguments[@]}" >"$folder/log" 2>&1 || fail "one process could not go on"
[ "$(wc -l <"$folder/fewer/loss.csv")" -eq "$(wc -l <"$folder/unbroken_context/loss.csv")" ] ||
  fail "$folder/fewer/loss.csv lacks steps"
echo "saved by two processes: one went on"

# The port of a run that waits for its stopped process.
for _ in 1 2 3; do
  rm -rf "${folder:?}/first"
  find_port
  start "$folder/first" data
  await_save "$folder/first"
  first=("${processes[@]}")
  if stop "${first[1]}"; then break; fi
  await_end "$whole_run"
done
start "$folder/second" data
expect_ends "$soon" 1 1
expect_said 0 "^train_gpt: init_process_group: cannot listen at port $port of 127.0.0.1: Address already in use$"
expect_said 1 "^train_gpt: init_process_group: two processes have RANK 1$"
kill -s CONT "${first[1]}"
processes=("${first[@]}")
expect_ends "$whole_run" 0 0
compare "$folder/first" "$folder/unbroken_data"
finish "$folder/second" data
echo "a taken port: the second run was refused"

python=${4:-}
if [ -z "$python" ] || ! "$python" -c 'import torch.distributed.run' 2>/dev/null; then
  echo "torchrun: not tried, because there is no Python with torch"
  exit
fi
# Ctrl-C in a terminal reaches torchrun and its processes at once.
choose_arguments "$folder/torchrun" --tensor-parallel 2
touch "$folder/started"
setsid "$python" -m torch.distributed.run --no-python --standalone --nproc-per-node 2 \
  "$program" "${arguments[@]}" >"$folder/log" 2>&1 &
processes=($!)
await_save "$folder/torchrun"
kill -s INT -- "-$!"
await_end "$soon"
grep --quiet "^stopped after step" "$folder/log" || fail "Ctrl-C did not stop it"
finish "$folder/torchrun" tensor
echo "torchrun: Ctrl-C stopped it, went on"

# kill_child: one of the processes that torchrun has started, once there is one.
kill_child() {
  local children=()
  until [ "${#children[@]}" -ge 2 ]; do
    kill -0 "${processes[0]}" 2>/dev/null || return 0
    sleep 0.02
    read -r -d '' -a children < <(cat "/proc/${processes[0]}/task/"*/children 2>/dev/null) || true
  done
  kill -s KILL "${children[1]}" 2>/dev/null || true
}

# torchrun starts it again: before anything has been saved, and after that.
touch "$folder/started"
"$python" -m torch.distributed.run --no-python --standalone --nproc-per-node 2 --max-restarts 3 \
  "$program" --out "$folder/restarted" --resume "${small[@]}" --data-parallel 2 >"$folder/log" 2>&1 &
processes=($!)
kill_child
await_save "$folder/restarted"
kill_child
expect_ends "$whole_run" 0
compare "$folder/restarted" "$folder/unbroken_data"
[ "$(grep --count "holds no run yet: a new one begins$" "$folder/log")" -ge 1 ] ||
  fail "it began with a run"
[ "$(grep --count "holds no run yet: a new one begins$" "$folder/log")" -le 2 ] || fail "it did not go on"
echo "torchrun --max-restarts: started again twice, ended as the unbroken run"
