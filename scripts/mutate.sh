#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Makes small wrong changes to a copy of the sources, and lists those that no test notices.
#
#   scripts/mutate.sh [--under FOLDER] [COUNT [SEED]]    src, 60 changes and seed 1 by default
#
# It changes one place of src at a time: it reverses a comparison, a bound, a sign or a condition, or
# drops a statement. The seed chooses the places. --under changes only files of a folder, such as
# src/weights, and builds only what tests it. The tests of a file's folder run first: the unit tests of
# its floor and of those above; those of several processes for src/distributed, of operators for src/ops,
# on the simulated device for src/attend/paths/cuda. If they notice nothing, the tests of parity and
# numerics, of processes that share modules or models, and random calls run too. A change that does not
# compile, or that compiles to the same code, is replaced by another one. A change takes half a minute,
# more in a header; CMAKE_BUILD_PARALLEL_LEVEL and OMP_NUM_THREADS limit the number of cores.
#
# A change that survives either needs a new test that fails with it, or makes no difference to results.
#
# The build folder is build/mutation unless HEED_BUILD_DIR is set.
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"

under=src
if [ "${1:-}" = --under ]; then
  [ -d "${2:-}" ] || fail "--under must name a folder of src, such as src/ops."
  under=$(realpath --relative-to=. "$2")
  shift 2
fi
case $under in
  src | src/*) ;;
  *) fail "--under ($under) must name a folder of src, such as src/ops." ;;
esac
count=${1:-60} seed=${2:-1}
for number in "$count" "$seed"; do
  [[ $number =~ ^[0-9]+$ ]] || fail "COUNT and SEED must be whole numbers, not $number."
done
folder=$(realpath -m "${HEED_BUILD_DIR:-build/mutation}")
tree=$folder/tree

setup
mkdir -p "$folder"
exec 8>"$folder/.lock"
flock --nonblock 8 || fail "Another scripts/mutate.sh works in $folder."
rm -rf "$tree"
mkdir "$tree"
tar --create --exclude='./build*' --exclude=./.git --exclude=./shared . | tar --extract -C "$tree"
exec 9>&-  # other scripts may go on
# At the same depth below its root as build/release: ccache knows what was compiled there.
heed_root=$tree heed_build=$tree/build/release
cd "$tree"
configure -DHEED_BUILD_EXAMPLES=OFF -DHEED_BUILD_BENCHMARKS=OFF -DHEED_INSTALL=OFF \
  "-DCMAKE_PROJECT_heed_INCLUDE=$tree/tests/mutation/one_file_at_a_time.cmake"
exec "$heed_python" tests/mutation/mutate.py "$tree" "$heed_build" "$count" "$seed" "$under"
