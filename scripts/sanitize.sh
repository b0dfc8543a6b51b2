#!/usr/bin/env bash
# Runs the tests under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer: all but those
# of the packages, which build heed anew, and of the examples.
#
#   scripts/sanitize.sh [CTEST ARGUMENT...]    such as: scripts/sanitize.sh -R KVCache
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

heed_preset=asan
heed_build=$(realpath -m "${HEED_BUILD_DIR:-build/asan}")
heed_modules+=(safetensors transformers)
setup
build all
# LibTorch is not instrumented: its containers do not tell AddressSanitizer what they hold.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_container_overflow=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
run_ctest --label-exclude package "$@"
