#!/usr/bin/env bash
# check_scripts.sh HEED FOLDER: fails unless HEED's scripts, copied into FOLDER, find their way and
# say what is wrong under odd conditions. Nothing is installed or built.
set -euo pipefail
unset CDPATH CXX HEED_BUILD_DIR CMAKE_PREFIX_PATH Torch_DIR CCACHE_DIR

rm -rf "${2:?}"
folder=$(realpath -m "$2")
clone=$folder/clone
mkdir -p "$clone/build"
cp -r "$1/scripts" "$clone"

# must_say STATUS TEXT COMMAND...
must_say() {
  local status=0 output
  output=$(cd "$folder" && "${@:3}" 2>&1) || status=$?
  if [ "$status" -ne "$1" ] || [[ "$output" != *"$2"* ]]; then
    echo "$output"
    echo "exit status $status, expected $1 and: $2" >&2
    exit 1
  fi
}

# within COMMANDS: with the scripts' functions.
within() {
  # shellcheck disable=SC2016  # for the inner shell
  bash -euc '. "$1/scripts/lib/environment.sh"; eval "$2"' within "$clone" "$1"
}

# cache NAME=VALUE...: CMake's cache of the release build.
cache() {
  mkdir -p "$clone/build/release"
  printf '%s\n' "$@" >"$clone/build/release/CMakeCache.txt"
}

# A script by another name, from another folder, without what it sources.
ln -s clone/scripts/format.sh "$folder/link"
must_say 1 "heed: format.sh knows no argument; it takes --check or nothing." ./link argument
must_say 0 "Formats the C++ files." ./link --help
mkdir "$folder/alone"
cp "$clone/scripts/format.sh" "$folder/alone/"
must_say 1 "environment.sh: No such file or directory" alone/format.sh --check
if alone=$("$folder/alone/format.sh" --check 2>&1) || [[ "$alone" = *"command not found"* ]]; then
  echo "a script goes on without what it sources: $alone" >&2
  exit 1
fi
must_say 1 "heed: format.sh knows no argument" env "CDPATH=$clone" \
  bash -c 'cd clone >/dev/null && scripts/format.sh argument'

