#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Compares the shared libraries of two versions, and says what programs that were built with the older one would notice:
# functions, classes and their layout. docs/stability.md says which version may break what.
#
#   scripts/compare_interface.sh [REVISION]    the last release's tag by default
#
# It builds both versions with debugging information and without kernels, which are no part of the interface, and runs
# abidiff of libabigail. The reports are in the build folder. It fails if a library has changed so that programs must
# be compiled anew, but is loaded by the same name.
#
# The build folder is build/interface unless HEED_BUILD_DIR is set. The first run takes half an hour.
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

usage="usage: scripts/compare_interface.sh [REVISION]"
[ $# -le 1 ] || fail "unknown argument $2; $usage"
revision=${1:-$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || true)}
[ -n "$revision" ] || fail "No release has a tag: name the revision to compare with; $usage"
commit=$(git rev-parse --verify --quiet "$revision^{commit}") || fail "$revision must be a revision of this clone."
folder=$(realpath -m "${HEED_BUILD_DIR:-build/interface}")
libraries=(heed heed_distributed)

# build_interface SOURCE BUILD: builds the shared libraries in BUILD. One of them needs Gloo.
build_interface() {
  local library
  quietly "Configuring $1" "$folder/configure.log" cmake -S "$1" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_CXX_FLAGS="-O1 -g" -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DBUILD_SHARED_LIBS=ON -DHEED_KERNELS=OFF \
    -DHEED_BUILD_TESTS=OFF -DHEED_BUILD_EXAMPLES=OFF -DHEED_BUILD_BENCHMARKS=OFF -DHEED_BUILD_OPS=OFF \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=8 "-DTorch_DIR=$torch_dir" ||
    fail "CMake could not configure $1; its output is above."
  for library in "${libraries[@]}"; do
    if ! ninja -C "$2" -t query "$library" >/dev/null 2>&1; then continue; fi
    quietly "Building $library" "$folder/build.log" cmake --build "$2" --parallel "$(compile_jobs)" \
      --target "$library" || fail "The build failed; its output is above."
  done
}

# loaded_as LIBRARY: prints the name by which programs load it.
loaded_as() { readelf --dynamic "$1" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p'; }

# compare LIBRARY: prints what has changed, writes the report, and returns 1 if programs would load what they cannot
# use.
compare() {
  local before=$folder/before/build/lib$1.so after=$folder/after/lib$1.so status=0 report=$folder/$1.txt broken
  if ! [ -e "$before" ] || ! [ -e "$after" ]; then
    echo "$1: not built in both versions"
    return
  fi
  abidiff --suppressions scripts/lib/abidiff.suppr --drop-private-types --headers-dir1 "$folder/before/source/include" \
    --headers-dir2 "$heed_root/include" "$before" "$after" >"$report" 2>"$folder/abidiff.log" || status=$?
  if [ $((status & 3)) -ne 0 ]; then
    cat "$folder/abidiff.log" >&2
    fail "abidiff failed; its output is above."
  fi
  printf '\n%s, from %s to %s:\n' "$1" "$(loaded_as "$before")" "$(loaded_as "$after")"
  grep 'changes summary:' "$report" || true
  echo "The report: $report"
  broken=$(grep 'changes summary:' "$report" | grep -oE '[0-9]+ (Removed|Changed)' |
    awk '{ sum += $1 } END { print sum + 0 }')
  if [ "$broken" -eq 0 ]; then
    echo "Programs that were built with $revision run with it."
  elif [ "$(loaded_as "$before")" != "$(loaded_as "$after")" ]; then
    echo "Programs that were built with $revision must be compiled anew. They load the old library, by its name."
  else
    echo "Programs that were built with $revision load it, and may crash: undo this, or change the version." >&2
    return 1
  fi
}

setup
install_packages abigail-tools binutils
mkdir -p "$folder/before"
if [ "$(cat "$folder/before/commit" 2>/dev/null)" != "$commit" ]; then
  rm -rf "${folder:?}/before"
  mkdir -p "$folder/before/source"
  git archive "$commit" | tar --extract -C "$folder/before/source"
  echo "$commit" >"$folder/before/commit"
fi
build_interface "$folder/before/source" "$folder/before/build"
build_interface "$heed_root" "$folder/after"
status=0
for library in "${libraries[@]}"; do compare "$library" || status=1; done
exit $status
