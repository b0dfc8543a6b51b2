#!/usr/bin/env bash
# Runs the tests under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer, except the tests
# of the examples and of the packages, which build heed themselves.
#
#   scripts/sanitize.sh [CTEST ARGUMENT...]    for example scripts/sanitize.sh -R KVCache
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

use_sanitizers
heed_modules+=(safetensors transformers)
setup
build all
run_ctest --label-exclude package "$@"
