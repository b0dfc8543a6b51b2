#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Looks for calls and files that make heed fail.
#
#   scripts/fuzz.sh [--sanitize] attend [CASES [SEED]]    200,000 cases by default
#   scripts/fuzz.sh [RUNS [READER...]]                    a million runs of each reader by default
#
# "attend" compares random calls of attend, attend_paged, the multi-head modules, caches, files and the mask
# builders with a float64 reference. A failure is shrunk to a small case, which
# build/release/tests/fuzz/attend_fuzz --replay runs again. Add it as a unit test together with the fix.
# --sanitize runs under AddressSanitizer and UndefinedBehaviorSanitizer, in build/asan, with a share of
# the cases on each instruction set of this machine.
#
# Without "attend", clang's libFuzzer and AddressSanitizer look for files that make a reader of weights
# crash, leak, or allocate much more memory than the file's size. Such a file stays in the build folder.
# Add it to tests/fuzz/corpus together with the fix.
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

# Sequences are short: more threads would wait for each other.
fuzz_attend() {
  OMP_NUM_THREADS=1 "$heed_build/tests/fuzz/attend_fuzz" --cases "$1" --seed "$2" ||
    fail "attend: a find is above."
}

if [ "${1:-}" = attend ]; then
  setup
  build attend_fuzz
  fuzz_attend "${2:-200000}" "${3:-1}"
  exit
fi

if [ "${1:-}" = --sanitize ]; then
  if [ "${2:-}" != attend ]; then fail "Only attend can be fuzzed with --sanitize."; fi
  use_sanitizers
  setup
  build attend_fuzz
  # Memory that is not a tensor's is poisoned here; attend_fuzz sees to tensors.
  export ASAN_OPTIONS=$ASAN_OPTIONS:max_malloc_fill_size=1048576:malloc_fill_byte=255
  mapfile -t sets < <("$heed_build/tests/fuzz/attend_fuzz" --instruction-sets)
  for i in "${!sets[@]}"; do
    echo "Fuzzing attend in ${sets[$i]}"
    HEED_CPU_CAPABILITY=${sets[$i]} \
      fuzz_attend $((${3:-200000} / ${#sets[@]})) $((${4:-1} * ${#sets[@]} + i))
  done
  exit
fi

runs=${1:-1000000}
readers=("${@:2}")
if [ ${#readers[@]} -eq 0 ]; then readers=(archive legacy pickle pt2 safetensors weight_index); fi
heed_build=$(realpath -m "${HEED_BUILD_DIR:-build/fuzz}")
export CXX=${CXX:-clang++-14}

setup
install_packages clang-14 libclang-rt-14-dev
configure -DHEED_BUILD_FUZZERS=ON -DHEED_BUILD_EXAMPLES=OFF -DHEED_BUILD_BENCHMARKS=OFF
cmake --build "$heed_build" --target fuzzers || fail "The build failed; its output is above."

set_sanitizer_options
for reader in "${readers[@]}"; do
  echo "Fuzzing $reader: $runs runs"
  found=$heed_build/fuzz/$reader
  mkdir -p "$found"
  # Inputs are at most 64 KiB; reading one may take 4 MiB and 8 times its size (memory_limit).
  "$heed_build/tests/fuzz/${reader}_fuzz" -runs="$runs" -max_len=65536 -malloc_limit_mb=5 \
    -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 -artifact_prefix="$found/find-" \
    "$found" "tests/fuzz/corpus/$reader" || fail "$reader: a find is in $found; see above."
done
