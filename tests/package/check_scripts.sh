#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# check_scripts.sh HEED FOLDER: fails unless HEED's scripts, copied into FOLDER, find their way and
# say what is wrong under odd conditions. Nothing is installed or built.
set -euo pipefail
unset CDPATH CXX HEED_BUILD_DIR HEED_YES CMAKE_PREFIX_PATH Torch_DIR CCACHE_DIR

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
if grep -l SPDX <(for script in "$clone"/scripts/*.sh; do "$script" --help; done); then
  echo "--help begins with the license's tag" >&2
  exit 1
fi
must_say 0 "arguments of train_digits" clone/scripts/quickstart.sh --attention group_query --help

# Wrong arguments stop a script before it installs or builds anything.
for script in test sanitize; do
  must_say 1 "heed: unknown argument --bar; usage: scripts/$script.sh" "clone/scripts/$script.sh" --bar
  must_say 1 "heed: unknown argument Masks; usage: scripts/$script.sh" "clone/scripts/$script.sh" -V Masks
  must_say 1 "heed: -R needs a value." "clone/scripts/$script.sh" -j 2 -R
done
must_say 1 "heed: unknown argument --bar; usage: scripts/test.sh [--all] [CTEST ARGUMENT...]" \
  clone/scripts/test.sh --all --bar
must_say 1 "heed: unknown argument b; usage: scripts/compare_interface.sh [REVISION]" \
  clone/scripts/compare_interface.sh a b
must_say 1 "heed: unknown argument --epochz; usage: scripts/quickstart.sh" clone/scripts/quickstart.sh --epochz 3
must_say 1 "heed: unknown argument 3; usage: scripts/quickstart.sh" clone/scripts/quickstart.sh --epochs=2 --shift 3
for option in $(grep -o '"--[a-z-]*"' "$1/examples/train_digits.cpp" | tr -d '"'); do
  case $option in
    --data | --heat-map) must_say 1 "heed: unknown argument $option;" clone/scripts/quickstart.sh "$option" x ;;
    --shift) must_say 1 "heed: unknown argument --bar" clone/scripts/quickstart.sh "$option" --bar ;;
    *) must_say 1 "heed: $option needs a value." clone/scripts/quickstart.sh "$option" ;;
  esac
done

touch "$folder/file"
must_say 1 "heed: HEED_BUILD_DIR ($folder/file) must be a folder: $folder/file is a file." \
  env HEED_BUILD_DIR=file clone/scripts/test.sh
must_say 1 "heed: HEED_BUILD_DIR ($folder/file/below) must be a folder: $folder/file is a file." \
  env HEED_BUILD_DIR=file/below clone/scripts/quickstart.sh

# Paths that CMake cannot take; it takes the others.
for character in ';' ':' ',' '|' '<' '>' '$' '"' '\' '[' ']'; do
  must_say 1 "heed: HEED_BUILD_DIR ($folder/a${character}b) must be a path without $character" \
    env HEED_BUILD_DIR="a${character}b" clone/scripts/test.sh
  mkdir "$folder/c${character}d"
  cp -r "$1/scripts" "$folder/c${character}d/"
  must_say 1 "heed: The clone's folder ($folder/c${character}d) must be a path without $character" \
    "$folder/c${character}d/scripts/format.sh"
done
must_say 1 "must be a path without line feeds" env HEED_BUILD_DIR=$'a\nb' clone/scripts/test.sh
must_say 1 "heed: unknown argument --bar" env HEED_BUILD_DIR="it's (#1) & more" clone/scripts/test.sh --bar

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

# What a download costs is said before it, unless pip is told where to look.
choose="use_active_torch() { false; }; choose_torch; echo \$takes_active_torch"
must_say 0 "set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels" \
  env --unset=PIP_EXTRA_INDEX_URL --unset=PIP_INDEX_URL bash -c "within '$choose'"
must_say 0 "into $clone/build/venv.
false" env PIP_EXTRA_INDEX_URL=/wheels bash -c "within '$choose'"
must_say 0 "true" within "use_active_torch() { true; }; choose_torch; echo \$takes_active_torch"

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
  within "pip_install torch==2.13.0 --no-deps torch==2.13.0"
rm "$clone/build/broken"
must_say 0 "" within make_venv
must_say 0 "" within make_venv
[ "$(grep -c ' install --no-deps torch==2.13.0$' "$clone/build/asked")" -eq 1 ]
[ "$(grep -c ' install --ignore-installed --no-deps torch==2.13.0$' "$clone/build/asked")" -eq 1 ]

# A person without root rights whose Debian packages are missing: sudo only if they agree.
mkdir "$folder/person"
cat >"$folder/person/sudo" <<'SUDO'
#!/bin/sh
echo "sudo $*"
SUDO
printf '#!/bin/sh\necho 1000\n' >"$folder/person/id"
printf '#!/bin/sh\nexit 1\n' >"$folder/person/dpkg-query"
cp "$folder/person/dpkg-query" "$folder/person/apt-get"
chmod +x "$folder"/person/*
as_person() { env "PATH=$folder/person:$PATH" "$@"; }
missing="heed: Debian packages are missing: run 'apt-get install one two' as root, or this again with HEED_YES=1, for sudo."
must_say 1 "$missing" as_person bash -c "within 'install_packages one two'" </dev/null
installed='
  took time
sudo --non-interactive env DEBIAN_FRONTEND=noninteractive apt-get --quiet -o DPkg::Lock::Timeout=300 install'
must_say 0 "$installed --yes --no-install-recommends one two" as_person HEED_YES=1 \
  bash -c "within 'clock() { printf time; }; install_packages one two; cat build/apt.log'" </dev/null
printf '#!/bin/sh\nexit 1\n' >"$folder/person/sudo"
must_say 1 "$missing" as_person HEED_YES=1 bash -c "within 'install_packages one two'" </dev/null
if command -v script >/dev/null; then
  answer() {
    echo "$1" | SHELL=$BASH script --quiet --return --command "bash -c \"within 'agrees question && echo agreed'\"" /dev/null
  }
  must_say 0 agreed answer y
  must_say 1 "question [y/N]" answer ""
fi

# A clone that cannot be written to. Root can write in spite of modes, but not to a mount that is read-only.
read_only() {
  local status=0
  if [ "$(id -u)" -ne 0 ]; then
    chmod -R a-w "$clone"
    "$@" || status=$?
    chmod -R u+w "$clone"
    return $status
  fi
  # shellcheck disable=SC2016  # for the inner shell
  unshare --mount bash -euc 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && "${@:2}"' bash "$clone" "$@"
}
if [ "$(id -u)" -ne 0 ] || unshare --mount true 2>/dev/null; then
  must_say 1 "heed: $clone/build cannot be written to: set HEED_BUILD_DIR to a folder of your own." \
    read_only bash -c 'within take_lock'
  must_say 0 "$folder/elsewhere $folder/elsewhere/venv" env HEED_BUILD_DIR="$folder/elsewhere" \
    bash -c "$(declare -f read_only); read_only bash -c 'within \"take_lock; echo \\\$heed_work \\\$heed_venv\"'"
  [ -e "$folder/elsewhere/.lock" ]
fi
must_say 0 "<$clone/build>" env HEED_BUILD_DIR="$clone/build/other" bash -c 'within "echo \<\$heed_work\>"'

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
must_say 0 "[6/6] time, less than a minute left: Test #6: runs " within "clock() { printf time; }; $skips"
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

# Getting started names what they install.
for package in $(sed -n '/^  install_packages ninja/,/[^\\]$/p' "$1/scripts/lib/environment.sh" | tr -d '\\'); do
  if [ "$package" = install_packages ]; then continue; fi
  must_say 0 "$package" grep --word-regexp -e "$package" "$1/docs/getting_started.md"
done

# What takes long says so, and a failure shows the output. A terminal has one line for it.
timeless="clock() { printf time; }"
must_say 0 "Sleeping
  took time" within "$timeless; quietly Sleeping log true"
must_say 1 "Failing
  took time
why" within "$timeless; quietly Failing log sh -c 'echo why; false'"
progress='^\[([0-9]+)/([0-9]+)\] (.*)'
printed="printf '[1/9] a\n[5/9] b\nc\n[9/9] d'"
must_say 0 "[1/9] time: a
[5/9] time, less than a minute left: b
c
[9/9] time, less than a minute left: d" within "$timeless; { $printed; } | show_progress '$progress' estimate_by_count"
must_say 0 "[3/9] 1:40, about 20 min left" \
  within "unset SECONDS; SECONDS=100 due=1300 counted=3/9 begin=0; position"
if command -v script >/dev/null; then
  on_terminal() {  # SHELL, because dash drops exported functions
    SHELL=$BASH TERM=xterm script --quiet --return --command "bash -c \"within '$1'\"" /dev/null
  }
  must_say 0 $'\r\e[KSleeping (time)\r\e[K' on_terminal "$timeless; quietly Sleeping log sleep 2"
fi

# A build's time left, from which objects are missing, or by count where existing ones are built again.
due() {
  within "unset SECONDS; SECONDS=$1 begin=0 jobs=2 rebuilt=false finished=0 waiting=185 due=
    declare -A expected=([a.o]=60 [b.o]=60 [c.o]=60 [d.o]=5)
    $2; echo \"due \$due\""
}
must_say 0 "due 62" due 0 "estimate_build 0 5 -"
must_say 0 "due 110" due 60 "estimate_build 1 5 'Building CXX object a.o'; estimate_build 2 5 'Building CXX object d.o'"
must_say 0 "due 100" due 50 "estimate_build 6 12 'Building CXX object old.o'"
must_say 0 "due " due 50 "waiting=0; estimate_build 0 5 -"
mkdir -p "$clone/build/release/a/Unity"
touch "$clone/build/release/a/built.o"
cat >"$folder/bin/commands" <<'COMMANDS'
#!/bin/sh
echo ": && c++ -o prog a/built.o && :"
for object in a/built.o a/Unity/b.o c.o pch.gch; do echo "c++ -x c++ -o $object -c /x/$object.cpp"; done
COMMANDS
chmod +x "$folder/bin/commands"
cache "CMAKE_MAKE_PROGRAM:FILEPATH=$folder/bin/commands"
must_say 0 "125 seconds of 3 objects" \
  within "declare -A expected; expect_objects all; echo \$waiting seconds of \${#expected[@]} objects"

# With functions that only say what they are asked for: what is built and what runs.
stubbed=$folder/stubbed
mkdir -p "$stubbed/build/release/examples"
cp -r "$1/scripts" "$stubbed"
cat >>"$stubbed/scripts/lib/environment.sh" <<'STUBS'
setup() { heed_python=write_out; }
build() { echo "builds $*"; }
install_packages() { echo "installs $*"; }
run_ctest() { echo "runs $*"; }
write_out() { while [ "$1" != --out ]; do shift; done; touch "$2"; }
STUBS
for name in compare_with_python train_digits; do
  # shellcheck disable=SC2016  # for the program
  printf '#!/bin/sh\necho "%s, $OMP_WAIT_POLICY, $*"\n' $name >"$stubbed/build/release/examples/$name"
  chmod +x "$stubbed/build/release/examples/$name"
done
must_say 0 "builds machine_tests
runs --no-tests=error --label-regex ^machine$ -R Masks
scripts/test.sh --all" stubbed/scripts/test.sh -R Masks
must_say 0 "installs doxygen lintian
builds all
runs --no-tests=error -R Masks" stubbed/scripts/test.sh --all -R Masks
cp -r "$1/.ci" "$stubbed"
must_say 0 "runs --no-tests=error" stubbed/.ci/run test
must_say 1 "heed: bar must be format, tidy, sanitize or test." stubbed/.ci/run bar
must_say 0 "builds heed_libraries compare_with_python train_digits" stubbed/scripts/quickstart.sh
must_say 0 "train_digits, PASSIVE, --data $stubbed/build/release/quickstart/digits.csv" stubbed/scripts/quickstart.sh
must_say 0 "attention.png --epochs 3" stubbed/scripts/quickstart.sh --epochs 3
must_say 0 "compare_with_python, ACTIVE" env OMP_WAIT_POLICY=ACTIVE stubbed/scripts/quickstart.sh
echo "the scripts say what is wrong"
