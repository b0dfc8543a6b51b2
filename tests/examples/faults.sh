# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# check_faults.sh and check_distributed_faults.sh source this with their arguments TRAIN_GPT FOLDER KILLS,
# and with the number of `steps`. It empties FOLDER, and sets the options of a small training.

program=$1 kills=$3
rm -rf "${2:?}"
mkdir -p "$2"
folder=$(realpath "$2")

export OMP_NUM_THREADS=1
seq 1 3000 >"$folder/text"
# steps is set by those who source this.
# shellcheck disable=SC2154
small=(--text "$folder/text" --layers 1 --width 16 --heads 2 --groups 1 --context 16
  --batch-size 2 --dropout 0.1 --warm-up 10 --steps "$steps" --evaluate-every 1)

fail() {
  cat "$folder"/log* >&2
  echo "$1" >&2
  exit 1
}

# choose_arguments OUT [ARGUMENT...]: sets `arguments`, which start the run in OUT, or go on with it.
choose_arguments() {
  arguments=(--out "$@")
  if [ -e "$1/checkpoint.safetensors" ]; then
    arguments+=(--resume)
  else
    arguments+=("${small[@]}")
  fi
}

# compare OUT [UNBROKEN]: the run in OUT has ended and must be as the unbroken one.
compare() {
  local file
  for file in model.safetensors loss.csv; do
    cmp "${2:-$folder/unbroken}/$file" "$1/$file" || fail "$1/$file is not that of the unbroken run"
  done
}

# stop PROCESS: returns when it stands still. Its status is 1 if the process has ended before.
stop() {
  kill -s STOP "$1" 2>/dev/null || return 1
  until [[ "$(cat "/proc/$1/stat" 2>/dev/null)" == *") T "* ]]; do
    kill -0 "$1" 2>/dev/null || return 1
    sleep 0.02
  done
}

# sleep_randomly MILLISECONDS: for a part of that time.
sleep_randomly() {
  local moment=$((RANDOM * $1 / 32768))
  sleep "$((moment / 1000)).$(printf %03d $((moment % 1000)))"
}
