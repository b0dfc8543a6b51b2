#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Measures rounding errors and writes them into docs/numerics.md: the table of numerics_test and the
# plot of error_growth; and the plot of a training beside Python's, which docs/training.md shows.
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

heed_modules+=(matplotlib safetensors transformers)
setup
build numerics_test error_growth training_curve_test
HEED_NUMERICS_WRITE=1 "$heed_build/tests/numerics/numerics_test" ||
  fail "An error exceeds its bound; see above."
"$heed_build/tests/numerics/error_growth" >"$heed_build/error_growth.csv"
"$heed_python" tests/numerics/error_growth_plot.py "$heed_build/error_growth.csv" --out docs/images/error.png

curve=$heed_build/tests/parity/training_curve
"$heed_python" tests/parity/training_curve.py "$curve/python.safetensors" --batch 64
"$heed_build/tests/parity/training_curve_test"
"$heed_python" tests/parity/training_curve_plot.py "$curve/python.safetensors" "$curve/heed.safetensors" \
  --out docs/images/training-curve.png
