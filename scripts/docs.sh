#!/usr/bin/env bash
# Makes the documentation site build/docs/index.html with Doxygen, and checks its links. Every warning
# of Doxygen is an error, such as a public member without documentation.
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

out=build/docs

check_tools
if ! command -v doxygen >/dev/null; then
  take_lock
  install_packages doxygen
fi

rm -rf "${out:?}"
mkdir -p "$out/source"
version=$(sed -n 's/^project(heed VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
{
  cat docs/Doxyfile
  echo "PROJECT_NUMBER = $version"
  echo "OUTPUT_DIRECTORY = $out"
} | doxygen - || fail "Doxygen has warnings, printed above."
git ls-files -z ':!docs' ':!include' ':!*.md' | xargs -0 cp --parents -t "$out/source"
python3 tests/docs/check_docs.py "$out"/*.html || fail "The site has broken links, printed above."
echo "The site: $heed_root/$out/index.html"
