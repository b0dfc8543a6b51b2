# SPDX-License-Identifier: BSD-3-Clause
# heed's own build stops with one sentence when LibTorch is too old.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

file(REMOVE_RECURSE "${WORK_DIR}")
set(config "${WORK_DIR}/libtorch/share/cmake/Torch/TorchConfig.cmake")
file(WRITE "${config}" "")
file(WRITE "${WORK_DIR}/libtorch/share/cmake/Torch/TorchConfigVersion.cmake"
  "set(PACKAGE_VERSION 2.5.1)\nset(PACKAGE_VERSION_COMPATIBLE FALSE)\n")

find_in("${WORK_DIR}/libtorch")
# CMake would go on to a LibTorch of the system, by either of its paths.
file(GLOB ignored "/usr/lib/*/cmake/Torch" "/lib/*/cmake/Torch" "${TORCH_DIR}")
set(cache "${WORK_DIR}/cache.cmake")
file(WRITE "${cache}" "set(CMAKE_IGNORE_PATH \"${ignored}\" CACHE STRING \"\")\n")
configure_must_say("heed needs LibTorch 2.6 or newer; ${config} is LibTorch 2.5.1."
  -C "${cache}" -S "${HEED_SOURCE_DIR}" -B "${WORK_DIR}/build" ${same_toolchain})
