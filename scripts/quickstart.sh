#!/usr/bin/env bash
# Installs what is missing, builds heed, compares it with the Python classes that it replaces, and
# trains a small model with it.
#
#   scripts/quickstart.sh [ARGUMENT...]    arguments of train_digits, such as --attention group_query
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

# export_once SCRIPT OUT ARGUMENT...: runs SCRIPT --out OUT, unless OUT is newer than it.
export_once() {
  local script=$1 out=$2
  shift 2
  if [ "$out" -nt "$script" ]; then return; fi
  rm -rf "${out:?}" "$out.part"
  "$heed_python" "$script" "$@" --out "$out.part" >/dev/null || fail "$script failed."
  mv "$out.part" "$out"
}

setup
build compare_with_python train_digits
mkdir -p "$heed_build/quickstart"

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
