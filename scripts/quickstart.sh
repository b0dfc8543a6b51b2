#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs what is missing, builds heed, compares it with the Python classes that it replaces, and
# trains a small model with it.
usage="usage: scripts/quickstart.sh [ARGUMENT...]    arguments of train_digits, such as --attention group_query"

set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

# export_once SCRIPT OUT ARGUMENT...: runs SCRIPT --out OUT, unless OUT is newer than it.
export_once() {
  local script=$1 out=$2
  shift 2
  if [ "$out" -nt "$script" ]; then return; fi
  rm -rf "${out:?}" "$out.part"
  quietly "Running $script" "$heed_build/quickstart/export.log" \
    "$heed_python" "$script" "$@" --out "$out.part" || fail "$script failed; its output is above."
  mv "$out.part" "$out"
}

# train_digits would refuse them only when all is built.
check_arguments() {
  while [ $# -gt 0 ]; do
    case $1 in
      --attention | --batch-size | --device | --digit | --epochs | --learning-rate | --save | --seed)
        [ $# -gt 1 ] || fail "$1 needs a value."
        shift 2
        ;;
      --attention=* | --batch-size=* | --device=* | --digit=* | --epochs=* | --learning-rate=* | --save=* | \
        --seed=* | --shift) shift ;;
      *) fail "unknown argument $1; $usage" ;;
    esac
  done
}
check_arguments "$@"

setup
build heed_libraries compare_with_python train_digits
mkdir -p "$heed_build/quickstart"

# Threads that spin while they wait take the cores from other programs. A program cannot choose this for itself:
# libgomp reads the variable when it is loaded.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}

echo
echo "== heed beside the Python classes, weights loaded from TorchScript"
export_once scripts/export_model.py "$heed_build/quickstart/fixtures" \
  --originals heads --fixture
"$heed_build/examples/compare_with_python" "$heed_build/quickstart/fixtures"

echo
echo "== Training a model with attention to read handwritten digits"
export_once examples/digits/export_digits.py "$heed_build/quickstart/digits.csv"
"$heed_build/examples/train_digits" --data "$heed_build/quickstart/digits.csv" \
  --heat-map "$heed_build/quickstart/attention.png" "$@"
