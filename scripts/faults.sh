#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Kills trainings at random moments, interrupts them and fills their disk. Each must continue from its
# last saved state and end with the same bits as a training without a fault. Then the same with two
# processes, one of which is killed: the other must end, too.
#
#   scripts/faults.sh [KILLS]    number of kills, 200 by default; a quarter of it with two processes
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

setup
build train_gpt
kills=${1:-200}
program=$heed_build/examples/train_gpt
tests/examples/check_faults.sh "$program" "$heed_build/faults" "$kills"
if [ ! -d "$heed_build/CMakeFiles/heed_distributed.dir" ]; then
  echo "two processes: not tried, because heed::distributed is not built"
  exit
fi
tests/examples/check_distributed_faults.sh "$program" "$heed_build/distributed_faults" \
  $(((kills + 3) / 4)) "$heed_python"
