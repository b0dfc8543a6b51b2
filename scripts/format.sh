#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Formats the C++ files.
#
#   scripts/format.sh            formats in place
#   scripts/format.sh --check    changes nothing, and fails if a file is not formatted
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

case ${1:-} in
  '') options=(-i) ;;
  --check) options=(--dry-run --Werror) ;;
  *) fail "format.sh knows no $1; it takes --check or nothing." ;;
esac

take_lock
setup_tool clang-format
git ls-files -z '*.h' '*.cpp' | xargs -0 "$heed_tool" "${options[@]}" ||
  fail "scripts/format.sh formats these files."
