#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# check_team.sh TRAIN_GPT PYTHON FOLDER: trains the same model in one process and in several, split in
# every way. Fails unless all end with the same numbers up to rounding, and a run goes on from the
# checkpoint of any number of processes.
set -euo pipefail

program=$1 python=$2
rm -rf "${3:?}"
mkdir -p "$3"
cd "$3"
export OMP_NUM_THREADS=1
seq 1 3000 >text
tiny=(--text text --layers 2 --width 32 --heads 4 --groups 2 --warm-up 5 --steps 20
  --evaluate-every 10)
small=("${tiny[@]}" --context 32)

fail() {
  cat log >&2
  echo "$1" >&2
  exit 1
}

# train PROCESSES ARGUMENT...
train() {
  "$python" -m torch.distributed.run --no-python --standalone --nproc-per-node "$1" \
    "$program" "${@:2}" >log 2>&1 || fail "$1 processes failed: ${*:2}"
}

# compare FOLDER: its weights are those of the run in one process. Adam's first steps have the size of
# the learning rate whatever the gradient, so that its rounding counts; a wrong one differs by 1e-2.
compare() {
  "$python" - one/model.safetensors "$1/model.safetensors" <<'EOF' || fail "$1 has other weights"
import sys
from safetensors.torch import load_file
one, other = (load_file(path) for path in sys.argv[1:])
assert one.keys() == other.keys()
print(max((one[name] - other[name]).abs().max().item() for name in one))
sys.exit(any((one[name] - other[name]).abs().max() > 1e-4 for name in one))
EOF
}

"$program" --out one "${small[@]}" --batch-size 8 >log 2>&1 || fail "one process failed"
train 2 --out data "${small[@]}" --batch-size 8
compare data
train 2 --out context "${small[@]}" --batch-size 8 --context-parallel 2
compare context
train 4 --out mesh "${small[@]}" --batch-size 8 --data-parallel 2 --tensor-parallel 2
compare mesh
train 4 --out other_mesh "${small[@]}" --batch-size 8 --context-parallel 2 --tensor-parallel 2
compare other_mesh

train 2 --out stopped "${small[@]}" --batch-size 8 --tensor-parallel 2 --stop-after 7
grep --quiet "^stopped after step 7 of 20" log || fail "it did not stop"
cp -r stopped same
cp -r stopped alone
train 2 --out tensor "${small[@]}" --batch-size 8 --tensor-parallel 2
compare tensor
train 2 --out same --resume --tensor-parallel 2
cmp tensor/model.safetensors same/model.safetensors || fail "the run that was continued has other bits"
"$program" --out alone --resume >log 2>&1 || fail "one process could not go on"
compare alone
train 2 --out stopped --resume
compare stopped

# refuse SENTENCE PROCESSES ARGUMENT...
refuse() {
  if "$python" -m torch.distributed.run --no-python --standalone --nproc-per-node "$2" \
    "$program" "${@:3}" >log 2>&1; then
    fail "not refused: ${*:3}"
  fi
  [ "$(grep --count --fixed-strings -- "$1" log)" -ge 1 ] || fail "the output above lacks: $1"
}
refuse "--data-parallel (3) * --context-parallel (1) * --tensor-parallel (1) must be the number of processes (2)" \
  2 --out refused "${small[@]}" --data-parallel 3
refuse "--context-parallel (3) * --tensor-parallel (1) must divide the number of processes (2)" \
  2 --out refused "${small[@]}" --context-parallel 3
refuse "--batch-size (3) must be a multiple of 2" 2 --out refused "${small[@]}" --batch-size 3
refuse "data holds a run already: --resume goes on with it, --out takes another" 2 --out data "${small[@]}"
refuse "--context (30) must be a multiple of 4" 2 --out refused2 "${tiny[@]}" --context 30 --context-parallel 2
echo "all teams train alike"
