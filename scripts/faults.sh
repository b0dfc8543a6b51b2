#!/usr/bin/env bash
# Kills trainings at random moments, interrupts them and fills their disk: each must go on where it
# was saved last and end bit for bit as one that nothing happened to.
#
#   scripts/faults.sh [KILLS]    200 unless given
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

setup
build train_gpt
exec tests/examples/check_faults.sh "$heed_build/examples/train_gpt" "$heed_build/faults" "${1:-200}"
