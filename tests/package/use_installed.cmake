# SPDX-License-Identifier: BSD-3-Clause
# Uses an installed heed; scripts/check_packages.sh runs this where heed's build is not.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

find_in(${PREFIXES})
build_and_run_consumer()
