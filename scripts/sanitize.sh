#!/usr/bin/env bash
# Runs the unit tests, those of several processes and the fuzzers' inputs under AddressSanitizer, LeakSanitizer
# and UndefinedBehaviorSanitizer. Each test program is four tests; GoogleTest's variable GTEST_FILTER chooses among
# its cases.
usage="usage: scripts/sanitize.sh [CTEST ARGUMENT...]
such as GTEST_FILTER='KVCache*' scripts/sanitize.sh -R modules_test"

set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

check_ctest_arguments "$@"
use_sanitizers
setup
build all
run_ctest "$@"
