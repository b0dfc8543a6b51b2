#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# On a machine with an NVIDIA GPU, builds heed with the LibTorch of Python's torch, runs the tests on
# CUDA tensors and the benchmark on the GPU, times PyTorch's own attentions, and makes tables of all.
# On any machine, makes the tables of what a GPU is asked to do.
#
# The machine needs python3 with torch, CMake, a compiler and ninja or make; it needs no network. Other
# libraries may come in a folder, which --collect fills on a machine with apt-get: Debian's packages of
# GoogleTest, Google Benchmark, fmt and nlohmann_json, unpacked.
usage="usage: scripts/gpu_check.sh [--packages FOLDER] [--seconds S] [--doc]
       scripts/gpu_check.sh --collect FOLDER
       scripts/gpu_check.sh --dry-run BUILD
       scripts/gpu_check.sh --simulate BUILD
  --packages  the folder that --collect filled
  --seconds   time for each row of the benchmark (1)
  --doc       also write the tables into docs/gpu.md
  --collect   only fill this folder
  --dry-run   use this build folder as it is, with few tests and very short rows, on its simulated
              GPU; without one, on the CPU
  --simulate  write what this build folder's simulated GPU is asked to do into docs/gpu.md"

caller=$PWD
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

packages=
seconds=1
update_doc=false
collect=
dry_run=
simulate=

while [ $# -gt 0 ]; do
  case $1 in
    --packages | --seconds | --collect | --dry-run | --simulate) [ $# -gt 1 ] || fail "$1 needs a value." ;;&
    --packages) packages=$(cd "$caller" && realpath "$2") && shift 2 ;;
    --seconds) seconds=$2 && shift 2 ;;
    --collect) collect=$(cd "$caller" && realpath -m "$2") && shift 2 ;;
    --dry-run) dry_run=$(cd "$caller" && realpath "$2") && shift 2 ;;
    --simulate) simulate=$(cd "$caller" && realpath "$2") && shift 2 ;;
    --doc) update_doc=true && shift ;;
    *) fail "unknown argument $1; $usage" ;;
  esac
done

# Unpacks what the build needs besides LibTorch into the folder. CMake's files of fmt and Google
# Benchmark demand their libraries too, whose packages' names hold versions.
collect_packages() {
  local folder names
  command -v apt-get >/dev/null || fail "--collect needs apt-get."
  folder=$(mktemp -d)
  names=(libgtest-dev libgmock-dev nlohmann-json3-dev libfmt-dev libbenchmark-dev)
  mapfile -t -O ${#names[@]} names < <(
    apt-cache depends libfmt-dev libbenchmark-dev |
      sed -n 's/^ *Depends: \(libfmt[0-9].*\|libbenchmark[0-9].*\)/\1/p')
  (cd "$folder" && quietly "Downloading ${names[*]}" download.log apt-get download "${names[@]}") ||
    fail "apt-get could not download ${names[*]}; its output is above."
  mkdir -p "$collect"
  find "$folder" -name '*.deb' -exec dpkg -x {} "$collect" \;
  rm -r "${folder:?}"
  echo "What a GPU machine may lack: $collect"
}

# Of the machine's GPU, as PyTorch and the driver name it: a name, a tab, a text.
gpu_facts() {
  "$heed_python" -c '
import torch
device = torch.cuda.get_device_properties(0)
print(f"GPU\t{device.name}, {device.total_memory >> 30} GiB, CUDA {torch.version.cuda}")'
  printf 'driver\t%s\n' "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)"
}

# Builds what runs on the GPU, with what there is.
build_for_gpu() {
  local arguments=(-DHEED_BUILD_EXAMPLES=OFF)
  if [ -n "$packages" ]; then export CMAKE_PREFIX_PATH=$packages/usr:${CMAKE_PREFIX_PATH:-}; fi
  command -v ccache >/dev/null || arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=)
  command -v ninja >/dev/null || arguments+=(-G "Unix Makefiles")
  configure "${arguments[@]}"
  cmake --build "$heed_build" --parallel "$(compile_jobs)" --target "${programs[@]}" heed_bench ||
    fail "The build failed; its output is above."
}

# What parity_test compares with, as Python computes it.
export_fixtures() {
  quietly "Exporting fixtures from Python" "$out/fixtures.log" ctest --test-dir "$heed_build" -R '^parity.export_fixtures$' ||
    failed+=(parity.export_fixtures)
}

