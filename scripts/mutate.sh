#!/usr/bin/env bash
# Makes small changes on purpose, and lists those that no test notices.
#
#   scripts/mutate.sh [COUNT [SEED]]    60 changes and seed 1 unless given
#
# In a copy of the sources, one place of src at a time: a comparison, a bound, a sign or a condition
# turned, or a statement dropped. The seed chooses the places. Unit tests run first, parity, numerics and
# random calls where these notice nothing. A change that does not compile, or that compiles to the
# same code, gives way to another. Half a minute a change, more in a header; CMAKE_BUILD_PARALLEL_LEVEL
# and OMP_NUM_THREADS hold it to fewer cores.
#
# What survives asks for a test that fails with it, or makes no difference to any result.
#
# See lib/environment.sh for the variables; the folder is build/mutation unless HEED_BUILD_DIR says.
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"

count=${1:-60} seed=${2:-1}
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
build attend_test modules_test weights_test models_test
exec "$heed_python" tests/mutation/mutate.py "$tree" "$heed_build" "$count" "$seed"
