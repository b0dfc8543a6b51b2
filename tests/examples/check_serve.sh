#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# check_serve.sh SERVE GENERATE MODEL FOLDER: continues prompts in FOLDER at once, one after the other,
# and with too few pages for all. Fails unless the answers are the same each time, and those of
# generate; and unless serve ends well when it is interrupted or cannot print.
set -euo pipefail

serve=$1 generate=$2 model=$3
rm -rf "${4:?}"
mkdir -p "$4"
cd "$4"
export OMP_NUM_THREADS=1
printf '%s\n' '#pragma once' 'at::Tensor ' 'namespace' '/// ' 'std::vector<int64_t> ' >prompts
options=(--model "$model" --prompts prompts)

fail() {
  cat log >&2
  echo "$1" >&2
  exit 1
}

# answers FILE PATTERN [OPTION...]: what serve prints; its last line must match.
answers() {
  "$serve" "${options[@]}" --tokens 90 "${@:3}" >"$1" 2>log || fail "exit status $?"
  tail -n 1 log | grep --quiet --extended-regexp "$2" || fail "the output above lacks: $2"
}

# generated: what generate prints for the same prompts.
generated() {
  local number=1 prompt
  while IFS= read -r prompt; do
    if [ "$number" -gt 1 ]; then echo; fi
    echo "==> $number <=="
    "$generate" --model "$model" --prompt "$prompt" --count 90 --greedy 2>log
    number=$((number + 1))
  done <prompts
}

whole="^5 of 5 answers, 450 tokens in .* tokens/s"
answers together "$whole, 0 preemptions$" --greedy
answers alone "$whole, 0 preemptions$" --greedy --at-once 1
answers crowded "$whole, [1-9][0-9]* preemptions$" --greedy --pages 6
generated >by_generate
cmp together alone || fail "the answers are others one after the other"
cmp together crowded || fail "the answers are others with few pages"
cmp together by_generate || fail "the answers are not those of generate"
echo "the same answers together, alone, with few pages and by generate"

# Not compared with each alone: rounding may decide what is drawn.
answers sampled "$whole" --top-p 0.9 --seed 5
answers again "$whole" --top-p 0.9 --seed 5
answers other "$whole" --top-p 0.9 --seed 6
cmp sampled again || fail "the answers are others with the same seed"
! cmp --quiet sampled other || fail "the answers are the same with another seed"
answers stopped "^5 of 5 answers, .* preemptions$" --greedy --stop e
[ "$(wc --bytes <stopped)" -lt "$(wc --bytes <together)" ] || fail "--stop did not end an answer"

# A prompt that cannot be answered is told; the others get their answers, and their numbers stay.
{
  echo '#pragma once'
  head --bytes 50000000 /dev/zero | tr '\0' x
  printf '\nnamespace\n'
} >long
status=0
"$serve" --model "$model" --prompts long --greedy --tokens 90 >others 2>log || status=$?
[ "$status" -eq 1 ] || fail "exit status $status after a prompt that is too long, expected 1"
grep --quiet "^serve: prompt 2: it has more than 4194304 bytes$" log || fail "it did not tell prompt 2"
grep --quiet "^2 of 3 answers, 180 tokens" log || fail "it did not answer the others"
[ "$(cat others)" = "$(awk '/^==> [1-5] <==$/ { number = $2 } number == 1 || number == 3' together)" ] ||
  fail "the answers are others beside a prompt that is too long"

# Each request has options of its own, and a wrong one does not disturb the others.
cat >requests <<'REQUESTS'
{"prompt": "#pragma once", "greedy": true}
{"prompt": "at::Tensor ", "temperature": 0}
{"prompt": "namespace", "greedy": true, "top_p": 2}
{"prompt": "/// ", "greedy": true, "tokens": 3}
{"prompt": "std::vector<int64_t> ", "greedy": true}
REQUESTS
status=0
"$serve" --model "$model" --prompts requests --json --tokens 90 >own 2>log || status=$?
[ "$status" -eq 1 ] || fail "exit status $status after a wrong option, expected 1"
grep --quiet "^serve: prompt 3: top_p (2) must be from 0 to 1$" log || fail "it did not tell the option"
grep --quiet "^4 of 5 answers, 273 tokens" log || fail "it did not answer the others"
without() { awk '/^==> [1-5] <==$/ { number = $2 } number != 3 && number != 4' "$1"; }
[ "$(without own)" = "$(without together)" ] || fail "the answers are others with options of their own"

for signal in INT TERM; do
  rm -f interrupted
  "$serve" "${options[@]}" --tokens 100000000 >interrupted 2>log &
  process=$!
  until [ -s interrupted ]; do sleep 0.02; done
  kill -s "$signal" "$process"
  status=0
  wait "$process" || status=$?
  [ "$status" -eq $((128 + $(kill -l "$signal"))) ] || fail "SIG$signal made it end with $status"
  grep --quiet "^0 of 5 answers, [1-9]" log || fail "SIG$signal did not stop it"
  head -n 2 interrupted | grep --quiet "^#pragma once" || fail "SIG$signal lost an answer"
  echo "SIG$signal: $(cat log)"
done

status=0
"$serve" "${options[@]}" >/dev/full 2>log || status=$?
[ "$status" -eq 1 ] || fail "exit status $status, expected 1"
grep --quiet "^serve: cannot write to standard output$" log || fail "it lost output"
