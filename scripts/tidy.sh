#!/usr/bin/env bash
# Checks the library's sources with clang-tidy; .clang-tidy says for what. A file that passed is
# checked again once it, a header or .clang-tidy changes.
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"

# Prints the sources to check.
stale_sources() {
  local source stamp
  git ls-files 'src/*.cpp' | while read -r source; do
    stamp=$heed_build/tidy/$source.passed
    if [ ! -f "$stamp" ] || [ -n "$(find .clang-tidy "$source" include src -newer "$stamp" \
      \( -name '*.h' -o -path "$source" -o -name .clang-tidy \) -print -quit)" ]; then
      echo "$source"
    fi
  done
}

# check SOURCE: prints findings only.
check() {
  local stamp=$heed_build/tidy/$1.passed
  mkdir -p "$(dirname "$stamp")"
  # clang, unlike g++, defaults to an older C++ than heed's; omp.h is the compiler's own.
  if "$heed_tool" -p "$heed_build" --quiet --extra-arg=-std=c++17 --extra-arg=-fno-openmp "$1" 2>"$stamp.log"; then
    touch "$stamp"
  else
    grep -v ' warnings\? generated' "$stamp.log" >&2
    return 1
  fi
}

setup
setup_tool clang-tidy==22.1.8
configure
export -f check
export heed_build heed_tool
stale_sources | xargs --no-run-if-empty -P "$(compile_jobs)" -I SOURCE bash -c 'check SOURCE' ||
  fail "clang-tidy has findings, printed above."
echo "clang-tidy: no findings in src"
