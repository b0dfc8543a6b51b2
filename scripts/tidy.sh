#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Checks the libraries' sources with clang-tidy; .clang-tidy lists the checks. Sources are checked in the
# batches in which they are compiled, because LibTorch's headers take most of the time. A batch that
# passed is checked again only if a source, a header or .clang-tidy has changed.
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

# stamp_of FILE: prints the file that says when FILE passed. Several libraries have batches of one name.
stamp_of() {
  local name=${1#"$heed_build/CMakeFiles/"}
  echo "$heed_build/tidy/${name//\//.}.passed"
}

# Prints the files to check: batches, and kernels, which are compiled one by one. heed_distributed and
# heed_ops are not built everywhere.
stale_files() {
  local file stamp
  for file in "$heed_build"/CMakeFiles/heed_{objects,distributed,ops}.dir/Unity/*.cxx src/cpu/isa/*.cpp; do
    if [ ! -e "$file" ]; then continue; fi
    stamp=$(stamp_of "$file")
    if [ ! -f "$stamp" ] || [ -n "$(find .clang-tidy include src "$file" -newer "$stamp" -type f -print -quit)" ]; then
      echo "$file"
    fi
  done
}

# check FILE: prints findings only.
check() {
  local stamp
  stamp=$(stamp_of "$1")
  mkdir -p "$heed_build/tidy"
  # clang, unlike g++, defaults to an older C++ than heed's; omp.h is the compiler's own.
  if "$heed_tool" -p "$heed_build" --quiet --extra-arg=-std=c++17 --extra-arg=-fno-openmp "$1" 2>"$stamp.log"; then
    touch "$stamp"
  else
    grep -v ' warnings\? generated' "$stamp.log" >&2
    return 1
  fi
}

setup
setup_tool clang-tidy
configure
export -f check stamp_of
export heed_build heed_tool
stale_files | xargs --no-run-if-empty -P "$(compile_jobs)" -I FILE bash -c 'check FILE' ||
  fail "clang-tidy has findings, printed above."
echo "clang-tidy: no findings in src"
