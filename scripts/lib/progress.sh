# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
# environment.sh sources this: what the scripts show of work that takes minutes. On a terminal one line is
# rewritten every second; in a log, lines are added.

on_terminal() { [ -t 1 ] && [ "${TERM:-dumb}" != dumb ]; }

# clock SECONDS: prints 95 as 1:35.
clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# rewrite [TEXT]: puts the beginning of TEXT, as much as fits, in place of the terminal's last line.
rewrite() { printf '\r\033[K%.*s' $((columns - 1)) "${1:-}"; }

measure_terminal() { columns=$(tput cols 2>/dev/null) || columns=80; }

# tick WHAT: shows WHAT and how long it has taken, until this script ends or this process is killed.
tick() {
  local begin=$SECONDS
  while kill -0 $$ 2>/dev/null; do
    rewrite "$1 ($(clock $((SECONDS - begin))))"
    sleep 1
  done
}

# quietly WHAT LOG COMMAND...: says WHAT the command does and how long it took. The command's output goes to
# the file LOG, and is shown if it fails.
quietly() {
  local what=$1 log=$2 begin=$SECONDS columns ticker='' status=0 took
  shift 2
  if on_terminal; then
    measure_terminal
    tick "$what" 9>&- &  # without the lock of take_lock
    ticker=$!
  else
    echo "$what"
  fi
  "$@" >"$log" 2>&1 || status=$?
  took=$(clock $((SECONDS - begin)))
  if [ -n "$ticker" ]; then
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    rewrite
    echo "$what ($took)"
  else
    echo "  took $took"
  fi
  if [ "$status" -ne 0 ]; then
    cat "$log" >&2
    return 1
  fi
}

# position: prints the count, the time and, where it is known, the time left.
position() {
  local seconds
  if [ -n "$counted" ]; then printf '[%s] ' "$counted"; fi
  clock $((SECONDS - begin))
  if [ -z "$due" ]; then return; fi
  seconds=$((due - SECONDS))
  if [ "$seconds" -lt 60 ]; then
    printf ', less than a minute left'
  else
    printf ', about %d min left' $(((seconds + 30) / 60))
  fi
}

# show_progress PATTERN ESTIMATE: passes on its input. A line that fits PATTERN, whose groups are a count, the
# total and a text, gets the time and the time left: the function ESTIMATE sets `due`, what SECONDS will be at the
# end, from count, total and text. A terminal shows such a line in place of the one before, unless a test failed.
show_progress() {
  local pattern=$1 estimate=$2 part line='' counted='' text='' due='' begin=$SECONDS status columns wait=()
  "$estimate" 0 0 -
  if on_terminal; then
    wait=(-t 1)
    measure_terminal
  fi
  while true; do
    status=0
    IFS= read -r "${wait[@]}" part || status=$?
    line+=$part
    if [ "$status" -le 128 ]; then
      if [ "$status" -ne 0 ] && [ -z "$line" ]; then break; fi
      show_line
      line=
    fi
    if on_terminal; then rewrite "$(position)${text:+: $text}"; fi
  done
  if on_terminal; then rewrite; fi
}

# show_line: what show_progress does with a line.
show_line() {
  if ! [[ $line =~ $pattern ]]; then
    if ! on_terminal; then
      echo "$line"
    elif ! [[ $line =~ ^\ +Start\ +[0-9]+: ]]; then
      rewrite
      echo "$line"
    fi
    return
  fi
  counted=${BASH_REMATCH[1]}/${BASH_REMATCH[2]}
  text=${BASH_REMATCH[3]}
  "$estimate" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "$text"
  if ! on_terminal; then
    echo "$(position): $text"
  elif [[ $text = *'***'* && $text != *'***Skipped'* ]]; then
    rewrite
    echo "$text"
  fi
}

# estimate_by_count COUNT TOTAL: as if all took the same time.
estimate_by_count() {
  if [ "$1" -ge 5 ]; then due=$((SECONDS + (SECONDS - begin) * ($2 - $1) / $1)); fi
}

# expect_objects TARGET...: sets `expected` to the seconds that each missing object of the targets may take on
# one core, and `waiting` to their sum. Unity batches and precompiled headers take the longest by far.
expect_objects() {
  local object
  expected=()
  waiting=0
  while IFS= read -r object; do
    if [ -e "$heed_build/$object" ]; then continue; fi
    case $object in
      */Unity/* | *.gch) expected[$object]=60 ;;
      *) expected[$object]=5 ;;
    esac
    waiting=$((waiting + expected[$object]))
  done < <("$(cached CMAKE_MAKE_PROGRAM)" -C "$heed_build" -t commands "$@" 2>/dev/null |
    sed -n 's/.* -o \([^ ]*\.\(o\|gch\)\) -c .*/\1/p')
}

# estimate_build COUNT TOTAL TEXT: from what `expected` says, corrected by how long the objects so far have taken.
# The other jobs are taken to be in the middle of a batch. Where existing objects are built again, by count.
estimate_build() {
  local object=${3##* } others=$((30 * (jobs - 1))) seconds
  seconds=${expected[$object]:-0}
  if [[ $3 = Building* ]] && [ "$seconds" -eq 0 ]; then rebuilt=true; fi
  if $rebuilt; then
    estimate_by_count "$1" "$2"
    return
  fi
  if [ $((waiting + finished)) -eq 0 ]; then return; fi
  waiting=$((waiting - seconds))
  finished=$((finished + seconds))
  seconds=$((waiting > others ? waiting - others : 0))
  due=$((SECONDS + seconds * ((SECONDS - begin) * jobs + 120) / (finished + others + 120) / jobs))
}

# build_targets TARGET...: builds them in heed_build.
build_targets() {
  local -A expected
  local waiting finished=0 rebuilt=false jobs=$CMAKE_BUILD_PARALLEL_LEVEL begin=$SECONDS
  expect_objects "$@"
  echo "Building with $jobs at once: $*"
  NINJA_STATUS='[%f/%t] ' cmake --build "$heed_build" --target "$@" |
    show_progress '^\[([0-9]+)/([0-9]+)\] (.*)' estimate_build || return
  echo "  took $(clock $((SECONDS - begin)))"
}
