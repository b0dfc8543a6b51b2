#!/usr/bin/env bash
# Looks for calls and files that heed does not survive.
#
#   scripts/fuzz.sh [--sanitize] attend [CASES [SEED]]    200,000 cases unless given
#   scripts/fuzz.sh [RUNS [READER...]]                    a million runs of each reader unless given
#
# attend: random calls of attend, the multi-head modules, caches, files and the mask builders against
# the float64 reference. A find shrinks to a case that build/release/tests/fuzz/attend_fuzz --replay
# takes; it belongs into a unit test with what repairs it. With --sanitize under AddressSanitizer and
# UndefinedBehaviorSanitizer, in build/asan, a share of the cases in each instruction set that this
# machine has.
#
# The readers of weights, with clang's libFuzzer and AddressSanitizer: a crash, a leak, or an
# allocation of much more than the file's size. A find stays in the build folder, and belongs into
# tests/fuzz/corpus with what repairs it.
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
if [ ${#readers[@]} -eq 0 ]; then readers=(archive pickle safetensors safetensors_index); fi
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
