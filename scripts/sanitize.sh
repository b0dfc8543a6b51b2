#!/usr/bin/env bash
# Runs the tests under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer: all but those
# of the packages, which build heed anew, and of the examples.
#
#   scripts/sanitize.sh [CTEST ARGUMENT...]    such as: scripts/sanitize.sh -R KVCache
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

use_sanitizers
heed_modules+=(safetensors transformers)
setup
build all
run_ctest --label-exclude package "$@"