# run_tests [ARGUMENT...]: every program, though one fails.
run_tests() {
  local name
  for name in "${programs[@]}"; do
    quietly "Running $name on $device" "$out/$name.log" env "${environment[@]}" HEED_TEST_DEVICES="$device" \
      "$(find "$heed_build/tests" -type f -name "$name" -perm -u+x)" \
      --gtest_brief=1 "--gtest_output=json:$out/$name.json" "$@" || failed+=("$name")
    if [ -e "$out/$name.json" ]; then reports+=("$out/$name.json"); fi
  done
}

# What heed_bench measures, and then PyTorch's own attentions on the same rows.
run_benchmark() {
  quietly "Running heed_bench on $device" "$out/bench.log" env "${environment[@]}" "$heed_build/benchmarks/heed_bench" \
    --device="$device" --sizes="$sizes" --row_seconds="$seconds" \
    --benchmark_out="$out/bench.json" --benchmark_out_format=json \
    --benchmark_context="heed=$(git describe --always --dirty 2>/dev/null || echo unknown)" ||
    failed+=(heed_bench)
  benches=("$out/bench.json")
  if ! "$heed_python" -c 'import torch' 2>/dev/null; then
    echo "$heed_python has no torch: PyTorch's attentions are left out"
    return
  fi
  quietly "Running gpu_peers.py on $peer_device" "$out/peers.log" "$heed_python" benchmarks/gpu_peers.py "$out/bench.json" \
    --device "$peer_device" --seconds "$seconds" --out "$out/peers.json" || failed+=(gpu_peers.py)
  if [ -e "$out/peers.json" ]; then benches+=("$out/peers.json"); fi
}

if [ -n "$collect" ]; then
  collect_packages
  exit
fi

if [ -n "$simulate" ]; then
  [ -x "$simulate/tests/cuda/device_work" ] || fail "$simulate has no tests/cuda/device_work."
  "$simulate/tests/cuda/device_work" --write docs/gpu.md
  exit
fi

check_tools
programs=(attend_test modules_test models_test weights_test parity_test)
failed=()
reports=()
facts=()
environment=()
sizes=full
doc=docs/gpu.md
if [ -n "$dry_run" ]; then
  heed_build=$dry_run
  heed_python=$(cached HEED_PYTHON)
  torch_dir=$(cached Torch_DIR)
  check_libtorch
  : "${heed_python:=python3}"
  device=cpu
  peer_device=cpu
  simulated_gpu=$heed_build/tests/support/simulated_cuda/libheed_simulated_cuda.so
  # Sanitizers must be loaded before all else.
  if [ -e "$simulated_gpu" ] && [[ $(cached CMAKE_CXX_FLAGS) != *-fsanitize=* ]]; then
    device=cuda
    environment=(LD_PRELOAD="$simulated_gpu")
  fi
  sizes=tiny
  seconds=0.01
  filter=(--gtest_filter='*AttendVarlen*')
else
  heed_build=$(realpath -m "${HEED_BUILD_DIR:-build/gpu}")
  torch_dir=$(torch_config_of python3) || fail "python3 has no torch with files for CMake."
  check_libtorch
  take_lock
  heed_python=$(python3 -c 'import sys; print(sys.executable)')
  "$heed_python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    fail "python3's torch finds no GPU; --dry-run does without."
  device=cuda
  peer_device=cuda
  filter=()
  while IFS=$'\t' read -r name text; do facts+=(--fact "$name=$text"); done < <(gpu_facts)
  build_for_gpu
fi

out=$heed_build/gpu_check
rm -rf "${out:?}"
mkdir -p "$out"
facts+=(--fact "LibTorch=$torch_version")
compiler=$(cached CMAKE_CXX_COMPILER)
facts+=(--fact "compiler=$("$compiler" --version | head -n 1)")

# CTest, which runs this dry, writes these files itself.
if [ -z "$dry_run" ]; then export_fixtures; fi
run_tests "${filter[@]}"
run_benchmark

cp "$doc" "$out/gpu.md"
"$heed_python" benchmarks/gpu_report.py "${facts[@]}" --tests "${reports[@]}" \
  --bench "${benches[@]}" --doc "$out/gpu.md"
if $update_doc && [ -z "$dry_run" ]; then cp "$out/gpu.md" "$doc"; fi
echo "The tables: $out/gpu.md"
[ ${#failed[@]} -eq 0 ] || fail "failed on $device: ${failed[*]}; their output is above."
