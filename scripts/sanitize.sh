#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs the unit tests, those of several processes and the fuzzers' inputs under AddressSanitizer, LeakSanitizer
# and UndefinedBehaviorSanitizer. Each test program is four tests; GoogleTest's variable GTEST_FILTER chooses among
# its cases.
usage="usage: scripts/sanitize.sh [--fuzz | --threads] [CTEST ARGUMENT...]
  --fuzz     only the fuzzers' inputs: random calls of heed in each instruction set, and files
  --threads  the tests of threads under ThreadSanitizer instead
CTest's arguments choose among the tests, such as GTEST_FILTER='KVCache*' scripts/sanitize.sh -R modules_test"

set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

targets=all chosen=()
case ${1:-} in
  --fuzz)
    use_sanitizers
    targets=fuzz_tests chosen=(--label-regex '^fuzz$')
    shift
    ;;
  --threads)
    use_thread_sanitizer
    targets=threads_test chosen=(--tests-regex '^threads_test[.]')
    shift
    ;;
  *) use_sanitizers ;;
esac
check_ctest_arguments "$@"
setup
build "$targets"
run_ctest --no-tests=error "${chosen[@]}" "$@"
