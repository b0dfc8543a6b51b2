# SPDX-License-Identifier: BSD-3-Clause
# Writes fixtures into ${OUT}, a folder a subject, with ${PYTHON}, or ${OUT}/skipped with the reason why it cannot.
file(REMOVE_RECURSE "${OUT}")
file(MAKE_DIRECTORY "${OUT}")
if(NOT PYTHON)
  file(WRITE "${OUT}/skipped" "no Python was found; set HEED_PYTHON to one that has torch")
  return()
endif()
execute_process(COMMAND "${PYTHON}" -c "import torch"
  RESULT_VARIABLE no_torch OUTPUT_QUIET ERROR_VARIABLE message)
if(no_torch)
  if(NOT message MATCHES "No module named 'torch'")
    message(FATAL_ERROR "${PYTHON} cannot import torch: ${no_torch} ${message}")
  endif()
  file(WRITE "${OUT}/skipped" "${PYTHON} has no torch; set HEED_PYTHON to one that has")
  return()
endif()

set(seed 0)
if(DEFINED ENV{HEED_TEST_SEED})
  set(seed "$ENV{HEED_TEST_SEED}")
endif()
function(run script)
  execute_process(COMMAND "${PYTHON}" "${script}" ${ARGN} RESULT_VARIABLE failed OUTPUT_QUIET)
  if(failed)
    get_filename_component(name "${script}" NAME)
    message(FATAL_ERROR "${name} ${ARGN} failed: ${failed}")
  endif()
endfunction()
function(export)
  run("${EXPORT}" ${ARGN} --seed "${seed}")
endfunction()
foreach(subject IN ITEMS heads shared_projections single_head multi_head two_frameworks)
  export(--originals ${subject} --fixture --out "${OUT}/${subject}")
endforeach()
set(ENV{PYTHONPATH} "${CMAKE_CURRENT_LIST_DIR}")  # what a class of another file imports
export("${CMAKE_CURRENT_LIST_DIR}/originals/heads.py:Attention" --args "{\"emb_dim\": 128}"
  --trace --example-shape 2,10,128 --fixture --out "${OUT}/heads/traced.pt")

run("${CMAKE_CURRENT_LIST_DIR}/grad_scaler.py" "${OUT}/grad_scaler/training.pt")

execute_process(COMMAND "${PYTHON}" -c "import transformers" RESULT_VARIABLE no_transformers
  OUTPUT_QUIET ERROR_QUIET)
if(no_transformers)
  foreach(subject IN ITEMS beam_search language_models pretrained sampling)
    file(WRITE "${OUT}/${subject}/skipped"
      "${PYTHON} has no transformers; set HEED_PYTHON to one that has")
  endforeach()
else()
  run("${BEAM_SEARCH}" "${OUT}/beam_search")
  run("${LANGUAGE_MODELS}" write "${OUT}/language_models")
  run("${PRETRAINED}" write "${OUT}/pretrained")
  run("${SAMPLING}" "${OUT}/sampling/generate.pt")
  run("${PRETRAINED_HEADS}" write "${OUT}/pretrained/heads")
  run("${ENCODER_DECODERS}" write "${OUT}/pretrained/encoder_decoders")
  run("${TOWERS}" write "${OUT}/pretrained/towers")
  execute_process(COMMAND "${PYTHON}" -c "import peft" RESULT_VARIABLE no_peft OUTPUT_QUIET ERROR_QUIET)
  if(no_peft)
    file(WRITE "${OUT}/pretrained/adapters/skipped"
      "${PYTHON} has no peft; set HEED_PYTHON to one that has")
  else()
    run("${ADAPTERS}" write "${OUT}/pretrained/adapters")
  endif()
endif()

execute_process(COMMAND "${PYTHON}" -c "import safetensors" RESULT_VARIABLE no_safetensors
  OUTPUT_QUIET ERROR_QUIET)
if(NOT no_safetensors)  # which the models' file imports
  set(ENV{PYTHONPATH} "${PORTING}")
  run("${PYTORCH_MODELS}" "${OUT}/pytorch_models")
endif()

execute_process(COMMAND "${PYTHON}" -c "
import torch
from safetensors.torch import save
for dtype in torch.uint16, torch.complex64, torch.float8_e5m2fnuz:
    save({'zero': torch.zeros(1).to(dtype)})"
  RESULT_VARIABLE no_safetensors OUTPUT_QUIET ERROR_QUIET)
if(no_safetensors)
  file(WRITE "${OUT}/weights/skipped"
    "${PYTHON} has no safetensors that holds every dtype; set HEED_PYTHON to one that has")
  return()
endif()
run("${WEIGHT_FILES}" write "${OUT}/weights")
