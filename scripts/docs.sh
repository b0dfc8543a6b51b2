#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Makes the documentation site build/docs/index.html with Doxygen, and checks its links. Every warning
# of Doxygen is an error, such as a public member without documentation.
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

out=$heed_work/docs

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
  echo "OUTPUT_DIRECTORY = \"$out\""
} | doxygen - || fail "Doxygen has warnings, printed above."
# The name before such a link is a link to the same place.
sed -i 's| <a href="[^"]*">More...</a>||' "$out"/*.html
# Headers are shown as they are, without the tag of the license.
sed -i 's|<div class="line"><a id="l00001".*SPDX-License.*</div>$||' "$out"/*_8h_source.html
# All functions are in that namespace.
sed -i 's|\[ "heed::|[ "|' "$out"/*.js
git ls-files -z ':!docs' ':!include' ':!*.md' | xargs -0 cp --parents -t "$out/source"
for guide in docs/*.md; do
  grep -qF "[ \"$(sed -n '1s/^# //p' "$guide")\", \"md_" "$out/navtreedata.js" ||
    fail "The side bar lacks $guide: docs/Doxyfile must list it."
done
for function in attend causal_mask load_weights checkpoint attention_cost; do
  grep -qF "[ \"$function\", \"group__" "$out"/group__*.js ||
    fail "The side bar lacks $function: docs/doxygen.awk must put it into a topic."
done
python3 tests/docs/check_docs.py "$out"/*.html || fail "The site has broken links, printed above."
echo "The site: $out/index.html"
