# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
# environment.sh sources this: what pip installs, into virtual environments below the build folder.

# make_venv [FOLDER]: makes a virtual environment that also sees the packages in FOLDER.
make_venv() {
  local extra=${1:-} pth unfinished=()
  if "$heed_venv/bin/python" -m pip --version >/dev/null 2>&1; then
    pth=$(site_packages "$heed_venv/bin/python")/active-python.pth
    if [ -z "$extra" ] || [ "$(cat "$pth" 2>/dev/null)" = "$extra" ]; then
      if [ -s "$heed_venv/unfinished" ]; then
        mapfile -t unfinished <"$heed_venv/unfinished"
        pip_install "${unfinished[@]}"
      fi
      return
    fi
  fi
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
  quietly "Creating a Python environment: $heed_venv" "$heed_work/venv.log" python3 -m venv --clear "$heed_venv" ||
    fail "Python could not create $heed_venv; its output is above."
  if [ -n "$extra" ]; then
    echo "$extra" >"$(site_packages "$heed_venv/bin/python")/active-python.pth"
  fi
}

# pip_install WHAT ARGUMENT...: installs into the virtual environment. After an interruption, pip takes a
# package for installed though files are missing. So a file lists what to reinstall until pip is done.
pip_install() {
  local pip=("$heed_venv/bin/python" -m pip --disable-pip-version-check) anew=()
  local what="Installing with pip into $heed_venv: $1"
  if [ -e "$heed_venv/unfinished" ]; then anew=(--ignore-installed); fi
  printf '%s\n' "$@" >"$heed_venv/unfinished"
  if on_terminal; then  # pip has its own progress
    echo "$what"
  else
    pip=(quietly "$what" "$heed_work/pip.log" "${pip[@]}")
  fi
  "${pip[@]}" install "${anew[@]}" "${@:2}" || fail "pip could not install $1; its output is above."
  rm "${heed_venv:?}/unfinished"
}

# pip_install_locked WHAT LIST NAME...: installs packages and what they need, as scripts/lib/LIST has them. They are all
# in the list, so pip looks for no others.
pip_install_locked() {
  local list=$heed_venv/locked.txt
  "$heed_venv/bin/python" "$heed_root/scripts/lib/locked.py" "$heed_root/scripts/lib/$2" "${@:3}" >"$list" ||
    fail "scripts/lib/$2 must name what scripts install."
  pip_install "$1" --no-deps --require-hashes --requirement "$list"
}

# setup_tool NAME: sets heed_tool to a program that pip installs, so that all machines have the same version.
setup_tool() {
  local version
  version=$(sed -n "s/^$1==\([^ ]*\).*/\1/p" scripts/lib/requirements.txt)
  check_tools
  heed_venv=$heed_work/venv-tools
  heed_tool=$heed_venv/bin/$1
  make_venv
  # In a clone that has moved, the programs still name the Python at the old path.
  if [[ "$("$heed_tool" --version 2>/dev/null)" != *"$version"* ]]; then
    touch "$heed_venv/unfinished"
    pip_install_locked "$1==$version" requirements.txt "$1"
  fi
}