for script in "$clone"/scripts/*.sh; do must_say 0 "HEED_BUILD_DIR" "$script" --help; done
must_say 0 "arguments of train_digits" clone/scripts/quickstart.sh --attention group_query --help

touch "$folder/file"
must_say 1 "heed: HEED_BUILD_DIR ($folder/file) must be a folder: $folder/file is a file." \
  env HEED_BUILD_DIR=file clone/scripts/test.sh
must_say 1 "heed: HEED_BUILD_DIR ($folder/file/below) must be a folder: $folder/file is a file." \
  env HEED_BUILD_DIR=file/below clone/scripts/quickstart.sh

export -f within
export clone
must_say 1 "heed: CXX names no-c++, which is missing: install it, or unset CXX." \
  env CXX="no-c++ -O2" bash -c 'within check_tools'
must_say 1 "heed: Torch_DIR (/nowhere) must be the folder of a TorchConfig.cmake." \
  env Torch_DIR=/nowhere bash -c 'within find_given_libtorch'
must_say 0 "No LibTorch is in CMAKE_PREFIX_PATH (/nowhere): that of a Python's torch is taken" \
  env CMAKE_PREFIX_PATH=/nowhere bash -c 'within find_given_libtorch'

# An active Python whose torch is too old.
echo 'set(PACKAGE_VERSION "2.5.1")' >"$folder/TorchConfigVersion.cmake"
old="torch_config_of() { echo '$folder'; }; use_active_torch"
must_say 1 "The active Python's torch 2.5.1 is too old, heed needs 2.6 or newer: it gets its own" \
  within "torch_dir=; $old"
must_say 0 "" within "torch_dir=/given; $old"

# A clone or a build folder that was moved, and one that was not.
place=(CMAKE_PROJECT_NAME:STATIC=heed "CMAKE_HOME_DIRECTORY:INTERNAL=$clone")
here=CMAKE_CACHEFILE_DIR:INTERNAL=$clone/build/release
check="torch_dir=/torch; check_cache; ls build/release"
cache "${place[@]}" "$here" Torch_DIR:PATH=/torch
must_say 0 CMakeCache.txt within "$check"
cache "${place[@]}" "$here" Torch_DIR:PATH=/other
must_say 0 gone within "$check | grep . || echo gone"
cache "${place[@]}" CMAKE_CACHEFILE_DIR:INTERNAL=/moved/build Torch_DIR:PATH=/torch
must_say 0 gone within "$check | grep . || echo gone"
cache CMAKE_PROJECT_NAME:STATIC=heed CMAKE_HOME_DIRECTORY:INTERNAL=/moved "$here" Torch_DIR:PATH=/torch
must_say 0 gone within "$check | grep . || echo gone"
cache CMAKE_PROJECT_NAME:STATIC=other "$here"
must_say 1 "heed: $clone/build/release is another project's build folder." within "$check"
[ -e "$clone/build/release/CMakeCache.txt" ]

# A home that cannot be written to.
mkdir "$folder/bin"
printf '#!/bin/sh\necho /dev/null/ccache\n' >"$folder/bin/ccache"
chmod +x "$folder/bin/ccache"
# shellcheck disable=SC2016  # for the inner shell
must_say 0 "$clone/build/release/ccache $clone/build/release" \
  env --unset=HOME "PATH=$folder/bin:$PATH" bash -c 'within "find_ccache_folder; echo \$CCACHE_DIR \$HOME"'
printf '#!/bin/sh\necho "%s/cache"\n' "$folder" >"$folder/bin/ccache"
must_say 0 "<>" env "PATH=$folder/bin:$PATH" bash -c 'within "find_ccache_folder; echo \<\${CCACHE_DIR:-}\>"'

# pip that is broken off, by a Python that only writes down what it is asked for.
mkdir -p "$clone/build/venv/bin"
cat >"$clone/build/venv/bin/python" <<'PYTHON'
#!/bin/sh
echo "$@" >>build/asked
[ ! -e build/broken ] || [ "$4" != install ]
PYTHON
chmod +x "$clone/build/venv/bin/python"
touch "$clone/build/broken"
must_say 1 "heed: pip could not install torch==2.13.0; its output is above." \
  within "pip_install torch==2.13.0"
rm "$clone/build/broken"
must_say 0 "" within make_venv
must_say 0 "" within make_venv
[ "$(grep -c ' install torch==2.13.0$' "$clone/build/asked")" -eq 1 ]
[ "$(grep -c ' install --ignore-installed torch==2.13.0$' "$clone/build/asked")" -eq 1 ]

# Tests that are skipped are named at the end, and a failure stays one.
mkdir "$folder/skips"
cat >"$folder/skips/CTestTestfile.cmake" <<'TESTS'
add_test(says.so echo "skipped: no Python was found")
add_test(case printf "x.cpp:12: Skipped\nno torch\n\n[  SKIPPED ] Case.One (0 ms)\n")
add_test(prints sh -c "echo cannot import torch; exit 77")
add_test(silent sh -c "exit 77")
add_test(inside printf "Ran 3 tests\nOK (skipped=2)\n")
add_test(runs echo "skipped by nobody")
set_tests_properties(says.so PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: ")
set_tests_properties(case PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED")
set_tests_properties(prints silent PROPERTIES SKIP_RETURN_CODE 77)
TESTS
skips="set -o pipefail; heed_build=$folder/skips; run_ctest --parallel 1"
must_say 0 "
Skipped, and why:
  says.so: no Python was found
  case: no torch
  prints: cannot import torch
  silent: it gave no reason
  inside: 2 of its cases, which it names with -v" within "$skips"
must_say 0 "No tests were found" within "$skips -R nothing"
echo 'add_test(fails false)' >>"$folder/skips/CTestTestfile.cmake"
must_say 8 "says.so: no Python was found" within "$skips"
echo "the scripts say what is wrong"
