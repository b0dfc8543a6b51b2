# SPDX-License-Identifier: BSD-3-Clause
# Sets `python` to the Python that tests and examples use: HEED_PYTHON, or the one that CMake finds.
set(python "${HEED_PYTHON}")
if(NOT python)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  set(python "${Python3_EXECUTABLE}")
endif()
