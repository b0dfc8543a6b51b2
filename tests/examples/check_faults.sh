#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# check_faults.sh TRAIN_GPT FOLDER KILLS: trains in FOLDER while things go wrong. Fails unless a run
# that was killed (KILLS times, at random moments), interrupted or out of disk goes on where it was
# saved last and ends with the same bytes as one that nothing happened to.
set -euo pipefail

# A full or read-only disk is a mount of our own, in a namespace of our own where there can be one.
if [ -z "${HEED_FAULTS_NAMESPACE:-}" ] && unshare --mount --map-root-user true 2>/dev/null; then
  HEED_FAULTS_NAMESPACE=1 exec unshare --mount --map-root-user "$0" "$@"
fi
steps=60
# shellcheck source=tests/examples/faults.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/faults.sh"

# train OUT [ARGUMENT...]: starts the run in OUT, or goes on with it; replaces the shell it is in.
train() {
  local arguments
  choose_arguments "$@"
  exec "$program" "${arguments[@]}" >"$folder/log" 2>&1
}

# finish OUT [ARGUMENT...]: ends the run in OUT.
finish() {
  (train "$@") || fail "$1 could not go on"
  compare "$1"
}

# must_fail STATUS SENTENCE COMMAND...
must_fail() {
  local status=0
  ("${@:3}") || status=$?
  [ "$status" -eq "$1" ] || fail "exit status $status, expected $1"
  grep --quiet --fixed-strings -- "$2" "$folder/log" || fail "the output above lacks: $2"
}

began=$(date +%s%N)
(train "$folder/unbroken") || fail "the unbroken run failed"
milliseconds=$((($(date +%s%N) - began) / 1000000))

killed=0 writing=0 ended=0
while [ "$killed" -lt "$kills" ]; do
  rm -f "$folder"/killed/.checkpoint.*  # what the last kill left
  train "$folder/killed" &
  process=$!
  sleep_randomly "$milliseconds"
  kill -s KILL "$process" 2>/dev/null || true
  status=0
  { wait "$process"; } 2>/dev/null || status=$?
  case $status in
    137)
      killed=$((killed + 1))
      if compgen -G "$folder/killed/.checkpoint.*" >/dev/null; then writing=$((writing + 1)); fi
      ;;
    0)
      compare "$folder/killed"
      ended=$((ended + 1))
      rm -r "$folder/killed"
      ;;
    *) fail "after $killed kills the run could not go on" ;;
  esac
done
finish "$folder/killed"
echo "killed $killed times, $writing of them while a checkpoint was written; $((ended + 1)) runs" \
  "ended as the unbroken one"

# On a busy machine, a run may end before the signal is sent: then another begins.
for signal in INT TERM; do
  for _ in 1 2 3; do
    rm -rf "${folder:?}/$signal"
    train "$folder/$signal" &
    process=$!
    until [ -e "$folder/$signal/checkpoint.safetensors" ]; do sleep 0.02; done
    kill -s "$signal" "$process" 2>/dev/null || true
    status=0
    wait "$process" || status=$?
    if [ "$status" -ne 0 ]; then break; fi
  done
  [ "$status" -eq $((128 + $(kill -l "$signal"))) ] || fail "SIG$signal made it end with $status"
  stopped=$(grep --only-matching "^stopped after step [0-9]*" "$folder/log") ||
    fail "SIG$signal did not stop it"
  finish "$folder/$signal"
  echo "SIG$signal: $stopped, went on"
done

for _ in 1 2 3; do
  rm -rf "${folder:?}/shared"
  train "$folder/shared" &
  process=$!
  until [ -e "$folder/shared/checkpoint.safetensors" ]; do sleep 0.02; done
  if stop "$process"; then break; fi
done
must_fail 1 "$folder/shared is in use by another train_gpt: wait for it, or take another --out" \
  train "$folder/shared"
kill -s KILL "$process"
{ wait "$process"; } 2>/dev/null || true
finish "$folder/shared"
echo "two runs in one folder: the second was refused"

(train "$folder/moved" --stop-after 5) || fail "--stop-after made it fail"
mv "$folder/text" "$folder/moved_text"
must_fail 1 "$folder/text is gone: give the text's new place with --text" train "$folder/moved"
seq 2 3001 >"$folder/text"
must_fail 1 "the text is no longer what it was when the run in $folder/moved began" \
  train "$folder/moved"
finish "$folder/moved" --text "$folder/moved_text"
mv "$folder/moved_text" "$folder/text"
echo "a text that moved: found by --text"

# With this rate the weights grow ninefold a step.
must_fail 1 "the loss is no longer finite: try a smaller --learning-rate" \
  train "$folder/diverged" --learning-rate 100
[ ! -e "$folder/diverged/model.safetensors" ] || fail "a model that diverged was written"
must_fail 1 "the loss is no longer finite: try a smaller --learning-rate" train "$folder/diverged"
grep --quiet "parameters$" "$folder/log" || fail "what was saved before it diverged is lost"

# print_nowhere ARGUMENT...
print_nowhere() {
  "$program" "$@" >/dev/full 2>"$folder/log"
}
must_fail 1 "train_gpt: cannot write to standard output" print_nowhere --help
must_fail 1 "train_gpt: cannot write to " print_nowhere --out "$folder/printed" "${small[@]}"
compare "$folder/printed"

# limited OUT: files may have one block of 512 or 1024 bytes, which no checkpoint fits into.
limited() {
  ulimit -f 1
  train "$1"
}
mkdir "$folder/limited"
must_fail 1 "path ($folder/limited/checkpoint.safetensors) must be writable; File too large" \
  limited "$folder/limited"
[ -z "$(ls --almost-all "$folder/limited")" ] || fail "a part of a file was left"
finish "$folder/limited"
echo "a limit on the size of files: went on without it"

if [ -z "${HEED_FAULTS_NAMESPACE:-}" ]; then
  echo "full and read-only disks: not tried, for there are no namespaces here"
  exit
fi
# Room for a checkpoint, but not for the next beside it.
size=$(stat --format=%s "$folder/unbroken/checkpoint.safetensors")
disk=$folder/disk
mkdir "$disk"
mount -t tmpfs -o "size=$((size * 3 / 2))" tmpfs "$disk"
trap 'umount "$disk"' EXIT
must_fail 1 "path ($disk/run/checkpoint.safetensors) must be writable; No space left on device" train "$disk/run"
must_fail 1 "path ($disk/run/checkpoint.safetensors) must be writable; No space left on device" train "$disk/run"
mount -o remount,ro "$disk"
must_fail 1 "cannot write $disk/run/checkpoint.safetensors: Read-only file system" train "$disk/run"
must_fail 1 "cannot write $disk/other: Read-only file system" train "$disk/other"
mount -o remount,rw,size=100m "$disk"
finish "$disk/run"
echo "a full and a read-only disk: went on once there was room"
