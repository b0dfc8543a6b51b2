#!/usr/bin/env bash
# Kills trainings at random moments, interrupts them and fills their disk. Each must continue from its
# last saved state and end with the same bits as a training without a fault.
#
#   scripts/faults.sh [KILLS]    number of kills, 200 by default
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

setup
build train_gpt
exec tests/examples/check_faults.sh "$heed_build/examples/train_gpt" "$heed_build/faults" "${1:-200}"
