#!/usr/bin/env bash
# Measures rounding errors and writes them into docs/numerics.md: the table of numerics_test and the
# plot of error_growth.
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

heed_modules+=(matplotlib)
setup
build numerics_test error_growth
HEED_NUMERICS_WRITE=1 "$heed_build/tests/numerics/numerics_test" ||
  fail "An error exceeds its bound; see above."
"$heed_build/tests/numerics/error_growth" >"$heed_build/error_growth.csv"
"$heed_python" tests/numerics/error_growth_plot.py "$heed_build/error_growth.csv" --out docs/images/error.png
