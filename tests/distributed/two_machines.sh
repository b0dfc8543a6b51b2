#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# two_machines.sh GUIDE FOLDER [PYTHON]: trains with GUIDE (examples/guide_distributed) in FOLDER across two
# network namespaces that a veth pair joins, as across two machines, with 2 processes in each. Fails
# unless all end well, and listen only at the addresses of the pair. With a PYTHON that has torch,
# torchrun starts them, too. Ends with 77 where no namespaces may be made.
set -euo pipefail

skip() {
  echo "skipped: $1"
  exit 77
}

for tool in ip ss unshare nsenter; do
  command -v "$tool" >/dev/null || skip "$tool is missing (Debian: iproute2, util-linux)"
done
if [ -z "${HEED_TWO_MACHINES:-}" ]; then
  # Names of namespaces are mounts; they disappear with these namespaces, whatever happens.
  unshare --mount --net --map-root-user bash -c '
    mount -t tmpfs none /run && ip netns add probe &&
    ip link add name left type veth peer name right netns probe' 2>/dev/null ||
    skip "network namespaces and veth pairs may not be made here"
  HEED_TWO_MACHINES=1 exec unshare --mount --net --map-root-user "$0" "$@"
fi

guide=$(realpath "$1") python=${3:-}
rm -rf "${2:?}"
mkdir -p "$2"
folder=$(realpath "$2")
cd "$folder"
export OMP_NUM_THREADS=1
addresses=(10.77.0.1 10.77.0.2)
port=29500

fail() {
  tail -n +1 "$folder"/*.log >&2
  echo "$1" >&2
  exit 1
}

# on MACHINE COMMAND...: replaces the shell it is in.
on() {
  exec nsenter --net="/run/netns/machine$1" "${@:2}"
}

mount -t tmpfs none /run
for machine in 0 1; do
  ip netns add "machine$machine"
done
ip link add name cable netns machine0 type veth peer name cable netns machine1
for machine in 0 1; do
  (on "$machine" ip address add "${addresses[machine]}/24" dev cable)
  (on "$machine" ip link set cable up)
  (on "$machine" ip link set lo up)
done

# watch PROCESS...: waits until all have ended; notes at which addresses each machine listens.
watch() {
  local process machine running=1
  : >listening0
  : >listening1
  while [ -n "$running" ]; do
    running=
    for machine in 0 1; do
      # State, two queues, the local address with its port.
      (on "$machine" ss --no-header --listening --tcp --numeric) | awk '{ print $4 }' >>"listening$machine"
    done
    for process; do
      if kill -0 "$process" 2>/dev/null; then running=1; fi
    done
    sleep 0.02
  done
  for process; do
    wait "$process" || fail "a process failed; the outputs are above"
  done
  for machine in 0 1; do
    sort --unique --output="listening$machine" "listening$machine"
  done
}

# expect_training: all four processes have joined one training.
expect_training() {
  local rank line
  for rank in 0 1 2 3; do
    grep --quiet --no-messages "^process $rank of 4$" ./*.log || fail "process $rank did not join"
  done
  for line in "data parallel: the same parameters true" "own positions true, ring_attend is attend true" \
    "mesh: 2 replicas, 2 parts of the weights"; do
    grep --quiet --no-messages --line-regexp "$line" ./*.log || fail "the output lacks: $line"
  done
}

# expect_listening MACHINE COUNT [STORE]: it has listened at COUNT ports or more, all of its address
# in the pair; but for STORE.
expect_listening() {
  local machine=$1 others found
  others=$(grep --invert-match --line-regexp --fixed-strings -e "${3:-none}" "listening$machine" |
    grep --invert-match "^${addresses[machine]//./\\.}:" || true)
  [ -z "$others" ] || fail "machine $machine listened at $others"
  found=$(grep --count "^${addresses[machine]//./\\.}:" "listening$machine" || true)
  [ "$found" -ge "$2" ] || fail "machine $machine listened at $found ports, $2 expected"
}

export MASTER_ADDR=${addresses[0]} MASTER_PORT=$port WORLD_SIZE=4 LOCAL_WORLD_SIZE=2
processes=()
for rank in 0 1 2 3; do
  (
    export RANK=$rank LOCAL_RANK=$((rank % 2))
    on $((rank / 2)) timeout 120 "$guide" >"$rank.log" 2>&1
  ) &
  processes+=($!)
done
watch "${processes[@]}"
expect_training
# The store's port, and one of Gloo's for each process.
expect_listening 0 3
expect_listening 1 2
grep --quiet --line-regexp --fixed-strings "$MASTER_ADDR:$port" listening0 || fail "the store was not at its address"
echo "2 + 2 processes trained; they listened at $(cat listening0 listening1 | paste --serial --delimiters ' ')"
unset WORLD_SIZE LOCAL_WORLD_SIZE MASTER_PORT
rm ./*.log

if [ -z "$python" ] || ! "$python" -c 'import torch.distributed.run' 2>/dev/null; then
  echo "torchrun: not tried, because there is no Python with torch"
  exit
fi
processes=()
for machine in 0 1; do
  (
    on "$machine" timeout 200 "$python" -m torch.distributed.run --no-python --nnodes 2 --node-rank "$machine" \
      --nproc-per-node 2 --master-addr "$MASTER_ADDR" --master-port "$port" "$guide" >"$machine.log" 2>&1
  ) &
  processes+=($!)
done
watch "${processes[@]}"
expect_training
# torchrun's own store listens at all addresses.
expect_listening 0 2 "*:$port"
expect_listening 1 2
echo "torchrun: 2 + 2 processes trained; they listened at $(cat listening0 listening1 | paste --serial --delimiters ' ')"
